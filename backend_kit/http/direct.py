"""Routes of FastAPI whose endpoints want so little that they are called as they are."""

from collections.abc import Awaitable, Callable, Coroutine
from inspect import signature
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class DirectRoute(APIRoute):
    """A route whose endpoint takes none but `request`, `identity` (annotated with the dependency that knows callers)
    and texts of its path, and returns the response.

    It is matched, counted, limited and documented as any other. FastAPI would go through all that an endpoint might
    want at each request, which is a fiftieth of a streamed turn.
    """

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
