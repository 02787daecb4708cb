"""Returns memory to the system while no turn runs: cyclic garbage, and freed pages that the allocator keeps."""

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

    Ended connections and failed turns are cyclic garbage (of frameworks and tracebacks), which may stay for hours with
    the thresholds of `server.gc_freeze`. glibc returns only the top of its heap: one small live block keeps everything
    below it (docs/perf-log.md).
    """

    def __init__(
        self, running: Callable[[], int], release: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`running` returns how many turns run now, `clock` monotonic seconds."""
        self._running = running
        self._release = release
        self._clock = clock
        self._last = clock()

    async def release_when_idle(self) -> None:
        """Check once a second, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Check once."""
        now = self._clock()
        if now - self._last >= _EVERY_S and not self._running():
            self._last = now
            self._release()


def release_memory() -> None:
    """Collect cyclic garbage, then have glibc return free memory; other C libraries have no such call.

    Blocks the event loop: only for a process with `server.gc_freeze`, whose start-up objects are not collected.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
