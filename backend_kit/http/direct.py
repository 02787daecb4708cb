"""Routes of FastAPI whose endpoints want so little that they are called as they are."""

from collections.abc import Awaitable, Callable, Coroutine
from inspect import signature
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope


class DirectRoute(APIRoute):
    """A route whose endpoint takes none but `request`, `identity` (annotated with the dependency that knows callers)
    and texts of its path, and returns the response.

    It is matched, counted, limited and documented as any other. FastAPI would go through all that an endpoint might
    want at each request, which is a fiftieth of a streamed turn. Requests for other routes, which are asked one after
    the other, are known by how the path begins.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **more)
        self._begins = path.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See `BaseRoute`. The path may have one of the server's before it."""
        if self._begins not in scope["path"]:
            return Match.NONE, {}
        return super().matches(scope)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        endpoint: Callable[..., Awaitable[Response]] = self.endpoint
        wanted = signature(endpoint).parameters
        takes_request = "request" in wanted
        identify = None
        if "identity" in wanted:
            (depends,) = wanted["identity"].annotation.__metadata__
            identify = depends.dependency

        async def handle(request: Request) -> Response:
            given: dict[str, Any] = dict(request.path_params)
            if takes_request:
                given["request"] = request
            if identify is not None:
                given["identity"] = await identify(request)
            return await endpoint(**given)

        return handle
