"""What a socket sends: the frames of its followed turns, those that belong to no turn, and the close frame.

While a turn runs and its peer reads, the event loop itself sends each event, and no task is woken for it. Whatever may
have to wait is left to the task: a peer that does not read, the end of a turn, the closing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.websockets import WebSocketDisconnect

from agentic_backend.chat.dialects import Dialect
from agentic_backend.chat.follow import Follow
from backend_kit.kpi import Seconds


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


@dataclass(frozen=True, slots=True)
class Connection:
    """How to send over one socket, see `HardenedWS`, and how to end it."""

    send_texts: Callable[[Sequence[bytes]], Awaitable[None]]
    """Sends text messages in one write. Raises OSError once the connection is gone."""
    send_now: Callable[[Sequence[bytes]], bool]
    """The same without waiting. False, with nothing sent, if it would have to wait."""
    close: Callable[[int], Awaitable[None]]
    """Sends the close frame with a code. Raises WebSocketDisconnect or RuntimeError once the connection is gone."""
    abort: Callable[[], None]
    """Drops the connection immediately, for a peer that does not read."""


class SocketWriter:
    """Sends until the outbox of its dialect closes. Its peer may be slow: that delays nobody else."""

    def __init__(self, dialect: Dialect, connection: Connection, meters: SocketMeters) -> None:
        self.clock = SendClock()
        self._dialect = dialect
        self._outbox = dialect.outbox
        self._connection = connection
        self._meters = meters
        self._loop = asyncio.get_running_loop()
        self._idle = False
        """Whether the task waits."""
        self._due = False
        self._unsent: list[bytes] = []
        """Frames of a turn that could not be sent at once."""
        self._in_hand: Sequence[bytes] = ()
        """Those that are being sent: they wait as the others do while the peer does not read."""
        self._torn = False
        """Whether an event was lost on its way to a frame."""
        self._slowest_send_s = 0.0
        self._outbox.on_event = self._on_event

    @property
    def outbox_bytes(self) -> int:
        """Roughly the bytes that are still to be sent to the client: of the followed turns that still stream, of frames
        that belong to no turn, and of those that are being sent."""
        outbox = self._outbox
        if not (outbox.follows or outbox.frames or self._in_hand or self._unsent):
            return 0  # most sockets, each second
        waiting = sum(map(len, outbox.frames)) + sum(map(len, self._in_hand))
        if outbox.leaving:
            return waiting
        return waiting + sum(map(len, self._unsent)) + sum(map(self._dialect.behind_bytes, outbox.follows))

    async def send_until_closed(self) -> None:
        """Send what the outbox gets, ending with the close frame. Raises WebSocketDisconnect once the peer is gone."""
        outbox = self._outbox
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
                await self._connection.close(outbox.closing.code)
                return

    def detach(self) -> None:
        """Take no further events. Else outbox and writer would be in a cycle, and stay until a full collection."""
        self._outbox.on_event = self._outbox.changed.set

    def _on_event(self) -> None:
        """A followed turn has published an event."""
        if not self._idle or self._outbox.changed.is_set():
            self._outbox.changed.set()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._send_events)  # with those that are published together

    def _send_events(self) -> None:
        """Send what can be sent now, and leave the rest to the task."""
        self._due = False
        sent = False
        try:
            self._torn = True
            sent = self._idle and not self._outbox.changed.is_set() and self._all_sent()
            self._torn = False
        finally:
            if not sent:
                self._outbox.changed.set()

    def _all_sent(self) -> bool:
        for follow in self._outbox.follows:
            if follow.turn.ended or not self._outbox.held:
                return False
            while frames := self._dialect.take_frames(follow):
                if not self._connection.send_now(frames):
                    self._unsent = frames
                    return False
                self.clock.last_sent = time.monotonic()
        return True

    def _done_with(self, follow: Follow) -> None:
        self._outbox.unfollow(follow)
        self._meters.delivered(follow.behind_s)
        self._meters.send_seconds.observe(self._slowest_send_s)
        self._slowest_send_s = 0.0
        self._dialect.turn_ended(follow.turn)

    async def _send(self, frames: list[bytes]) -> None:
        clock = self.clock
        began = clock.since = time.monotonic()
        self._in_hand = frames
        try:
            await self._connection.send_texts(frames)
        except OSError:
            raise WebSocketDisconnect(1006) from None  # as starlette's `send` does
        finally:
            # The hub aborts a send that began too long ago: one check a second is cheaper than a timer per send.
            clock.since = 0.0
            self._in_hand = ()
        clock.last_sent = time.monotonic()
        if clock.last_sent - began > self._slowest_send_s:
            self._slowest_send_s = clock.last_sent - began
