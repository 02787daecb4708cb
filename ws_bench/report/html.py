"""A result as one HTML file that needs nothing else: figures, charts, environment."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from math import log10
from typing import TypeVar

from ws_bench.config.flags import spoken
from ws_bench.config.golang import figure, format_duration, milliseconds
from ws_bench.record.gates import GateResult
from ws_bench.record.results import Spread, TurnResult, percentile
from ws_bench.record.summary import RunReport
from ws_bench.report.report import detail_rows, phase_table, spreads_of
from ws_bench.report.svg import Axis, Series, line_chart, stacked_chart

T = TypeVar("T")
_BINS = 60
_FEWEST_BINS = 5
_DOTS = 4000
_PALETTE = (
    "#2563eb",
    "#dc2626",
    "#059669",
    "#d97706",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#65a30d",
    "#78716c",
    "#1e3a8a",
)
_SHARES = (0.0, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.995, 0.999, 0.9999)
_TICKS = (0.0, 0.50, 0.90, 0.99, 0.999)
_STYLE = """
:root{--ink:#1c1917;--soft:#78716c;--line:#e7e5e4;--back:#fff;--band:#f0f9ff;--bad:#b91c1c;--good:#047857}
@media(prefers-color-scheme:dark){:root{--ink:#f5f5f4;--soft:#a8a29e;--line:#44403c;--back:#1c1917;--band:#0c2d48;
--bad:#f87171;--good:#34d399}}
body{font:14px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1180px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}.soft,small{color:var(--soft)}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good);font-weight:600}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;margin:1.2rem 0}
.card{border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem}.card b{display:block;font-size:1.35rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{text-align:right;padding:.15rem .6rem;border-bottom:1px solid var(--line);white-space:pre}
td:first-child,th:first-child{text-align:left}th{font-weight:600;color:var(--soft)}
.wide td{text-align:left;white-space:normal;overflow-wrap:anywhere}.wide td:first-child{white-space:nowrap}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:1rem 1.5rem}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.2rem}svg{width:100%;height:auto}
svg text{font-size:11px;fill:var(--soft)}.mid{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--line);stroke-width:1}.shade{fill:var(--band)}polyline{fill:none;stroke-width:1.8}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:12px;color:var(--soft)}
.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
"""


def html_report(report: RunReport) -> str:
    """A run as an HTML page."""
    config = report.recording.config
    protocol = spoken(config)
    head = f'<p class="soft">{escape(config["url"])}, {escape(config["mode"])}, {protocol} protocol</p>'
    note = '<p class="soft">The shaded part is the steady window.</p>' if report.steady else ""
    parts = [
        head,
        _cards(report),
        _flags(report),
        _figures(_charts(report), note),
        _section("Distributions, ms", _table(_spread_rows(report))),
        _section("Where the time went", _table(phase_table(report))),
        _section("The run", _pairs(detail_rows(report))),
        _section("Environment", _pairs(_environment(report))),
    ]
    return _document(f"ws_bench: {report.outcome}, {config['agent']}, {config['clients']} clients", parts)


def page(
    title: str,
    charts: Sequence[tuple[str, str]],
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]],
    facts: Sequence[tuple[str, str]],
) -> str:
    """A page of charts (caption and SVG), tables (caption and rows, a header first) and facts."""
    parts = [_figures(charts, ""), *(_section(escape(name), _table(rows)) for name, rows in tables)]
    return _document(title, [*parts, _section("The last level", _pairs(facts))])


def _document(title: str, parts: Sequence[str]) -> str:
    """The whole file. Its parts are already escaped, and it loads nothing from elsewhere."""
    colours = "".join(
        f".line{n}{{stroke:{c}}}.fill{n}{{fill:{c}}}.back{n}{{background:{c}}}" for n, c in enumerate(_PALETTE)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{colours}</style></head>"
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def _figures(charts: Sequence[tuple[str, str]], note: str) -> str:
    figures = "".join(f"<figure><figcaption>{escape(name)}</figcaption>{svg}</figure>" for name, svg in charts if svg)
    return f'<h2>Charts</h2>{note}<div class="charts">{figures}</div>' if figures else ""


def _cards(report: RunReport) -> str:
    counts, measured = report.tally, report.measured
    latency = measured.latency if measured and measured.latency else report.latency
    rate = f"{'steady ' if report.steady else ''}turns/s"
    cards = [
        (report.outcome, "outcome"),
        (f"{counts.success} / {counts.total}", "turns that succeeded"),
        (str(counts.errors), "errors"),
        (f"{measured.window.turns_per_s:.2f}" if measured else "none", rate),
    ]
    if latency is not None:
        cards += [
            (f"{milliseconds(latency.p50)} ms", "latency p50"),
            (f"{milliseconds(latency.p95)} ms", "latency p95"),
        ]
    if report.first_token is not None:
        cards.append((f"{milliseconds(report.first_token.p95)} ms", "first token p95"))
    inner = "".join(f'<div class="card"><b>{escape(v)}</b><small>{escape(k)}</small></div>' for v, k in cards)
    return f'<div class="cards">{inner}</div>'


def _flags(report: RunReport) -> str:
    gates = "".join(_gate(gate) for gate in report.gates)
    if not report.red_flags:
        return gates + '<p class="good">Red flags: none</p>'
    return gates + "".join(f'<p class="bad">Red flag: {escape(flag)}</p>' for flag in report.red_flags)


def _gate(gate: GateResult) -> str:
    value = "not measured" if gate.value is None else figure(gate.value)
    mark = ("good", "holds") if gate.passed else ("bad", "does not hold")
    return f'<p class="{mark[0]}">Gate {escape(gate.text)}: {value}, {mark[1]}</p>'


def _charts(report: RunReport) -> list[tuple[str, str]]:
    steady = report.steady
    shade = (steady.window.begin, steady.window.end) if steady else None
    good = [turn for turn in report.recording.turns if turn.ok]
    return [
        ("Latency over time", _over_time(good, lambda turn: turn.latency_ms, shade)),
        ("Latency by percentile", _percentiles(report, good)),
        ("First token over time", _over_time(good, lambda turn: turn.first_token_ms, shade)),
        ("Turns in flight and turns a second", _flow(report, good, shade)),
        ("Server phases, mean of a turn (own time)", _phases(good, shade)),
        ("Loop lag and pool wait", _waits(report, shade)),
    ]


def _over_time(
    turns: Sequence[TurnResult],
    value: Callable[[TurnResult], float | None],
    shade: tuple[float, float] | None,
) -> str:
    points = sorted((turn.ended, ms) for turn in turns if (ms := value(turn)) is not None)
    thinned = points[:: max(len(points) // _DOTS, 1)]
    series = [Series("a turn", thinned, 8, dots=True)]
    for colour, (name, share) in enumerate((("p50", 0.50), ("p95", 0.95), ("max", 1.0))):
        # With fewer than twenty values the 95th percentile is the highest one.
        line = [(at, percentile(sorted(values), share)) for at, values in _bins(points, len(points) // 20)]
        series.append(Series(name, line, colour))
    return line_chart(series, Axis("seconds into the run"), Axis("ms"), shade=shade)


def _percentiles(report: RunReport, good: Sequence[TurnResult]) -> str:
    lines: list[tuple[str, list[float]]] = [("latency", sorted(turn.latency_ms for turn in good))]
    if report.recording.open_loop:
        lines.append(("from the ask itself (uncorrected)", sorted(turn.response_ms for turn in good)))
    lines.append(("first token", sorted(t.first_token_ms for t in good if t.first_token_ms is not None)))
    series = [
        Series(
            name,
            [(_stretch(share), percentile(values, share)) for share in _SHARES if _enough_values(share, values)],
            colour,
        )
        for colour, (name, values) in enumerate(lines)
        if values
    ]
    ticks = [(_stretch(share), f"p{share * 100:g}") for share in _TICKS if _enough_values(share, lines[0][1])]
    return line_chart(series, Axis("percentile", ticks), Axis("ms"))


def _flow(report: RunReport, good: Sequence[TurnResult], shade: tuple[float, float] | None) -> str:
    samples = sorted(
        (at, value) for one in report.recording.series for at, value in zip(one.at, one.in_flight, strict=True)
    )
    scale = len(report.recording.series)
    flight = [(at, sum(values) / len(values) * scale) for at, values in _bins(samples)]
    ends = sorted((turn.ended, 1.0) for turn in good)
    width = (ends[-1][0] - ends[0][0]) / _BINS if len(ends) > 1 else 0.0
    rate = [(at, len(values) / width) for at, values in _bins(ends)] if width else []
    return line_chart(
        [Series("in flight", flight, 0), Series("turns/s", rate, 2)],
        Axis("seconds into the run"),
        Axis("count"),
        shade=shade,
    )


def _phases(good: Sequence[TurnResult], shade: tuple[float, float] | None) -> str:
    with_ledger = sorted((turn for turn in good if turn.server_ms is not None), key=lambda turn: turn.ended)
    if not with_ledger:
        return ""
    totals: dict[str, float] = {}
    for turn in with_ledger:
        for name, ms in turn.own_ms.items():
            totals[name] = totals.get(name, 0.0) + ms
    names = sorted(totals, key=lambda name: -totals[name])[: len(_PALETTE) - 2]
    binned = _bins([(turn.ended, turn) for turn in with_ledger])
    series = [
        Series(name, [(at, _mean(turn.own_ms.get(name, 0.0) for turn in turns)) for at, turns in binned], colour)
        for colour, name in enumerate(names)
    ]
    rest = [(at, _mean(turn.response_ms - _sum(turn, names) for turn in turns)) for at, turns in binned]
    series.append(Series("in no phase (server, network, client)", [(at, max(ms, 0.0)) for at, ms in rest], 8))
    return stacked_chart(series, Axis("seconds into the run"), Axis("ms a turn"), shade=shade)


def _waits(report: RunReport, shade: tuple[float, float] | None) -> str:
    server = report.recording.server
    series = []
    if server is not None:
        named = (("server loop lag p95", "lag_p95"), ("pool wait p95", "pool_wait_p95"), ("SQL p95", "sql_p95"))
        for colour, (name, column) in enumerate(named):
            pairs = zip(server.series["at"], server.series[column], strict=True)
            series.append(Series(name, [(at, ms) for at, ms in pairs if at is not None and ms is not None], colour))
    own = sorted(pair for one in report.recording.series for pair in zip(one.at, one.lag_ms, strict=True))
    series.append(Series("generator loop lag p95", [(at, percentile(sorted(v), 0.95)) for at, v in _bins(own)], 8))
    return line_chart(series, Axis("seconds into the run"), Axis("ms"), shade=shade)


def _bins(points: Sequence[tuple[float, T]], most: int = _BINS) -> list[tuple[float, list[T]]]:
    """Values grouped by time, each group with the middle of its bin; empty bins are left out."""
    if not points:
        return []
    begin, end = points[0][0], points[-1][0]
    count = min(max(most, _FEWEST_BINS), _BINS)
    width = (end - begin) / count or 1.0
    bins: dict[int, list[T]] = {}
    for at, value in points:
        bins.setdefault(min(int((at - begin) / width), count - 1), []).append(value)
    return [(begin + (number + 0.5) * width, values) for number, values in sorted(bins.items())]


def _spread_rows(report: RunReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "count", "min", "avg", "p50", "p95", "p99", "p99.9", "max")]
    for name, figures in spreads_of(report).items():
        if figures is not None:
            rows.append((name.removesuffix("_ms").replace("_", " "), *_cells(figures)))
    return rows if len(rows) > 1 else []


def _cells(figures: Spread) -> tuple[str, ...]:
    numbers = (figures.min, figures.avg, figures.p50, figures.p95, figures.p99, figures.p999, figures.max)
    return (str(figures.count), *("" if value is None else f"{value:,.1f}" for value in numbers))


def _environment(report: RunReport) -> list[tuple[str, str]]:
    recording = report.recording
    rows = [("elapsed", format_duration(recording.elapsed_s))]
    if recording.server is not None:
        rows += [("server build", " ".join(f"{k}={v}" for k, v in build.items())) for build in recording.server.builds]
        rows.append(("server verdict", _plain(dict(recording.server.verdict or {})) or "none given"))
    rows += [(name.replace("_", " "), _plain(value)) for name, value in recording.environment.items()]
    return rows


def _plain(value: object) -> str:
    """A value for a reader: without brackets or quotes."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return " ".join(_plain(one) for one in value)
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value is None else str(value)


def _section(title: str, body: str) -> str:
    return f"<h2>{title}</h2>{body}" if body else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="wide"><tbody>{body}</tbody></table>'


def _stretch(share: float) -> float:
    """The position of a percentile on an axis on which each further nine has the same width."""
    return -log10(1 - share)


def _enough_values(share: float, values: Sequence[float]) -> bool:
    """Whether there are enough values for the percentile to differ from the highest one."""
    return (1 - share) * len(values) >= 1


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept) if kept else 0.0


def _sum(turn: TurnResult, names: Sequence[str]) -> float:
    return sum(turn.own_ms.get(name, 0.0) for name in names)
