"""What starlette does below its requests and responses; what it does with sockets stands in test_uvicorn.py."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

SCOPE: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "headers": [],
    "query_string": b"",
    "asgi": {"spec_version": "2.4"},
}


async def nothing() -> Any:
    raise AssertionError("nobody reads the request")


async def test_a_route_runs_what_stands_in_its_app_and_the_router_its_default() -> None:
    """backend_kit/http/admission.py puts itself before both, once the routes are there; after the match."""
    ran: list[str] = []

    def told(name: str) -> ASGIApp:
        async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
            ran.append(f"{name} {scope.get('path_params')}")

        return app

    async def endpoint(_request: Request) -> Response:
        raise AssertionError("it was replaced")

    route, files = Route("/a/{b}", endpoint), Mount("/web", told("never"))
    application = Starlette(routes=[route, files])
    route.app, files.app, application.router.default = told("route"), told("mount"), told("default")
    for path in ("/a/1", "/web/x.js", "/nowhere"):
        await application({**SCOPE, "path": path}, nothing, nothing)
    assert ran == ["route {'b': '1'}", "mount {}", "default None"]


async def test_a_stream_is_sent_by_the_method_that_we_override() -> None:
    """backend_kit/http/download.py overrides `stream_response`, to end a download that fails halfway."""
    sent: list[Any] = []

    class Cut(StreamingResponse):
        async def stream_response(self, send: Any) -> None:
            await send("by ours")

    async def send(message: Any) -> None:
        sent.append(message)

    await Cut(iter([b"a"]))(SCOPE, nothing, send)
    assert sent == ["by ours"]


async def test_what_nobody_handles_is_answered_and_then_raised_again() -> None:
    """backend_kit/http/errors.py renders a 500 and leaves the traceback to the server, which gets the error too."""
    sent: list[Any] = []

    async def broken(_request: Request) -> Response:
        raise RuntimeError("broken")

    async def render(_request: Request, _error: Exception) -> Response:
        return Response(b"ours", 500)

    async def send(message: Any) -> None:
        sent.append(message)

    app = Starlette(routes=[Route("/", broken)], exception_handlers={Exception: render})
    with pytest.raises(RuntimeError, match="broken"):
        await app(dict(SCOPE), nothing, send)
    assert [message.get("body", message.get("status")) for message in sent] == [500, b"ours"]
