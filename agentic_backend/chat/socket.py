"""One chat socket: a reader that always receives, and a writer that sends what the followed turns publish.

While a turn runs and its peer reads, the event loop itself sends each event, and no task is woken for it. What may
have to wait is the writer's: a peer that does not read, the end of a turn, the closing.

It is open until its outbox has a `Closing`; then the writer sends the remaining frames and the close frame.
A turn belongs to neither task: it runs in the registry, and a socket only follows it. So a slow client delays
no other, and the loss of a socket ends no turn unless its ask requested that.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.websockets import WebSocket, WebSocketDisconnect

from agentic_backend.chat.dialects import Dialect
from agentic_backend.chat.follow import Follow
from agentic_backend.chat.frames import FrameRateLimit
from agentic_backend.chat.outbox import Closing
from agentic_backend.errors import MessageTooLong, RateLimited
from agentic_backend.session.models import Session
from backend_kit.kpi import Seconds
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

CLIENT_STOP = 4000
"""The close code with which the existing page stops a turn; after any other code the turn finishes."""
_TOO_BIG = 1009


SendTexts = Callable[[Sequence[bytes]], Awaitable[None]]
"""Sends text messages in one write, see `HardenedWS.send_texts`. Raises OSError once the connection is gone."""
SendNow = Callable[[Sequence[bytes]], bool]
"""The same at once, see `HardenedWS.send_texts_now`. False, with nothing sent, where it would have to wait."""


@dataclass(slots=True)
class SendClock:
    """When the current send began and when the last one ended, for the hub's deadline (0: none)."""

    since: float = 0.0
    last_sent: float = field(default_factory=time.monotonic)
    last_received: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class SocketMeters:
    """What sockets report: the slowest send of each turn, the seconds from a turn's end to its last frame handed over,
    and the name of a limit each time it rejects a frame.
    """

    send_seconds: Seconds
    delivered: Callable[[float], None]
    limit_hit: Callable[[str], None]


class ChatSocket:
    """An accepted, authenticated socket. `serve` returns once it is closed; no client makes it raise."""

    def __init__(
        self,
        websocket: WebSocket,
        dialect: Dialect,
        meters: SocketMeters,
        *,
        send_texts: SendTexts,
        send_now: SendNow,
        abort: Callable[[], None],
    ) -> None:
        """`send_texts` and `send_now` send frames; `abort` drops the connection immediately, for a peer that does not
        read."""
        self.outbox = dialect.outbox
        self.principal = dialect.principal
        self.abort = abort
        self.clock = SendClock()
        self._websocket = websocket
        self._send_texts = send_texts
        self._send_now = send_now
        self._loop = asyncio.get_running_loop()
        self._idle = False
        """Whether the writer waits."""
        self._due = False
        self._unsent: list[bytes] = []
        """Frames of a turn that could not be sent at once."""
        self._in_hand: Sequence[bytes] = ()
        """Those that are being sent: they wait as the others do while the peer does not read."""
        self._torn = False
        """Whether an event was lost on its way to a frame."""
        self.outbox.on_event = self._on_event
        self._dialect = dialect
        self._meters = meters
        self._frame_rate = FrameRateLimit()
        self._slowest_send_s = 0.0

    @property
    def user_id(self) -> str:
        """Whose socket it is."""
        return self.principal.asker.user_id

    @property
    def sessions(self) -> set[str]:
        """Ids of the sessions whose turns are followed or wait."""
        return self.outbox.sessions

    @property
    def outbox_bytes(self) -> int:
        """Roughly the bytes that the client will get and that are not sent: of the followed turns, where they are still
        told, of frames that belong to none, and of those that are being sent."""
        outbox = self.outbox
        if not (outbox.follows or outbox.frames or self._in_hand or self._unsent):
            return 0  # most sockets, each second
        waiting = sum(map(len, outbox.frames)) + sum(map(len, self._in_hand))
        if outbox.leaving:
            return waiting
        return waiting + sum(map(len, self._unsent)) + sum(map(self._dialect.behind_bytes, outbox.follows))

    def overdue(self, now: float, idle_s: float) -> int | None:
        """The code to close it with if its token has expired or no frame has come for `idle_s` seconds, else None.

        None too while it follows a turn, as a newer token may still come, and while it is leaving already.
        """
        outbox = self.outbox
        if outbox.follows or outbox.leaving:
            return None
        if self.principal.identity.ended():
            return 4401
        return 4408 if not outbox.waiting and now - self.clock.last_received > idle_s else None

    async def serve(self) -> None:
        """Read and write until either side closes."""
        code = 1006
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(), name="socket-writer")
                code = await self._read()
                writer.cancel()
        except* Exception:
            # The edge of the socket: any failure must be logged, and the peer must learn that the socket failed.
            logger.exception("socket failed")
            await self._close_after_failure()
        finally:
            self.outbox.end(code)
            if code == _TOO_BIG:
                self._meters.limit_hit("max_frame_bytes")
            self._let_go(code)
            # Else each would be in a cycle with the other, and stay until a full collection.
            self.outbox.on_event = self.outbox.changed.set

    def heartbeat(self) -> None:
        """Send a heartbeat, if the protocol has one."""
        self._send_unless_closing(self._dialect.heartbeat)

    def say_renamed(self, session: Session) -> None:
        """Send that a session's title changed outside a turn, if the protocol has a frame for it."""
        self._send_unless_closing(self._dialect.renamed(session))

    def _send_unless_closing(self, frame: bytes) -> None:
        if frame and self.outbox.closing is None:
            self.outbox.say(frame)

    # Reading

    async def _read(self) -> int:
        """Act on what comes until the peer has gone; its close code."""
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return message.get("code") or 1005
            self.clock.last_received = time.monotonic()
            if self.outbox.closing is not None and not self.outbox.closing.reads_on:
                continue
            text = message.get("text")
            if text is None:
                self.outbox.close(Closing(1003))
                continue
            try:
                self._check_rate()
                await self._dialect.act_on(text)
            except ServiceError as error:
                if isinstance(error, MessageTooLong):
                    self._meters.limit_hit("max_message_chars")
                self._dialect.refuse(text, error)
            if self.outbox.frames:
                await asyncio.sleep(0)  # frames that arrive together must not let their answers pile up

    def _check_rate(self) -> None:
        try:
            self._frame_rate.take(self.clock.last_received)
        except RateLimited:
            self._meters.limit_hit("frames")
            if self._frame_rate.flooding:
                self.outbox.close(Closing(1008))
            raise

    # Writing

    async def _write(self) -> None:
        """Send until the close frame is sent or the peer is gone; the reader learns the peer's close code."""
        with contextlib.suppress(WebSocketDisconnect):
            await self._write_until_closed()

    def _on_event(self) -> None:
        """A followed turn has published an event."""
        if not self._idle or self.outbox.changed.is_set():
            self.outbox.changed.set()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._send_events)  # with those that are published together

    def _send_events(self) -> None:
        """Send what can be sent now, and leave the rest to the writer."""
        self._due = False
        sent = False
        try:
            self._torn = True
            sent = self._idle and not self.outbox.changed.is_set() and self._all_sent()
            self._torn = False
        finally:
            if not sent:
                self.outbox.changed.set()

    def _all_sent(self) -> bool:
        for follow in self.outbox.follows:
            if follow.turn.ended or not self.outbox.held:
                return False
            while frames := self._dialect.take_frames(follow):
                if not self._send_now(frames):
                    self._unsent = frames
                    return False
                self.clock.last_sent = time.monotonic()
        return True

    async def _write_until_closed(self) -> None:
        outbox = self.outbox
        while True:
            self._idle = True
            await outbox.changed.wait()
            self._idle = False
            outbox.changed.clear()
            if self._torn:
                raise RuntimeError("an event could not be sent")
            while outbox.frames:
                await self._send(outbox.take_frames())
            leaving = outbox.closing is not None and outbox.closing.at_once
            if self._unsent and not leaving:
                frames, self._unsent = self._unsent, []
                await self._send(frames)
            for follow in () if leaving else tuple(outbox.follows):
                while frames := self._dialect.take_frames(follow):
                    await self._send(frames)
                if follow.turn.ended:
                    self._done_with(follow)
            if outbox.closing is not None and not outbox.frames and (leaving or not outbox.held):
                if outbox.closing.final_frame:
                    await self._send([outbox.closing.final_frame])
                # Another closing may have replaced this one meanwhile: its code is the one to send.
                await self._websocket.send({"type": "websocket.close", "code": outbox.closing.code})
                return

    def _done_with(self, follow: Follow) -> None:
        self.outbox.unfollow(follow)
        self._meters.delivered(follow.behind_s)
        self._meters.send_seconds.observe(self._slowest_send_s)
        self._slowest_send_s = 0.0
        self._dialect.turn_ended(follow.turn)

    async def _send(self, frames: list[bytes]) -> None:
        clock = self.clock
        began = clock.since = time.monotonic()
        self._in_hand = frames
        try:
            await self._send_texts(frames)
        except OSError:
            raise WebSocketDisconnect(1006) from None  # as starlette's `send` does
        finally:
            # The hub aborts a send that began too long ago: one check a second is cheaper than a timer per send.
            clock.since = 0.0
            self._in_hand = ()
        clock.last_sent = time.monotonic()
        if clock.last_sent - began > self._slowest_send_s:
            self._slowest_send_s = clock.last_sent - began

    async def _close_after_failure(self) -> None:
        try:
            await self._websocket.send({"type": "websocket.close", "code": 1011})
        except (WebSocketDisconnect, RuntimeError):
            self.abort()

    def _let_go(self, code: int) -> None:
        """Stop following; cancel a turn if the close code or its ask says so and nobody else follows it."""
        for follow in tuple(self.outbox.follows):
            turn = follow.turn
            self.outbox.unfollow(follow)
            if turn.ended:
                self._meters.delivered(follow.behind_s)
            if code == CLIENT_STOP or (turn.ask.on_disconnect == "cancel" and not turn.followed):
                turn.cancel()
