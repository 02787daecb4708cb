"""`ws_bench sweep`: the same load at several numbers of clients, and whether the service recovers from the highest."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend_kit.wire import dumps
from ws_bench.cli.commands import run_in_loop
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags
from ws_bench.errors import UsageError
from ws_bench.load.run import run_load
from ws_bench.record.results import Spread
from ws_bench.record.summary import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, RunReport, build_report
from ws_bench.report.html import page
from ws_bench.report.report import Style, detail_rows, result_json, text_table, write_file
from ws_bench.report.svg import Axis, Series, line_chart, stacked_chart

SCHEMA = "turnwise.ws_bench.sweep"
SCHEMA_VERSION = 1
_LEVELS = (1, 4, 16, 64, 128)
_RAMP_S = 1.0
_RECOVERED = 1.10
_RECOVERED_MS = 5.0


@dataclass(frozen=True, slots=True)
class Level:
    """A number of clients and the report of the run with it."""

    clients: int
    report: RunReport

    @property
    def latency(self) -> Spread | None:
        """Latency in the steady window, or of the whole run if there was none."""
        measured = self.report.measured
        return measured.latency if measured and measured.latency else self.report.latency

    @property
    def turns_per_s(self) -> float:
        """Of the steady window, or of the whole run."""
        return self.report.measured.window.turns_per_s if self.report.measured else 0.0


def sweep_command(argv: list[str]) -> int:
    """Run every level, then the first one again; print the tables and write the files.

    Raises `UsageError` for flags that do not fit a sweep, `BenchError` for a file.
    """
    flags = _flags()
    values = flags.parse(argv)
    config = config_of(values)
    if config.load.open or config.mode == "total-requests":
        raise UsageError("sweep is for a closed loop: each level has its number of clients")
    if config.observe.postgres or config.outputs.csv or config.workers > 1:
        raise UsageError("-postgres, -csv and -workers are for one run")
    levels, recovery, interrupted = _run_levels(config, values.levels, argv, recovery=values.recovery)
    if not levels:
        return EXIT_INTERRUPTED
    print(sweep_text(levels, recovery, Style.of(sys.stdout)), end="")
    _write(config, levels, recovery)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if any(level.report.tally.success for level in levels) else EXIT_FAILED


def sweep_text(levels: Sequence[Level], recovery: Level | None, style: Style) -> str:
    """The table of levels, the phases by number of clients, and whether the service recovered."""
    lines = [style("WS BENCH SWEEP", "\033[1m", "\033[36m"), *text_table(level_table(levels))]
    phases = phase_rows(levels)
    if phases:
        lines += ["", "mean ms of a turn in the steady window, by clients", *text_table(phases)]
    if recovery is not None:
        lines += ["", recovery_text(levels[0], recovery)]
    return "\n" + "\n".join(lines) + "\n"


def level_table(levels: Sequence[Level]) -> list[tuple[str, ...]]:
    """One row per level; `scaling` is its rate relative to linear scaling of the first level's."""
    head = ("clients", "turns/s", "scaling", "p50 ms", "p95 ms", "p99 ms", "first token p95", "in flight", "X*R",
            "errors", "not sent", "red flags")  # fmt: skip
    rows: list[tuple[str, ...]] = [head]
    per_client = levels[0].turns_per_s / levels[0].clients
    for level in levels:
        report, latency, little = level.report, level.latency, level.report.little
        first = report.measured.first_token if report.measured else None
        ideal = per_client * level.clients
        rows.append(
            (
                str(level.clients),
                f"{level.turns_per_s:.2f}",
                f"{level.turns_per_s / ideal:.0%}" if ideal else "",
                *(("", "", "") if latency is None else (f"{v:.1f}" for v in (latency.p50, latency.p95, latency.p99))),
                "" if first is None else f"{first.p95:.1f}",
                "" if little is None else f"{little.sampled:.1f}",
                "" if little is None else f"{little.computed:.1f}",
                str(report.tally.errors),
                str(report.tally.not_sent),
                str(len(report.red_flags)),
            )
        )
    return rows


def phase_rows(levels: Sequence[Level]) -> list[tuple[str, ...]]:
    """Phases down, levels across: mean milliseconds per turn; empty if no server sent a ledger."""
    names: dict[str, bool] = {}
    for level in levels:
        for row in level.report.measured.phases if level.report.measured else ():
            names[row.name] = names.get(row.name, False) or row.top
    if not names:
        return []
    rows = [("phase", *(str(level.clients) for level in levels))]
    order = sorted(names, key=lambda name: (not names[name], -_mean_of(levels[-1], name), name))
    rows += [
        (f"{'' if names[name] else '  '}{name}", *(f"{_mean_of(level, name):.2f}" for level in levels))
        for name in order
    ]
    rows.append(("unexplained (client - server)", *(_unexplained(level) for level in levels)))
    rows.append(("client latency", *("" if lat is None else f"{lat.avg:.2f}" for lat in (lv.latency for lv in levels))))
    return rows


def recovery_text(first: Level, again: Level) -> str:
    """A line on whether the first level's latency is back to normal after the highest one."""
    before, after = first.latency, again.latency
    if before is None or after is None:
        return f"Recovery: NO, nothing succeeded with {again.clients} client(s) after the highest level"
    good = is_recovered(before, after)
    figures = f"p50 {before.p50:.1f} ms before, {after.p50:.1f} ms after; p95 {before.p95:.1f} and {after.p95:.1f} ms"
    return f"Recovery: {'yes' if good else 'NO'}, with {again.clients} client(s): {figures}"


def is_recovered(before: Spread, after: Spread) -> bool:
    """Whether p50 is back within a tenth or 5 ms, whichever is more."""
    return after.p50 <= max(before.p50 * _RECOVERED, before.p50 + _RECOVERED_MS)


def sweep_html(levels: Sequence[Level], recovery: Level | None) -> str:
    """The sweep as an HTML page: rate, latency and phases by number of clients, and the tables."""
    x = Axis("clients", [(float(number), str(level.clients)) for number, level in enumerate(levels)])
    shown = [(float(number), level) for number, level in enumerate(levels)]
    percentiles = [
        Series(name, [(at, getattr(lv.latency, name)) for at, lv in shown if lv.latency], colour)
        for colour, name in enumerate(("p50", "p95", "p99"))
    ]
    names = sorted(
        {name for level in levels for turn in level.report.recording.turns for name in turn.own_ms},
        key=lambda name: -_own_mean(levels[-1], name),
    )[:8]
    phases = [Series(n, [(at, _own_mean(lv, n)) for at, lv in shown], c) for c, n in enumerate(names)]
    charts = [
        (
            "Turns a second",
            line_chart([Series("turns/s", [(a, lv.turns_per_s) for a, lv in shown], 2)], x, Axis("turns/s")),
        ),
        ("Latency", line_chart(percentiles, x, Axis("ms"))),
        ("Server phases, mean of a turn (own time)", stacked_chart(phases, x, Axis("ms a turn"))),
    ]
    facts = [] if recovery is None else [("Recovery", recovery_text(levels[0], recovery))]
    tables = [("Levels", level_table(levels)), ("Phases, mean ms of a turn", phase_rows(levels))]
    notes = [*facts, *detail_rows(levels[-1].report)]
    return page(f"ws_bench sweep: {levels[0].report.recording.config['agent']}", charts, tables, notes)


def _run_levels(
    config: RunConfig, counts: Sequence[int], argv: Sequence[str], *, recovery: bool
) -> tuple[list[Level], Level | None, bool]:
    levels: list[Level] = []
    wanted = [*counts, *([counts[0]] if recovery and len(counts) > 1 else [])]
    quiet = replace(config.outputs, json="", html="", csv="", markdown="")
    for number, clients in enumerate(wanted):
        again = " again" if number == len(counts) else ""
        print(f"{clients} client(s){again}", file=sys.stderr, flush=True)
        run = replace(config, clients=clients, outputs=quiet)
        recording = run_in_loop(lambda run=run: run_load(run, argv))  # type: ignore[misc] # bound now
        if recording is None:
            return levels, None, True
        levels.append(Level(clients, build_report(recording)))
        if recording.interrupted:
            return levels, None, True
    last = levels.pop() if len(wanted) > len(counts) else None
    return levels, last, False


def _write(config: RunConfig, levels: Sequence[Level], recovery: Level | None) -> None:
    def slim(level: Level) -> dict[str, Any]:
        return {name: value for name, value in result_json(level.report).items() if name != "recording"}

    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "levels": [{"clients": level.clients, **slim(level)} for level in levels],
        "recovery": None if recovery is None else slim(recovery),
        "recovered": None
        if recovery is None
        else bool(levels[0].latency and recovery.latency and is_recovered(levels[0].latency, recovery.latency)),
    }
    files = {config.outputs.json: dumps(content) + b"\n", config.outputs.html: b"", config.outputs.markdown: b""}
    if config.outputs.html:
        files[config.outputs.html] = sweep_html(levels, recovery).encode()
    if config.outputs.markdown:
        files[config.outputs.markdown] = f"```\n{sweep_text(levels, recovery, Style(enabled=False))}```\n".encode()
    for path, body in files.items():
        if path:
            write_file(path, body)


def _flags() -> Flags:
    flags = run_flags("ws_bench sweep", "The same load at several numbers of clients (each with the flags of run).")
    flags.group("numbers of clients", "-levels 1,4,16,64 -requests-per-client 20")
    flags.value("levels", _LEVELS, parse_levels, "numbers of clients, comma between", "1,4,16,64")
    flags.switch("recovery", "run the first level again after the last one", default=True)
    flags.parser.set_defaults(ramp_duration=_RAMP_S)
    return flags


def parse_levels(text: str) -> tuple[int, ...]:
    """Numbers of clients that grow. Raises `UsageError`."""
    levels = tuple(int(item) for item in text.split(","))
    if not levels or min(levels) < 1 or list(levels) != sorted(set(levels)):
        raise UsageError("levels are numbers of clients, each above the one before")
    return levels


def _mean_of(level: Level, phase: str) -> float:
    measured = level.report.measured
    return next((row.figures.avg for row in measured.phases if row.name == phase), 0.0) if measured else 0.0


def _own_mean(level: Level, phase: str) -> float:
    turns = [turn for turn in level.report.recording.turns if turn.ok and turn.server_ms is not None]
    return sum(turn.own_ms.get(phase, 0.0) for turn in turns) / len(turns) if turns else 0.0


def _unexplained(level: Level) -> str:
    measured = level.report.measured
    return f"{measured.unexplained.avg:.2f}" if measured and measured.unexplained else ""
