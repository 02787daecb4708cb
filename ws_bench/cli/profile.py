"""`ws_bench profile`: where the CPU of a service goes under a load: by py-spy's stacks, or by its own word."""

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from backend_kit.wire import dumps
from ws_bench.cli.commands import check_one_table, run_in_loop
from ws_bench.config.flags import RunConfig, config_of
from ws_bench.config.golang import Flags
from ws_bench.config.runflags import run_flags
from ws_bench.errors import BenchError, PreparationFailed, UsageError
from ws_bench.load.rounds import quiet
from ws_bench.load.run import run_load
from ws_bench.load.service import ServiceApi
from ws_bench.record.recording import ServerView
from ws_bench.record.stacks import Stack, find_spy, parse, record_stacks, tables
from ws_bench.record.summary import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, RunReport, build_report
from ws_bench.report.report import Style, text_table, write_file

SCHEMA = "turnwise.ws_bench.profile"
SCHEMA_VERSION = 1
_LEAST_S = 2.0
_STALLS = 5
_NO_SPY = "py-spy is not installed here (pip install py-spy): no stacks"
_NOTHING = (
    "nothing says where the CPU goes: give -server-metrics, an operator's -token, or -pid of a service of this machine"
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found: stacks of the process, how long it was sampled and the CPU seconds that it took meanwhile, the
    run, and the service's word."""

    report: RunReport
    stacks: Sequence[Stack]
    sampled_s: float
    used_s: float
    stalls: Sequence[Mapping[str, Any]]
    notes: Sequence[str]


def profile_command(argv: list[str]) -> int:
    """Load the service and print where its CPU goes. Returns 3 where nothing succeeded. Raises `BenchError`, also
    where nothing can tell."""
    values = _flags().parse(argv)
    if values.native is None:  # of the two protocols of a socket, the one whose ledger is whole
        values.native = values.protocol == "ws"
    config = config_of(values)
    check_one_table(config)
    if config.load.open or config.load.duration_s < _LEAST_S or config.workers > 1:
        raise UsageError(f"profile is for a closed loop in one process, for a -duration of at least {_LEAST_S:g}s")
    if values.pid and not psutil.pid_exists(values.pid):
        raise UsageError(f"-pid {values.pid}: no such process on this machine")
    if values.flame and not (values.pid and find_spy()):
        raise UsageError("-flame needs -pid, and py-spy (pip install py-spy)")

    found = run_in_loop(lambda: _profiled(config, values.pid, values.flame, argv))
    if found is None:
        return EXIT_INTERRUPTED
    print(profile_text(found, Style.of(sys.stdout)), end="")
    _write(config, found)
    if found.report.recording.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if found.report.tally.success else EXIT_FAILED


async def _profiled(config: RunConfig, pid: int, flame: str, argv: Sequence[str]) -> Profile:
    """One load, watched by whatever can be had. Raises `BenchError`."""
    spy = find_spy() if pid else None
    notes = [_NO_SPY] if pid and spy is None else []
    stalls: list[Mapping[str, Any]] = []
    async with ServiceApi(config) as service:
        await service.require_alive()
        try:
            await service.get("/kpi/verdict")
            operator = True
        except PreparationFailed as refused:
            operator = False
            notes.append(str(refused))
        if not (spy or config.observe.metrics_urls or operator):
            raise BenchError(_NOTHING)
        run = replace(quiet(config), observe=replace(config.observe, verdict=operator))
        process = psutil.Process(pid) if pid else None
        seconds = config.load.duration_s * (0.4 if flame else 0.8)

        async def sampled() -> tuple[list[Stack], float]:
            if spy is None or process is None:
                return [], 0.0
            try:
                return await asyncio.to_thread(_sampled, spy, process, seconds, flame)
            except (BenchError, psutil.Error) as failure:
                notes.append(f"no stacks: {failure}")
                return [], 0.0

        # Not in a TaskGroup: what is wrong with the run would come out of it as a group, which nobody prints.
        recording, (stacks, used_s) = await asyncio.gather(run_load(run, argv), sampled())
        if not (stacks or config.observe.metrics_urls or operator):
            raise BenchError(notes[-1])
        if operator:
            stalls = (await service.get("/kpi/stalls"))[:_STALLS]
    return Profile(build_report(recording), stacks, seconds, used_s, stalls, notes)


def _sampled(spy: str, process: psutil.Process, share: float, flame: str) -> tuple[list[Stack], float]:
    """Stacks of a process sampled for `share` seconds, and the CPU that it used. With `flame` as many again go into
    it."""
    with tempfile.TemporaryDirectory(prefix="ws_bench-") as directory:
        collapsed = Path(directory) / "stacks.txt"
        before = sum(process.cpu_times()[:2])
        record_stacks(spy, process.pid, "raw", collapsed, share)
        used_s = sum(process.cpu_times()[:2]) - before
        if flame:
            record_stacks(spy, process.pid, "flamegraph", Path(flame), share)
        return parse(collapsed.read_text().splitlines()), used_s


def profile_text(profile: Profile, style: Style) -> str:
    """What was found, each part with its source."""
    report = profile.report
    rate = report.measured.window.turns_per_s if report.measured else 0.0
    counts = report.tally
    lines = [
        style("WS BENCH PROFILE", "\033[1m", "\033[36m"),
        f"{counts.success} turns, {counts.errors} errors, {rate:.1f} turns/s",
        *(f"! {note}" for note in profile.notes),
        *(f"! {failure}" for failure in (report.recording.server.failures if report.recording.server else ())),
    ]
    if profile.stacks:
        lines += ["", *_stack_lines(profile, rate)]
    if report.recording.server is not None:
        lines += ["", *_server_lines(report.recording.server)]
    lines += ["", *_phase_lines(report)]
    if report.recording.verdict:
        verdict = report.recording.verdict
        bound = f"{verdict.get('bound_by')}, {verdict.get('share')} of a turn; loop {verdict.get('loop')}"
        lines += ["", f"bound by (GET /kpi/verdict): {bound}", *_stall_lines(profile.stalls)]
    return "\n" + "\n".join(lines) + "\n"


def _stack_lines(profile: Profile, turns_per_s: float) -> list[str]:
    """Both tables; the CPU of a turn is what the process took while it was sampled, by the turns of such a time."""
    cpu_ms = profile.used_s / (turns_per_s * profile.sampled_s) * 1e3 if turns_per_s else 0.0
    return ["source: py-spy, threads of the process at work", *tables(profile.stacks, cpu_ms)]


def _server_lines(server: ServerView) -> list[str]:
    """CPU a turn, the loop, and waits."""
    seconds = server.end - server.begin
    used_s = sum(share or 0.0 for share in server.cpu) * seconds
    rows = [("source: /metrics over the window", "count", "avg ms", "p95 ms")]
    rows += [(name, str(one.count), f"{one.avg:.2f}", one.shown("p95")) for name, one in server.timers.items()]
    rows += [
        (f"SQL {name}", str(one.count), f"{one.avg:.2f}", one.shown("p95")) for name, one in server.statements.items()
    ]
    busy = "unknown" if server.busy is None else f"{server.busy:.0%}"
    cpu = (
        f"CPU: {used_s / seconds:.0%} of a core, {used_s / max(server.turns, 1) * 1e3:.2f} ms a turn; loop busy {busy}"
    )
    return [cpu, *text_table(rows)]


def _phase_lines(report: RunReport) -> list[str]:
    """Where the time of a turn goes at the service, by the ledgers."""
    turns = [turn for turn in report.recording.turns if turn.ok and turn.server_ms is not None]
    if not turns:
        return ["no ledgers: chat completions carry none, and a service may keep them to itself"]
    names = sorted({name for turn in turns for name in turn.own_ms})
    means = {name: sum(turn.own_ms.get(name, 0.0) for turn in turns) / len(turns) for name in names}
    whole = sum(turn.server_ms or 0.0 for turn in turns) / len(turns)
    rows = [("source: the ledger of each turn, without phases inside", "ms a turn", "share")]
    rows += [
        (name, f"{ms:.2f}", f"{ms / whole:.1%}" if whole else "-")
        for name, ms in sorted(means.items(), key=lambda item: -item[1])
    ]
    return text_table(rows)


def _stall_lines(stalls: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"held the loop (GET /kpi/stalls): {one.get('place')} in {one.get('phase')}, {one.get('stalls')} times, "
        f"worst {one.get('worst_ms')} ms"
        for one in stalls
    ] or ["held the loop (GET /kpi/stalls): nothing"]


def _write(config: RunConfig, profile: Profile) -> None:
    if config.outputs.json:
        stacks = [{"frames": list(one.frames), "count": one.count} for one in profile.stacks]
        content = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "cpu_s": profile.used_s,
            "stacks": stacks,
            "stalls": [dict(one) for one in profile.stalls],
            "verdict": profile.report.recording.verdict,
        }
        write_file(config.outputs.json, dumps(content) + b"\n")


def _flags() -> Flags:
    flags = run_flags("ws_bench profile", "Where the CPU of a service goes under a load.")
    flags.group("the process", "-pid 4711 -flame profile.svg -clients 50 -duration 30s")
    flags.value("pid", 0, int, "the service's process on this machine, whose stacks py-spy samples", "4711")
    flags.value("flame", "", str.strip, "write a flame graph to this file", "profile.svg")
    flags.parser.set_defaults(clients=16, ramp_duration=0.0, duration=15.0, native=None)
    return flags
