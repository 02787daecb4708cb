"""Hands memory back while nothing runs: garbage in cycles, and pages that the allocator keeps of what was freed."""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Final

TICK_S: Final = 1.0
_EVERY_S: Final = 60.0


class MemoryRelease:
    """Once a minute, in a second in which no turn runs, `release()` is called; under steady load it never is.

    A connection that has ended and a turn that failed lie in cycles (of frameworks and tracebacks), and with the
    thresholds of `server.gc_freeze` they may lie for hours. glibc gives back the top of its heap alone: one small piece
    that lives keeps all below it (docs/perf-log.md).
    """

    def __init__(
        self, running: Callable[[], int], release: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`running` tells how many turns run now, `clock` the seconds since whenever."""
        self._running = running
        self._release = release
        self._clock = clock
        self._last = clock()

    async def release_when_idle(self) -> None:
        """Look once a second, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Look once."""
        now = self._clock()
        if now - self._last >= _EVERY_S and not self._running():
            self._last = now
            self._release()


def release_memory() -> None:
    """Collect what lies in cycles, then let glibc hand back what is free; another C library has no such call.

    Holds the loop meanwhile: only for a process with `server.gc_freeze`, whose start-up is out of the collection.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
