"""Waiting for what other processes do: there is no event to await, so it is asked again and again, for so long."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.patience import HANGS_S

_EVERY_S = 0.02


async def until(true: Callable[[], bool], within_s: float = HANGS_S) -> None:
    """Wait until it is so. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(_EVERY_S)


async def until_it(true: Callable[[], Awaitable[bool]], within_s: float = HANGS_S) -> None:
    """As `until`, for what must be awaited itself."""
    async with asyncio.timeout(within_s):
        while not await true():  # noqa: ASYNC110 - see above
            await asyncio.sleep(_EVERY_S)
