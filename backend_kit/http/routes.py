"""What every service serves: `/healthz`, `/ready`, its OpenAPI document, and a page that shows that with Swagger UI.

The page is static and contains nothing about the service; the document is for known callers, like the routes. The
files of Swagger UI come from the package `fastapi-offline`, which is pinned with its hash: nothing is loaded from
elsewhere, and the package itself is not imported.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from fastapi import APIRouter, Depends, FastAPI, Response
from starlette.responses import FileResponse, HTMLResponse

from backend_kit.http.errors import refusals
from backend_kit.wire import dumps

DOCUMENT: Final = "/openapi.json"
PAGE: Final = "/docs"
_WEB: Final = Path(__file__).parent / "web"
_SWAGGER_UI: Final = ("swagger-ui-bundle.js", "swagger-ui.css")
_HEADERS: Final = {
    # The policy of the chat page without trusted types: Swagger UI sets HTML that it sanitized, from our own document.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_api_docs(app: FastAPI, identify: Callable[..., Any], *, chat_page: bool) -> None:
    """Add the routes to an application that was created without FastAPI's own (`openapi_url=None`).

    `identify` is the dependency that refuses unknown callers; `chat_page`: whether people can sign in at `/`. Raises
    RuntimeError if `fastapi-offline` is not installed.
    """
    files = _files()
    html = (_WEB / "page.html").read_text()
    html = html.replace('<p id="sign-in" hidden>', '<p id="sign-in">') if chat_page else html

    @cache
    def written() -> bytes:
        return dumps(app.openapi())

    # In a thread: building the document takes a fifth of a second, once.
    def document() -> Response:
        return Response(written(), media_type="application/json", headers={"Cache-Control": "no-cache"})

    async def page() -> Response:
        return HTMLResponse(html, headers=_HEADERS)

    async def file(name: str) -> Response:
        found = files.get(name)
        return Response(status_code=404) if found is None else FileResponse(found, headers=_HEADERS)

    app.add_api_route(DOCUMENT, document, include_in_schema=False, dependencies=[Depends(identify)])
    app.add_api_route(PAGE, page, include_in_schema=False)
    app.add_api_route(f"{PAGE}/{{name}}", file, include_in_schema=False)


def _files() -> dict[str, Path]:
    """The files that the page loads, by name: a closed list, so that no name is used as a path."""
    found = find_spec("fastapi_offline")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("the package fastapi-offline is not installed")
    static = Path(found.submodule_search_locations[0]) / "static"
    return {name: static / name for name in _SWAGGER_UI} | {name: _WEB / name for name in ("page.css", "page.js")}


class Readiness(Protocol):
    """The application's own state; read at each `/ready`, so it must not wait for anything."""

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Whether new work is welcome, one word for it (ready, starting, draining, …), each dependency's state."""
        ...


def health_paths(base: str) -> tuple[str, ...]:
    """The paths of `health_router`."""
    return f"{base}/healthz", f"{base}/ready"


def health_router(readiness: Readiness, base: str) -> APIRouter:
    """The two routes below the base path, without authentication."""
    router = APIRouter(prefix=base, tags=["health"], responses=refusals())

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the event loop answers. No credentials."""
        return {"status": "ok"}

    @router.get("/ready", response_model=dict[str, Any], responses={503: {"description": "No new work here"}})
    async def ready() -> Response:
        """Whether new work is welcome, in one word, and how each dependency is. No credentials."""
        welcome, status, dependencies = readiness.state()
        body = dumps({"status": status, "dependencies": dependencies})
        return Response(body, 200 if welcome else 503, media_type="application/json")

    return router
