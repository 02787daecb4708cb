"""Paces passages for an endpoint that limits requests or tokens a minute, or asks its clients to wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

CHARS_A_TOKEN = 4
"""Roughly, for English; where it is off, the endpoint answers 429."""


class RateLimit:
    """An even rate without bursts. `requests` and `tokens` a minute; 0 = no limit.

    Questions are counted too, and passages wait longer for them.
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
        """Seconds that the endpoint still asks its clients to wait; 0 where it does not."""
        return max(0.0, self._held_until - self._clock())

    def hold(self, seconds: float) -> None:
        """Note that the endpoint asks its clients to wait this long."""
        self._held_until = max(self._held_until, self._clock() + seconds)
        self._free_at = max(self._free_at, self._held_until)

    def count(self, requests: int, texts: Sequence[str]) -> None:
        """Note requests that go out now."""
        tokens = sum(map(len, texts)) // CHARS_A_TOKEN
        used_s = max(requests * self._request_s, tokens * self._token_s)
        self._free_at = max(self._free_at, self._clock()) + used_s

    async def turn(self, requests: int, texts: Sequence[str]) -> None:
        """Wait until the time for everything counted so far has passed, then count these."""
        while (wait_s := self._free_at - self._clock()) > 0:
            await self._sleep(wait_s)
        self.count(requests, texts)
