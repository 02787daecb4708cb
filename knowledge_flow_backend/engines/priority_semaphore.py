"""Order among searches: a bounded number of their steps run at once, and searches that have begun go first."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backend_kit.kpi import Kpi


class PrioritySemaphore:
    """Lets `places` steps of searches, a statement or a query each, run at a time.

    A server with few cores that gets twenty at once ends them all late and together, and their answers block the event
    loop all at once. A few at a time end no later, one after the other.
    """

    def __init__(self, places: int, kpi: Kpi) -> None:
        """`kpi` times the wait as the phase `search_turn`."""
        self._kpi = kpi
        self._free = places
        self._begun: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def step(self, *, first: bool = False) -> AsyncIterator[None]:
        """Hold a place for the block. `first`: the search begins with it, and waits for those that have begun.

        A block must not wait for another step.
        """
        with self._kpi.phase("search_turn"):
            await self._enter(self._new if first else self._begun)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, queue: deque[asyncio.Future[None]]) -> None:
        if self._free:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._leave()  # the place came just when the wait was cancelled
            raise

    def _leave(self) -> None:
        """Hand the place to the next step that still waits."""
        for queue in (self._begun, self._new):
            while queue:
                place = queue.popleft()
                if not place.done():
                    place.set_result(None)
                    return
        self._free += 1
