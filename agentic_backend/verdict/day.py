"""What the service has measured of itself in the last 24 hours, in bounded memory, and the ledgers of its newest turns.

Steps of 10 s are kept for five minutes, of a minute for an hour, of five minutes for a day. Durations are counted by
marks 7 % apart, so that steps can be added and their percentiles are right within 3.5 %. A step with eight agents and
models is some 8 kB, all of them together some 3 MB, and never above 25 MB.
"""

import math
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from agentic_backend.verdict.slices import Slice, merged
from backend_kit.wire import dumps

DAY_S: Final = 86_400
LEDGERS_KEPT: Final = 2_000
LEDGER_BYTES_KEPT: Final = 8 * 1024 * 1024
OTHERS: Final = ""
"""The name under which a step counts all agents or models beyond those that it names."""
LEVELS: Final = (
    "running", "queued", "capacity", "db_in_use", "db_waiting", "batch_in_use", "batch_waiting", "pending", "oldest_ms",
    "spool_records", "spool_bytes", "spool_fill", "outbox_bytes", "sockets", "streams",
)  # fmt: skip
"""Turns that run, or wait for a slot, and how much of what the process can do is in use (0 to 1, above: others wait);
connections of Postgres, and who waits for one, of the main pool and the batcher's; records that wait for Postgres, and
for how long the oldest has; the spool; bytes that clients have yet to take; open sockets and event streams."""
Kind = Literal["all", "agent", "model"]
MEASURES: Final = ("turn_ms", "first_token_ms", "overhead_ms")
_MOST_NAMES: Final[Mapping[Kind, int]] = {"all": 1, "agent": 12, "model": 6}
_SLICES: Final = 10
_LEAST_MS: Final = 0.1
_GROWTH: Final = math.log(1.07)
_LAST_MARK: Final = 255
_COUNT_BITS: Final = 24
_COUNT_MASK: Final = (1 << _COUNT_BITS) - 1


def mark_of(ms: float) -> int:
    """The mark a duration counts under: 0 to 255, for 0.1 ms to 50 minutes."""
    if ms <= _LEAST_MS:
        return 0
    return min(int(math.log(ms / _LEAST_MS) / _GROWTH), _LAST_MARK)


def ms_of(mark: int) -> float:
    """The middle of what counts under a mark."""
    return _LEAST_MS * math.exp((mark + 0.5) * _GROWTH)


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """The nearest rank of `share` (0..1] over counts by mark; None without any."""
    rank = max(math.ceil(share * sum(counts.values())), 1)
    for mark in sorted(counts):
        rank -= counts[mark]
        if rank <= 0:
            return ms_of(mark)
    return None


class Tally:
    """Turns of one agent, of one model or of all, that are still being counted: by measure, counts by mark."""

    __slots__ = ("counts", "failed", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.failed = 0
        self.counts: tuple[dict[int, int], ...] = tuple({} for _ in MEASURES)

    def enter(self, took_ms: Sequence[float | None], *, failed: bool) -> None:
        """Count a turn; None where it has no such measure."""
        self.turns += 1
        self.failed += failed
        for counts, ms in zip(self.counts, took_ms, strict=True):
            if ms is not None:
                mark = mark_of(ms)
                counts[mark] = counts.get(mark, 0) + 1

    def add(self, kept: "KeptTally") -> None:
        """Count all that another one has counted."""
        self.turns += kept.turns
        self.failed += kept.failed
        for counts, packed in zip(self.counts, kept.packed, strict=True):
            for entry in packed:
                mark = entry >> _COUNT_BITS
                counts[mark] = counts.get(mark, 0) + (entry & _COUNT_MASK)

    def kept(self) -> "KeptTally":
        """The same, small. From any thread."""
        return KeptTally(
            self.turns,
            self.failed,
            tuple(
                array("I", [mark << _COUNT_BITS | min(count, _COUNT_MASK) for mark, count in dict(counts).items()])
                for counts in self.counts
            ),
        )


@dataclass(frozen=True, slots=True)
class KeptTally:
    """A tally that has ended: each entry is a mark and its count."""

    turns: int
    failed: int
    packed: "tuple[array[int], ...]"


Tallies = dict[tuple[Kind, str], KeptTally]


@dataclass(slots=True)
class DayStep:
    """A period of the day. `time` without its latencies; of each level of `LEVELS` the greatest value in it.

    `ended_at` is in seconds since the epoch. `rendered` caches what is computed once from a step that has ended.
    """

    ended_at: float
    time: Slice
    levels: "array[float]"
    tallies: Tallies
    rendered: dict[str, Any] | None = None


@dataclass(slots=True)
class _Tier:
    """Ended steps of one length, and those of the tier below that are not in one yet."""

    of: int
    kept: deque[DayStep]
    waiting: list[DayStep] = field(default_factory=list)


class NewestLedgers:
    """What is shown of the newest turns, by exchange: at most 2,000, and 8 MB of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, exchange_id: str, figures: Mapping[str, Any]) -> None:
        """Keep figures of a turn, names of phases and codes: no text of anybody. An earlier turn of that name goes."""
        encoded = dumps(figures)
        self._bytes += len(encoded) - len(self._kept.pop(exchange_id, b""))
        self._kept[exchange_id] = encoded
        while len(self._kept) > LEDGERS_KEPT or self._bytes > LEDGER_BYTES_KEPT:
            self._bytes -= len(self._kept.popitem(last=False)[1])

    def find(self, exchange_id: str) -> bytes | None:
        """What was kept of a turn, as JSON; None where nothing is."""
        return self._kept.get(exchange_id)


class Day:
    """Collects ended turns and seconds on the event loop; tells of them to any thread."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[Kind, str], Tally] = {}
        self._slices: list[Slice] = []
        self._levels = _no_levels()
        self.latest: Sequence[float] = self._levels
        """The levels at the end of the newest second."""
        self._minutes = _Tier(6, deque(maxlen=60))
        self._fives = _Tier(5, deque(maxlen=DAY_S // 300))
        self._tens: deque[DayStep] = deque(maxlen=30)

    def ended(self, agent: str, model: str, took_ms: Sequence[float | None], *, failed: bool) -> None:
        """Count a turn that ran, in the order of `MEASURES`."""
        names: tuple[tuple[Kind, str], ...] = (("all", ""), ("agent", agent), ("model", model))
        for kind, name in names:
            if name or kind == "all":
                self._tally(kind, name).enter(took_ms, failed=failed)

    def _tally(self, kind: Kind, name: str) -> Tally:
        tally = self._tallies.get((kind, name))
        if tally is None:
            if sum(known == kind for known, _ in self._tallies) >= _MOST_NAMES[kind]:
                return self._tallies.setdefault((kind, OTHERS), Tally())
            tally = self._tallies[kind, name] = Tally()
        return tally

    def close(self, slice_: Slice, levels: Sequence[float]) -> None:
        """Take a second that has ended, with the levels at its end."""
        self._slices.append(slice_)
        self.latest = levels
        for index, level in enumerate(levels):
            if level > self._levels[index]:
                self._levels[index] = level
        if len(self._slices) < _SLICES:
            return
        step = self._open()
        self._slices, self._tallies, self._levels = [], {}, _no_levels()
        self._tens.append(step)
        for tier in (self._minutes, self._fives):
            tier.waiting.append(step)
            if len(tier.waiting) < tier.of:
                return
            step = joined(tier.waiting)
            tier.waiting = []
            tier.kept.append(step)

    def _open(self) -> DayStep:
        """The step that has not ended."""
        time_ = _without_latencies(merged(self._slices))
        tallies = {key: tally.kept() for key, tally in dict(self._tallies).items()}
        return DayStep(time.time(), time_, self._levels[:], tallies)

    def steps(self, window_s: float) -> list[DayStep]:
        """The last `window_s` in steps of 10 s, up to five minutes of it; of a minute, up to an hour; else of five
        minutes. The last step is one that has not ended. From any thread."""
        kept, begun = self._tens, [self._open()]
        for tier, beyond_s in ((self._minutes, 300.0), (self._fives, 3600.0)):
            if window_s > beyond_s:
                kept, begun = tier.kept, [*tier.waiting, *begun]
        horizon = time.time() - window_s
        steps = [step for step in tuple(kept) if step.ended_at > horizon]
        return [*steps, joined(begun)]

    def pace(self, agent: str) -> tuple[int, float | None]:
        """How many turns of an agent that steps name were measured in the last day, and the median of what they took,
        in ms; None without any. From any thread: some milliseconds at most."""
        whole = Tally()
        for step in self.steps(DAY_S):
            if (kept := step.tallies.get(("agent", agent))) is not None:
                whole.add(kept)
        took = whole.counts[MEASURES.index("turn_ms")]
        return sum(took.values()), quantile(took, 0.5)


def joined(steps: Sequence[DayStep]) -> DayStep:
    """Several consecutive steps as one."""
    levels = _no_levels()
    sums: dict[tuple[Kind, str], Tally] = {}
    for step in steps:
        levels = array("d", map(max, levels, step.levels))
        for key, kept in step.tallies.items():
            sums.setdefault(key, Tally()).add(kept)
    return DayStep(steps[-1].ended_at, merged(step.time for step in steps), levels, _the_largest(sums))


def _the_largest(sums: Mapping[tuple[Kind, str], Tally]) -> Tallies:
    """As many of each kind as a step may name, by their turns; the others as one."""
    found: Tallies = {}
    for kind, most in _MOST_NAMES.items():
        of_kind = sorted((key for key in sums if key[0] == kind), key=lambda key: (key[1] == OTHERS, -sums[key].turns))
        for key in of_kind[:most]:
            found[key] = sums[key].kept()
        if len(of_kind) > most:
            others = Tally()
            for key in of_kind[most:]:
                others.add(sums[key].kept())
            found[kind, OTHERS] = others.kept()
    return found


def _without_latencies(of: Slice) -> Slice:
    of.turn_ms, of.first_token_ms = array("d"), array("d")
    return of


def _no_levels() -> "array[float]":
    return array("d", [0.0] * len(LEVELS))
