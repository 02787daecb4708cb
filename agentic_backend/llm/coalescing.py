"""How long a stream lets the texts of its answer gather before it reads them: the fuller the event loop, the longer.

A token that comes alone costs a wake of the loop, a read, a decode, an event and a frame; those of one read cost that
once. A loop with time to spare hands out each token as it comes. A full one would make all turns wait for it, and the
texts of a turn for each other anyway: here they wait where they cost nothing, unread.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_INTERVALS: Final = ((0.5, 0.0), (0.8, 0.02), (0.95, 0.05), (1.0, 0.1))
"""(busy share of the loop, seconds): linear between the points, constant outside of them. A reader hardly notices: 50
ms are three frames of a screen, and a saturated loop takes longer anyway."""
_WINDOW_S: Final = 0.2
_TICK_S: Final = 0.005
"""Streams whose time is up within it go on together: a timer for each would be more work for a loop that is full."""
_TOGETHER: Final = 16
_PART: Final = 8
"""At most `_TOGETHER` continue at once, or one in `_PART` of all that are held if that is more. Then the loop runs
once: a turn that begins or ends takes several passes of it, and tokens can wait."""
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")


def thread_busy_s() -> float:
    """Seconds that this thread has run or waited for a core; only those it has run where Linux does not say.

    A loop whose core others use is as full as one that computes.
    """
    try:
        ran_ns, waited_ns, _slices = _SCHEDSTAT.read_bytes().split()
    except OSError:
        return time.thread_time()
    return (int(ran_ns) + int(waited_ns)) / 1e9


class Coalescer:
    """One for all streams of a loop. It measures only when it is asked, and has a timer only while it holds any."""

    def __init__(
        self,
        *,
        busy_s: Callable[[], float] = thread_busy_s,
        clock: Callable[[], float] = time.perf_counter,
        later: Callable[[float, Callable[[], None]], Any] | None = None,
    ) -> None:
        """`busy_s` counts the seconds that the loop's thread has been busy. Built on that thread. `later` schedules a
        call after a number of seconds, by default the running loop's `call_later`."""
        self._busy_s = busy_s
        self._clock = clock
        self._later = later
        self._held: deque[tuple[float, Callable[[], None]]] = deque()
        self._armed = False
        self._since = clock()
        self._busy_before = self._busy_s()
        self.interval_s = 0.0

    def hold(self, go_on: Callable[[], None]) -> bool:
        """Call `go_on`, which must not raise, once texts have gathered for as long as they should now.

        False if that is no time at all: then it is not called.
        """
        if not (interval_s := self.now_s()):
            return False
        self._held.append((self._clock() + interval_s, go_on))
        if not self._armed:
            self._arm(interval_s)
        return True

    def _arm(self, seconds: float) -> None:
        self._armed = True
        (self._later or asyncio.get_running_loop().call_later)(seconds, self._release)

    def _release(self) -> None:
        now = self._clock()
        try:
            # Who goes on may be held again at once, and is then not yet due.
            for _ in range(max(_TOGETHER, len(self._held) // _PART)):
                if not self._held or self._held[0][0] > now + _TICK_S:
                    break
                self._held.popleft()[1]()
        finally:
            self._armed = False
            if self._held:
                self._arm(max(self._held[0][0] - now, 0.0))

    def now_s(self) -> float:
        """The seconds for which texts should gather now. On the loop's thread."""
        now = self._clock()
        if now - self._since >= _WINDOW_S:
            self._measure(now)
        return self.interval_s

    def _measure(self, now: float) -> None:
        busy = self._busy_s()
        share = (busy - self._busy_before) / (now - self._since)
        self._since, self._busy_before = now, busy
        # Half of the step: a longer interval makes the loop less busy, which would make it short again.
        self.interval_s = (self.interval_s + interval_at(share)) / 2 if share > _INTERVALS[0][0] else 0.0


def interval_at(share: float) -> float:
    """The seconds for which texts gather at a busy share of the loop (0 to 1)."""
    (below, least), *steps = _INTERVALS
    if share <= below:
        return least
    for above, most in steps:
        if share <= above:
            return least + (most - least) * (share - below) / (above - below)
        below, least = above, most
    return least
