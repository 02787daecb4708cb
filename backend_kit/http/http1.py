"""uvicorn's HTTP/1.1 protocol, made safe against clients that are slow, broken or too many (docs/libraries.md#U12)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config

# This one, also where another parser is installed: decision 74, and its private parts are in tests/contracts.
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from backend_kit.http.connections import ConnectionPlace, OpenConnections
from backend_kit.http.strict import Event, StrictConnection
from backend_kit.http.ws import limit_unread
from backend_kit.settings import ConnectionBounds
from backend_kit.wire import Code, dumps, message_for

LINGER_S: Final = 5.0
"""Seconds in which what a client still sends behind its answer is read and discarded."""

ANSWER_PIECE_BYTES: Final = 64 * 1024
"""Of an answer, as much is handed over at a time as the transport buffers."""

_CLOSE: Final = (b"connection", b"close")


def _answer(status: bytes, body: bytes = b"", *more: bytes) -> bytes:
    """A whole answer, after which the connection ends."""
    lines = (b"HTTP/1.1 " + status, b"connection: close", b"content-length: %d" % len(body), *more)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


_TIMEOUT: Final = _answer(b"408 Request Timeout")
_BAD_REQUEST: Final = _answer(b"400 Bad Request")
_FULL: Final = dumps({"detail": {"code": Code.OVERLOADED.value, "message": message_for(Code.OVERLOADED)}})
_OVERLOADED: Final = _answer(b"503 Service Unavailable", _FULL, b"content-type: application/json", b"retry-after: 2")


class HardenedHttp(H11Protocol):
    """`uvicorn.Config(http=...)`, with the class attributes set.

    `bounds.head_s`: a connection whose next request has no complete head so long after it was opened, or after the
    head's first byte, is ended: with 408 if a head has begun, silently if nothing came. Bytes that trickle in do not
    extend the time. `bounds.body_bytes_per_s`: a body that is being read and comes more slowly is 408. A request that
    is not framed as RFC 9112 says is 400. All of these end the connection, and so does an answer that is given before
    the whole body has come: it says `Connection: close`, the sending side is shut, and what the client still sends is
    discarded for `LINGER_S`, since a socket that is closed with unread bytes is reset, and a client in the middle of
    sending then loses the answer.

    An answer is handed over as its client takes it, however large the messages are that the application sends: so what
    bounds the requests at work bounds the answers in memory, too. `bounds.answer_s`: a client that takes longer for a
    piece of 64 KiB is cut off.

    `among` has the bounds of how many there are; a connection above them gets `health_paths` and nothing else.

    For a client that does not read its answer, the application finds `abort` in `scope["state"]`, as with sockets, and
    the kernel drops what stays unread. Beside it, `send_now` sends a further piece of a streamed answer where that need
    not wait: a tenth of the work of an ASGI `send` through all middleware; and `on_gone` calls back when the client has
    gone, so that no task has to wait for it.
    """

    bounds: ConnectionBounds
    among: OpenConnections
    health_paths: Collection[str]

    _place: ConnectionPlace

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        ours = {"abort": self.abort, "send_now": self.send_now, "on_gone": self.on_gone}
        super().__init__(config, server_state, {**app_state, **ours}, _loop)
        self.conn = _Connection(self._malformed)
        # An access line would have the path and the query; the metrics count requests by route instead.
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._body_timer: asyncio.TimerHandle | None = None
        self._body_bytes = 0  # in this window
        self._body_paused = False
        self._linger_timer: asyncio.TimerHandle | None = None
        self._gone = False
        self._when_gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn types it
        """Take a place, and start the clock of the first head."""
        super().connection_made(transport)
        limit_unread(transport)
        self._place = self.among.enter(self.client[0] if self.client else "", transport.abort)
        # The connection may end as a socket, which this protocol does not hear of.
        self.ws_protocol_class = cast("Any", partial(cast("Any", self.ws_protocol_class), on_end=self._place.leave))
        if self._place.refuses is not None:
            self.app = cast("Any", _OnlyHealth(self.app, self.health_paths, self._place))
        self.app = cast("Any", _InPieces(self.app, self.hand_over))
        self._arm_head()

    def abort(self) -> None:
        """Drop the connection now, with all unsent data."""
        if self.transport is not None:
            self.transport.abort()

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this when the connection ends, at once if it has, instead of what was to be called; None: nothing.

        The code that sets one must remove it at the end of the response: the connection may be reused.
        """
        self._when_gone = callback
        if self._gone and callback is not None:
            callback()

    def send_now(self, body: bytes) -> bool:
        """Send a further piece of the answer, whose head has no length and is on its way; whether it was sent.

        False, for a client that is behind, has gone, or knows no chunks (HTTP/1.0): then `send` does what is right.
        """
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete or cycle.disconnected:
            return False
        if self.flow.write_paused or cycle.scope["http_version"] != "1.1":
            return False
        if body:  # an empty chunk is the end of an answer
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    async def hand_over(self, send: Send, message: Message) -> None:
        """Send a message of an answer once the client has taken those before it; cut it off where that takes too
        long."""
        if not self.flow.write_paused:
            await send(message)
            return
        try:
            async with asyncio.timeout(self.bounds.answer_s):
                await send(message)
        except TimeoutError:
            self._place.refused("answer")
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Read; a clock runs while no request is in progress, and while one has no whole body."""
        if self._linger_timer is not None:
            return
        self._body_bytes += len(data)
        if self._idle and self._head_timer is None:
            self._arm_head()
        self._head_begun = True
        super().data_received(data)
        upgraded = self not in self.connections and not self.transport.is_closing()
        # An upgrade took the transport away from this protocol, and uvicorn forgot the connection.
        if not self._idle or upgraded:
            self._disarm_head()
        if upgraded:
            self._let_go()

    def handle_events(self) -> None:
        """Hand over what was parsed; then the request, which may be a new one, waits for its body or is whole."""
        super().handle_events()
        cycle = self.cycle
        if self._idle or cycle.disconnected:
            return
        if not isinstance(cycle.transport, _AnswerTransport):
            cycle.transport = cast("Any", _AnswerTransport(self.transport, self.end_answered))
        if not cycle.response_started:
            cycle.default_headers = self.server_state.default_headers
            if cycle.more_body or self._place.refuses is not None:
                cycle.default_headers = [*cycle.default_headers, _CLOSE]
        if cycle.more_body:
            self._arm_body()
        else:
            self._disarm_body()
            self._place.works()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, with its place; above the bounds, refuse."""
        if self._place.refuses is not None:
            self._place.refused(self._place.refuses)
            self.transport.write(_OVERLOADED)
            self.transport.close()
            return
        self._place.works()
        super().handle_websocket_upgrade(event)

    def end_answered(self) -> None:
        """End the connection after an answer, which a client that still sends is left the time to read."""
        if self.cycle is not None and self.cycle.more_body:
            self._linger()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the end."""
        self._disarm_body()
        self._place.waits()
        super().on_response_complete()
        if self._linger_timer is not None:
            self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        """The client is behind with its answer."""
        super().pause_writing()
        self._place.waits()

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        if not self._idle and not self.cycle.more_body:
            self._place.works()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back, stop the timers, which must not outlive the connection, and tell who waits for its
        end."""
        self._place.leave()
        self._disarm_head()
        self._disarm_body()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        super().connection_lost(exc)
        self._gone = True
        if self._when_gone is not None:
            self._when_gone()
        self._let_go()

    def _let_go(self) -> None:
        """Break the circles through what the application was given, and through the parser that tells of malformed
        requests: this goes at once, not with a later collection."""
        self.app_state = {}
        self.app = None  # no request is begun any more
        self.conn = None  # type: ignore[assignment]  # nothing is read any more
        self.cycle = None  # type: ignore[assignment]  # uvicorn's begins so
        self.scope = None  # type: ignore[assignment]  # uvicorn's begins so

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _arm_head(self) -> None:
        self._head_begun = False
        self._head_timer = self.loop.call_later(self.bounds.head_s, self._head_timed_out)

    def _disarm_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            self.transport.abort()
        elif self._head_begun:
            self._place.refused("head")
            self.transport.write(_TIMEOUT)
            self.transport.close()
        else:
            self.transport.abort()  # as browsers open some, in case they need one: nobody is refused anything

    def _arm_body(self) -> None:
        if self._body_timer is None and self.bounds.body_bytes_per_s:
            self._body_bytes = 0
            self._body_paused = self.flow.read_paused
            self._body_timer = self.loop.call_later(self.bounds.body_window_s, self._judge_body)

    def _disarm_body(self) -> None:
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _judge_body(self) -> None:
        """Go on with a body whose bytes came in this window, or were not asked for."""
        self._body_timer = None
        ours = self._body_paused or self.flow.read_paused or self.cycle.waiting_for_100_continue
        if not ours and self._body_bytes < self.bounds.body_bytes_per_s * self.bounds.body_window_s:
            self._place.refused("body")
            self._end_unanswered(_TIMEOUT)
            return
        self._place.waits()
        self._arm_body()

    def _malformed(self) -> None:
        self._place.refused("malformed")
        self._end_unanswered(_BAD_REQUEST)

    def _end_unanswered(self, answer: bytes) -> None:
        """End the connection in the middle of a request: with an answer, unless the application has begun one."""
        cycle = self.cycle
        if not self._idle:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Shut the sending side, and discard what still comes."""
        if self.transport.is_closing():
            return
        self._disarm_head()
        self._disarm_body()
        self._place.waits()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_timer = self.loop.call_later(LINGER_S, self.abort)


class _Connection(StrictConnection):
    """Tells the protocol of a request that is none. uvicorn would log a line for each, and answer it with the state of
    a connection that may be in the middle of another answer."""

    def __init__(self, malformed: Callable[[], None]) -> None:
        super().__init__()
        self._malformed = malformed

    def next_event(self) -> Event:
        """The next event; nothing once a request was malformed."""
        try:
            return super().next_event()
        except h11.RemoteProtocolError:
            self._malformed()
            return h11.NEED_DATA


class _InPieces:
    """The application, whose answers are handed over in pieces."""

    def __init__(self, app: Any, hand_over: Callable[[Send, Message], Awaitable[None]]) -> None:
        self._app: ASGIApp = app
        self._hand_over = hand_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= ANSWER_PIECE_BYTES:
                await self._hand_over(send, message)
                return
            for start in range(0, len(body), ANSWER_PIECE_BYTES):
                end = start + ANSWER_PIECE_BYTES
                more = end < len(body) or message.get("more_body", False)
                await self._hand_over(send, {**message, "body": body[start:end], "more_body": more})

        await self._app(scope, receive, send_pieces)


class _AnswerTransport:
    """What a request sees of the transport: the end of an answer may be no reason to close it at once."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class _OnlyHealth:
    """The application for a connection above the bounds."""

    def __init__(self, app: Any, paths: Collection[str], place: ConnectionPlace) -> None:
        self._app: ASGIApp = app
        self._paths = paths
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 503."""
        if scope["path"] in self._paths:
            await self._app(scope, receive, send)
            return
        if self._place.refuses is not None:
            self._place.refused(self._place.refuses)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(_FULL)),
            (b"retry-after", b"2"),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": _FULL})
