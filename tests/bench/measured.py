"""One load on one server as figures: CPU a turn, and whether the machine let it be measured."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import uvloop

from tests.bench.deployment import Deployment, Server, busy_s, cpu_s
from tests.bench.driver import Load, run

FULL_CORE = 0.95
"""Above this share a core is the limit: of the service where it should be, of the load where it should not."""
FOREIGN = 0.10
"""Above this share of other people's work on the service's core a figure is doubtful."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a window showed; `turns` counts parts of turns too.

    `service_share` and `others_share` are of their cores; `foreign_share` is other work on the service's core, which
    makes every figure worse.
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

    def at_edge() -> None:
        helpers = sum(cpu_s(pid) for pid in beside)
        edges.append(
            (cpu_s(server.process.pid), busy_s(deployment.service_cores), busy_s(deployment.other_cores), helpers)
        )

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
    )


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
