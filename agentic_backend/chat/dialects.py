"""The two protocols of the chat socket: what a client's frames do, and how turns are sent to the client."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol
from uuid import uuid4

from agentic_backend.chat import frames, relay
from agentic_backend.chat.follow import Follow
from agentic_backend.chat.handshake import Principal
from agentic_backend.chat.outbox import CloseWhen, Closing, Outbox
from agentic_backend.errors import BadRequest, ExchangeNotFound, RateLimited
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Ask, Failed, Turn
from backend_kit.auth import AuthError, ScopeMissing
from backend_kit.http import Cost
from backend_kit.wire import Code, ServiceError

logger = logging.getLogger(__name__)


async def unpaced(_user_id: str, _cost: Cost) -> None:
    """The default of `FrameLimits.pace`: as fast as they come."""


_FOLLOWED_TURNS = 32
_WAITING_ASKS = 8
_BAD_FRAMES = 3
_BAD_FRAMES_WINDOW_S = 10.0
_SENT_AT_ONCE_BYTES = 64 * 1024
_COSTS: dict[type, Cost] = {frames.Auth: Cost.READ, frames.Cancel: Cost.CHEAP, frames.Resume: Cost.READ}
"""What a frame costs if it does not start a turn."""


class Turns(Protocol):
    """What a client needs from the owner of the turns."""

    def submit(self, ask: Ask) -> Turn:
        """Start the turn of an ask; if it is refused, the refusal is the turn's only event."""

    async def stop(self, exchange_id: str, user_id: str) -> bool:
        """Cancel the user's turn; False if none runs."""

    def resume(self, session_id: str, exchange_id: str, user_id: str, request_id: str, after_seq: int) -> Turn:
        """The user's turn, running, in memory or rebuilt from history; a refusal is the turn's only event. The caller
        wants what comes after `after_seq`."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """How long a message may be, and the pace of frames that cost something; `hit` is called with the name of a limit
    each time it rejects a frame."""

    max_message_chars: int
    hit: Callable[[str], None]
    pace: Callable[[str, Cost], Awaitable[None]] = unpaced
    """Waits until the user may send another frame of this cost. Raises ServiceError if too many come."""

    def too_many_asks(self) -> RateLimited:
        """The error for an ask that exceeds the asks a socket may have waiting."""
        self.hit("asks_per_socket")
        return RateLimited(retry_after_s=1.0)


class Dialect(Protocol):
    """One socket's protocol."""

    subprotocol: ClassVar[str | None]
    """The WebSocket subprotocol that selects it; None if it is the default."""
    heartbeat: ClassVar[bytes]
    """The heartbeat frame, empty if the protocol has none."""
    outbox: Outbox
    principal: Principal

    async def act_on(self, text: str) -> None:
        """Carry out a frame of the client. Raises ServiceError if it is refused."""

    def refuse(self, text: str, error: ServiceError, /) -> None:
        """Tell the client why a frame was refused."""

    def take_frames(self, follow: Follow) -> list[bytes]:
        """The next frames of a turn, some 64 KiB at most; none once the client has all there are."""

    def behind_bytes(self, follow: Follow) -> int:
        """Roughly the bytes of the frames of a turn that have not been taken."""

    def turn_ended(self, turn: Turn, /) -> None:
        """Continue after the end of a turn has been sent."""

    def renamed(self, session: Session, /) -> bytes:
        """The frame for a title that changed outside a turn, empty if the protocol has none."""


def begin_turn(
    turns: Turns, frame: frames.NativeAsk | frames.HumanResume | frames.Resume, asker: frames.Asker, request_id: str
) -> Follow:
    """Start the turn that a frame asks for, or find the one that it resumes."""
    if isinstance(frame, frames.Resume):
        turn = turns.resume(frame.session_id, frame.exchange_id, asker.user_id, request_id, frame.after_seq)
        return Follow(turn, turn.after(frame.after_seq))
    if isinstance(frame, frames.HumanResume):
        return _submit(turns, frames.human_answer_of(frame, asker, request_id))
    return _submit(turns, frames.ask_of(frame, asker, request_id))


def _some_frames(follow: Follow, take: Callable[[], Sequence[bytes]]) -> list[bytes]:
    """What `take` gives of a turn's next events, up to some 64 KiB, so that a peer that does not read holds little."""
    frames: list[bytes] = []
    size = 0
    while size < _SENT_AT_ONCE_BYTES and not follow.up_to_date:
        for frame in take():
            frames.append(frame)
            size += len(frame)
    return frames


def _frames_of(frame: bytes) -> tuple[bytes, ...]:
    return (frame,) if frame else ()


def _submit(turns: Turns, ask: Ask) -> Follow:
    """Start a turn and follow it from its beginning, without the events of an earlier run of the exchange."""
    turn = turns.submit(ask)
    return Follow(turn, turn.shown_from if ask.human is None else turn.earlier)


@dataclass(slots=True)
class NativeDialect:
    """`turnwise.v1`: concurrent turns, each event as it occurs; a refusal is a frame, and the socket stays open."""

    subprotocol: ClassVar[str | None] = "turnwise.v1"
    heartbeat: ClassVar[bytes] = b'{"type":"heartbeat"}'

    outbox: Outbox
    principal: Principal
    turns: Turns
    limits: FrameLimits
    _bad_frames: list[float] = field(default_factory=list, init=False)

    async def act_on(self, text: str) -> None:
        """See `Dialect.act_on`, with what it raises."""
        frame = frames.parse_native(text, self.limits.max_message_chars)
        if isinstance(frame, frames.Ping):
            self.outbox.put(b'{"type":"pong"}')
            return
        await self.limits.pace(self.principal.asker.user_id, _COSTS.get(type(frame), Cost.TURN))
        if isinstance(frame, frames.Auth):
            await self.principal.renew(frame.access_token)
        elif self.principal.identity.ended():
            raise AuthError("Token has expired")
        elif isinstance(frame, frames.Cancel):
            await self._cancel(frame.exchange_id)
        elif len(self.outbox.follows) >= _FOLLOWED_TURNS:
            raise self.limits.too_many_asks()
        else:
            await self.principal.confirm()
            self.outbox.follow(begin_turn(self.turns, frame, self.principal.asker, uuid4().hex))

    async def _cancel(self, exchange_id: str) -> None:
        if not await self.turns.stop(exchange_id, self.principal.asker.user_id):
            self.outbox.put(relay.native_error(ExchangeNotFound.code, request_id=uuid4().hex, exchange_id=exchange_id))

    def refuse(self, _text: str, error: ServiceError) -> None:
        """See `Dialect.refuse`. A client that keeps sending unreadable frames is closed with 1008."""
        retry_after_ms = None if error.retry_after_s is None else round(error.retry_after_s * 1000)
        said = relay.native_error(error.code, request_id=uuid4().hex, retry_after_ms=retry_after_ms, field=error.field)
        self.outbox.put(said)
        if isinstance(error, BadRequest):
            self._bad_frames = [*self._bad_frames[1 - _BAD_FRAMES :], time.monotonic()]
            spread = self._bad_frames[-1] - self._bad_frames[0]
            if len(self._bad_frames) == _BAD_FRAMES and spread < _BAD_FRAMES_WINDOW_S:
                self.outbox.close(Closing(1008))

    def take_frames(self, follow: Follow) -> list[bytes]:
        """See `Dialect.take_frames`."""
        return _some_frames(follow, lambda: _frames_of(relay.native(follow.turn, follow.take())))

    def behind_bytes(self, follow: Follow) -> int:
        """See `Dialect.behind_bytes`."""
        return follow.behind_bytes.native

    def turn_ended(self, turn: Turn) -> None:
        """See `Dialect.turn_ended`: no turn waits for another."""

    def renamed(self, session: Session) -> bytes:
        """See `Dialect.renamed`."""
        return relay.renamed(session)


@dataclass(slots=True)
class CompatibleDialect:
    """The protocol of existing clients: one turn at a time, sent as whole messages; a refusal closes the socket."""

    subprotocol: ClassVar[str | None] = None
    heartbeat: ClassVar[bytes] = b""

    outbox: Outbox
    principal: Principal
    turns: Turns
    limits: FrameLimits

    def __post_init__(self) -> None:
        self.outbox.resumes = False  # the protocol has no frame for it

    async def act_on(self, text: str) -> None:
        """See `Dialect.act_on`, with what it raises."""
        frame = frames.parse_compatible(text, self.limits.max_message_chars)
        await self.limits.pace(self.principal.asker.user_id, Cost.TURN)
        if isinstance(frame, frames.CompatibleHumanResume):
            ask = frames.human_answer_of(frame, self.principal.asker, uuid4().hex)
        else:
            if frame.access_token:
                await self._renew(frame.access_token)
            ask = frames.ask_of(frame, self.principal.asker, uuid4().hex)
        if not await self._may_ask():
            self._close(Closing(4401, CloseWhen.AFTER_TURNS))
        elif not self.outbox.follows:
            self.outbox.follow(_submit(self.turns, ask))
        elif len(self.outbox.waiting) < _WAITING_ASKS:
            self.outbox.waiting.append(ask)  # answered in order: it starts when the one before it has ended
        else:
            raise self.limits.too_many_asks()

    async def _may_ask(self) -> bool:
        """Whether the socket's token or key is still valid. Raises ServiceError above the key's rate."""
        try:
            await self.principal.confirm()
        except AuthError:
            return False
        return not self.principal.identity.ended()

    async def _renew(self, token: str) -> None:
        """Take over a token in an ask if it verifies and is the same user's; else ignore it."""
        try:
            await self.principal.renew(token)
        except (AuthError, ScopeMissing):
            logger.info("token in an ask was ignored")

    def refuse(self, text: str, error: ServiceError) -> None:
        """See `Dialect.refuse`. The refusal is sent after the answers to earlier asks."""
        frame = relay.compatible_error(error.code, frames.session_id_of(text))
        self._close(Closing(1011, CloseWhen.AFTER_TURNS, final_frame=frame))

    def take_frames(self, follow: Follow) -> list[bytes]:
        """See `Dialect.take_frames`."""
        return _some_frames(follow, lambda: relay.compatible(follow.turn, follow.take()))

    def behind_bytes(self, follow: Follow) -> int:
        """See `Dialect.behind_bytes`."""
        return follow.behind_bytes.compatible

    def turn_ended(self, turn: Turn) -> None:
        """See `Dialect.turn_ended`: the longest waiting ask is next, unless the turn ended with a refusal. A drain
        refuses all that wait: each is begun, and answered with the refusal."""
        end = turn.events[-1].payload
        drained = self.outbox.closing is not None and isinstance(end, Failed) and end.code is Code.DRAINING
        if isinstance(end, Failed) and not end.messages and not drained:
            self._close(Closing(1011))  # refused or not stored
        elif self.outbox.waiting and not self.principal.identity.ended():
            self.outbox.follow(_submit(self.turns, self.outbox.waiting.pop(0)))

    def renamed(self, _session: Session) -> bytes:
        """See `Dialect.renamed`."""
        return b""

    def _close(self, closing: Closing) -> None:
        # While a token was verified or a frame was sent, the hub may have closed the socket.
        if not self.outbox.leaving:
            self.outbox.close(closing)
