"""One load on one server as figures: CPU a turn, and whether the machine let it be measured."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import uvloop

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.deployment import Deployment, Server, busy_s, cpu_s, rss_mb
from tests.bench.driver import Load, run

FULL_CORE = 0.95
"""Above this share a core is the limit: of the service where it should be, of the load where it should not."""
FOREIGN = 0.10
"""Above this share of other people's work on the service's core a figure is doubtful."""
LATE_MS = 5.0
"""Above this p95 of the load's own wake-ups, times that it measured are partly its own."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a window showed; `turns` counts parts of turns too.

    `service_share` and `others_share` are of their cores; `foreign_share` is other work on the service's core, which
    makes every figure worse. `load_share` is what the load's process took of one core, `load_late_ms` the p95 by which
    its loop was late; `rss_mb` is the service's at the window's end. `latencies_s` and `firsts_s` are those of the
    driver's `Counted`.
    """

    turns: float
    turns_per_s: float
    cpu_ms: float
    frames_per_turn: float
    p50_ms: float
    p99_ms: float
    service_share: float
    others_share: float
    foreign_share: float
    failures: tuple[str, ...] = ()
    turns_in_all: int = 0
    beside_ms: float = 0.0
    latencies_s: tuple[float, ...] = ()
    firsts_s: tuple[float, ...] = ()
    load_share: float = 0.0
    load_late_ms: float = 0.0
    rss_mb: float = 0.0

    @property
    def turns_per_core_s(self) -> float:
        """Turns that a second of one core's CPU carries, whether or not the load filled it."""
        return 1e3 / self.cpu_ms

    @property
    def load_limited(self) -> bool:
        """Whether the cores of the load were full, so that the service may not have been."""
        return self.others_share > FULL_CORE


def sample(
    deployment: Deployment,
    server: Server,
    load: Load,
    *,
    questions: Iterator[str] | None = None,
    beside: tuple[int, ...] = (),
) -> Sample:
    """Put the load on the server. `beside` are processes whose CPU is told as well, in `beside_ms` a turn."""
    edges: list[tuple[float, float, float, float]] = []
    pids = server.pids
    memory_mb = 0.0

    def at_edge() -> None:
        nonlocal memory_mb
        memory_mb = sum(rss_mb(pid) for pid in pids)
        used, helpers = (sum(cpu_s(pid) for pid in group) for group in (pids, beside))
        edges.append((used, busy_s(deployment.service_cores), busy_s(deployment.other_cores), helpers))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counted = runner.run(run(server.target, load, questions=questions, at_edge=at_edge))
    used, mine, others, helpers = (after - before for before, after in zip(*edges, strict=True))
    turns = counted.turns
    return Sample(
        turns=turns,
        turns_per_s=turns / counted.seconds,
        cpu_ms=used * 1e3 / turns if turns else float("inf"),
        frames_per_turn=counted.frames / counted.ended if counted.ended else 0.0,
        p50_ms=counted.latency_ms(0.50),
        p99_ms=counted.latency_ms(0.99),
        service_share=used / counted.seconds / len(deployment.service_cores),
        others_share=others / counted.seconds / len(deployment.other_cores),
        foreign_share=(mine - used) / counted.seconds / len(deployment.service_cores),
        failures=tuple(counted.failures),
        turns_in_all=counted.turns_in_all,
        beside_ms=helpers * 1e3 / turns if turns else 0.0,
        latencies_s=tuple(counted.latencies_s),
        firsts_s=tuple(counted.firsts_s),
        load_share=counted.load_cpu_s / counted.seconds,
        load_late_ms=nearest_rank(sorted(counted.lags_s), 0.95) * 1e3,
        rss_mb=memory_mb,
    )


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95 and p99 in ms; infinite where there was nothing."""

    p50: float
    p95: float
    p99: float

    def __str__(self) -> str:
        return f"{self.p50:7.1f} {self.p95:7.1f} {self.p99:7.1f}"


def above(times_s: Sequence[float], floor_s: float) -> Percentiles:
    """Percentiles by nearest rank of what times have beyond a floor; less than none for one below it."""
    if not times_s:
        return Percentiles(math.inf, math.inf, math.inf)
    ranked = sorted(times_s)
    return Percentiles(*((nearest_rank(ranked, share) - floor_s) * 1e3 for share in (0.50, 0.95, 0.99)))


@dataclass(slots=True)
class Series:
    """The samples of one server under one load, one a round."""

    samples: list[Sample]

    @property
    def cpu_ms(self) -> float:
        """Median CPU a turn."""
        return median(one.cpu_ms for one in self.samples)

    @property
    def spread(self) -> str:
        """Least and greatest CPU a turn."""
        costs = [one.cpu_ms for one in self.samples]
        return f"{min(costs):.2f}..{max(costs):.2f}"

    @property
    def failures(self) -> list[str]:
        """What went wrong in any round."""
        return [failure for one in self.samples for failure in one.failures]

    @property
    def doubts(self) -> str:
        """What speaks against the figures, empty where nothing does."""
        found = []
        if limited := sum(one.load_limited for one in self.samples):
            found.append(f"load-limited in {limited} of {len(self.samples)}")
        if (late := max(one.load_late_ms for one in self.samples)) > LATE_MS:
            found.append(f"load late by up to {late:.0f} ms (p95)")
        if (foreign := max(one.foreign_share for one in self.samples)) > FOREIGN:
            found.append(f"up to {foreign:.0%} foreign load")
        return ", ".join(found)

    def middle(self, what: str) -> float:
        """Median of another field of the samples."""
        return median(float(getattr(one, what)) for one in self.samples)

    def ratios(self, other: "Series") -> list[float]:
        """CPU a turn over that of the other, round by round: what was measured a moment apart."""
        return [mine.cpu_ms / theirs.cpu_ms for mine, theirs in zip(self.samples, other.samples, strict=True)]

    def ratio(self, other: "Series") -> float:
        """Median of the ratios."""
        return median(self.ratios(other))
