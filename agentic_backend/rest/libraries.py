"""REST routes by which the page manages libraries: the routes of knowledge flow that are listed here, and no others.

The page may connect only to the service that it comes from, so these pass through here, below `/knowledge`: with the
caller's own token, by which knowledge flow decides what they may do. Uploads and downloads pass in pieces, with a few
in memory at a time.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from agentic_backend.errors import BadRequest, KfUnavailable, Unauthenticated
from agentic_backend.knowledge import Caller, KnowledgeRequest, LibraryClient
from agentic_backend.rest.documents import HEADERS, Uid
from backend_kit.auth import Identity
from backend_kit.http import Download, error_response, request_id
from backend_kit.wire import Code, InvalidJson, loads

PREFIX: Final = "/knowledge"
UPLOAD_PATH: Final = PREFIX + "/upload-process-documents"
_MAX_REFUSAL_BYTES: Final = 64 * 1024
_MAX_FIELD_CHARS: Final = 200
_MAX_TYPE_CHARS: Final = 200
_KEPT: Final = ("X-Turnwise-Rerank",)
_KEPT_OF_FILES: Final = ("Content-Disposition", "Content-Length", "Content-Security-Policy")
_FORWARDED_CODES: Final = frozenset(
    {
        Code.BAD_REQUEST,
        Code.CONFLICT,
        Code.DRAINING,
        Code.FORBIDDEN,
        Code.KF_UNAVAILABLE,
        Code.MESSAGE_TOO_LONG,
        Code.MISSING_FILENAME,
        Code.OVERLOADED,
        Code.RATE_LIMITED,
        Code.SCHEMA_MISMATCH,
        Code.STORAGE_FULL,
        Code.TOO_LARGE,
    }
)
"""A refusal by knowledge flow is passed on with its own code; any other failure of it is `kf_unavailable`."""

Kind = Literal["json", "upload", "lines", "file"]
_NDJSON: Final = "application/x-ndjson"
_ASKED: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}
"""A JSON object; the documentation of knowledge flow says which."""
_LINES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "A line for each step of each file.", "content": {_NDJSON: {}}}
}
_FILE: Final[dict[int | str, dict[str, Any]]] = {200: {"description": "The file.", "content": {"*/*": {}}}}


@dataclass(frozen=True, slots=True)
class PassedRoute:
    """A route of knowledge flow that is passed on; `path` is below its base path, and below `PREFIX` here."""

    method: str
    path: str
    text: str
    kind: Kind = "json"
    status: int = 200

    @property
    def takes_json(self) -> bool:
        """Whether a request has a body that is a JSON object."""
        return self.kind == "json" and self.method in ("POST", "PUT")


PASSED_ROUTES: Final = (
    PassedRoute("GET", "/tags", "The libraries that the caller may read."),
    PassedRoute("POST", "/tags", "Create a library that nobody but the caller reads.", status=201),
    PassedRoute("PUT", "/tags/{uid}", "Rename a library, move it, describe it: its owner only."),
    PassedRoute("DELETE", "/tags/{uid}", "Delete a library, and documents that stand in no other.", status=204),
    PassedRoute("GET", "/tags/{uid}/access", "Who reads a library beside its owner, who alone sees it."),
    PassedRoute("PUT", "/tags/{uid}/access", "Replace the readers of a library: its owner only."),
    PassedRoute("PUT", "/documents/{uid}/tags", "Put a document into exactly these libraries."),
    PassedRoute(
        "POST", "/documents/{uid}/ingest", "Read the kept file again; the answer is one JSON line a step.", "lines"
    ),
    PassedRoute("POST", "/documents/browse", "The documents that the caller may read and the filters choose."),
    PassedRoute("GET", "/documents/metadata/{uid}", "What is known of one document."),
    PassedRoute("DELETE", "/documents/{uid}", "Delete a document with its content and passages.", status=204),
    PassedRoute("GET", "/raw_content/{uid}", "The file as it was uploaded.", "file"),
    PassedRoute(
        "POST", "/upload-process-documents", "Take documents in; the answer is one JSON line a step.", "upload"
    ),
    PassedRoute("POST", "/vector/search", "Passages that fit a question, best first."),
)


def add_libraries(router: APIRouter, libraries: Callable[[], LibraryClient], caller: Any) -> None:
    """Add the routes of the table. `libraries()` is called at each request: its result exists once the app runs."""
    for route in PASSED_ROUTES:
        _add(router, route, libraries, caller)


def _add(router: APIRouter, route: PassedRoute, libraries: Callable[[], LibraryClient], caller: Any) -> None:
    async def answer(request: Request, identity: Identity, uid: str) -> Response:
        asked_by = Caller(request.state.credentials, request_id(request.scope), user_id=identity.uid)
        asked = KnowledgeRequest(route.method, route.path.replace("{uid}", uid))
        if route.kind == "json":
            return await _call(libraries(), route, asked, request, asked_by)
        if route.kind == "upload":
            return await _upload(libraries(), asked, request, asked_by)
        kept = _KEPT_OF_FILES if route.kind == "file" else ()
        return await _stream(libraries(), asked, request, asked_by, kept)

    async def of_all(request: Request, identity: caller) -> Response:
        return await answer(request, identity, "")

    async def of_one(uid: Uid, request: Request, identity: caller) -> Response:
        return await answer(request, identity, uid)

    responses = {"json": {}, "file": _FILE, "upload": _LINES, "lines": _LINES}[route.kind]
    router.add_api_route(
        PREFIX + route.path,
        of_one if "{uid}" in route.path else of_all,
        methods=[route.method],
        status_code=route.status,
        name=f"{route.method.lower()}{route.path}",
        description=route.text,
        responses=responses,
        openapi_extra=_ASKED if route.takes_json else None,
        response_class=JSONResponse if route.kind == "json" and route.status != 204 else Response,
    )


async def _call(
    client: LibraryClient, route: PassedRoute, asked: KnowledgeRequest, request: Request, asked_by: Caller
) -> Response:
    """A call whose answer is JSON."""
    if route.takes_json:
        asked = KnowledgeRequest(asked.method, asked.path, await _object(request))
    found = await client.call(asked, asked_by)
    if found.status != route.status:
        return _refusal(request, found.status, found.headers, found.body)
    if route.status == 204:
        return Response(status_code=204)
    return Response(found.body, found.status, {**HEADERS, **_kept(found.headers, _KEPT)}, "application/json")


async def _object(request: Request) -> bytes:
    """The body, a JSON object, as it was sent. Raises `BadRequest`."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadRequest("no JSON", field="Content-Type")
    body = await request.body()
    try:
        value = loads(body)
    except InvalidJson:
        raise BadRequest("no JSON") from None
    if not isinstance(value, dict):
        raise BadRequest("no JSON object")
    return body


class _Body:
    """A request's body in pieces, and whether its client has gone in the middle of it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.gone = False

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._request.stream():
                if piece:
                    yield piece
        except ClientDisconnect:
            self.gone = True
            raise


async def _upload(client: LibraryClient, asked: KnowledgeRequest, request: Request, asked_by: Caller) -> Response:
    """An upload, passed on while it is received; its response likewise."""
    content_type = request.headers.get("content-type", "")
    printable = content_type.isascii() and content_type.isprintable() and len(content_type) <= _MAX_TYPE_CHARS
    if not printable or not content_type.startswith("multipart/form-data"):
        raise BadRequest("no multipart/form-data", field="Content-Type")
    headers = {"Content-Type": content_type}
    # With this header knowledge flow refuses too large an upload before a byte of it has come.
    if (declared := request.headers.get("content-length", "")).isdigit():
        headers["Content-Length"] = declared
    body = _Body(request)
    try:
        sent = KnowledgeRequest(asked.method, asked.path, body.pieces(), headers)
        return await _stream(client, sent, request, asked_by, ())
    except KfUnavailable:
        if body.gone:
            raise BadRequest("the client went away") from None
        raise


async def _stream(
    client: LibraryClient, asked: KnowledgeRequest, request: Request, asked_by: Caller, kept: tuple[str, ...]
) -> Response:
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(client.open(asked, asked_by))
        if found.status != 200:
            return _refusal(request, found.status, found.headers, await found.beginning(_MAX_REFUSAL_BYTES))
        headers = {**HEADERS, **_kept(found.headers, kept)}
        kind = found.headers.get("Content-Type", "application/octet-stream")
        return _Relayed(found.pieces(), stack.pop_all(), headers=headers, media_type=kind)
    raise AssertionError("a stack swallows nothing")


class _Relayed(Download):
    """A response of knowledge flow that is passed on as it comes; its connection is then closed, however it ends."""

    def __init__(self, pieces: AsyncIterator[bytes], opened: AsyncExitStack, **options: Any) -> None:
        super().__init__(pieces, **options)
        self._opened = opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._opened:
            await super().__call__(scope, receive, send)


def _kept(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _refusal(request: Request, status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """A refusal by knowledge flow as an error of this service. Raises `Unauthenticated`, `KfUnavailable`, 404."""
    if status == 401:
        raise Unauthenticated
    if status == 404:
        raise HTTPException(404, "This library or document is not there, or not for you.")
    detail = _detail(body)
    code = detail.get("code")
    if code not in _FORWARDED_CODES:
        raise KfUnavailable(f"HTTP {status}")
    field = detail.get("field")
    if not isinstance(field, str) or len(field) > _MAX_FIELD_CHARS or not field.isprintable():
        field = None
    wait = headers.get("Retry-After", "")
    retry_after_s = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 5 else None
    preparing = headers.get("X-Cause") == "model_preparing"
    cause = "model_preparing" if preparing else ""
    return error_response(request, Code(code), retry_after_s=retry_after_s, cause=cause, field=field)


def _detail(body: bytes) -> Mapping[str, Any]:
    try:
        value = loads(body)
    except InvalidJson:
        return {}
    detail = value.get("detail") if isinstance(value, dict) else None
    return detail if isinstance(detail, dict) else {}
