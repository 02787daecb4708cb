"""Returns memory to the system while no turn runs: cyclic garbage, and freed pages that the allocator keeps."""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Final

TICK_S: Final = 5.0
_QUIET_S: Final = 15.0
_EVERY_S: Final = 60.0


class MemoryRelease:
    """Calls `release()` once turns have run and none does: after 15 quiet seconds, or a minute after the last time.

    Under steady load it is never called, nor where no turn has run since: it stops the loop. Ended connections
    and failed turns are cyclic garbage (of frameworks and tracebacks), which may stay for hours with the thresholds of
    `server.gc_freeze`. glibc returns only the top of its heap: one small live block keeps everything below it
    (docs/perf-log.md).
    """

    def __init__(
        self,
        running: Callable[[], int],
        ended: Callable[[], int],
        release: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`running` returns how many turns run now, `ended` how many have ended so far, `clock` monotonic seconds."""
        self._running = running
        self._ended = ended
        self._release = release
        self._clock = clock
        self._last = self._quiet_since = clock()
        self._seen = self._released_at = 0

    async def release_when_idle(self) -> None:
        """Check every five seconds, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Check once."""
        now, ended, running = self._clock(), self._ended(), self._running()
        if running or ended != self._seen:
            self._seen, self._quiet_since = ended, now
        if running or ended == self._released_at:
            return
        if now - self._quiet_since >= _QUIET_S or now - self._last >= _EVERY_S:
            self._last, self._released_at = now, ended
            self._release()


def release_memory() -> None:
    """Collect cyclic garbage, then have glibc return free memory; other C libraries have no such call.

    Blocks the event loop: only for a process with `server.gc_freeze`, whose start-up objects are not collected.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
