"""What fastapi leaves in the scope of a request, what fastapi-offline ships, and which backend anyio loads."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from fastapi import APIRouter, FastAPI
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

APP = FastAPI(openapi_url=None)
ROUTER = APIRouter()


@ROUTER.get("/things/{thing}")
async def thing(thing: str) -> str:
    return thing


@APP.get("/own/{thing}")
async def own(thing: str) -> str:
    return thing


async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    await Response(b"")(scope, receive, send)


APP.include_router(ROUTER, prefix="/base")
APP.mount("/mounted", mounted)


async def answered(path: str) -> Scope:
    """The scope of a request when its answer has been sent."""
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(_message: Any) -> None:
        """Nobody reads the answer."""

    await APP(scope, receive, send)
    return scope


async def test_the_scope_has_the_whole_template_of_an_included_route() -> None:
    """backend_kit/http/context.py names a request by `effective_route_context`, since its route lacks the prefix."""
    scope = await answered("/base/things/1")
    assert scope["fastapi"]["effective_route_context"].path_format == "/base/things/{thing}"
    assert scope["route"].path == "/things/{thing}"


@pytest.mark.parametrize(
    ("path", "route", "endpoint"), [("/own/1", "/own/{thing}", True), ("/mounted/x", None, True), ("/no", None, False)]
)
async def test_the_scope_has_what_else_was_matched(path: str, route: str | None, endpoint: bool) -> None:
    """backend_kit/http/context.py tells by `route` and `endpoint` a route of the application's own, and a mounted
    application, from what matched nothing."""
    scope = await answered(path)
    context = scope.get("fastapi", {}).get("effective_route_context")
    assert getattr(context, "path_format", None) in (None, route)
    assert (getattr(scope.get("route"), "path", None), "endpoint" in scope) == (route, endpoint)


def test_fastapi_offline_ships_the_files_of_swagger_ui() -> None:
    """backend_kit/http/routes.py serves them from the package's directory `static`, without importing it."""
    found = find_spec("fastapi_offline")
    assert found is not None
    assert found.submodule_search_locations
    for name in ("swagger-ui-bundle.js", "swagger-ui.css"):
        assert (Path(found.submodule_search_locations[0]) / "static" / name).stat().st_size > 100_000


async def test_what_runs_in_threads_comes_from_the_module_that_is_loaded_ahead() -> None:
    """backend_kit/http/server.py imports `anyio._backends._asyncio`, which the first route in a thread would load."""
    limiter = await anyio.to_thread.run_sync(int) or anyio.to_thread.current_default_thread_limiter()
    assert type(limiter).__module__ == "anyio._backends._asyncio"
