"""Pages of other origins: which may call a service, what they may send, and what they read of its answers (CORS)."""

import ipaddress
from collections.abc import Collection, Mapping, Sequence
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


def page_allowed(origin: str, allowed: Collection[str], host: str | None, *, any_host: bool) -> bool:
    """Whether a page of this `Origin` may call (docs/trust.md#E5). Comparison is exact.

    Allowed are the origins of `allowed` (`security.authorized_origins`) and the origin whose authority is the requested
    `Host`. A host name counts only with `any_host`, to be set where callers are authenticated: without authentication,
    a foreign name that resolves to this machine (DNS rebinding) would be same-origin too. IP addresses and `localhost`
    cannot be rebound.
    """
    if origin in allowed:
        return True
    scheme, separator, authority = origin.partition("://")
    if scheme not in ("http", "https") or not separator or not authority or authority != host:
        return False
    return any_host or _is_address(authority)


def _is_address(authority: str) -> bool:
    """Whether `host[:port]` is an IP address or `localhost`."""
    name = authority.partition("]")[0][1:] if authority.startswith("[") else authority.partition(":")[0]
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
