"""One chat socket: a reader that is always in receive, a writer that sends what the followed turns publish.

States: OPEN -> CLOSING (a close code is set; the writer sends what is left, then the close frame) -> CLOSED.
The turn belongs to neither task: it runs in the registry, and a socket only follows it. So a slow reader delays
nobody, and a socket that dies takes no turn with it unless its ask said so.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol
from uuid import uuid4

from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentic_backend.chat import frames, relay
from agentic_backend.chat.follow import Follow
from agentic_backend.chat.frame_rate import FrameRateLimit
from agentic_backend.errors import BadRequest, ExchangeNotFound, MessageTooLong, RateLimited
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Ask, Failed, Turn
from backend_kit.auth import AuthError, Credentials, Identity, Verifier
from backend_kit.kpi import Seconds
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

CLIENT_STOP = 4000
"""The close code by which the existing page stops a turn; any other end lets it finish."""
_TOO_BIG = 1009
_PENDING_ASKS = 8
_FOLLOWED_TURNS = 32
_OUTBOX_FRAMES = 256
_BAD_FRAMES = 3
_BAD_FRAMES_WINDOW_S = 10.0
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

ProtocolName = Literal["native", "compatible"]


class SocketState(Enum):
    """Where a socket is in its life."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Turns(Protocol):
    """What a socket needs of whoever runs turns."""

    def submit(self, ask: Ask) -> Turn:
        """Start the turn of an ask; what stands against it is the turn's only event."""

    def find(self, exchange_id: str, user_id: str) -> Turn | None:
        """The user's turn, running or kept."""

    def resume(self, session_id: str, exchange_id: str, user_id: str, request_id: str) -> Turn:
        """The user's turn, running, kept or told from history; what stands against it is the turn's only event."""


class _Gone(Exception):  # not a failure: the peer left, with its close code
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class SendClock:
    """When the send now under way began and when the last one ended, for the hub's deadline (0: none)."""

    since: float = 0.0
    last_sent: float = field(default_factory=time.monotonic)
    last_received: float = field(default_factory=time.monotonic)


class ChatSocket:
    """An accepted and authenticated socket. `run` returns when it is closed; it never raises for what a client did."""

    def __init__(
        self,
        websocket: WebSocket,
        *,
        protocol: ProtocolName,
        identity: Identity,
        credentials: Credentials,
        turns: Turns,
        verifier: Verifier,
        max_message_chars: int,
        send_seconds: Seconds,
        delivered: Callable[[float], None],
        hit: Callable[[str], None],
        abort: Callable[[], None],
    ) -> None:
        """`hit` is told the name of a limit each time it turns away a frame."""
        self.identity = identity
        self.protocol = protocol
        self.clock = SendClock()
        self.state = SocketState.OPEN
        self._credentials = credentials
        self._traceparent = traceparent_of(websocket)
        self._websocket = websocket
        self._turns = turns
        self._verifier = verifier
        self._max_message_chars = max_message_chars
        self._send_seconds = send_seconds
        self._delivered = delivered
        self._hit = hit
        self._frame_rate = FrameRateLimit()
        self._abort = abort
        self._close_code = 1000
        self._finish_turns = False
        self._last_words = ""
        self._direct: deque[str] = deque()
        self._follows: list[Follow] = []
        self._pending: deque[Ask] = deque()
        self._bad_frames: deque[float] = deque(maxlen=_BAD_FRAMES)
        self._wake = asyncio.Event()
        self._slowest_send_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a turn is followed or an ask waits."""
        return bool(self._follows or self._pending)

    @property
    def sessions(self) -> set[str]:
        """Ids of the sessions whose turns are followed or wait."""
        return {follow.turn.ask.session_id for follow in self._follows} | {ask.session_id for ask in self._pending}

    @property
    def expired(self) -> bool:
        """Whether its token has run out and no turn is followed: while one is, a newer token may still come."""
        return not self._follows and self.identity.ended()

    @property
    def outbox_bytes(self) -> int:
        """Roughly the bytes that wait to be written: what the peer is behind."""
        if not self._follows and not self._direct:
            return 0
        return sum(follow.behind_bytes for follow in self._follows) + sum(len(frame) for frame in self._direct)

    @property
    def behind_s(self) -> list[float]:
        """For how long turns have been over whose end has not been written, in seconds. From any thread."""
        return [follow.behind_s for follow in tuple(self._follows) if follow.turn.ended]

    async def run(self) -> None:
        """Read and write until either side closes."""
        code = 1006
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(), name="socket-reader")
                group.create_task(self._write(), name="socket-writer")
        except* _Gone as gone:
            code = next(error.code for error in _leaves(gone) if isinstance(error, _Gone))
        except* Exception:
            # The edge of the socket: whatever it is, it must be seen, and the peer must learn that we gave up.
            logger.exception("socket failed")
            await self._close_after_failure()
        finally:
            self.state = SocketState.CLOSED
            if code == _TOO_BIG:
                self._hit("max_frame_bytes")
            self._let_go(code)

    def close(self, code: int, *, finish_turns: bool = False, last_words: str = "") -> None:
        """Close with `code` once what belongs to no turn is sent; with `finish_turns`, once the followed turns end.

        Asks that wait are dropped, unless there are `last_words`: those answer what came after them, so they come
        last. The turns themselves go on or stop as their asks said.
        """
        if self.state is SocketState.CLOSED or (self.state is SocketState.CLOSING and not self._finish_turns):
            return
        self.state = SocketState.CLOSING
        self._finish_turns = finish_turns
        self._close_code = code
        self._last_words = last_words
        if not last_words:
            self._pending.clear()
        self._wake.set()

    def abort(self) -> None:
        """Cut the connection at once: the peer does not read."""
        self._abort()

    def heartbeat(self) -> None:
        """Say that we are here, in the protocol that knows how."""
        if self.protocol == "native" and self.state is SocketState.OPEN:
            self._say('{"type":"heartbeat"}')

    def say_renamed(self, session: Session) -> None:
        """Say that a session got another title outside a turn, in the protocol that has a frame for it."""
        if self.protocol == "native" and self.state is SocketState.OPEN:
            self._say(relay.native_renamed(session))

    # Reading

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                raise _Gone(message.get("code") or 1005)
            self.clock.last_received = time.monotonic()
            if self.state is not SocketState.OPEN:
                continue
            text = message.get("text")
            if text is None:
                self.close(1003)
                continue
            try:
                self._expect_pace()
                await self._take(text)
            except ServiceError as error:
                self._refuse_frame(text, error)
            if self._direct:
                await asyncio.sleep(0)  # frames that came together are no reason to let their answers pile up

    def _expect_pace(self) -> None:
        try:
            self._frame_rate.take(self.clock.last_received)
        except RateLimited:
            self._hit("frames")
            if self._frame_rate.flooding:
                self.close(1008)
            raise

    async def _take(self, text: str) -> None:
        if self.protocol == "compatible":
            await self._take_compatible(frames.parse_compatible(text, self._max_message_chars))
            return
        frame = frames.parse_native(text, self._max_message_chars)
        if isinstance(frame, frames.Auth):
            await self._renew(frame.access_token)
        elif isinstance(frame, frames.Ping):
            self._say('{"type":"pong"}')
        elif self.identity.ended():
            raise AuthError("Token has expired")
        else:
            self._act(frame)

    def _act(self, frame: frames.NativeAsk | frames.Cancel | frames.Resume | frames.HumanResume) -> None:
        if isinstance(frame, frames.NativeAsk):
            self._ask_native(frame)
        elif isinstance(frame, frames.Cancel):
            self._cancel(frame.exchange_id)
        elif isinstance(frame, frames.Resume):
            self._resume(frame)
        else:
            self._expect_room()
            self._submit(frames.human_answer_of(frame, self._asker, uuid4().hex))

    def _cancel(self, exchange_id: str) -> None:
        turn = self._turns.find(exchange_id, self.identity.uid)
        if turn is None or turn.ended:
            code = ExchangeNotFound.code
            self._say(relay.native_error(code, request_id=uuid4().hex, exchange_id=exchange_id))
            return
        turn.cancel()

    def _ask_native(self, frame: frames.NativeAsk) -> None:
        self._expect_room()
        self._submit(frames.ask_of(frame, self._asker, uuid4().hex))

    def _resume(self, frame: frames.Resume) -> None:
        self._expect_room()
        turn = self._turns.resume(frame.session_id, frame.exchange_id, self.identity.uid, uuid4().hex)
        self._follow(turn, frame.after_seq)

    def _expect_room(self) -> None:
        if len(self._follows) >= _FOLLOWED_TURNS:
            self._hit("asks_per_socket")
            raise RateLimited(retry_after_s=1.0)

    @property
    def _asker(self) -> frames.Asker:
        return frames.Asker(self.identity.uid, self._credentials, self._traceparent)

    async def _take_compatible(self, frame: frames.CompatibleFrame) -> None:
        if isinstance(frame, frames.CompatibleHumanResume):
            ask = frames.human_answer_of(frame, self._asker, uuid4().hex)
        else:
            if frame.access_token:
                await self._replace_token(frame.access_token)
            ask = frames.ask_of(frame, self._asker, uuid4().hex)
        if self.identity.ended():
            self.close(4401, finish_turns=True)
        elif not self._follows:
            self._submit(ask)
        elif len(self._pending) < _PENDING_ASKS:
            self._pending.append(ask)  # answered in order: it starts when the one before it has ended
        else:
            self._hit("asks_per_socket")
            raise RateLimited(retry_after_s=1.0)

    async def _renew(self, token: str) -> None:
        """Go on with a newer token of the same user; turns that run use it for their next calls."""
        identity = await self._verifier.verify(token)
        if identity.uid != self.identity.uid:
            raise AuthError("Invalid token")
        self.identity = identity
        self._credentials.renew(token)

    async def _replace_token(self, token: str) -> None:
        """CONTRACT §2: a token in an ask counts only if it verifies and is the same user's; else it is ignored."""
        try:
            await self._renew(token)
        except AuthError:
            logger.info("token in an ask was ignored")

    def _refuse_frame(self, text: str, error: ServiceError) -> None:
        if isinstance(error, MessageTooLong):
            self._hit("max_message_chars")
        retry_after_ms = None if error.retry_after_s is None else round(error.retry_after_s * 1000)
        if self.protocol == "compatible":
            words = relay.compatible_error(error.code, frames.session_id_of(text))
            self.close(1011, finish_turns=True, last_words=words)
            return
        self._say(relay.native_error(error.code, request_id=uuid4().hex, retry_after_ms=retry_after_ms))
        if isinstance(error, BadRequest):
            self._bad_frames.append(time.monotonic())
            spread = self._bad_frames[-1] - self._bad_frames[0]
            if len(self._bad_frames) == _BAD_FRAMES and spread < _BAD_FRAMES_WINDOW_S:
                self.close(1008)

    # Writing

    def _say(self, frame: str) -> None:
        """Send a frame that belongs to no turn. A peer that lets 256 of them pile up does not read."""
        if len(self._direct) >= _OUTBOX_FRAMES:
            self.abort()
            return
        self._direct.append(frame)
        self._wake.set()

    def _submit(self, ask: Ask) -> None:
        """Start a turn and tell of it from its beginning, without what an earlier run of the exchange has told."""
        turn = self._turns.submit(ask)
        self._follow_from(turn, 0 if ask.human is None else turn.earlier)

    def _follow(self, turn: Turn, after_seq: int = 0) -> None:
        """Tell of the turn from there on."""
        self._follow_from(turn, turn.after(after_seq))

    def _follow_from(self, turn: Turn, cursor: int) -> None:
        """Tell of the turn from an event on; one that is followed already goes on from there."""
        known = next((follow for follow in self._follows if follow.turn is turn), None)
        if known is not None:
            known.cursor = cursor
        else:
            self._follows.append(Follow(turn, cursor))
            turn.follow(self._wake.set)
        self._wake.set()

    async def _write(self) -> None:
        """Send until the close frame is out or the peer is gone: with which code it left, the reader hears."""
        with contextlib.suppress(WebSocketDisconnect):
            await self._write_until_closed()

    async def _write_until_closed(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._direct:
                await self._send(self._direct.popleft())
            leaving = self.state is SocketState.CLOSING and not self._finish_turns
            for follow in () if leaving else tuple(self._follows):
                await self._relay(follow)
            if self.state is SocketState.CLOSING and not self._direct and (leaving or not self.busy):
                if self._last_words:
                    await self._send(self._last_words)
                await self._send_close()
                return

    async def _relay(self, follow: Follow) -> None:
        while not follow.up_to_date:
            if self.protocol == "native":
                await self._send(follow.take_native().json)
                continue
            for frame in relay.compatible(follow.turn, follow.take()):
                await self._send(frame)
        if follow.turn.ended:
            self._done_with(follow)

    def _done_with(self, follow: Follow) -> None:
        self._follows.remove(follow)
        follow.turn.unfollow(self._wake.set)
        self._delivered(follow.behind_s)
        self._send_seconds.observe(self._slowest_send_s)
        self._slowest_send_s = 0.0
        if self.protocol == "native":
            return
        end = follow.turn.events[-1].payload
        if isinstance(end, Failed) and not end.messages:
            self.close(1011)  # refused or not stored: the compatible protocol ends the socket
        elif self._pending and not self.identity.ended():
            self._submit(self._pending.popleft())

    async def _send(self, frame: str) -> None:
        clock = self.clock
        began = clock.since = time.monotonic()
        try:
            await self._websocket.send({"type": "websocket.send", "text": frame})
        finally:
            # The hub aborts a send that began too long ago: one comparison a second instead of a timer a frame.
            clock.since = 0.0
        clock.last_sent = time.monotonic()
        if clock.last_sent - began > self._slowest_send_s:
            self._slowest_send_s = clock.last_sent - began

    async def _send_close(self) -> None:
        await self._websocket.send({"type": "websocket.close", "code": self._close_code})

    async def _close_after_failure(self) -> None:
        try:
            await self._websocket.send({"type": "websocket.close", "code": 1011})
        except (WebSocketDisconnect, RuntimeError):
            self._abort()

    def _let_go(self, code: int) -> None:
        """Stop following; cancel where the close code or the ask says so, and nobody else listens."""
        for follow in self._follows:
            turn = follow.turn
            turn.unfollow(self._wake.set)
            if turn.ended:
                self._delivered(follow.behind_s)
            if code == CLIENT_STOP or (turn.ask.on_disconnect == "cancel" and not turn.followed):
                turn.cancel()
        self._follows.clear()
        self._pending.clear()


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


def traceparent_of(connection: HTTPConnection) -> str | None:
    """The trace (W3C Trace Context) that a request or handshake belongs to, for the calls that its asks lead to."""
    given: str | None = connection.headers.get("traceparent")
    return given if given is not None and _TRACEPARENT.fullmatch(given) else None
