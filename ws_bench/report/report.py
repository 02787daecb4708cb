"""What a run prints and writes: the compatible recap and summary, the details, the result file and the tables."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from ws_bench.config.flags import RunConfig, config_as_json, spoken
from ws_bench.config.golang import figure, format_bool, format_duration
from ws_bench.errors import BenchError
from ws_bench.record.estimates import Interval, intervals_of
from ws_bench.record.postgres import SERVER
from ws_bench.record.recording import SCHEMA, SCHEMA_VERSION
from ws_bench.record.results import Spread
from ws_bench.record.summary import RunReport, WindowFigures

_RESET, _BOLD, _DIM = "\033[0m", "\033[1m", "\033[2m"
_RED, _GREEN, _YELLOW, _CYAN = "\033[31m", "\033[32m", "\033[33m", "\033[36m"
_OUTCOME_COLOUR = {"OK": _GREEN, "DEGRADED": _YELLOW, "FAILED": _RED, "INTERRUPTED": _YELLOW}
_SIX = "(min/avg/p50/p95/p99/max)"
_SERVER_FAILURES = frozenset({"error", "timeout", "rejected"})


class Style:
    """Terminal colours, or none."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> "Style":
        """Colours for a terminal that is not dumb, unless NO_COLOR is set."""
        env = os.environ if environ is None else environ
        return cls(enabled=not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty())

    def __call__(self, text: str, *codes: str) -> str:
        """The text in these colours."""
        return f"{''.join(codes)}{text}{_RESET}" if self._enabled and codes else text

    def line(self, label: str, value: object, *codes: str) -> str:
        """`Label: value`, the label dimmed."""
        return f"{self(label + ':', _DIM)} {self(str(value), *codes)}"


def config_recap(config: RunConfig, style: Style) -> str:
    """The block that shows what is run, without the token."""
    lines = [
        style("WS BENCH CONFIG", _BOLD, _CYAN),
        style.line("Target", config.shown_url),
        style.line("Agent ID", config.agent),
        *_context_lines(config.runtime_context, style),
        style.line("Mode", config.mode),
        style.line("Clients", config.clients),
        *_plan_lines(config, style),
        style.line("Session plan", _session_plan(config)),
        style.line("Create session", format_bool(config.create_session)),
        style.line("Prepare sessions", format_bool(config.prepare_sessions)),
        style.line("Prepare concurrency", config.prepare_concurrency),
        style.line("Delete sessions", format_bool(config.delete_session)),
        style.line("Session title", config.session_title),
        style.line("Timeout", format_duration(config.timeout_s)),
        style.line("Read limit bytes", config.read_limit_bytes),
        style.line("Auth", "query" if config.token_in_query else "header"),
        style.line("Insecure TLS", format_bool(config.insecure)),
        style.line("Protocol", spoken(config_as_json(config))),
    ]
    return "\n" + "\n".join(lines) + "\n"


def summary_block(report: RunReport, style: Style) -> str:
    """The compatible summary: labels, order and number formats that scripts read."""
    counts, config = report.tally, report.recording.config
    elapsed_s = report.recording.elapsed_s
    each = config["requests_per_client"] if config["mode"] == "per-client" else 0
    lines = [
        style("WS BENCH SUMMARY", _BOLD, _CYAN),
        style.line("Outcome", report.outcome, _BOLD, _OUTCOME_COLOUR[report.outcome]),
        style.line("Target", config["url"]),
        style.line("Agent ID", config["agent"]),
        style.line("Total requests", counts.total),
        style.line("Concurrent clients", config["clients"]),
        *([style.line("Requests per client", each)] if each else []),
        style.line("Success", f"{counts.success} ({counts.success_percent:.2f}%)", _GREEN),
        style.line("Errors", counts.errors, *([_RED] if counts.errors else [])),
        style.line("Elapsed", format_duration(elapsed_s)),
    ]
    if report.latency is not None:
        figures = "/".join(str(int(value)) for value in _six(report.latency))
        lines.append(style.line("Requests/sec", f"{counts.success / elapsed_s:.2f}"))
        lines.append(style.line(f"Latency ms {_SIX}", figures, _BOLD, _CYAN))
    if report.samples:
        lines += ["", style("Sample errors:", _BOLD, _RED), *(f"{style('-', _RED)} {text}" for text in report.samples)]
    return "\n" + "\n".join(lines) + "\n"


def detail_block(report: RunReport, style: Style) -> str:
    """What the compatible summary leaves out: the load, the steady window, tokens, gates and red flags."""
    lines = [
        style("WS BENCH DETAIL", _BOLD, _CYAN),
        *(style.line(label, value) for label, value in detail_rows(report)),
        *_gate_lines(report, style),
        style.line("Red flags", "; ".join(report.red_flags) or "none", *([_BOLD, _RED] if report.red_flags else [])),
    ]
    return "\n" + "\n".join(lines) + "\n" + _server_block(report, style)


def detail_rows(report: RunReport) -> list[tuple[str, str]]:
    """Label and value of each line after the compatible block."""
    counts = report.tally
    rows = [
        ("Setup", format_duration(report.setup_s)),
        ("Ramp", format_duration(report.ramp_s)),
        *_window_rows(report),
        *_time_rows(report),
        *_frame_rows(report),
        ("Errors by class", " ".join(f"{name}={count}" for name, count in counts.by_class.items()) or "none"),
        ("Not sent", str(counts.not_sent)),
    ]
    if report.recording.dropped:
        rows.append(("Dropped (no client was free)", str(report.recording.dropped)))
    sessions = report.recording.sessions
    rows.append(("Sessions (created/deleted)", f"{sessions.created}/{sessions.deleted}"))
    rows += _beside_rows(report)
    rows += _check_rows(report)
    return rows


def result_json(report: RunReport) -> dict[str, object]:
    """The machine-readable result. `null` stands for what was not measured; it holds no credential.

    `recording` holds the raw columns that `report`, `merge` and `compare` read; the rest is computed from them.
    """
    counts, recording = report.tally, report.recording
    config = recording.config
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "outcome": report.outcome,
        "exit_code": report.exit_code,
        "started_at": datetime.fromtimestamp(recording.started_unix, UTC).isoformat(timespec="milliseconds"),
        "target": config["url"],
        "agent_id": config["agent"],
        "protocol": spoken(config),
        "mode": config["mode"],
        "config": config,
        "counts": {
            "total": counts.total,
            "success": counts.success,
            "errors": counts.errors,
            "not_sent": counts.not_sent,
        },
        "dropped_turns": recording.dropped,
        "errors_by_class": counts.by_class,
        "error_samples": report.samples,
        "elapsed_s": recording.elapsed_s,
        "setup_s": report.setup_s,
        "ramp_s": report.ramp_s,
        "requests_per_s": counts.success / recording.elapsed_s if recording.elapsed_s > 0 else 0.0,
        "steady": _window_json(report.steady),
        "whole": None if report.steady else _window_json(report.measured),
        **{name: _json(figures) for name, figures in spreads_of(report).items()},
        "frames_a_turn": _json(report.frames),
        "sessions": asdict(recording.sessions),
        "besides": recording.besides,
        "history": asdict(recording.history) if recording.history else None,
        "gates": [asdict(gate) for gate in report.gates],
        "goodput": asdict(report.goodput) if report.goodput else None,
        "self_check": {**asdict(report.self_check), "limited": report.self_check.limited}
        if report.self_check
        else None,
        "littles_law": asdict(report.little) if report.little else None,
        "red_flags": report.red_flags,
        "generator": recording.environment,
        "recording": recording.raw_json(),
    }


def spreads_of(report: RunReport) -> dict[str, Spread | None]:
    """Every distribution of times by its name in the result file."""
    return {
        "latency_ms": report.latency,
        "uncorrected_latency_ms": report.response,
        "corrected_latency_ms": report.corrected,
        "late_start_ms": report.late_start,
        "first_event_ms": report.first_event,
        "first_token_ms": report.first_token,
        "gap_ms": report.gap,
        "longest_stall_ms": report.stall,
        "tail_ms": report.tail,
        "connect_ms": report.connect,
        "session_create_ms": report.session_create,
        "close_ms": report.close,
    }


def csv_text(report: RunReport) -> str:
    """A row for each turn: seconds on the run's clock, milliseconds where the name says so."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(
        ["client", "intended_s", "asked_s", "ended_s", "latency_ms", "response_ms", "first_token_ms",
         "longest_stall_ms", "server_ms", "error", "frames"]
    )  # fmt: skip
    for turn in report.recording.turns:
        times = (turn.latency_ms, turn.response_ms, turn.first_token_ms, turn.stall_ms, turn.server_ms)
        writer.writerow(
            [
                turn.client,
                "" if turn.intended is None else f"{turn.intended:.6f}",
                f"{turn.asked:.6f}",
                f"{turn.ended:.6f}",
                *("" if value is None else f"{value:.3f}" for value in times),
                turn.error,
                "" if turn.frames is None else turn.frames,
            ]
        )
    return out.getvalue()


def markdown_text(report: RunReport) -> str:
    """Summary and tables as Markdown."""
    plain = Style(enabled=False)
    lines = [line for line in summary_block(report, plain).strip().splitlines() if line]
    title, rest = lines[0].capitalize(), lines[1:]
    parts = [f"# {title}", "", *(f"- {line}" for line in rest), *(f"- {k}: {v}" for k, v in detail_rows(report))]
    parts += [f"- Red flags: {'; '.join(report.red_flags) or 'none'}", ""]
    rows = phase_table(report)
    if rows:
        parts += ["## Where the time went", "", *_markdown_table(rows), ""]
    return "\n".join(parts)


def phase_table(report: RunReport) -> list[tuple[str, ...]]:
    """Client and server side by side over the window, with a header; empty if there is nothing to show."""
    steady = report.measured
    if steady is None or steady.latency is None or steady.response is None:
        return []
    header = (f"over the {window_name(report)}, ms", "count", "avg", "p50", "p95", "p99", "share")
    rows = [_row("client: latency", steady.latency)]
    if report.recording.open_loop:
        rows.append(_row("client: from the ask itself", steady.response))
    if steady.first_token is not None:
        rows.append(_row("client: first token", steady.first_token))
    if steady.server is not None and steady.unexplained is not None:
        whole = steady.response.avg or 1.0
        rows.append(_row("server: turn, by its ledger", steady.server, steady.server.avg / whole))
        rows += [_row(f"{'  ' if row.top else '    '}{row.name}", row.figures, row.share) for row in steady.phases]
        rows.append(_row("unexplained (client - server)", steady.unexplained, steady.unexplained.avg / whole))
    return [header, *rows] if len(rows) > 1 else []


def write_file(path: str, content: bytes, flag: str = "") -> None:
    """Write a file that was asked for, by `-flag` if one is named. Raises `BenchError`."""
    try:
        Path(path).write_bytes(content)
    except OSError as failure:
        prefix = f"-{flag}: " if flag else ""
        raise BenchError(f"{prefix}cannot write {path!r}: {failure.strerror}") from failure


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines: the first column left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def window_name(report: RunReport) -> str:
    """The name of the window that the figures cover."""
    return "steady window" if report.steady else "whole run"


def _window_rows(report: RunReport) -> list[tuple[str, str]]:
    measured = report.measured
    rows = [] if report.steady else [("Steady window", "none (the whole load was never on at once)")]
    if measured is None:
        return rows
    long = format_duration(measured.window.seconds)
    if measured.is_steady:
        rows = [("Steady window", long), ("Steady turns/sec", f"{measured.window.turns_per_s:.2f}")]
    else:
        rows += [("Whole run", f"{long}, ramp and end included"), ("Turns/sec", f"{measured.window.turns_per_s:.2f}")]
    if measured.latency is not None:
        rows.append((f"{'Steady latency' if measured.is_steady else 'Latency'} ms {_SIX}", _figures(measured.latency)))
        rows += [(f"  {one.name}", _interval(one)) for one in intervals_of(report.recording, measured.window)]
    return rows


def _interval(one: Interval) -> str:
    unit = "" if one.name.endswith("/s") else " ms"
    if one.low is None or one.high is None:
        return f"{one.value:.2f}{unit}, too few turns for an interval"
    return f"{one.value:.2f}{unit}, 95 % within {one.low:.2f} .. {one.high:.2f}"


def _time_rows(report: RunReport) -> list[tuple[str, str]]:
    rows = [
        (f"{name.removesuffix('_ms').replace('_', ' ').capitalize()} ms {_SIX}", _figures(figures))
        for name, figures in spreads_of(report).items()
        if figures is not None and name != "latency_ms"
    ]
    p999 = report.latency.p999 if report.latency else None
    if p999 is not None:
        rows.insert(0, ("Latency p99.9 ms", f"{p999:.1f}"))
    return rows


def _frame_rows(report: RunReport) -> list[tuple[str, str]]:
    frames = report.frames
    if frames is None:
        return []
    return [("Frames a turn (p50/p95/max)", f"{frames.p50:.0f}/{frames.p95:.0f}/{frames.max:.0f}")]


def _beside_rows(report: RunReport) -> list[tuple[str, str]]:
    rows = []
    for kind, counts in report.recording.besides.items():
        errors = " ".join(f"{name}={count}" for name, count in counts["errors"].items())
        rows.append(
            (f"Beside: {kind}", f"{counts['came']} came, {counts['good']} as meant, errors: {errors or 'none'}")
        )
    history = report.recording.history
    if history is not None:
        verdict = "all found" if history.good else f"{history.missing} MISSING, {history.altered} ALTERED"
        unread = f", {history.unread} unread" if history.unread else ""
        disorder = f", {history.disordered} sessions out of order" if history.disordered else ""
        rows.append(("History", f"{history.acknowledged} acknowledged turns: {verdict}{unread}{disorder}"))
    return rows


def _check_rows(report: RunReport) -> list[tuple[str, str]]:
    rows = []
    check, little = report.self_check, report.little
    if check is not None:
        cpu = "n/a" if check.cpu is None else f"{check.cpu:.0%} of a core"
        lag = f"loop lag p50 {check.lag_p50_ms:.2f} ms, p99 {check.lag_p99_ms:.2f} ms, max {check.lag_max_ms:.1f} ms"
        pauses = f"{check.gc_pauses} GC pauses, longest {check.gc_max_ms:.1f} ms"
        word = "CLIENT-LIMITED" if check.limited else "not the limit"
        rows.append(("Generator", f"{lag}; CPU {cpu}; {pauses}; {word}"))
    if little is not None:
        both = f"{little.sampled:.2f} turns in flight seen, {little.computed:.2f} by rate x latency"
        word = ", BROKEN MEASUREMENT" if little.broken else ""
        rows.append(("Little's law", f"{both} ({little.difference:+.1%}{word})"))
    for pid, figures in report.recording.watched.get("peaks", {}).items():
        shown = " ".join(f"{name}={value}" for name, value in figures.items())
        rows.append((f"Process {pid} (peaks)", shown))
    return rows


def _gate_lines(report: RunReport, style: Style) -> list[str]:
    lines = []
    for gate in report.gates:
        value = "not measured" if gate.value is None else figure(gate.value)
        mark = "holds" if gate.passed else "DOES NOT HOLD"
        lines.append(style.line(f"Gate {gate.text}", f"{value}: {mark}", _GREEN if gate.passed else _RED))
    if report.goodput is not None:
        rate = "" if report.goodput.turns_per_s is None else f", {report.goodput.turns_per_s:.2f} turns/sec"
        lines.append(style.line(f"Goodput ({report.goodput.limits})", f"{report.goodput.share:.2%}{rate}"))
    if report.recording.aborted:
        lines.append(style.line("Aborted", f"by {report.recording.aborted}", _RED))
    return lines


def _server_block(report: RunReport, style: Style) -> str:
    blocks = []
    table = phase_table(report)
    over = window_name(report).upper()
    if table and report.measured is not None and report.measured.matched:
        blocks.append([style("WHERE THE TIME WENT", _BOLD, _CYAN), *text_table(table)])
    if report.recording.server is not None:
        blocks.append([style(f"SERVER OVER THE {over}", _BOLD, _CYAN), *_server_lines(report, style)])
    if report.recording.postgres is not None:
        blocks.append([style("POSTGRES OVER THE STEADY WINDOW", _BOLD, _CYAN), *_postgres_lines(report)])
    return "".join("\n" + "\n".join(block) + "\n" for block in blocks)


def _server_lines(report: RunReport, style: Style) -> list[str]:
    server = report.recording.server
    if server is None:
        return []
    turns = report.measured.window.turns if report.measured else 0
    ended = " ".join(f"{status}={count}" for status, count in sorted(server.ended.items())) or "none"
    failed = any(status in _SERVER_FAILURES for status in server.ended)
    lines = [
        style.line("Joined", f"{server.end - server.begin:.2f}s, {server.turns} turns there, {turns} here"),
        style.line("Turns there", ended, *([_RED] if failed else [])),
        *(style.line("Build", " ".join(f"{k}={v}" for k, v in sorted(build.items()))) for build in server.builds),
        style.line("Verdict", _verdict(server.verdict)),
        style.line("CPU", ", ".join("n/a" if value is None else f"{value:.0%} of a core" for value in server.cpu)),
    ]
    rows = [("ms, by the service", "count", "avg", "p50", "p95", "p99")]
    both = {**{f"phase {name}": one for name, one in server.phases.items()}, **server.timers}
    both |= {f"SQL {name}": one for name, one in server.statements.items()}
    for name, one in both.items():
        rows.append((name, str(one.count), f"{one.avg:.2f}", one.shown("p50"), one.shown("p95"), one.shown("p99")))
    return [*lines, *(f"! {failure}" for failure in server.failures), *text_table(rows)]


def _verdict(verdict: Mapping[str, Any] | None) -> str:
    if not verdict:
        return "none given"
    flat = {key: value for key, value in verdict.items() if isinstance(value, str | int | float)}
    return " ".join(
        f"{key}={figure(value)}" if isinstance(value, float) else f"{key}={value}" for key, value in flat.items()
    )


def _postgres_lines(report: RunReport) -> list[str]:
    view, server = report.recording.postgres, report.recording.server
    if view is None:
        return []
    if not view.source:
        if view.canary is None:
            return [f"{view.without}; no canary came back either"]
        canary = f"SELECT 1 ms {_SIX}: {_figures(view.canary)}"
        return [f"{view.without}; instead a canary on a connection of its own:", canary]
    source = f"source: {view.source}" + (f" ({view.without})" if view.without else "")
    if not view.statements:
        return [source, "no statement ended in the window: a longer run has one"]
    inside = view.source == SERVER
    head = ("inside Postgres, ms", "max") if inside else ("dispatch to answer, ms", "wait")
    rows = [(head[0], "calls", "total", "mean", "rows", head[1])]
    rows += [
        (
            one.query[:60],
            str(one.calls),
            f"{one.total_ms:.1f}",
            f"{one.mean_ms:.3f}",
            str(one.rows),
            _ms(one.max_ms if inside else one.wait_ms),
        )
        for one in view.statements
    ]
    lines = [source, *text_table(rows)]
    sql = server.timers.get("SQL") if server and inside else None
    if sql is not None:
        lines.append(
            f"persist_sql_ms as the service saw it: count {sql.count}, avg {sql.avg:.2f}, p50 {sql.shown('p50')}, "
            f"p95 {sql.shown('p95')}: the difference is the driver, the network and its loop"
        )
    return lines


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _row(name: str, figures: Spread, share: float | None = None) -> tuple[str, ...]:
    numbers = (figures.avg, figures.p50, figures.p95, figures.p99)
    return (name, str(figures.count), *(f"{value:.2f}" for value in numbers), "" if share is None else f"{share:.1%}")


def _markdown_table(rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *("---:" for _ in rows[0][1:])]
    return ["| " + " | ".join(cell.strip() for cell in row) + " |" for row in (rows[0], rule, *rows[1:])]


def _six(figures: Spread) -> tuple[float, float, float, float, float, float]:
    return figures.min, figures.avg, figures.p50, figures.p95, figures.p99, figures.max


def _figures(figures: Spread) -> str:
    return "/".join(f"{value:.1f}" for value in _six(figures))


def _json(figures: Spread | None) -> dict[str, float] | None:
    if figures is None:
        return None
    return {name: value for name, value in asdict(figures).items() if value is not None}


def _window_json(steady: WindowFigures | None) -> dict[str, object] | None:
    if steady is None:
        return None
    return {
        "begin_s": steady.window.begin,
        "window_s": steady.window.seconds,
        "turns": steady.window.turns,
        "turns_per_s": steady.window.turns_per_s,
        "latency_ms": _json(steady.latency),
        "uncorrected_latency_ms": _json(steady.response),
        "first_token_ms": _json(steady.first_token),
        "server_ms": _json(steady.server),
        "unexplained_ms": _json(steady.unexplained),
        "matched": steady.matched,
        "phases": {
            row.name: {"top": row.top, "share": row.share, **(_json(row.figures) or {})} for row in steady.phases
        },
    }


def _context_lines(context: Mapping[str, object], style: Style) -> list[str]:
    labels = {
        "selected_document_libraries_ids": "Document libraries",
        "selected_document_uids": "Document UIDs",
        "search_policy": "Search policy",
        "search_rag_scope": "RAG scope",
    }
    lines = []
    for key, label in labels.items():
        value = context.get(key)
        if value:
            lines.append(style.line(label, ",".join(value) if isinstance(value, list) else value))
    return lines


def _plan_lines(config: RunConfig, style: Style) -> list[str]:
    load = config.load
    if load.open:
        stages = ", ".join(f"{stage.rate:g}/s in {format_duration(stage.seconds)}" for stage in load.stages)
        return [style.line("Arrivals", f"{load.arrival}: {stages}; seed {load.seed}")]
    if config.mode == "duration":
        return [style.line("Duration", format_duration(load.duration_s))]
    if config.mode == "total-requests":
        return [style.line("Total requests", config.requests)]
    return [
        style.line("Total requests", config.clients * config.requests_per_client),
        style.line("Requests per client", config.requests_per_client),
    ]


def _session_plan(config: RunConfig) -> str:
    if config.session:
        return "reuse provided session"
    if not config.create_session:
        return "backend-managed"
    if config.mode == "total-requests":
        return "create per request"
    return "prepare sessions per client" if config.prepare_sessions else "create per client"
