"""How fast passages go to an endpoint that allows so many requests or tokens a minute, or wants to be left alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

CHARS_A_TOKEN = 4
"""Rough, for English; what it misses, the endpoint's own 429 says."""


class RateLimit:
    """An even rate without bursts. `requests` and `tokens` a minute; 0 = no limit.

    What questions use is counted, so that passages wait the longer for it.
    """

    def __init__(
        self,
        requests: int,
        tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._request_s = 60.0 / requests if requests else 0.0
        self._token_s = 60.0 / tokens if tokens else 0.0
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._held_until = clock()

    @property
    def held_s(self) -> float:
        """How long the endpoint still wants to be left alone; 0 where it does not."""
        return max(0.0, self._held_until - self._clock())

    def hold(self, seconds: float) -> None:
        """The endpoint wants to be left alone for so long."""
        self._held_until = max(self._held_until, self._clock() + seconds)
        self._free_at = max(self._free_at, self._held_until)

    def count(self, requests: int, texts: Sequence[str]) -> None:
        """Note requests that go out now."""
        tokens = sum(map(len, texts)) // CHARS_A_TOKEN
        used_s = max(requests * self._request_s, tokens * self._token_s)
        self._free_at = max(self._free_at, self._clock()) + used_s

    async def turn(self, requests: int, texts: Sequence[str]) -> None:
        """Wait until what was counted so far has its time behind it, then count these."""
        while (wait_s := self._free_at - self._clock()) > 0:
            await self._sleep(wait_s)
        self.count(requests, texts)
