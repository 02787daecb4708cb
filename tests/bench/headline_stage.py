"""What the scenarios of the headline bench share: how much load, where it runs, and what they have seen."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.bench import turn
from tests.bench.bench import Verdicts, pinned_to
from tests.bench.calibration import Speed, measure_speed
from tests.bench.deployment import Deployment, Server, busy_s, cpu_s
from tests.bench.disk import Flushes, flushes, time_flushes
from tests.bench.driver import Load
from tests.bench.measured import Sample, sample

_FLUSHES = 100


@dataclass(frozen=True, slots=True)
class Size:
    """How much load; times in seconds. `slack` is how much wider than the full run's the bounds are."""

    slack: float
    floor_s: float
    clients: int
    turns: int
    few_turns: int
    disk_floor_s: float
    costs: turn.Size
    crowds: tuple[int, ...]
    judged_crowd: int
    crowd_s: float
    rest_s: float
    idle_s: float
    whole_clients: tuple[int, ...]
    rico_turns: int
    sessions: int
    positions: tuple[int, ...]
    """Turns of a session whose CPU is compared; the first is a new session's."""
    at_each: int
    """How many turns of a session are measured around a position, a round."""


FULL = Size(
    slack=1.0,
    floor_s=3.0,
    clients=150,
    turns=20,
    few_turns=2,
    disk_floor_s=1.0,
    costs=turn.Size(seconds=4.0, warm_s=3.0, rounds=2, slack=1.0),
    crowds=(150, 300, 500, 800, 1000, 2000),
    judged_crowd=1000,
    crowd_s=6.0,
    rest_s=60.0,
    idle_s=30.0,
    whole_clients=(50, 10, 1),
    rico_turns=10,
    sessions=16,
    positions=(1, 20, 100, 400),
    at_each=4,
)
SHORT = Size(
    slack=5.0,
    floor_s=1.0,
    clients=20,
    turns=4,
    few_turns=2,
    disk_floor_s=0.5,
    costs=turn.Size(seconds=2.0, warm_s=1.5, rounds=1, slack=5.0),
    crowds=(20, 40),
    judged_crowd=40,
    crowd_s=2.0,
    rest_s=2.0,
    idle_s=2.0,
    whole_clients=(10, 1),
    rico_turns=5,
    sessions=4,
    positions=(1, 5, 10, 20),
    at_each=3,
)


@dataclass(slots=True)
class Stage:
    """Where the scenarios run, and what they have found: `foreign` is other work on the service's core, by scenario."""

    deployment: Deployment
    size: Size
    verdicts: Verdicts
    foreign: dict[str, float] = field(default_factory=dict)
    scenario: str = ""

    def service(self, name: str, model: str, tokens: int, *, native: bool = True, under: Sequence[str] = ()) -> Server:
        """The service on a database and a spool of its own; each of its answers must be the model's, to the letter."""
        change = turn.with_ack(self.deployment, name, "spool")
        server = self.deployment.service(name, model, change=change, under=under)
        return self.answering(server if native else server.whole, tokens)

    def answering(self, server: Server, tokens: int) -> Server:
        """A server whose answers are held to be those of the mock model, of so many tokens."""
        return server.answering(turn.spoken_answer(self.deployment, f"mock;tokens={tokens}"))

    def sample(self, server: Server, load: Load, beside: tuple[int, ...] = ()) -> Sample:
        """One window of a load; the first failures in it are printed."""
        seen = sample(self.deployment, server, load, beside=beside)
        self.note(seen)
        for failure in seen.failures[:3]:
            print(f"{server.name}: {failure[:300]}")
        return seen

    def note(self, *samples: Sample) -> None:
        """Keep what else ran on the service's core."""
        self._note(max(one.foreign_share for one in samples))

    @contextmanager
    def watched(self, server: Server) -> Iterator[None]:
        """The same of a block without samples."""
        clock, busy, used = Clock(), busy_s(self.deployment.service_cores), cpu_s(server.process.pid)
        yield
        others_s = busy_s(self.deployment.service_cores) - busy - (cpu_s(server.process.pid) - used)
        self._note(others_s / clock.seconds / len(self.deployment.service_cores))

    def _note(self, foreign_share: float) -> None:
        self.foreign[self.scenario] = max(self.foreign.get(self.scenario, 0.0), foreign_share)

    def calibrate(self) -> tuple[Speed, Flushes]:
        """How fast core and disk are just now; printed."""
        with pinned_to(self.deployment.service_cores):
            speed = measure_speed()
        disk = flushes(time_flushes(self.deployment.work, count=_FLUSHES))
        print(f"calibration: {speed}; {disk}")
        return speed, disk


def slow_model(floor_s: float, tokens: int = 21, gap_ms: float = 20.0) -> str:
    """A model whose tokens come apart, the last of them after so many seconds."""
    return f"mock;ttft={first_s(floor_s, tokens, gap_ms) * 1e3:g};gap={gap_ms:g};tokens={tokens}"


def first_s(floor_s: float, tokens: int, gap_ms: float) -> float:
    """When the first token of such a model comes. Raises ValueError where the others take longer than the floor."""
    first = round(floor_s - (tokens - 1) * gap_ms / 1e3, 6)
    if first < 0:
        raise ValueError(f"{tokens} tokens {gap_ms:g} ms apart take longer than {floor_s:g} s")
    return first


def late_ms(before: Counter[int], after: Counter[int], share: float) -> int:
    """Nearest-rank percentile of what a model was late between two looks at its counts, in whole ms; 0 of nothing."""
    between = after - before
    wanted = share * between.total()
    seen = 0
    for late, count in sorted(between.items()):
        seen += count
        if seen >= wanted:
            return late
    return 0


def spread_of(costs: Iterable[float]) -> float:
    """By which share the greatest is above the least."""
    ranked = sorted(costs)
    return ranked[-1] / ranked[0] - 1.0


class Clock:
    """Seconds since it was made, for the run's own account."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """Elapsed so far."""
        return time.monotonic() - self._begun
