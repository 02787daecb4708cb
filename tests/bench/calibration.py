"""How fast this machine is just now: a fixed loop of plain Python, by which a figure of another machine can be read.

CPU a turn over the CPU of this loop is a figure that machines of unlike speed, or one machine in unlike hours, have in
common as far as they run Python alike.
"""

import time
from dataclasses import dataclass
from statistics import median

_ROUNDS = 20_000
_TIMES = 41
CHANGED = 0.10
"""From this difference on, first and last calibration of a run are those of two machines."""


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU ms of one loop: the median of several, the least and the greatest."""

    loop_ms: float
    least_ms: float
    most_ms: float

    def __str__(self) -> str:
        return f"Python loop {self.loop_ms:.2f} ms ({self.least_ms:.2f}..{self.most_ms:.2f})"


def measure_speed(times: int = _TIMES) -> Speed:
    """Run the loop so often on the cores that this thread may use: a fifth of a second or so."""
    return speed_of([_loop_ms() for _ in range(times)])


def speed_of(costs_ms: list[float]) -> Speed:
    """What single loops took, as one figure."""
    return Speed(median(costs_ms), min(costs_ms), max(costs_ms))


def loops_a_turn(cpu_ms: float, before: Speed, after: Speed) -> float:
    """CPU of a turn in loops, by the speed around it."""
    return cpu_ms * 2 / (before.loop_ms + after.loop_ms)


def turns_in_loops(turns_per_s: float, before: Speed, after: Speed) -> float:
    """Turns that are done in the time of a thousand loops."""
    return turns_per_s * (before.loop_ms + after.loop_ms) / 2


def changed(before: Speed, after: Speed) -> bool:
    """Whether the machine is another one than it was."""
    return abs(after.loop_ms / before.loop_ms - 1.0) > CHANGED


def _loop_ms() -> float:
    begun = time.thread_time()
    seen: dict[int, int] = {}
    for number in range(_ROUNDS):
        key = number & 255
        seen[key] = seen.get(key, 0) + len(str(number))
    return (time.thread_time() - begun) * 1e3
