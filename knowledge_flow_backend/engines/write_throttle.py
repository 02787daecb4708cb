"""How fast chunks are written while somebody searches: writes and searches share the same processors."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


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
