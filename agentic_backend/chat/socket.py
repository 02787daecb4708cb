"""One chat socket: a reader that always receives, beside a writer that sends what the followed turns publish.

It is open until its outbox has a `Closing`; then the writer sends the remaining frames and the close frame.
A turn belongs to neither task: it runs in the registry, and a socket only follows it. So a slow client delays
no other, and the loss of a socket ends no turn unless its ask requested that.
"""

import asyncio
import contextlib
import logging
import time

from starlette.websockets import WebSocket, WebSocketDisconnect

from agentic_backend.chat.dialects import Dialect
from agentic_backend.chat.frames import FrameRateLimit
from agentic_backend.chat.outbox import Closing
from agentic_backend.chat.writer import Connection, SocketMeters, SocketWriter
from agentic_backend.errors import MessageTooLong, RateLimited
from agentic_backend.session.models import Session
from backend_kit.wire import ServiceError

logger = logging.getLogger(__name__)

CLIENT_STOP = 4000
"""The close code with which the existing page stops a turn; after any other code the turn finishes."""
_TOO_BIG = 1009


class ChatSocket:
    """An accepted, authenticated socket. `serve` returns once it is closed; no client makes it raise."""

    def __init__(self, websocket: WebSocket, dialect: Dialect, connection: Connection, meters: SocketMeters) -> None:
        self.outbox = dialect.outbox
        self.principal = dialect.principal
        self.abort = connection.abort
        self._websocket = websocket
        self._dialect = dialect
        self._connection = connection
        self._meters = meters
        self._writer = SocketWriter(dialect, connection, meters)
        self.clock = self._writer.clock
        self._frame_rate = FrameRateLimit()

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
        """See `SocketWriter.outbox_bytes`."""
        return self._writer.outbox_bytes

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
            self._writer.detach()

    def heartbeat(self) -> None:
        """Send a heartbeat, if the protocol has one."""
        self._send_unless_closing(self._dialect.heartbeat)

    def send_renamed(self, session: Session) -> None:
        """Send that a session's title changed outside a turn, if the protocol has a frame for it."""
        self._send_unless_closing(self._dialect.renamed(session))

    def _send_unless_closing(self, frame: bytes) -> None:
        if frame and self.outbox.closing is None:
            self.outbox.put(frame)

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

    async def _write(self) -> None:
        """Send until the close frame is sent or the peer is gone; the reader learns the peer's close code."""
        with contextlib.suppress(WebSocketDisconnect):
            await self._writer.send_until_closed()

    async def _close_after_failure(self) -> None:
        try:
            await self._connection.close(1011)
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
