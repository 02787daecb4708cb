"""REST of how long turns of an agent take, for whoever may ask it."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel

from agentic_backend.agent.catalog import MADE_LABEL
from agentic_backend.errors import AgentNotFound
from agentic_backend.rest.agents import AgentServices
from agentic_backend.verdict import Windows
from backend_kit.auth import Identity
from backend_kit.wire import storable

LEAST_TURNS: Final = 5
"""Of fewer nothing is told: they might be those of one other person."""
_AgentId = Annotated[str, PathParam(max_length=128), AfterValidator(storable)]


class AgentPace(BaseModel):
    """Turns that the answering instance has measured in the last day, and their median; null where there are too
    few, and for agents that were made over REST, which are measured together."""

    turns: int | None = None
    median_ms: float | None = None


def add_pace(
    router: APIRouter, services: Callable[[], AgentServices], windows: Callable[[], Windows], caller: Any
) -> None:
    """Add the route. `services()` and `windows()` are called at each request."""

    @router.get("/agents/{agent_id}/pace")
    async def agent_pace(agent_id: _AgentId, identity: caller) -> AgentPace:
        """How long turns of an agent took in the last day, by the median: for whoever may ask it."""
        return await _pace(services(), windows(), identity, agent_id)


async def _pace(state: AgentServices, windows: Windows, identity: Identity, agent_id: str) -> AgentPace:
    if agent_id not in state.catalog.names() or not identity.may_ask(agent_id):
        raise AgentNotFound
    label = state.catalog.label(agent_id)
    if label == MADE_LABEL:
        return AgentPace()
    turns, median_ms = await asyncio.to_thread(windows.day.pace, label)
    if turns < LEAST_TURNS or median_ms is None:
        return AgentPace()
    return AgentPace(turns=turns, median_ms=round(median_ms, 3))
