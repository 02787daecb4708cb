"""What runs at once: calls at a gate that users share in turn, threads for computation behind a bounded queue, two
coroutines together."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeVar

from backend_kit.aio import Crowded, FairGate
from knowledge_flow_backend.errors import Overloaded, RateLimited
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")

UNBOUNDED: Final = sys.maxsize
"""For `waiting` and `waiting_per_user` of a gate: nobody is refused."""
GateClass = Literal["search", "upload"]
"""What waits together; `parse` is a gate of the parser pool, which refuses nobody."""
_RETRY_S: Final = 1.0


@asynccontextmanager
async def admitted(
    gate: FairGate, user_id: str, what: GateClass, metrics: KnowledgeFlowMetrics, *, ends_at: float | None = None
) -> AsyncIterator[None]:
    """Hold a place for the block, waited for until `ends_at` of the loop's clock (None: for as long as it takes).

    Raises `RateLimited` where too many calls of the user wait, or the time is up while others of theirs have the places
    that they may have; `Overloaded` where too many of all wait, or the time is up otherwise.
    """
    await enter_gate(gate, user_id, what, metrics, ends_at=ends_at)
    try:
        yield
    finally:
        gate.leave(user_id)


async def enter_gate(
    gate: FairGate, user_id: str, what: GateClass, metrics: KnowledgeFlowMetrics, *, ends_at: float | None = None
) -> None:
    """Take a place that the caller gives back with `gate.leave`. Raises as `admitted`."""
    try:
        async with asyncio.timeout_at(ends_at):
            await gate.enter(user_id)
    except TimeoutError:
        metrics.refused(what, "late").inc()
        # Where the service has room for others it is not to be taken for down.
        refusal = RateLimited if gate.waits_for_own(user_id) else Overloaded
        raise refusal("waited too long", retry_after_s=_RETRY_S) from None
    except Crowded as crowd:
        metrics.refused(what, crowd.bound).inc()
        refusal = RateLimited if crowd.bound == "per_user" else Overloaded
        raise refusal("too many wait", retry_after_s=_RETRY_S) from None


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
