"""HTTP/1.1 for the fake servers: h11 parses requests, answers are written as bytes that are already framed.

With a web framework a stream would cost a task, and each token several awaits; here a token is one `write`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import h11

from backend_kit.wire import InvalidJson, dumps, loads

MAX_BODY = 32 * 1024 * 1024
_MAX_HEAD = 64 * 1024
_JSON = (b"content-type", b"application/json")
EVENTS = b"text/event-stream; charset=utf-8"
LINES = b"application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Request:
    """One request with its whole body. `path` is without the query."""

    method: str
    path: str
    body: bytes


class Connection(asyncio.Protocol):
    """One client connection: parses requests one at a time and passes each to `handler` together with itself.

    The handler answers with `respond`, or with `start_stream`, `write`… and `end_stream`, at once or later.
    `on_cut` is called if the client leaves before the answer is complete.
    """

    def __init__(
        self,
        handler: Callable[[Request, "Connection"], None],
        open_connections: "set[Connection]",
    ) -> None:
        self._handler = handler
        self._open = open_connections
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        self._transport: asyncio.Transport | None = None
        self._method, self._path = "", ""
        self._body: list[bytes] = []
        self._size = 0
        self._answering = False
        self._advancing = False
        self._ahead = 0
        self.on_cut: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None
        self.writable = True

    @property
    def alive(self) -> bool:
        """Whether the connection is open and not closing."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: a client has connected."""
        # uvloop's transports have the interface without being subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        """Called by the loop: the connection is closed, by either side."""
        self._transport = None
        self._open.discard(self)
        self._cut()

    def eof_received(self) -> bool:
        """Called by the loop: the client has closed its side, which HTTP clients awaiting an answer do not do."""
        return False

    def pause_writing(self) -> None:
        """Called by the loop: the client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """Called by the loop: the buffer has room again."""
        self.writable = True
        waiting, self.on_writable = self.on_writable, None
        if waiting is not None:
            waiting()

    def data_received(self, data: bytes) -> None:
        """Called by the loop: bytes of requests. During an answer they are kept, up to the size of one body."""
        self._ahead = self._ahead + len(data) if self._answering else 0
        if self._ahead > MAX_BODY:
            self.abort()
            return
        try:
            self._parser.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as failure:
            self._refuse(failure.error_status_hint, "malformed HTTP request")

    def respond(self, status: int, payload: object, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer the current request with a JSON body."""
        self.respond_bytes(status, dumps(payload), headers)

    def respond_bytes(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        """Answer the current request with a body of type JSON, valid or not."""
        length = (b"content-length", str(len(body)).encode())
        head = self._parser.send(h11.Response(status_code=status, headers=[_JSON, length, *headers]))
        self._parser.send(h11.Data(data=body))
        self._finish((head or b"") + body)

    @property
    def can_stream(self) -> bool:
        """Whether the client's HTTP version supports the chunked coding."""
        return self._parser.their_http_version == b"1.1"

    def start_stream(self, framed: bytes = b"", content_type: bytes = EVENTS) -> None:
        """Begin an answer that is streamed; the first chunks go out in the same write."""
        headers = [(b"content-type", content_type), (b"cache-control", b"no-cache")]
        head = self._parser.send(h11.Response(status_code=200, headers=headers))
        self.write((head or b"") + framed)

    def write(self, framed: bytes) -> None:
        """Send bytes that are already chunks of the transfer coding (see `chunk`)."""
        if self._transport is not None:
            self._transport.write(framed)

    def end_stream(self, framed: bytes = b"") -> None:
        """End the answer after these last chunks; the connection stays open for the next request."""
        self._finish(framed)

    def abort(self) -> None:
        """Close after flushing, without ending the answer: a truncated stream."""
        self.on_cut = None
        if self._transport is not None:
            self._transport.close()

    def _advance(self) -> None:
        """Take events until a request is complete or bytes run out. Pipelined requests wait for their turn."""
        if self._advancing:
            # The handler answered at once: the outer loop continues, or many pipelined requests would recurse.
            return
        self._advancing = True
        try:
            while not self._answering and self._take(self._parser.next_event()):
                pass
        finally:
            self._advancing = False

    def _take(self, event: object) -> bool:
        """Handle one event of the parser; returns False if there is nothing more to take for now."""
        if isinstance(event, h11.Request):
            self._method, self._path = event.method.decode(), event.target.decode("latin-1").partition("?")[0]
            self._body, self._size = [], 0
        elif isinstance(event, h11.Data):
            self._size += len(event.data)
            if self._size > MAX_BODY:
                self._refuse(413, f"the body is above {MAX_BODY} bytes")
                return False
            self._body.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            self._answering = True
            body, self._body = b"".join(self._body), []
            self._handler(Request(self._method, self._path, body), self)
        else:
            # NEED_DATA, PAUSED or the client's ConnectionClosed: the next callback continues.
            if self._parser.they_are_waiting_for_100_continue:
                self.write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            return False
        return True

    def _finish(self, last: bytes) -> None:
        """Write the end of the answer in one piece, then handle what the client has sent meanwhile."""
        self.on_cut = None
        self._answering = False
        if self._transport is None:
            return
        self._transport.write(last + (self._parser.send(h11.EndOfMessage()) or b""))
        if self._parser.our_state is h11.MUST_CLOSE:
            self._transport.close()
            return
        self._parser.start_next_cycle()
        self._advance()

    def _refuse(self, status: int, text: str) -> None:
        """Answer a request that cannot be parsed, then close: the rest of the connection is undefined."""
        self._answering = True
        if self._parser.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = dumps(error_body(text, "invalid_request_error"))
            headers = [_JSON, (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
            self.write((self._parser.send(h11.Response(status_code=status, headers=headers)) or b"") + body)
        if self._transport is not None:
            self._transport.close()

    def _cut(self) -> None:
        left, self.on_cut, self.on_writable = self.on_cut, None, None
        if left is not None:
            left()


def chunk(data: bytes) -> bytes:
    """Bytes as one chunk of the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class BadRequest(ValueError):
    """A body that is not a request that the server understands; the text may be shown to the caller."""


def json_object(body: bytes, text_key: str) -> dict[str, Any]:
    """The JSON object in a body, with a text at `text_key`. Raises `BadRequest`."""
    try:
        request = loads(body)
    except InvalidJson:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get(text_key), str):
        raise BadRequest(f"`{text_key}` must be a string")
    return request


def error_body(message: str, kind: str) -> dict[str, object]:
    """An error as OpenAI-compatible servers write it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
