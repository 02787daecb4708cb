"""The door of OpenAI's API: agents as models, for every client that takes a base URL and a key."""

import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from starlette.routing import BaseRoute

from agentic_backend.surfaces.openai.asked import listed
from agentic_backend.surfaces.openai.asking import target_of
from agentic_backend.surfaces.openai.chat import complete_chat
from agentic_backend.surfaces.openai.errors import OpenAiRoute, Unrouted, refusals
from agentic_backend.surfaces.openai.responses import (
    cancel_response,
    create_response,
    delete_response,
    input_items,
    retrieve_response,
)
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps

PREFIX = "/v1"
_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
"""As in OpenAI's documentation; docs/doors/openai.md says which fields have no effect."""


def add_routes(services: Callable[[], DoorServices], identify: Callable[..., Any]) -> list[BaseRoute]:
    """The routes of the door, at the root: clients append `/chat/completions` to a base URL that ends with `/v1`."""
    router = APIRouter(prefix=PREFIX, tags=["openai"], route_class=OpenAiRoute, responses=refusals())
    caller = Annotated[Identity, Depends(identify)]
    created = int(time.time())

    @router.get("/models")
    async def models(identity: caller) -> Response:
        """The agents that the caller may ask, each with the models that a turn of it may choose."""
        data = listed(services().catalog, identity.may_ask, created)
        return Response(dumps({"object": "list", "data": data}), media_type="application/json")

    @router.get("/models/{model:path}")
    async def model(model: str, identity: caller) -> Response:
        """One of the models of `GET /v1/models`."""
        catalog, allowed = services().catalog, identity.may_ask
        target_of(catalog, model, allowed)
        found = next((one for one in listed(catalog, allowed, created) if one["id"] == model), None)
        return Response(dumps(found or _unlisted(model, created)), media_type="application/json")

    @router.post("/chat/completions", openapi_extra=_BODY)
    async def chat_completions(request: Request, identity: caller) -> Response:
        """The answer of an agent, in one piece or as a stream, in the shapes of OpenAI's chat completions."""
        return await complete_chat(services(), request, identity)

    _add_responses(router, services, caller)
    # Last: it takes every request below this path that the others do not.
    return [*router.routes, Unrouted(PREFIX, router.routes)]


def _add_responses(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/responses", openapi_extra=_BODY)
    async def create(request: Request, identity: caller) -> Response:
        """The answer of an agent as a response: in one piece, as a stream, or in the background."""
        return await create_response(services(), request, identity)

    @router.get("/responses/{response_id}")
    async def retrieve(response_id: str, request: Request, identity: caller) -> Response:
        """A response as it is now; with `stream=true` its events, only those after `starting_after`."""
        return await retrieve_response(services(), request, identity, response_id)

    @router.post("/responses/{response_id}/cancel")
    async def cancel(response_id: str, request: Request, identity: caller) -> Response:
        """Stop a running response."""
        return await cancel_response(services(), request, identity, response_id)

    @router.delete("/responses/{response_id}")
    async def delete(response_id: str, request: Request, identity: caller) -> Response:
        """Delete a response with its conversation, if that has no other response."""
        return await delete_response(services(), request, identity, response_id)

    @router.get("/responses/{response_id}/input_items")
    async def items(response_id: str, request: Request, identity: caller) -> Response:
        """What a response was asked with."""
        return await input_items(services(), request, identity, response_id)


def _unlisted(model: str, created: int) -> dict[str, Any]:
    """A model that may be asked for but is not listed: an agent with its only model."""
    return {"id": model, "object": "model", "created": created, "owned_by": "turnwise", "name": model}
