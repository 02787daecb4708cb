"""Two things at once, with the failure of either as it is."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def at_once(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both results. The first failure cancels the other, waits for its end, and is raised bare, not in a group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            one, other = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return one.result(), other.result()
