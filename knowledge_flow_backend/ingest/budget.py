"""A byte budget: what large files hold in memory at the same time stays within one bound."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """A semaphore that counts bytes. Who needs more than there are in all waits until all of them are free."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes for the block."""
        needed = min(size, self._size)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            self._free += needed
            async with self._changed:
                self._changed.notify_all()
