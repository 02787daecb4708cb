"""LangGraph's Agent Server API: assistants, threads and runs, for every client of `langgraph_sdk` and its kin."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from starlette.routing import BaseRoute

from agentic_backend.surfaces.langgraph.assistants import add_assistants
from agentic_backend.surfaces.langgraph.changes import add_changes
from agentic_backend.surfaces.langgraph.errors import LangGraphRoute, refusals
from agentic_backend.surfaces.langgraph.run_routes import add_runs
from agentic_backend.surfaces.langgraph.states import add_states
from agentic_backend.surfaces.langgraph.store_items import add_store
from agentic_backend.surfaces.langgraph.thread_routes import add_thread_streams
from agentic_backend.surfaces.langgraph.threads import add_threads
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps

_FLAGS = {"assistants": True, "crons": False, "langsmith": False, "langsmith_tracing_replicas": False}


def add_routes(services: Callable[[], DoorServices], identify: Callable[..., Any]) -> list[BaseRoute]:
    """The routes of the door, at the root: clients append their paths to a base URL."""
    router = APIRouter(tags=["langgraph"], route_class=LangGraphRoute, responses=refusals())
    caller = Annotated[Identity, Depends(identify)]
    about = dumps({"version": version("turnwise"), "langgraph_py_version": version("langgraph"), "flags": _FLAGS})

    @router.get("/ok")
    async def ok() -> Response:
        """Whether the service answers."""
        return Response(b'{"ok":true}', media_type="application/json")

    @router.get("/info")
    async def info() -> Response:
        """The versions, and which parts of the API are implemented."""
        return Response(about, media_type="application/json")

    add_runs(router, services, caller)
    add_states(router, services, caller)
    add_changes(router, services, caller)
    add_threads(router, services, caller)
    add_assistants(router, services, caller)
    add_store(router, services, caller)
    add_thread_streams(router, services, caller)
    return list(router.routes)
