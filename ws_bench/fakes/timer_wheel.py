"""One timer for all streams: work is put into buckets of two milliseconds, and one callback serves a whole bucket."""

import asyncio
import heapq
import math
from collections.abc import Callable

TICK_S = 0.002
"""Why two: at 600 streams 20 ms apart a tick then serves 60 of them. Lateness is at most one tick."""
EARLY_S = 0.001
"""The loop's timers count whole milliseconds and may come early by less than one: a caller treats that as due."""


class TimerWheel:
    """Calls functions at a time on the loop's clock, never early. With nothing to do it sets no timer.

    A function must not raise: what is left of its bucket would be lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, list[Callable[[], None]]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0

    def time(self) -> float:
        """Now, in the seconds that `call_at` takes."""
        return self._loop.time()

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Call in the first tick at or after `when` (loop seconds). There is no cancel: check on arrival instead."""
        tick = math.ceil(when / TICK_S)
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.append(call)
            return
        self._buckets[tick] = [call]
        heapq.heappush(self._order, tick)
        if self._timer is None or tick < self._armed_for:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._order:
            self._armed_for = self._order[0]
            self._timer = self._loop.call_at(self._armed_for * TICK_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = math.floor((self._loop.time() + EARLY_S) / TICK_S)
        while self._order and self._order[0] <= now:
            for call in self._buckets.pop(heapq.heappop(self._order)):
                call()
        self._arm()
