"""AG-UI, the protocol of CopilotKit and its kin: `POST /agui/{agent}` runs an agent and streams the run's events."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.routing import BaseRoute

from agentic_backend.chat.sse import EventStream
from agentic_backend.surfaces.agui.runs import ask_to_run, cancel_run
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.http import DirectRoute, refusals

_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
"""A RunAgentInput; https://ag-ui.com/spec/1.0/schema.json has the complete schema."""


def add_routes(services: Callable[[], DoorServices], identify: Callable[..., Any]) -> list[BaseRoute]:
    """The routes of the door. `services()` is called for each request: its result exists once the app runs."""
    router = APIRouter(prefix="/agui", tags=["agui"], route_class=DirectRoute, responses=refusals())
    caller = Annotated[Identity, Depends(identify)]

    @router.post("/{agent_id}", status_code=200, response_class=EventStream, openapi_extra=_BODY)
    async def run(agent_id: str, request: Request, identity: caller) -> Response:
        """Run an agent, or continue to receive a run, by an AG-UI RunAgentInput; its events as `text/event-stream`."""
        return await ask_to_run(services(), agent_id, request, identity)

    @router.delete("/{agent_id}/runs/{exchange_id:path}", status_code=204)
    async def stop(agent_id: str, exchange_id: str, identity: caller) -> Response:
        """Stop a run. Its exchange is in the metadata of RUN_STARTED: the run's id, unless it answers a question."""
        await cancel_run(services(), agent_id, exchange_id, identity.uid)
        return Response(status_code=204)

    return list(router.routes)
