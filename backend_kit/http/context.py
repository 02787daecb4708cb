"""Middleware for each request, as plain ASGI: its id, its duration, and the limit of its body."""

import re
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from fastapi import HTTPException, Request, Response, Security
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend_kit.auth import Identity, Verifier, header, takes_any_token
from backend_kit.kpi.activity import Activity
from backend_kit.wire import Code, ServiceError, dumps, message_for

REQUEST_ID_HEADER = "X-Request-ID"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestId:
    """Gives each request and each socket an id: the caller's `X-Request-ID` if it is well-formed, else a new one.

    The id is in `scope["state"]["request_id"]` and in the header of the response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = header(scope["headers"], b"x-request-id") or ""
        chosen = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = chosen
        if scope["type"] == "websocket":
            # Not wrapped: a socket sends thousands of frames, and its events contain the id.
            await self._app(scope, receive, send)
            return
        encoded = (b"x-request-id", chosen.encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), encoded]
            await send(message)

        await self._app(scope, receive, send_with_id)


def request_id(scope: MutableMapping[str, Any]) -> str:
    """The id that `RequestId` gave, "" without it."""
    return str(scope.get("state", {}).get("request_id", ""))


class HttpMetrics:
    """`app_http_request_seconds{route, method, status}`. Labels are bounded: the route's template, never the path;
    a method of RFC 9110 or OTHER; the class of the status (2xx).
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "app_http_request_seconds",
            "Time of a REST request, from its head to the last byte handed to the socket.",
            ["route", "method", "status"],
            # Most answers come from memory (1 to 10 ms); a read of Postgres has 2 s, an upload has minutes.
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
            registry=registry,
        )


class RequestMetrics:
    """Times each request and counts it in `activity`. Sockets are not timed: their turns have their own phases."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, activity: Activity) -> None:
        self._app = app
        self._seconds = metrics.seconds
        self._activity = activity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # what the server sends where no answer was begun

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.perf_counter()
        try:
            with self._activity:
                await self._app(scope, receive, watch)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "OTHER"
            labels = (route_of(scope), method, f"{status // 100}xx")
            self._seconds.labels(*labels).observe(time.perf_counter() - began)


def route_of(scope: MutableMapping[str, Any]) -> str:
    """The template of the matching route, which the router puts into the scope; `unmatched` without one.

    For labels and log lines: it never contains the requested path.
    """
    # A route of an included router has its path without the prefix; FastAPI keeps the whole path separately.
    context = scope.get("fastapi", {}).get("effective_route_context")
    path = getattr(context, "path_format", None) or getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "mounted" if "endpoint" in scope else "unmatched"


class BodyLimit:
    """Refuses bodies above `limit_bytes` with 413 `too_large`: immediately by Content-Length, else while reading.

    `larger` has the paths with a bound of their own. Routes below `own_errors` render it themselves, as an
    HTTPException of reading the body. On `file_paths` a `multipart/*` body passes: the routes that take files have
    their own limits. On any other path the content type makes no difference, or a JSON route would read anything that
    is labelled multipart.
    """

    def __init__(
        self,
        app: ASGIApp,
        limit_bytes: int,
        file_paths: Collection[str] = (),
        own_errors: Collection[str] = (),
        larger: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._app = app
        self._limit = limit_bytes
        self._larger = larger
        self._own_errors = tuple(own_errors)
        self._file_paths = frozenset(file_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or self._takes_files(scope):
            await self._app(scope, receive, send)
            return
        limit = self._larger.get(scope["path"], self._limit)
        declared = header(scope["headers"], b"content-length") or ""
        too_large = declared.isdigit() and int(declared) > limit
        if too_large and not scope["path"].startswith(self._own_errors):
            # The server closes a connection whose request it has not read (backend_kit/http/http1.py).
            body = dumps({"detail": _too_large(scope)})
            await Response(body, 413, media_type="application/json")(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message: Message = {} if too_large else await receive()
            received += len(message.get("body", b""))
            if too_large or received > limit:
                # FastAPI turns any other error of reading a body into a 400.
                raise HTTPException(413, _too_large(scope))
            return message

        await self._app(scope, counted, send)

    def _takes_files(self, scope: Scope) -> bool:
        multipart = (header(scope["headers"], b"content-type") or "").startswith("multipart/")
        return multipart and scope["path"] in self._file_paths


def _too_large(scope: Scope) -> dict[str, str]:
    language = header(scope["headers"], b"accept-language")
    return {"code": Code.TOO_LARGE.value, "message": message_for(Code.TOO_LARGE, language)}


_SCHEME: Final = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    bearerFormat="JWT",
    description="A token of the configured issuer, or an API key, which `x-api-key` may carry, too.",
)


def bearer(verifier: Verifier) -> Callable[..., Awaitable[Identity]]:
    """A dependency that returns the `Identity` whom admission has found behind `Authorization: Bearer` or `x-api-key`
    (`Admitted`), and raises why the request was refused: `AuthError`, rendered as 401, what a key may not or too much.

    `request.state.credentials` has what passes the caller on, for calls on their behalf; None without a token.
    If callers are verified, the OpenAPI document marks each route that depends on it.
    """

    async def identity(request: Request) -> Identity:
        caller: Identity | ServiceError = request.scope["state"]["caller"]
        if isinstance(caller, ServiceError):
            raise caller
        return caller

    # FastAPI documents what a dependency depends on; the scheme itself decides nothing.
    async def documented(request: Request, scheme: Annotated[Any, Security(_SCHEME)] = None) -> Identity:  # noqa: ARG001 - for the document
        return await identity(request)

    return identity if takes_any_token(verifier) else documented
