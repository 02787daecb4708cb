"""Concurrency helpers: threads for computation behind a bounded queue, and two coroutines run together."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")


UNBOUNDED: Final = sys.maxsize
"""For `waiting` and `waiting_per_user` of a gate: nobody is refused."""


class ThreadsBusy(Exception):
    """The queue of calls is full."""


class WorkerThreads:
    """`threads` threads of one name and a queue of `waiting` calls in front of them.

    A call whose caller has gone (cancelled, past its deadline) is dropped while it waits; one that runs cannot be
    stopped and keeps its thread until it ends, which is why the queue is bounded and refuses rather than grows.
    """

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._room = threads + waiting
        self._lock = threading.Lock()
        self._held = 0

    @property
    def held(self) -> int:
        """Calls that run or wait now."""
        return self._held

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """The result of `work()`, or what it raises. Raises `ThreadsBusy` at once where there is no room."""
        with self._lock:
            if self._held >= self._room:
                raise ThreadsBusy
            self._held += 1
        try:
            future = self._executor.submit(work)
        except RuntimeError:  # closed, or no thread could be started: nobody else gives the place back
            self._leave(None)
            raise
        future.add_done_callback(self._leave)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Accept no more calls and drop the waiting ones; running calls finish on their own."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _future: "Future[T] | None") -> None:
        with self._lock:
            self._held -= 1


async def gather_pair(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """Both results. Raises the first failure itself, not a group, once the other has been cancelled and ended."""
    try:
        async with asyncio.TaskGroup() as tasks:
            one, other = tasks.create_task(first), tasks.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return one.result(), other.result()
