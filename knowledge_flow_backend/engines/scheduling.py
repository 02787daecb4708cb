"""Who goes first in an engine: writes beside searches, and catching up after writes."""

import asyncio
import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from backend_kit.aio.retry import Backoff, QuietLog, keep_trying
from knowledge_flow_backend.errors import DocumentsUnavailable
from knowledge_flow_backend.index.database import IndexDatabase

TICK_S: Final = 1.0
LONGEST_S: Final = 4.0


@dataclass(frozen=True, slots=True)
class ThrottleRules:
    """For `lately_s` after a search another one is expected. Meanwhile one piece of at most `piece` chunks is written
    at a time, followed by a rest of `rests` times its duration, at most `longest_rest_s`."""

    lately_s: float = 1.0
    piece: int = 50
    rests: float = 3.0
    longest_rest_s: float = 5.0


class WriteThrottle:
    """Shared by all writes and searches of an index: each search waits a little longer, instead of a few waiting for a
    whole document. While nobody searches, writes are not slowed down."""

    def __init__(
        self, rules: ThrottleRules | None = None, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._rules = rules or ThrottleRules()
        self._sleep = sleep
        self._searched_at = -math.inf
        self._turn = asyncio.Lock()

    def searched(self) -> None:
        """A search begins."""
        self._searched_at = time.monotonic()

    def piece(self, most: int) -> int:
        """How many chunks to write next; `most` where nobody searches."""
        return min(most, self._rules.piece) if self._searched_lately() else most

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Write one piece in the block. While somebody searches it waits for its turn, and rests at its end.

        A block must wait for no other write.
        """
        if not self._searched_lately():
            yield
            return
        async with self._turn:
            begun = time.monotonic()
            yield
            await self._sleep(min((time.monotonic() - begun) * self._rules.rests, self._rules.longest_rest_s))

    def _searched_lately(self) -> bool:
        return time.monotonic() - self._searched_at < self._rules.lately_s


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until it is set, for at most `seconds`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class CatchUp(ABC):
    """Catches up whenever something was written here, and looks for what another process wrote and left undone.

    It looks a second after something was written or found, then at intervals that double up to 4 s.
    """

    def __init__(
        self,
        database: IndexDatabase,
        log: logging.Logger,
        behind: str,
        *,
        wait: Callable[[asyncio.Event, float], Awaitable[object]] = wait_for_event,
    ) -> None:
        """`behind` names in a log line what is out of date while the work fails."""
        self._database = database
        self._log = QuietLog(log)
        self._behind = behind
        self._woken = asyncio.Event()
        self._wait = wait

    def wake(self) -> None:
        """Catch up at once, since something was written; otherwise the next look may be 4 s away."""
        self._woken.set()

    async def follow_writes(self) -> None:
        """Catch up until cancelled. Failures are logged, once a second at most, and retried with growing waits."""
        await self._database.wait_ready()
        rest_s = TICK_S
        while True:
            woken = self._woken.is_set()
            self._woken.clear()
            done = await keep_trying(self.catch_up, DocumentsUnavailable, Backoff(), on_failure=self._failed)
            # Of what was written here another process may have had the lock.
            rest_s = TICK_S if done or woken else min(rest_s * 2, LONGEST_S)
            await self._wait(self._woken, rest_s)

    @abstractmethod
    async def catch_up(self) -> bool:
        """Do all there is to do now; whether there was anything. Raises `DocumentsUnavailable`; what is done by then
        stays done."""

    def _failed(self, failure: DocumentsUnavailable) -> None:
        self._log.warning("behind", "%s: %s; trying on", self._behind, failure)
