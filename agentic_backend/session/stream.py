"""The numbered events of one turn, and their followers.

The turn publishes, sockets follow: each follower keeps its own cursor into `Turn.events`, so a slow one does not
delay the others and a late one may start at any event.
"""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agentic_backend.events import Channel, ChatMessage
from agentic_backend.session.models import Durability, Session
from backend_kit.auth import Credentials
from backend_kit.kpi import LedgerRow
from backend_kit.wire import Code, dumps, message_for

IfBusy = Literal["reject", "queue", "replace"]
OnDisconnect = Literal["continue", "cancel"]


@dataclass(frozen=True, slots=True)
class HumanAnswer:
    """A person's answer to the question of a waiting exchange: any JSON value that the agent understands."""

    payload: Any

    @property
    def checkpoint_id(self) -> str | None:
        """Which question is answered, if the client says so."""
        named = self.payload.get("checkpoint_id") if isinstance(self.payload, dict) else None
        return named if isinstance(named, str) else None


@dataclass(frozen=True, slots=True)
class Ask:
    """One question as the socket received it. `received_at` is `time.perf_counter()` of its arrival.

    `credentials` are the user's latest, for the services that the agent calls on their behalf. With `human` it is not
    a new question but continues the exchange; `message` is then set once that was found. `model` is the id of the
    requested model; with `lenient`, one that the agent does not offer is ignored instead of refused.
    """

    session_id: str
    agent_id: str
    message: str
    exchange_id: str
    user_id: str
    received_at: float
    runtime_context: dict[str, Any] = field(default_factory=dict)
    language: str | None = None
    if_busy: IfBusy = "reject"
    on_disconnect: OnDisconnect = "continue"
    request_id: str = ""
    credentials: Credentials | None = field(default=None, repr=False, compare=False)
    traceparent: str | None = None
    human: HumanAnswer | None = None
    model: str | None = None
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The ask has become a turn; `queue_position` (1-based) if it waits for a slot."""

    queue_position: int | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the message that will have `rank`."""

    rank: int
    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole message: the user's echo, a tool call or result, a thought. Never the answer."""

    message: ChatMessage


@dataclass(frozen=True, slots=True)
class Cited:
    """The passages that the answer may cite."""

    hits: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionChanged:
    """The session got its title in this turn."""

    session: Session


@dataclass(frozen=True, slots=True)
class Final:
    """The answer is complete, and as durable as `durable` says."""

    messages: tuple[ChatMessage, ...]
    session: Session
    ledger: list[LedgerRow]
    unattributed_ms: float
    durable: Durability
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Awaiting:
    """The run waits for a person, who is asked `payload`; `messages` are the exchange so far."""

    payload: dict[str, Any]
    messages: tuple[ChatMessage, ...]
    session: Session


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The turn was stopped; `messages` are the exchange so far."""

    messages: tuple[ChatMessage, ...]
    session: Session


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn ended without an answer. `refused`: before it began; nothing was stored and it has no seq.

    `messages` is what is stored of it: none if it never began (then `session` is None too). If storage failed, they
    may be lost.
    """

    code: Code
    refused: bool
    language: str | None = None
    retry_after_ms: int | None = None
    partial: bool = False
    messages: tuple[ChatMessage, ...] = ()
    session: Session | None = None

    @property
    def text(self) -> str:
        """The fixed text of the code in the asker's language."""
        return message_for(self.code, self.language)


Payload = Accepted | TextDelta | Whole | Cited | SessionChanged | Final | Awaiting | Cancelled | Failed
_TERMINAL = (Final, Awaiting, Cancelled, Failed)


@dataclass(slots=True)
class TurnEvent:
    """One event of a turn with its number; `seq` starts at 1 and has no gaps. A refusal has seq 0."""

    seq: int
    payload: Payload

    @property
    def weight(self) -> int:
        """Roughly the bytes that this event keeps alive."""
        return _weight(self.payload)

    @property
    def terminal(self) -> bool:
        """Whether the exchange ends with this event."""
        return isinstance(self.payload, _TERMINAL)


class Turn:
    """One exchange while it runs and for a while after: its events, its followers, its end.

    Only the turn's own task publishes. `cancel` may be called from anywhere, any number of times. A run that continues
    after a person was asked is a separate turn, which begins with the `earlier` events of the one before.
    """

    def __init__(self, ask: Ask, before: "Turn | None" = None) -> None:
        self.ask = ask
        self.events: list[TurnEvent] = [] if before is None else list(before.events)
        self.earlier = len(self.events)
        self._seq = self.events[-1].seq if self.events else 0
        self.ended = False
        self.ended_at = 0.0
        self.bytes_held: int = 0 if before is None else before.bytes_held
        self.cancel_requested = False
        # Its session was deleted while it ran: it must not be found after its end.
        self.forgotten = False
        # Replayed from history, or rerun instead of an interrupted turn: earlier followers of the exchange cannot use
        # its numbers.
        self.restarted = False
        # Set while the turn runs: it must not end with the session's old preferences or title.
        self.preferences: dict[str, Any] | None = None
        self.title: str | None = None
        self._begun = False
        self._settled = False
        self.done = asyncio.Event()
        self._followers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.head = dumps({"session_id": ask.session_id, "exchange_id": ask.exchange_id})[1:-1]
        """`"session_id":…,"exchange_id":…` as JSON: the part that all its native frames share."""

    @property
    def own_events(self) -> list[TurnEvent]:
        """The events of this run."""
        return self.events[self.earlier :]

    @property
    def next_seq(self) -> int:
        """The number of the next event."""
        return self._seq + 1

    def continue_after(self, seq: int) -> None:
        """Continue numbering after `seq`, the last of the run before, if that is known from storage."""
        self._seq = max(self._seq, seq)

    @property
    def followed(self) -> bool:
        """Whether it has any follower."""
        return bool(self._followers)

    def bind(self, task: "asyncio.Task[None]") -> None:
        """Set the task that runs this turn, so that it can be cancelled."""
        self._task = task

    def begin(self) -> None:
        """Run first in the turn's task. Raises CancelledError if the turn was cancelled before."""
        self._begun = True
        if self.cancel_requested:
            raise asyncio.CancelledError

    def settle(self) -> None:
        """Ignore cancellation from now on: the end is being recorded, and a stop would lose the terminal event."""
        self._settled = True

    def publish(self, payload: Payload) -> None:
        """Append an event and wake the followers. A refusal gets seq 0. Raises RuntimeError after a terminal event."""
        if self.ended:
            raise RuntimeError(f"event {type(payload).__name__} after the end of an exchange")
        weight = _weight(payload)  # first: what cannot be encoded raises here, before anyone has seen it
        if isinstance(payload, Failed) and payload.refused and not self.own_events:
            event = TurnEvent(0, payload)
        else:
            self._seq += 1
            event = TurnEvent(self._seq, payload)
        self.events.append(event)
        self.bytes_held += weight
        if event.terminal:
            self.ended = True
            self.ended_at = time.monotonic()
            self.done.set()
            # It can no longer be stopped, is kept for a while, and a task would keep its whole context alive.
            self._task = None
        for wake in self._followers:
            wake()

    def after(self, seq: int) -> int:
        """The index in `events` of the next one for a client that has them up to `seq` (0: none); 0 after a restart."""
        if not seq or self.restarted or not self.events or seq > self.events[-1].seq:
            return 0
        return bisect_right(self.events, seq, key=lambda event: event.seq)

    def follow(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each event from now on; the caller reads `events` from its own cursor."""
        self._followers.append(wake)

    def unfollow(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        if wake in self._followers:
            self._followers.remove(wake)

    def cancel(self) -> None:
        """Ask the turn to stop. It ends with `Cancelled` once its output is recorded. No effect once it is settled."""
        if self.ended or self.cancel_requested or self._settled:
            return
        self.cancel_requested = True
        # A task that is cancelled before its first step never runs at all, so `begin` checks the request instead.
        if self._task is not None and self._begun:
            self._task.cancel()


def _weight(payload: Payload) -> int:
    """Roughly the bytes an event keeps alive: what the replay bound counts."""
    if isinstance(payload, TextDelta):
        # Event, payload, number and text are objects of their own: 190 bytes without a character.
        return 200 + len(payload.text)
    if isinstance(payload, Whole):
        return 200 + _message_weight(payload.message)
    if isinstance(payload, Final | Awaiting | Cancelled | Failed):
        return 400 + sum(_message_weight(message) for message in payload.messages)
    if isinstance(payload, Cited):
        return 400 + len(dumps(payload.hits))
    return 400


def _message_weight(message: ChatMessage) -> int:
    """Roughly the bytes of a message: its encoding, and its metadata as objects, which take at most as much again."""
    return 2 * len(message.json)
