"""What a run prints and writes: the compatible recap and summary, the lines after it, the result file."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from ws_bench.flags import RunConfig, config_as_json
from ws_bench.golang import format_bool, format_duration
from ws_bench.results import (
    Spread,
    SteadyWindow,
    Tally,
    TurnResult,
    first_tokens,
    gaps,
    latencies,
    ramp_seconds,
    spread,
    steady_window,
    tally,
)

SCHEMA = "turnwise.ws_bench.run"
SCHEMA_VERSION = 1
_SAMPLES = 5
_SAMPLE_CHARS = 300
_RESET, _BOLD, _DIM = "\033[0m", "\033[1m", "\033[2m"
_RED, _GREEN, _YELLOW, _CYAN = "\033[31m", "\033[32m", "\033[33m", "\033[36m"
_OUTCOME_COLOUR = {"OK": _GREEN, "DEGRADED": _YELLOW, "FAILED": _RED, "INTERRUPTED": _YELLOW}
EXIT_OK, EXIT_USAGE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 2, 3, 130


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Sessions that the run created, deleted, and could not delete."""

    created: int
    deleted: int
    delete_failed: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything measured in one run; times in milliseconds unless the name says seconds."""

    started_at: str
    elapsed_s: float
    setup_s: float
    ramp_s: float
    tally: Tally
    latency: Spread | None
    first_token: Spread | None
    gap: Spread | None
    connect: Spread | None
    session_create: Spread | None
    steady: SteadyWindow | None
    samples: list[str]
    sessions: SessionCounts
    interrupted: bool

    @property
    def outcome(self) -> str:
        """OK, DEGRADED (some errors), FAILED (no success) or INTERRUPTED."""
        if self.interrupted:
            return "INTERRUPTED"
        if self.tally.success == 0:
            return "FAILED"
        return "DEGRADED" if self.tally.errors else "OK"

    @property
    def exit_code(self) -> int:
        """0 when something succeeded, 3 when nothing did, 130 when the run was interrupted."""
        return {"INTERRUPTED": EXIT_INTERRUPTED, "FAILED": EXIT_FAILED}.get(self.outcome, EXIT_OK)


def build_report(
    config: RunConfig,
    results: Sequence[TurnResult],
    *,
    started_at: str,
    elapsed_s: float,
    connect_ms: Sequence[float],
    session_create_ms: Sequence[float],
    sessions: SessionCounts,
    interrupted: bool,
) -> RunReport:
    """Compute the report of a run from its results."""
    setup_s, ramp_s = ramp_seconds(results)
    failed = [result for result in results if not result.ok]
    return RunReport(
        started_at=started_at,
        elapsed_s=elapsed_s,
        setup_s=setup_s,
        ramp_s=ramp_s,
        tally=tally(results, config.total),
        latency=spread(latencies(results)),
        first_token=spread(first_tokens(results)),
        gap=spread(gaps(results)),
        connect=spread(connect_ms),
        session_create=spread(session_create_ms),
        steady=steady_window(results),
        samples=[_sample(result) for result in failed[:_SAMPLES]],
        sessions=sessions,
        interrupted=interrupted,
    )


class Style:
    """Terminal colours, or none of them."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] | None = None) -> "Style":
        """Colours only on a terminal that is not dumb, and never with NO_COLOR."""
        env = os.environ if environ is None else environ
        return cls(enabled=not env.get("NO_COLOR") and env.get("TERM") != "dumb" and stream.isatty())

    def __call__(self, text: str, *codes: str) -> str:
        """The text in these colours."""
        return f"{''.join(codes)}{text}{_RESET}" if self._enabled and codes else text

    def line(self, label: str, value: object, *codes: str) -> str:
        """`Label: value`, the label dimmed."""
        return f"{self(label + ':', _DIM)} {self(str(value), *codes)}"


def config_recap(config: RunConfig, style: Style) -> str:
    """The block that makes a run's output say what was run. Never holds the token."""
    context = config.runtime_context
    lines = [
        style("WS BENCH CONFIG", _BOLD, _CYAN),
        style.line("Target", config.shown_url),
        style.line("Agent ID", config.agent),
        *_context_lines(context, style),
        style.line("Mode", "per-client" if config.per_client else "total-requests"),
        style.line("Clients", config.clients),
        style.line("Total requests", config.total),
        *([style.line("Requests per client", config.requests_per_client)] if config.per_client else []),
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
        style.line("Protocol", "turnwise.v1" if config.native else "compatible"),
    ]
    return "\n" + "\n".join(lines) + "\n"


def summary_block(config: RunConfig, report: RunReport, style: Style) -> str:
    """The compatible summary: labels, order and number formats that scripts read."""
    counts = report.tally
    lines = [
        style("WS BENCH SUMMARY", _BOLD, _CYAN),
        style.line("Outcome", report.outcome, _BOLD, _OUTCOME_COLOUR[report.outcome]),
        style.line("Target", config.shown_url),
        style.line("Agent ID", config.agent),
        style.line("Total requests", counts.total),
        style.line("Concurrent clients", config.clients),
        *([style.line("Requests per client", config.requests_per_client)] if config.per_client else []),
        style.line("Success", f"{counts.success} ({counts.success_percent:.2f}%)", _GREEN),
        style.line("Errors", counts.errors, *([_RED] if counts.errors else [])),
        style.line("Elapsed", format_duration(report.elapsed_s)),
    ]
    if report.latency is not None:
        figures = "/".join(str(int(value)) for value in _six(report.latency))
        lines.append(style.line("Requests/sec", f"{counts.success / report.elapsed_s:.2f}"))
        lines.append(style.line("Latency ms (min/avg/p50/p95/p99/max)", figures, _BOLD, _CYAN))
    if report.samples:
        lines += ["", style("Sample errors:", _BOLD, _RED), *(f"{style('-', _RED)} {text}" for text in report.samples)]
    return "\n" + "\n".join(lines) + "\n"


def detail_block(report: RunReport, style: Style) -> str:
    """What the compatible summary does not say: tokens, set-up, the steady window, errors by class."""
    classes = " ".join(f"{name}={count}" for name, count in report.tally.by_class.items())
    steady = report.steady
    lines = [
        style("WS BENCH DETAIL", _BOLD, _CYAN),
        style.line("Not sent", report.tally.not_sent),
        style.line("Errors by class", classes or "none"),
        *_spread_lines(report, style),
        style.line("Setup", format_duration(report.setup_s)),
        style.line("Ramp", format_duration(report.ramp_s)),
        style.line(
            "Steady window", format_duration(steady.seconds) if steady else "none (clients never ran all at once)"
        ),
    ]
    if steady:
        lines.append(style.line("Steady turns/sec", f"{steady.turns_per_s:.2f}"))
    counts = report.sessions
    lines.append(style.line("Sessions (created/deleted)", f"{counts.created}/{counts.deleted}"))
    return "\n" + "\n".join(lines) + "\n"


def result_json(config: RunConfig, report: RunReport, argv: Sequence[str]) -> dict[str, object]:
    """The machine-readable result. `null` stands for what was not measured; no credential is in it."""
    counts, steady = report.tally, report.steady
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "outcome": report.outcome,
        "exit_code": report.exit_code,
        "started_at": report.started_at,
        "target": config.shown_url,
        "agent_id": config.agent,
        "protocol": "turnwise.v1" if config.native else "compatible",
        "mode": "per-client" if config.per_client else "total-requests",
        "config": config_as_json(config),
        "counts": {
            "total": counts.total,
            "success": counts.success,
            "errors": counts.errors,
            "not_sent": counts.not_sent,
        },
        "errors_by_class": counts.by_class,
        "error_samples": report.samples,
        "elapsed_s": report.elapsed_s,
        "setup_s": report.setup_s,
        "ramp_s": report.ramp_s,
        "requests_per_s": counts.success / report.elapsed_s if report.elapsed_s > 0 else 0.0,
        "steady": {"window_s": steady.seconds, "turns": steady.turns, "turns_per_s": steady.turns_per_s}
        if steady
        else None,
        "latency_ms": _spread_json(report.latency),
        "first_token_ms": _spread_json(report.first_token),
        "gap_ms": _spread_json(report.gap),
        "connect_ms": _spread_json(report.connect),
        "session_create_ms": _spread_json(report.session_create),
        "sessions": asdict(report.sessions),
        "generator": _generator(argv),
    }


def _sample(result: TurnResult) -> str:
    text = f"{result.error}: {result.detail}" if result.detail else result.error
    return " ".join(text.split())[:_SAMPLE_CHARS]


def _six(figures: Spread) -> tuple[float, float, float, float, float, float]:
    return figures.min, figures.avg, figures.p50, figures.p95, figures.p99, figures.max


def _spread_lines(report: RunReport, style: Style) -> list[str]:
    named = {
        "First token": report.first_token,
        "Gap": report.gap,
        "Connect": report.connect,
        "Session create": report.session_create,
    }
    return [
        style.line(f"{name} ms (min/avg/p50/p95/p99/max)", "/".join(f"{value:.1f}" for value in _six(figures)))
        for name, figures in named.items()
        if figures is not None
    ]


def _spread_json(figures: Spread | None) -> dict[str, float] | None:
    return asdict(figures) if figures is not None else None


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


def _session_plan(config: RunConfig) -> str:
    if config.session:
        return "reuse provided session"
    if not config.create_session:
        return "backend-managed"
    if not config.per_client:
        return "create per request"
    return "prepare sessions per client" if config.prepare_sessions else "create per client"


def _generator(argv: Sequence[str]) -> dict[str, object]:
    return {
        "argv": _without_token(argv),
        "python": platform.python_version(),
        "turnwise": _version("turnwise"),
        "websockets": _version("websockets"),
        "uvloop": _version("uvloop"),
        "cpus": sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else None,
        "load_average": list(os.getloadavg()),
        "permessage_deflate": False,
    }


def _without_token(argv: Sequence[str]) -> list[str]:
    kept: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.lstrip("-").partition("=")
        if hide_next:
            kept.append("***")
        elif name == "token" and equals:
            kept.append("-token=***")
        elif "token=" in word:
            kept.append(word.split("token=", 1)[0] + "token=***")
        else:
            kept.append(word)
        hide_next = not hide_next and name == "token" and not equals and word.startswith("-")
    return kept


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
