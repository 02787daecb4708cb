"""One request of a client of the protocol of 2026-07-28, which stands for itself: read, served and answered.

The SDK checks and serves it. Its own entry sends each message through a model, a stream of anyio, another task and all
middleware of the service (docs/perf-log.md); here it is written directly. `tests/contracts/test_mcp.py` checks that
both answer alike.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property, partial
from typing import Any, Final

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCNotification,
    JSONRPCRequest,
)
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from backend_kit.mcp.calls import detail
from backend_kit.mcp.rules import DoorRules
from backend_kit.wire import Code, InvalidJson, dumps, loads

_VERSION: Final = "mcp-protocol-version"
_PING: Final = b": ping\r\n\r\n"
"""A comment, which every reader of an event stream skips."""
_STREAM: Final = [
    (b"content-type", b"text/event-stream"),
    # A proxy that compresses or buffers the events would delay them.
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

Spawn = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], object]


async def read_request(request: Request, rules: DoorRules) -> JSONRPCRequest | Response:
    """The one message of a request's body, or the answer to what is not a request."""
    if not request.headers.get("content-type", "").lower().startswith("application/json"):
        return Response("Invalid Content-Type header", 400)
    takes_json, takes_events = check_accept_headers(request)
    if not takes_json or not (takes_events or rules.json_only):
        return Response(status_code=406)
    try:
        body = loads(await request.body())
    except InvalidJson:
        return _error(None, PARSE_ERROR, "Parse error")
    try:
        if isinstance(body, dict) and "id" not in body:
            JSONRPCNotification.model_validate(body)
            return _noted(request)
        return JSONRPCRequest.model_validate(body)
    except ValidationError:
        # Also of a batch, and of an answer: nobody has asked this client anything.
        return _error(None, INVALID_REQUEST, "Body must be a single JSON-RPC request or notification object")


def _noted(request: Request) -> Response:
    """The answer to a notification: there is none that means anything outside a session."""
    refused = unsupported_protocol_version_rejection(request.headers.get(_VERSION, ""))
    return Response(status_code=202) if refused is None else _rejected(None, refused)


class StandaloneRequest:
    """Serves a request, and is what its handler says something by. Implements `DispatchContext` of the SDK.

    The answer is one JSON document if that is all the rules allow, or the handler says nothing before its end and is
    not silent for too long; else a stream of events, which ends with the result. A client that leaves ends the handler.
    """

    can_send_request: Final = False

    def __init__(self, request: Request, message: JSONRPCRequest, send: Send, spawn: Spawn, rules: DoorRules) -> None:
        """`spawn` starts a task."""
        state = request.scope["state"]
        self._request = request
        self._message = message
        self._send = send
        self._spawn = spawn
        self._rules = rules
        # What not every server gives (backend_kit.http.http1).
        self._abort: Callable[[], None] | None = state.get("abort")
        self._send_now: Callable[[bytes], bool] | None = state.get("send_now")
        self._on_gone: Callable[[Callable[[], None] | None], None] | None = state.get("on_gone")
        self._loop = asyncio.get_running_loop()
        self._cut = asyncio.timeout(None)
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        self._ending = False
        self._gone = False
        self._said_at = self._loop.time()
        self.transport = TransportContext(kind="streamable-http", can_send_request=False, headers=request.headers)
        self.message_metadata = ServerMessageMetadata(request_context=request)
        meta = (message.params or {}).get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        self._token = token if isinstance(token, str | int) and not isinstance(token, bool) else None

    @property
    def request_id(self) -> str | int:
        """The client's id of the request."""
        return self._message.id

    @cached_property
    def cancel_requested(self) -> anyio.Event:
        """Never set: a client cancels by leaving."""
        return anyio.Event()

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,  # noqa: ARG002 - of the protocol
        opts: CallOptions | None = None,  # noqa: ARG002 - of the protocol
    ) -> dict[str, Any]:
        """Raises `NoBackChannelError`: a client without a session cannot be asked."""
        raise NoBackChannelError(method)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,  # noqa: ARG002 - of the protocol
    ) -> None:
        """Notify the client while it waits for the result, if it accepts notifications before that."""
        if self._rules.json_only:
            return
        told = {"jsonrpc": "2.0", "method": method}
        await self._write_piece(_event(told if params is None else {**told, "params": params}))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the call is, if it wants to know."""
        if self._token is None:
            return
        params: dict[str, Any] = {"progressToken": self._token, "progress": progress}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        await self.notify("notifications/progress", params)

    def cut(self) -> None:
        """End it now: its client gets the error that the service ends."""
        if not self._cut.expired():
            self._cut.reschedule(self._loop.time())

    async def answer(self, server: Server[Any]) -> None:
        """Serve the request and answer it."""
        try:
            async with self._cut:
                if self._on_gone is not None:
                    self._on_gone(self._leave)
                await self._answer(server)
        except TimeoutError:
            if not self._cut.expired():
                raise
            if not (self._gone or self._ending):
                told = detail(Code.DRAINING, self._request.headers.get("accept-language"))
                await self._end(_failed(self._message.id, INTERNAL_ERROR, told["message"], told))
        finally:
            if self._on_gone is not None:
                self._on_gone(None)
            if self._timer is not None:
                self._timer.cancel()

    async def _answer(self, server: Server[Any]) -> None:
        checked = self._check()
        if isinstance(checked, Response):
            self._ending = True
            await self._reply(checked)
            return
        if not self._rules.json_only:
            self._timer = self._loop.call_later(self._rules.silence_s, self._break_silence)
        await self._end(await self._served(server, checked))

    def _check(self) -> InboundModernRoute | Response:
        """What the request says of its client, or the answer where the protocol forbids it."""
        headers, message = self._request.headers, self._message
        if (twice := find_duplicated_routing_header(headers.items())) is not None:
            return _error(message.id, HEADER_MISMATCH, f"{twice} header appears more than once")
        body = {"method": message.method, "params": message.params}
        found = classify_inbound_request(body, headers=dict(headers))
        return _rejected(message.id, found) if isinstance(found, InboundLadderRejection) else found

    async def _served(self, server: Server[Any], route: InboundModernRoute) -> dict[str, Any]:
        """The answer of the server, or its error: its middleware lets out no others than these two kinds."""
        message = self._message
        # No part of the service has what the SDK calls a lifespan.
        connection = Connection.from_envelope(route.protocol_version, route.client_info, route.client_capabilities)
        try:
            result = await serve_one(
                server, self, message.method, message.params, connection=connection, lifespan_state={}
            )
        except MCPError as failure:
            return _failed(message.id, failure.error.code, failure.error.message, failure.error.data)
        except ValidationError:
            return _failed(message.id, INVALID_PARAMS, "Invalid request parameters", "")
        return {"jsonrpc": "2.0", "id": message.id, "result": result}

    async def _end(self, said: dict[str, Any]) -> None:
        self._ending = True
        async with self._writing:  # a comment may be on its way
            streamed, self._begun = self._begun, True
            if streamed:
                await self._write(_event(said), more=False)
        if not streamed:
            await self._reply(_document(said))

    async def _reply(self, response: Response) -> None:
        await response(self._request.scope, self._request.receive, self._send)

    async def _write_piece(self, piece: bytes) -> None:
        async with self._writing:
            self._said_at = self._loop.time()
            # The head goes with the first piece, through everything that may change it.
            if self._begun and self._send_now is not None and self._send_now(piece):
                return
            await self._write(piece, more=True)

    async def _write(self, piece: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._rules.send_s):
                if not self._begun:
                    self._begun = True
                    await self._send({"type": "http.response.start", "status": 200, "headers": _STREAM})
                await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        except TimeoutError:
            if self._abort is not None:
                self._abort()
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self.cut()

    def _break_silence(self) -> None:
        """Say something, for proxies that close a connection on which nothing comes."""
        now, silence_s = self._loop.time(), self._rules.silence_s
        due = self._said_at + silence_s
        if now >= due:
            due = now + silence_s
            if not self._writing.locked():
                self._spawn("mcp-ping", partial(self._write_piece, _PING))
        self._timer = self._loop.call_at(due, self._break_silence)


def _document(said: dict[str, Any]) -> Response:
    """An answer as one document. Its status says which error it is, where the protocol has one for that."""
    status = ERROR_CODE_HTTP_STATUS.get(said["error"]["code"], 200) if "error" in said else 200
    return Response(dumps(said), status, media_type="application/json")


def _event(said: dict[str, Any]) -> bytes:
    """A message as an event. JSON has no line breaks outside its strings, and in them they are escaped."""
    return b"event: message\r\ndata: %b\r\n\r\n" % dumps(said)


def _failed(message_id: str | int | None, code: int, text: str, data: Any) -> dict[str, Any]:
    error = {"code": code, "message": text} if data is None else {"code": code, "message": text, "data": data}
    return {"jsonrpc": "2.0", "id": message_id, "error": error}


def _error(message_id: str | int | None, code: int, text: str) -> Response:
    return _document(_failed(message_id, code, text, None))


def _rejected(message_id: str | int | None, found: InboundLadderRejection) -> Response:
    return _document(_failed(message_id, found.code, found.message, found.data))
