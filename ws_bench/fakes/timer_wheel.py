"""A timer wheel: one timer for all streams, with buckets of two milliseconds that one callback serves as a whole."""

import asyncio
import heapq
import math
from collections.abc import Callable

TICK_S = 0.002
"""With 600 streams and tokens 20 ms apart, a tick of two milliseconds serves 60; calls are at most a tick late."""
EARLY_S = 0.001
"""The loop's timers count whole milliseconds and may fire early by less than one: callers treat that as due."""


class TimerWheel:
    """Calls functions at times on the loop's clock, never early. When idle it sets no timer.

    A function must not raise: the rest of its bucket would be lost.
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
        """Call in the first tick at or after `when` (loop seconds). It cannot be cancelled: check when called."""
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
