"""Who may begin now: a place at a gate that users share in turn, waited for, or a refusal that says when to return."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from backend_kit.aio import Crowded, FairGate
from knowledge_flow_backend.errors import Overloaded, RateLimited
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

Class = Literal["search", "upload"]
"""What waits together; `parse` is a gate of the parser pool, which refuses nobody."""
_RETRY_S = 1.0


@asynccontextmanager
async def admitted(
    gate: FairGate, user_id: str, what: Class, metrics: KnowledgeFlowMetrics, *, ends_at: float | None = None
) -> AsyncIterator[None]:
    """Hold a place for the block, waited for until `ends_at` of the loop's clock (None: for as long as it takes).

    Raises `RateLimited` where too many calls of the user wait, or the time is up while others of theirs have the places
    that they may have; `Overloaded` where too many of all wait, or the time is up otherwise.
    """
    await enter(gate, user_id, what, metrics, ends_at=ends_at)
    try:
        yield
    finally:
        gate.leave(user_id)


async def enter(
    gate: FairGate, user_id: str, what: Class, metrics: KnowledgeFlowMetrics, *, ends_at: float | None = None
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
