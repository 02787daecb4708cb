"""`ws_bench find-knee`: the highest rate at which neither turns in flight nor times to first token keep rising."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from backend_kit.wire import dumps
from ws_bench.cli.commands import run_in_loop
from ws_bench.config.arrivals import parse_rate, steady_stages
from ws_bench.config.flags import RunConfig, config_as_json, config_of
from ws_bench.config.golang import Flags, milliseconds, parse_duration
from ws_bench.config.options import parse_gate, parse_percent
from ws_bench.config.runflags import run_flags
from ws_bench.errors import UsageError
from ws_bench.load.run import run_load
from ws_bench.record.recording import Recording
from ws_bench.record.results import SteadyWindow, TurnResult, percentile
from ws_bench.record.stats import slope_of
from ws_bench.record.summary import EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, build_report
from ws_bench.report.report import text_table, write_file

SCHEMA = "turnwise.ws_bench.knee"
SCHEMA_VERSION = 1
_POINTS = 20
_CHANCE = 0.01
_RISE = 0.10
_FILL = 0.25
_ERRORS = 0.01
_RAMP_S = 1.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate that was tried. `why` names what did not hold, empty if all did; `turns_per_s` is the measured rate."""

    rate: float
    held: bool
    why: str
    turns_per_s: float
    p50_ms: float
    p95_ms: float
    in_flight_slope: float
    latency_slope: float


@dataclass(frozen=True, slots=True)
class Knee:
    """The highest rate that held and the lowest that did not; None for one that was never seen."""

    held: float | None
    broke: float | None

    @property
    def rate(self) -> float | None:
        """Their geometric mean; None without both."""
        return math.sqrt(self.held * self.broke) if self.held and self.broke else None


def knee_command(argv: list[str]) -> int:
    """Probe rates and print the table. Returns 1 if no rate held. Raises `UsageError` and `BenchError`."""
    flags = _flags()
    values = flags.parse(argv)
    config = config_of(values)
    if config.load.open or config.load.duration_s:
        raise UsageError("find-knee sets rates and durations itself: no -rate, -stages, -duration")
    if config.outputs.csv or config.outputs.html or config.observe.postgres or config.workers > 1:
        raise UsageError("-csv, -html, -postgres and -workers are for one run")
    if not 0 < values.start <= values.max_rate:
        raise UsageError("-start must be above 0 and not above -max-rate")
    config = replace(config, gates=replace(config.gates, thresholds=(*config.gates.thresholds, *values.slo)))
    probes: list[Probe] = []
    interrupted = False

    def probe(rate: float) -> Probe | None:
        nonlocal interrupted
        found = _probe(config, rate, values.step, argv)
        if found is None:
            interrupted = True
        else:
            probes.append(found)
            print(_probe_line(found), file=sys.stderr, flush=True)
        return found

    knee = search(probe, start=values.start, highest=values.max_rate, tolerance=values.tolerance)
    print("\n" + "\n".join(["WS BENCH KNEE", *text_table(_table(probes)), "", knee_text(knee, probes)]))
    _write(config, knee, probes)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_OK if knee.held is not None else EXIT_GATE


def search(probe: Callable[[float], Probe | None], *, start: float, highest: float, tolerance: float) -> Knee:
    """Double the rate until it does not hold, halve the interval (of ratios) until it is narrower than `tolerance`.

    A probe that returns None ends the search. A rate that fails by its slopes alone is tried a second time, which
    decides.
    """
    held: float | None = None
    broke: float | None = None
    rate = start
    while True:
        result = probe(rate)
        if result is not None and not result.held and result.why.startswith("piles up"):
            result = probe(rate)
        if result is None:
            break
        if result.held:
            held = rate
        else:
            broke = rate
        if broke is None and rate >= highest:
            break
        if held is not None and broke is not None and broke / held <= 1 + tolerance:
            break
        if held is None and rate <= start / 8:
            break
        rate = _next(rate, held, broke, highest)
    return Knee(held, broke)


def over_saturated(recording: Recording) -> tuple[str, float, float]:
    """Whether turns pile up: the outstanding turns and their latency both rise, beyond chance and by more than a tenth.

    A turn is outstanding from when it should have begun, so that a cap on clients hides nothing. The first quarter of
    the run, and the time until the first turns end, are left out: everything rises there. Returns the reason (empty if
    nothing piles up) and both slopes as a share of the mean over the window.
    """
    window = _judged_window(recording)
    turns = [turn for turn in recording.turns if turn.sent]
    if window is None or not turns:
        return "nothing was asked", 0.0, 0.0
    times = [window.begin + window.seconds * (n + 0.5) / _POINTS for n in range(_POINTS)]
    outstanding = [(at, float(sum(turn.begin <= at < turn.ended for turn in turns))) for at in times]
    waits = _binned(turns, window)
    rises = []
    for points, least in ((outstanding, 1.0), (waits, 1.0)):
        if len(points) < 3:
            return "", 0.0, 0.0
        slope = slope_of(points)
        mean = sum(value for _, value in points) / len(points)
        rise = slope.slope * window.seconds
        rises.append((rise / mean if mean else 0.0, slope.p_rise < _CHANCE and rise > max(_RISE * mean, least)))
    piles = all(found for _, found in rises)
    return ("piles up" if piles else ""), rises[0][0], rises[1][0]


def knee_text(knee: Knee, probes: Sequence[Probe]) -> str:
    """The result as one line."""
    best = max((probe.turns_per_s for probe in probes), default=0.0)
    seen = f"the highest rate that came out was {best:.2f} turns/s"
    if knee.rate is not None:
        return f"Knee: {knee.rate:.2f} turns/s ({knee.held:.2f} held, {knee.broke:.2f} did not); {seen}"
    if knee.held is not None:
        return f"Knee: not found, {knee.held:.2f} turns/s still held; {seen}"
    return f"Knee: below {knee.broke or 0:.2f} turns/s; {seen}"


def _probe(config: RunConfig, rate: float, seconds: float, argv: Sequence[str]) -> Probe | None:
    load = replace(config.load, stages=steady_stages(rate, seconds), duration_s=0.0)
    outputs = replace(config.outputs, json="", markdown="")
    run = replace(config, load=load, outputs=outputs)
    recording = run_in_loop(lambda: run_load(run, argv))
    if recording is None or recording.interrupted:
        return None
    report = build_report(recording)
    why, flight, latency = over_saturated(recording)
    failed = [gate.text for gate in report.gates if not gate.passed]
    lost = report.tally.errors + report.tally.not_sent
    if lost > _ERRORS * report.tally.total:
        why = f"{lost} of {report.tally.total} turns lost"
    elif failed:
        why = f"{failed[0]} does not hold"
    return Probe(
        rate=rate,
        held=not why,
        why=why,
        turns_per_s=_measured_rate(recording),
        p50_ms=report.latency.p50 if report.latency else 0.0,
        p95_ms=report.latency.p95 if report.latency else 0.0,
        in_flight_slope=flight,
        latency_slope=latency,
    )


def _measured_rate(recording: Recording) -> float:
    window = _judged_window(recording)
    if window is None:
        return 0.0
    return sum(turn.ok and window.begin < turn.ended <= window.end for turn in recording.turns) / window.seconds


def _judged_window(recording: Recording) -> SteadyWindow | None:
    if recording.planned is None:
        return None
    begin, end = recording.planned
    quickest = percentile(sorted(turn.response_ms / 1000 for turn in recording.turns if turn.ok), 0.05)
    begin = max(begin + _FILL * (end - begin), begin + 1.5 * quickest)
    return SteadyWindow(begin, end, 0) if end > begin else None


def _binned(turns: Sequence[TurnResult], window: SteadyWindow) -> list[tuple[float, float]]:
    """Mean time until the first token (the final, without one) from the intended start, by the time of that start."""
    bins: dict[int, list[float]] = {}
    for turn in turns:
        if turn.ok and window.begin <= turn.begin < window.end:
            waited = (turn.asked - turn.begin) * 1000
            shown = turn.first_token_ms if turn.first_token_ms is not None else turn.response_ms
            number = min(int((turn.begin - window.begin) / window.seconds * _POINTS), _POINTS - 1)
            bins.setdefault(number, []).append(waited + shown)
    width = window.seconds / _POINTS
    return [(window.begin + (n + 0.5) * width, sum(values) / len(values)) for n, values in sorted(bins.items())]


def _next(rate: float, held: float | None, broke: float | None, highest: float) -> float:
    if broke is None:
        return min(rate * 2, highest)
    if held is None:
        return rate / 2
    return math.sqrt(held * broke)


def _flags() -> Flags:
    flags = run_flags("ws_bench find-knee", "The highest rate of turns that the service holds (with the flags of run).")
    flags.group("the search", "-start 4/s -step 20s -slo 'turn_p95<4s' -clients 500")
    flags.value("start", 1.0, parse_rate, "first rate, doubled until it does not hold", "4/s")
    flags.value("max-rate", 1000.0, parse_rate, "highest rate to try", "200/s")
    flags.value("step", 10.0, parse_duration, "how long each rate lasts", "20s")
    flags.value("tolerance", 0.05, parse_percent, "how close the two rates around the knee must be", "10%")
    flags.many("slo", parse_gate, "what must hold too; may be given again", "'turn_p95<4s'")
    flags.parser.set_defaults(ramp_duration=_RAMP_S)
    return flags


def _table(probes: Sequence[Probe]) -> list[tuple[str, ...]]:
    head = ("rate/s", "came out/s", "p50 ms", "p95 ms", "in flight rises", "first token rises", "verdict")
    return [head, *(_cells(probe) for probe in probes)]


def _cells(probe: Probe) -> tuple[str, ...]:
    return (
        f"{probe.rate:.2f}",
        f"{probe.turns_per_s:.2f}",
        f"{probe.p50_ms:.1f}",
        f"{probe.p95_ms:.1f}",
        f"{probe.in_flight_slope:+.0%}",
        f"{probe.latency_slope:+.0%}",
        "held" if probe.held else probe.why,
    )


def _probe_line(probe: Probe) -> str:
    return f"{probe.rate:.2f}/s: {'held' if probe.held else probe.why} (p95 {milliseconds(probe.p95_ms)} ms)"


def _write(config: RunConfig, knee: Knee, probes: Sequence[Probe]) -> None:
    if not config.outputs.json:
        return
    content = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "config": config_as_json(config),
        "knee": {**asdict(knee), "rate": knee.rate},
        "probes": [asdict(probe) for probe in probes],
    }
    write_file(config.outputs.json, dumps(content) + b"\n")
