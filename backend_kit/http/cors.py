"""What pages of other origins may do with a service, and read of its answers (CORS)."""

from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import FastAPI, Request
from starlette.middleware.cors import CORSMiddleware

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_ANY_HEADER: Final = ("*",)
"""The middleware then allows what a preflight asks for, to an allowed origin alone: `Authorization`, `x-api-key`,
`X-Turnwise-…`, `Last-Event-ID`, and whatever the client libraries of the doors add."""
_READABLE: Final = (
    "X-Request-ID",
    "Retry-After",
    "X-Cause",
    "WWW-Authenticate",
    "Content-Disposition",
    "Content-Location",
    "Location",
    "X-Pagination-Total",
    "Mcp-Session-Id",
    "X-Turnwise-Session-Id",
    "X-Turnwise-Exchange-Id",
    "X-Turnwise-Warning",
    "x-should-retry",
)


class Cors:
    """The headers for pages of `origins`, which are compared exactly. Without any nothing is added."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = tuple(origins)

    def add_to(self, app: FastAPI) -> None:
        """Add the middleware, outside of all that is there: answers that refuse a request have the headers too."""
        if self._origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self._origins,
                allow_methods=_METHODS,
                allow_headers=_ANY_HEADER,
                allow_credentials=True,
                expose_headers=_READABLE,
            )

    def headers(self, request: Request) -> Mapping[str, str]:
        """Those of an answer that the middleware does not see."""
        origin = request.headers.get("origin")
        if origin not in self._origins:
            return {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": ", ".join(_READABLE),
            "Vary": "Origin",
        }
