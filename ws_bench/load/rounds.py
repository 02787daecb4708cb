"""Several loads of one service, one after the other and round by round: what is compared is measured a moment apart."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ws_bench.config.flags import RunConfig
from ws_bench.load.run import run_load
from ws_bench.record.summary import EXIT_FAILED, EXIT_GATE, EXIT_INTERRUPTED, EXIT_OK, RunReport, build_report


@dataclass(frozen=True, slots=True)
class Case:
    """A load and its name."""

    name: str
    config: RunConfig


@dataclass(frozen=True, slots=True)
class Sample:
    """One load as figures: times of the successful turns in ms, rates of the window.

    `cpu_ms` is the service's CPU a turn, None without its metrics; `own_cpu_ms` is that of this process, sessions
    included. `own` is the service's time by phase, without the phases inside it, mean of a turn.
    """

    p50_ms: float
    p95_ms: float
    first_ms: float | None
    turns_per_s: float
    server_ms: float | None
    cpu_ms: float | None
    own_cpu_ms: float
    own: Mapping[str, float]


@dataclass(slots=True)
class CaseSeries:
    """The samples of one case, one a round, and what went wrong: error classes with their number."""

    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    limited: bool = False

    def middle(self, what: str) -> float | None:
        """The median of a field over the rounds, None where it was not measured."""
        values = [value for one in self.samples if (value := getattr(one, what)) is not None]
        return median(values) if values else None

    def ratios(self, other: "CaseSeries", what: str = "p50_ms") -> list[float]:
        """A field over that of another case, round by round."""
        pairs = zip(self.samples, other.samples, strict=False)
        return [getattr(mine, what) / theirs for mine, one in pairs if (theirs := getattr(one, what))]

    def added(self, other: "CaseSeries", what: str = "p50_ms") -> float | None:
        """What a field has more than in another case: median over the rounds."""
        pairs = zip(self.samples, other.samples, strict=False)
        more = [getattr(mine, what) - getattr(one, what) for mine, one in pairs]
        return median(more) if more else None


async def run_rounds(cases: Sequence[Case], rounds: int, argv: Sequence[str]) -> tuple[dict[str, CaseSeries], bool]:
    """Put each load on the service once a round, every other round in reverse; the series, and whether it was
    interrupted. A case of which nothing succeeds is not asked again."""
    series = {case.name: CaseSeries() for case in cases}
    for number in range(rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            mine = series[case.name]
            if len(mine.samples) < number:
                continue
            print(f"round {number + 1} of {rounds}: {case.name}", file=sys.stderr, flush=True)
            begun = time.process_time()
            report = build_report(await run_load(quiet(case.config), argv))
            _take(mine, report, time.process_time() - begun)
            if report.recording.interrupted:
                return series, True
    return series, False


def exit_code_of(series: Mapping[str, CaseSeries], *, interrupted: bool) -> int:
    """0, 1 where some of a case failed, 3 where nothing succeeded, or the code of an interrupted run."""
    if interrupted:
        return EXIT_INTERRUPTED
    if not any(one.samples for one in series.values()):
        return EXIT_FAILED
    return EXIT_GATE if any(one.failures for one in series.values()) else EXIT_OK


def quiet(config: RunConfig) -> RunConfig:
    """The same load without files and live lines."""
    outputs = replace(config.outputs, json="", html="", csv="", markdown="", live=False)
    return replace(config, outputs=outputs)


def _take(series: CaseSeries, report: RunReport, own_cpu_s: float) -> None:
    for kind, count in report.tally.by_class.items():
        series.failures[kind] = series.failures.get(kind, 0) + count
    latency, measured = report.latency, report.measured
    series.limited = series.limited or (report.self_check is not None and report.self_check.limited)
    if latency is None or measured is None or report.recording.interrupted:
        return
    good = [turn for turn in report.recording.turns if turn.ok]
    server = report.recording.server
    used_s = sum(share or 0.0 for share in server.cpu) * (server.end - server.begin) if server else 0.0
    series.samples.append(
        Sample(
            p50_ms=latency.p50,
            p95_ms=latency.p95,
            first_ms=report.first_token.p50 if report.first_token else None,
            turns_per_s=measured.window.turns_per_s,
            server_ms=measured.server.p50 if measured.server else None,
            cpu_ms=used_s / server.turns * 1e3 if server and server.turns else None,
            own_cpu_ms=own_cpu_s / len(good) * 1e3,
            own={
                name: sum(turn.own_ms.get(name, 0.0) for turn in good) / len(good)
                for name in {name for turn in good for name in turn.own_ms}
            },
        )
    )
