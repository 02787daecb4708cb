"""The events of one turn over plain HTTP as text/event-stream, for clients that have no socket.

The turn does not belong to the request: it runs in the registry, and the stream only follows it, as a socket does. A
`StreamWriter` decides what is written of it: the one for native events is here, those of other protocols are in
`surfaces`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_backend.chat import frames, relay
from agentic_backend.chat.follow import Follow
from agentic_backend.chat.writer import SendClock
from agentic_backend.errors import BadRequest, UnknownType
from agentic_backend.session.stream import Failed, Turn, TurnEvent
from backend_kit.http import error_response

_KIND = (b"content-type", b"text/event-stream; charset=utf-8")
_HEADERS = [
    # A proxy that compresses or buffers the events would delay them.
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]
HEARTBEAT = b": heartbeat\n\n"
"""A comment, which every reader of an event stream skips."""


def read_body(body: bytes, max_message_chars: int) -> frames.NativeAsk | frames.HumanResume | frames.Resume:
    """The `ask`, `human_resume` or `resume` in a request's body. Raises BadRequest, UnknownType or MessageTooLong."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BadRequest from None
    frame = frames.parse_native(text, max_message_chars, unknown="ignore")  # as in every other REST body
    if not isinstance(frame, frames.NativeAsk | frames.HumanResume | frames.Resume):
        raise UnknownType(field="type")
    return frame


def read_last_event_id(value: str | None) -> int | None:
    """The number in a `Last-Event-ID`, None without one. Raises BadRequest if it is no event number."""
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise BadRequest(field="Last-Event-ID")
    return int(value)


class StreamWriter(Protocol):
    """How one stream writes what happens in its turn. Without I/O: it may keep what it has written, but waits for
    nothing."""

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Headers of the response in addition to those of every stream, in lower case; with a `content-type` if it is
        not an event stream."""

    @property
    def heartbeat(self) -> bytes:
        """What is sent after a silence."""

    @property
    def over(self) -> bool:
        """Whether the stream has ended before its turn, so that nothing more is written. Read it after each `write`."""

    @property
    def owed(self) -> Callable[[], Awaitable[bytes]] | None:
        """What has to be awaited, and sent, before anything else is written; None: nothing. Read it after each
        `write`."""

    def write(self, turn: Turn, event: TurnEvent) -> bytes:
        """What is sent for an event, the terminal one included; empty: nothing. Fragments of a message that have piled
        up come as one."""

    def refuse(self, request: Request, failure: Failed) -> Response:
        """The response to an ask that was refused before its turn began, instead of a stream."""


class NativeWriter:
    """The native events, each with its number as the event's id. Implements `StreamWriter`; all streams share it."""

    headers: Sequence[tuple[bytes, bytes]] = ()
    heartbeat = HEARTBEAT
    over = False
    owed = None

    def write(self, turn: Turn, event: TurnEvent) -> bytes:
        """See `StreamWriter`."""
        if not (frame := relay.native(turn, event)):
            return b""
        # JSON has no line breaks outside its strings, and in them they are escaped: it is one line of data.
        number = b"id: %d\n" % event.seq if event.seq else b""
        kind = relay.native_type(event.payload)
        return b"%bevent: %b\ndata: %b\n\n" % (number, kind, frame)

    def refuse(self, request: Request, failure: Failed) -> Response:
        """See `StreamWriter`."""
        retry_after_s = None if failure.retry_after_ms is None else failure.retry_after_ms / 1000
        return error_response(request, failure.code, retry_after_s=retry_after_s, field=failure.field)


NATIVE = NativeWriter()


class OpenStream(Response):
    """The base of every response with an event stream: what of a turn is written, how that is sent, and how it ends
    early.

    A subclass writes the response in `_write`, and sends by `_catch_up` and `_send`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        *,
        user_id: str,
        watched: Callable[["OpenStream"], AbstractContextManager[None]],
        delivered: Callable[[float], None],
        writer: StreamWriter,
    ) -> None:
        """`watched` is entered while the stream is open; `delivered` gets the seconds that a turn's end took to be
        written."""
        super().__init__()
        self._writer = writer
        self.user_id = user_id
        self.clock = SendClock()
        self._watched = watched
        self._delivered = delivered
        self._follow: Follow | None = None
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._due: asyncio.Handle | None = None
        self._unsent = b""
        """What could not be sent at once."""
        self._in_hand = b""
        """What is being sent: it waits as well while the client does not read."""
        self._silent = False
        self._gone = False
        self._abort: Callable[[], None] | None = None
        self._send_now: Callable[[bytes], bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        state = scope["state"]
        self._abort = state["abort"]
        with self._watched(self):
            self._open()
            state["on_gone"](self._leave)
            try:
                await self._write(scope, receive, send)
            finally:
                state["on_gone"](None)
                self._let_go()

    def _open(self) -> None:
        """Begin to follow, as soon as the stream counts."""
        raise NotImplementedError

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole answer."""
        raise NotImplementedError

    @property
    def outbox_bytes(self) -> int:
        """Roughly the bytes that are still to be sent to the client: what is in hand, and the later events of its turn
        as native frames, unless the writer writes nothing more."""
        follow = self._follow
        behind = 0 if follow is None or self._writer.over else follow.behind_bytes.native
        return len(self._in_hand) + len(self._unsent) + behind

    @property
    def sessions(self) -> set[str]:
        """The id of the session whose turn is followed."""
        return {self._follow.turn.ask.session_id} if self._follow is not None else set()

    def heartbeat(self) -> None:
        """Send a heartbeat comment."""
        self._silent = True
        self._wake.set()

    def abort(self) -> None:
        """Drop the connection immediately, for a client that does not read."""
        if self._abort is not None:
            self._abort()

    def drain(self) -> None:
        """The process ends: end with the turn that is followed."""

    def _take_up(self, follow: Follow) -> None:
        """Begin to follow a turn."""
        self._follow = follow
        follow.turn.follow(self._notice)

    async def _begin_answer(self, scope: Scope, send: Send) -> None:
        """Send the head of the answer."""
        own = self._writer.headers
        kind = () if any(name == b"content-type" for name, _ in own) else (_KIND,)
        await send({"type": "http.response.start", "status": 200, "headers": [*kind, *_HEADERS, *own]})
        self._send_now = scope["state"].get("send_now")  # not of every server

    async def _catch_up(self, send: Send) -> None:
        """Send everything that the followed turn has so far."""
        writer, follow = self._writer, self._follow
        while self._unsent or writer.owed or not (follow is None or follow.up_to_date or writer.over):
            if said := await self._next(follow):
                await self._send(send, said)

    async def _beat_or_wait(self, send: Send) -> bool:
        """Send a heartbeat that is due, else wait for something to send; False once the client has gone."""
        if not self._silent:
            return await self._woken()
        self._silent = False
        await self._send(send, self._writer.heartbeat)
        return True

    async def _next(self, follow: Follow | None) -> bytes:
        """What is to be sent next."""
        said, self._unsent = self._unsent, b""
        if said:
            return said
        owed = self._writer.owed
        if owed is not None:
            return await owed()
        return b"" if follow is None else self._writer.write(follow.turn, follow.take())

    def _notice(self) -> None:
        """Something has happened in the turn: it is written soon, together with what else happens until then."""
        if self._due is None:
            self._due = self._loop.call_soon(self._send_soon)

    def _send_soon(self) -> None:
        """Say what has happened without the task, which all middleware stands around, where nobody need wait."""
        self._due = None
        follow, clock = self._follow, self.clock
        if clock.since:
            return  # the task writes what has come once it has finished its current piece
        if follow is None or follow.turn.ended or self._send_now is None:
            self._wake.set()
            return
        failed = True
        try:
            while not (self._unsent or follow.up_to_date or self._writer.owed or self._writer.over):
                said = self._writer.write(follow.turn, follow.take())
                if not said:
                    continue
                if self._send_now(said):
                    clock.last_sent = time.monotonic()
                else:
                    self._unsent = said
            if self._unsent or self._writer.owed or self._writer.over:
                self._wake.set()
            failed = False
        finally:
            if failed:  # the loop logs what a writer raises; its stream cannot continue
                self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._wake.set()

    async def _woken(self) -> bool:
        """Wait for something to send; False once the client has gone."""
        await self._wake.wait()
        self._wake.clear()
        return not self._gone

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        clock = self.clock
        clock.since = time.monotonic()
        self._in_hand = body
        try:
            if more and self._send_now is not None and self._send_now(body):
                return
            await send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            clock.last_sent, clock.since = time.monotonic(), 0.0
            self._in_hand = b""

    def _let_go(self) -> None:
        """Stop following; cancel the turn if its ask says so and nobody else follows it."""
        follow = self._follow
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if follow is None:
            return
        turn = follow.turn
        turn.unfollow(self._notice)
        if turn.ended:
            self._delivered(follow.behind_s)
        elif turn.ask.on_disconnect == "cancel" and not turn.followed:
            turn.cancel()


class EventStream(OpenStream):
    """Answers a request with the events of one turn until its end.

    An ask that is refused before its turn begins gets an HTTP error, so the response head waits for the first event,
    but no longer than until the first `heartbeat`.
    """

    def __init__(
        self,
        *,
        user_id: str,
        begin: Callable[[], Follow],
        watched: Callable[[OpenStream], AbstractContextManager[None]],
        delivered: Callable[[float], None],
        writer: StreamWriter = NATIVE,
    ) -> None:
        """`begin` returns the turn and the position to start from; the rest is as in `OpenStream`."""
        super().__init__(user_id=user_id, watched=watched, delivered=delivered, writer=writer)
        self._begin = begin

    def _open(self) -> None:
        self._take_up(self._begin())

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        follow, writer = self._follow, self._writer
        assert follow is not None, "it has been opened"
        turn = follow.turn
        while follow.up_to_date and not (turn.has_published or turn.ended or self._silent):
            if not await self._woken():
                return
        refusal = turn.events[turn.earlier].payload if turn.has_published else None
        if isinstance(refusal, Failed) and refusal.refused:
            await writer.refuse(Request(scope), refusal)(scope, receive, send)
            return
        await self._begin_answer(scope, send)
        while True:
            await self._catch_up(send)
            if turn.ended or writer.over:
                break
            if not await self._beat_or_wait(send):
                return
        await self._send(send, b"", more=False)
