"""`/healthz` and `/ready`: whether the loop answers, and whether new work may come here."""

from typing import Any, Protocol

from fastapi import APIRouter, Response

from backend_kit.http.errors import refusals
from backend_kit.wire import dumps


class Readiness(Protocol):
    """The application's own state; read at each `/ready`, so it must not wait for anything."""

    def state(self) -> tuple[bool, str, dict[str, Any]]:
        """Whether new work is welcome, one word for it (ready, starting, draining, …), each dependency's state."""
        ...


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
