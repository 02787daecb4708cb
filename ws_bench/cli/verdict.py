"""`ws_bench verdict`: more and more clients, and at each step who bounds the service, by its own word."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend_kit.wire import dumps
from ws_bench.cli.commands import check_one_table, run_in_loop
from ws_bench.cli.sweep import parse_levels
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags
from ws_bench.errors import BenchError, UsageError
from ws_bench.load.rounds import quiet
from ws_bench.load.run import run_load
from ws_bench.load.service import ServiceApi
from ws_bench.record.summary import EXIT_FAILED, EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, RunReport, build_report
from ws_bench.report.report import Style, text_table, write_file

SCHEMA = "turnwise.ws_bench.verdict"
SCHEMA_VERSION = 1
_LEVELS = (1, 4, 16, 64)
_LEAST_S = 2.0
_CAUSES = 4


@dataclass(frozen=True, slots=True)
class LevelVerdict:
    """A number of clients, what they saw, and what the service said of that time."""

    clients: int
    report: RunReport
    verdict: Mapping[str, Any]


def verdict_command(argv: list[str]) -> int:
    """Run every step and print its verdict. Returns 1 where one is not among those of `-expect`, 3 where nothing
    succeeded. Raises `BenchError`, also where the service gives no verdict."""
    values = _flags().parse(argv)
    config = config_of(values)
    check_one_table(config)
    if config.load.open or config.load.duration_s < _LEAST_S or config.workers > 1:
        raise UsageError(
            f"verdict is for a closed loop in one process, each step a -duration of at least {_LEAST_S:g}s"
        )
    steps: list[LevelVerdict] = []

    async def climb() -> bool:
        async with ServiceApi(config) as service:
            await service.get("/kpi/verdict")
        for clients in values.levels:
            print(f"{clients} client(s)", file=sys.stderr, flush=True)
            run = replace(quiet(config), clients=clients, observe=replace(config.observe, verdict=True))
            recording = await run_load(run, argv)
            if recording.interrupted:
                return False
            if not recording.verdict:
                raise BenchError(f"the service gave no verdict on {clients} client(s)")
            steps.append(LevelVerdict(clients, build_report(recording), recording.verdict))
        return True

    done = run_in_loop(climb)
    if steps:
        print(verdict_text(steps, values.expect, Style.of(sys.stdout)), end="")
        _write(config, steps)
    if not done:
        return EXIT_INTERRUPTED
    if not any(step.report.tally.success for step in steps):
        return EXIT_FAILED
    return EXIT_GATE if any(not expected(step, values.expect) for step in steps) else EXIT_OK


def expected(step: LevelVerdict, causes: Sequence[str]) -> bool:
    """Whether the service said what was expected; anything is where nothing was."""
    return not causes or step.verdict.get("bound_by") in causes


def verdict_text(steps: Sequence[LevelVerdict], causes: Sequence[str], style: Style) -> str:
    """The table of steps, each one's largest causes, and where somebody begins to bound the service."""
    head = ("clients", "turns/s", "p50 ms", "p95 ms", "errors", "bound by", "share", "ms a turn", "next", "share",
            "loop", "turns there", "")  # fmt: skip
    lines = [
        style("WS BENCH VERDICT", "\033[1m", "\033[36m"),
        "source: GET /kpi/verdict over each step's window; rates and percentiles by this client's clock",
        *text_table([head, *(_row(step, causes) for step in steps)]),
        "",
        *(f"{step.clients} client(s), ms a turn: {_spent(step.verdict)}" for step in steps),
        bound_text(steps),
    ]
    return "\n" + "\n".join(lines) + "\n"


def bound_text(steps: Sequence[LevelVerdict]) -> str:
    """The first step at which each cause bounds."""
    firsts: dict[str, int] = {}
    for step in steps:
        firsts.setdefault(str(step.verdict.get("bound_by")), step.clients)
    bounds = [f"{cause} from {clients} client(s) on" for cause, clients in firsts.items() if cause != "nobody"]
    return f"Bound by: {', then '.join(bounds) or f'nobody, up to {steps[-1].clients} client(s)'}"


def _row(step: LevelVerdict, causes: Sequence[str]) -> tuple[str, ...]:
    said, report = step.verdict, step.report
    latency = report.measured.latency if report.measured else None
    return (
        str(step.clients),
        f"{report.measured.window.turns_per_s:.1f}" if report.measured else "-",
        *(("-", "-") if latency is None else (f"{latency.p50:.1f}", f"{latency.p95:.1f}")),
        str(report.tally.errors),
        str(said.get("bound_by")),
        _number(said.get("share"), 2),
        _number(said.get("ms_per_turn"), 1),
        str(said.get("next")),
        _number(said.get("next_share"), 2),
        _number(said.get("loop"), 2),
        str(said.get("turns")),
        "" if not causes else "ok" if expected(step, causes) else "NOT EXPECTED",
    )


def _spent(verdict: Mapping[str, Any]) -> str:
    causes = verdict.get("causes")
    found = sorted(causes.items(), key=lambda one: -one[1])[:_CAUSES] if isinstance(causes, dict) else []
    return "  ".join(f"{cause} {ms:.1f}" for cause, ms in found) or "nothing"


def _number(value: object, decimals: int) -> str:
    return f"{value:.{decimals}f}" if isinstance(value, int | float) else "-"


def _write(config: RunConfig, steps: Sequence[LevelVerdict]) -> None:
    if config.outputs.json:
        found = [{"clients": step.clients, "verdict": dict(step.verdict)} for step in steps]
        content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "steps": found}
        write_file(config.outputs.json, dumps(content) + b"\n")


def _causes(text: str) -> tuple[str, ...]:
    return tuple(cause.strip() for cause in text.split(",") if cause.strip())


def _flags() -> Flags:
    flags = run_flags("ws_bench verdict", "More and more clients, and at each step who bounds the service.")
    flags.group("the steps", "-levels 1,16,64 -duration 20s -expect llm_floor,nobody -token OPERATOR")
    flags.value("levels", _LEVELS, parse_levels, "numbers of clients, comma between", "1,16,64")
    flags.value(
        "expect", (), _causes, "exit 1 where the service says another cause (nobody is one)", "llm_floor,nobody"
    )
    flags.parser.set_defaults(ramp_duration=0.0, duration=10.0)
    return flags
