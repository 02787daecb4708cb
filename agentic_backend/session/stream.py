"""The numbered events of one turn, and their followers.

The turn publishes, sockets follow: each follower keeps its own cursor into `Turn.events`, so a slow one does not
delay the others and a late one may start at any event.
"""

import asyncio
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from agentic_backend.agent.graph_input import GraphInput
from agentic_backend.events import Channel, ChatMessage
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.branches import Branching
from agentic_backend.session.models import AskRecord, Durability, Session
from backend_kit.auth import Credentials
from backend_kit.wire import Code, dumps, message_for

IfBusy = Literal["reject", "queue", "replace"]
OnDisconnect = Literal["continue", "cancel"]

RUN_SEQS = 1_000_000
"""The events of a turn's run after n others are numbered above n times this: above whatever any of those had."""


@dataclass(frozen=True, slots=True)
class HumanAnswer:
    """A person's answer to the question of a waiting exchange: any JSON value that the agent understands."""

    payload: Any

    @property
    def checkpoint_id(self) -> str | None:
        """Which question is answered, if the client says so."""
        named = self.payload.get("checkpoint_id") if isinstance(self.payload, dict) else None
        return named if isinstance(named, str) else None


MOST_IMAGES = 10
"""The most images of a question, and the most that a model sees, with those of earlier questions."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question as the socket received it. `received_at` is `time.perf_counter()` of its arrival.

    `credentials` are the user's latest, for the services that the agent calls on their behalf. With `human` it is not
    a new question but continues the exchange; `message` is then set once that was found. `model` is the id of the
    requested model; with `lenient`, one that the agent does not offer is ignored instead of refused.

    `given` is the conversation before `message` as the client sent it: the agent sees it instead of the stored one. If
    it ends with results of the client's tools, `message` may be empty: the agent continues from them. `client_tools`
    are those tools, each with `name`, `description` and `parameters` (JSON Schema); agents that do not take them
    (`TurnAgent.client_tools`) do not see them. `turn_s` is a deadline in place of `deadlines.turn_s`, in seconds.
    `note` is what a door needs to read the exchange again: JSON, kept with the question, or with the person's answer,
    as `metadata.extras.note`. `graph` is what a client of LangGraph's own API asks for; `message` is then the text of
    the question in it, "" where it has none.

    `after_rank` is the rank of the message behind which the exchange begins, -1 for none: what is live behind it is
    superseded once the exchange has ended. With `regenerate`, an exchange, that one's question is asked again in its
    place; `message` and `after_rank` are then set once that was found. Both must be on the live line, unless
    `any_branch` is set: then the line of the message becomes live again.

    `images` are attachments of the session that the question shows, by id.
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
    given: tuple[HistoryItem, ...] | None = None
    client_tools: tuple[dict[str, Any], ...] = ()
    turn_s: float | None = None
    note: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    graph: GraphInput | None = field(default=None, repr=False, compare=False)
    after_rank: int | None = None
    regenerate: str | None = None
    any_branch: bool = False
    images: tuple[str, ...] = ()

    @property
    def branching(self) -> Branching:
        """Where the question says that it begins."""
        return Branching(self.after_rank, self.regenerate)

    def begun_at(self, question: ChatMessage) -> "Ask":
        """This ask with the question that was stored for it."""
        said = Branching.of(question)
        return replace(
            self,
            message=question.text,
            images=question.images,
            after_rank=said.after_rank,
            regenerate=said.regenerates,
        )

    def repeats(self, other: "Ask") -> bool:
        """Whether both ask the same, of the same agent in the same place of the same session."""
        if (self.session_id, self.agent_id, self.regenerate) != (other.session_id, other.agent_id, other.regenerate):
            return False
        # The other fields of a regenerating ask are set only once its question is known.
        if self.regenerate is not None:
            return True
        return (self.message, self.images, self.after_rank) == (other.message, other.images, other.after_rank)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The ask has become a turn; `queue_position` (1-based) if it waits for a slot."""

    queue_position: int | None = None


@dataclass(frozen=True, slots=True)
class Restarted:
    """The turn runs again, since its run broke off: what was shown of the exchange is replaced by what follows.

    How many runs broke off; 0: what follows comes from history instead.
    """

    runs_before: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the message that will have `rank`."""

    rank: int
    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """New text of a model's reasoning; it has no rank."""

    rank: ClassVar[None] = None
    channel: ClassVar[Channel] = "thought"
    text: str


@dataclass(frozen=True, slots=True)
class CustomPart:
    """What an agent's code tells its clients, as JSON."""

    json: bytes


NO_STATE = b"null"
"""Stands for a state that is too large to be sent."""


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What LangGraph's stream says of a hosted graph's run in one of its modes, as JSON, where the ask wants it."""

    mode: str
    namespace: tuple[str, ...]
    json: bytes


@dataclass(frozen=True, slots=True)
class SpokenBy:
    """The text of the message that will have `rank` belongs to a message of a hosted graph: its id there, and the node
    and step that it comes from. Only for asks that came by LangGraph's own API."""

    rank: int
    message_id: str
    node: str
    step: int
    namespace: tuple[str, ...]


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
    """The answer is complete, and as durable as `durable` says. `ledger` is the JSON of a list of `LedgerRow`."""

    messages: tuple[ChatMessage, ...]
    session: Session
    ledger: bytes
    unattributed_ms: float
    durable: Durability
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Awaiting:
    """The run waits for a person, who is asked `payload`; `messages` are the exchange so far. `usage` is what its model
    calls took, as in the metadata of an answer; None where it is not known."""

    payload: dict[str, Any]
    messages: tuple[ChatMessage, ...]
    session: Session
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The turn was stopped; `messages` are the exchange so far."""

    messages: tuple[ChatMessage, ...]
    session: Session


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn ended without an answer. `refused`: before it began; nothing was stored and it has no seq.

    `messages` is what is stored of it: none if it never began (then `session` is None too). If storage failed, they
    may be lost. `field` is the place in what was sent that was wrong, if that is known.
    """

    code: Code
    refused: bool
    language: str | None = None
    retry_after_ms: int | None = None
    partial: bool = False
    messages: tuple[ChatMessage, ...] = ()
    session: Session | None = None
    field: str | None = None

    @property
    def text(self) -> str:
        """The fixed text of the code in the asker's language."""
        return message_for(self.code, self.language)


Fragment = TextDelta | ThoughtDelta
"""New text; those of one message, or of one stretch of reasoning, are joined for a client that is behind."""
Terminal = Final | Awaiting | Cancelled | Failed
"""The end of an exchange, or of its run up to a question to a person."""
Payload = (
    Accepted | Restarted | Fragment | CustomPart | GraphPart | SpokenBy | Whole | Cited | SessionChanged | Terminal
)
_FRAGMENTS = (TextDelta, ThoughtDelta)
SILENT = (GraphPart, SpokenBy)
"""Events of which only the door of LangGraph's clients says anything."""
_TERMINAL = get_args(Terminal)  # each event is compared with it, and a union takes longer
_TEXT_BYTES = 60
"""Bytes of an empty fragment: an object, and its place in a list."""
_FRAME_BYTES = 120
"""Bytes of a frame without its content: its type, its ids and its number."""
_ERROR_BYTES = 120
"""Of a native error beside these, without its text: its code, the request's id, and whether to try again."""


class FrameBytes(NamedTuple):
    """Roughly the bytes of the frames of events, in each protocol of the socket."""

    native: int
    compatible: int


_NO_FRAMES = FrameBytes(0, 0)


@dataclass(slots=True)
class TurnEvent:
    """One event of a turn with its number; `seq` starts at 1 and has no gaps except before `Restarted`. A refusal has
    seq 0."""

    seq: int
    payload: Payload

    @property
    def terminal(self) -> bool:
        """Whether the exchange ends with this event."""
        return isinstance(self.payload, _TERMINAL)


class _Texts:
    """Fragments of one message that followed each other: a list, and once sealed their text and where each ends.

    Those of reasoning have no rank. `utf8_bytes` is the size of all of them in UTF-8. It is added up as they come, when
    their text is at hand anyway, so that computing how far a client is behind copies nothing.
    """

    __slots__ = ("_ends", "_sealed", "_texts", "channel", "rank", "utf8_bytes")

    def __init__(self, first: Fragment) -> None:
        self.rank = first.rank
        self.channel: Channel = first.channel
        self._texts = [first.text]
        self.utf8_bytes = len(first.text.encode(errors="replace"))
        # Where each ends: in UTF-8, once sealed in characters.
        self._ends = array("I", [self.utf8_bytes])
        self._sealed = False

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, text: str) -> None:
        """Add the next one. Not once it is sealed."""
        self._texts.append(text)
        # Once a token: without a call where one can be spared.
        self.utf8_bytes = size = self.utf8_bytes + (len(text) if text.isascii() else len(text.encode(errors="replace")))
        self._ends.append(size)

    def joined(self, start: int, end: int) -> Fragment:
        """Those from one to before another, as one."""
        text = self.between(start, end)
        return ThoughtDelta(text) if self.rank is None else TextDelta(self.rank, self.channel, text)

    def seal(self) -> None:
        """Keep them in less memory, as no other comes."""
        if not self._sealed:
            self._ends = array("I", accumulate(map(len, self._texts)))
            self._texts = ["".join(self._texts)]
            self._sealed = True

    def between(self, start: int, end: int) -> str:
        """Their text from one to before another."""
        if not self._sealed:
            return "".join(self._texts[start:end])
        return self._texts[0][self._ends[start - 1] if start else 0 : self._ends[end - 1]]

    def utf8_bytes_before(self, end: int) -> int:
        """The bytes of those before one; once sealed roughly, by their share of the characters."""
        if not end:
            return 0
        if not self._sealed:
            return self._ends[end - 1]
        return self.utf8_bytes * self._ends[end - 1] // max(1, self._ends[-1])

    def sizes_from(self, start: int) -> list[int]:
        """The characters of each from one on."""
        if not self._sealed:
            return [len(text) for text in self._texts[start:]]
        ends = [self._ends[start - 1] if start else 0, *self._ends[start:]]
        return [end - begin for begin, end in pairwise(ends)]


@dataclass(slots=True)
class _Entry:
    """One event, or fragments of one message. `place` is where its first event is in the log, `seq` its number.

    `native_before` and `compatible_before` are the bytes of the frames of all before it.
    """

    place: int
    seq: int
    said: Payload | _Texts
    native_before: int
    compatible_before: int

    def __len__(self) -> int:
        return len(self.said) if isinstance(self.said, _Texts) else 1

    def joined(self, start: int, end: int) -> TurnEvent:
        """Its events from `start` to before `end` as one, with the number of the last."""
        said = self.said
        if not isinstance(said, _Texts):
            return TurnEvent(self.seq, said)
        return TurnEvent(self.seq + end - 1, said.joined(start, end))


class EventLog:
    """The events of a turn in their order.

    Fragments of one message that follow each other are kept as their texts. An event, a number and a payload for each
    would be most of what a turn holds, and of what a full garbage collection traverses.
    """

    __slots__ = ("_compatible", "_entries", "_length", "_native")

    def __init__(self, before: "EventLog | None" = None) -> None:
        """It begins with the events of an ended turn `before`, whose last is no fragment."""
        self._entries: list[_Entry] = [] if before is None else list(before._entries)
        self._length = 0 if before is None else len(before)
        # The bytes of all frames, but for the text of the last where fragments may still come to it.
        self._native: int = 0 if before is None else before._native
        self._compatible: int = 0 if before is None else before._compatible

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[TurnEvent]:
        return (self[place] for place in range(self._length))

    def __getitem__(self, index: int) -> TurnEvent:
        place = index if index >= 0 else index + self._length
        if not 0 <= place < self._length:
            raise IndexError(index)
        entry = self._entry_at(place)
        offset = place - entry.place
        return entry.joined(offset, offset + 1)

    def append(self, seq: int, payload: Payload) -> None:
        """Add the event with this number."""
        entries = self._entries
        if not isinstance(payload, _FRAGMENTS):
            self._add(seq, payload, _frame_bytes(payload))
        else:
            last = entries[-1] if entries else None
            texts = last.said if last is not None else None
            if (
                last is not None
                and isinstance(texts, _Texts)
                and texts.rank == payload.rank
                and texts.channel == payload.channel
                and last.seq + self._length - last.place == seq
            ):
                texts.append(payload.text)
            else:
                self._add(seq, _Texts(payload), FrameBytes(_FRAME_BYTES, 0))
        self._length += 1

    def _add(self, seq: int, said: Payload | _Texts, takes: FrameBytes) -> None:
        native = self._native_bytes
        self._entries.append(_Entry(self._length, seq, said, native, self._compatible))
        self._native = native + takes.native
        self._compatible += takes.compatible

    @property
    def _native_bytes(self) -> int:
        """The bytes of all native frames so far."""
        last = self._entries[-1].said if self._entries else None
        return self._native + (last.utf8_bytes if isinstance(last, _Texts) else 0)

    def seal(self) -> None:
        """Keep it in less memory: no event comes after this."""
        for entry in self._entries:
            if isinstance(entry.said, _Texts):
                entry.said.seal()

    def joined(self, place: int, most_chars: int) -> tuple[TurnEvent, int]:
        """The event at `place`, and how many events it stands for: with the fragments of its message that follow it.

        They are joined until there are `most_chars` characters or more; the number is that of the last one.
        """
        entry = self._entry_at(place)
        start = place - entry.place
        count = 1
        if start + 1 < len(entry) and isinstance(entry.said, _Texts):
            sizes = entry.said.sizes_from(start)
            chars = sizes[0]
            while count < len(sizes) and chars < most_chars:
                chars += sizes[count]
                count += 1
        return entry.joined(start, start + count), count

    def without_text(self, place: int) -> Iterator[Payload]:
        """The payloads from `place` on that are no fragments."""
        for entry in self._entries:
            if entry.place >= place and not isinstance(entry.said, _Texts):
                yield entry.said

    def after(self, seq: int) -> int:
        """How many events have a number of at most `seq`."""
        entry = self._entries[bisect_right(self._entries, seq, key=_seq_of) - 1] if self._entries else None
        if entry is None or entry.seq > seq:
            return 0
        return entry.place + min(seq - entry.seq + 1, len(entry))

    def frame_bytes_from(self, place: int) -> FrameBytes:
        """Roughly the bytes of the frames that say the events from `place` on, pieces of one message as one.

        Text counts in UTF-8, without what JSON escapes in it. The totals are kept as the events come: it looks at one.
        """
        if place >= self._length:
            return _NO_FRAMES
        entry = self._entry_at(place)
        said = entry.said
        taken = said.utf8_bytes_before(place - entry.place) if isinstance(said, _Texts) else 0
        return FrameBytes(self._native_bytes - entry.native_before - taken, self._compatible - entry.compatible_before)

    def _entry_at(self, place: int) -> _Entry:
        last = self._entries[-1]
        if place >= last.place:
            return last
        return self._entries[bisect_right(self._entries, place, key=_place_of) - 1]


def _seq_of(entry: _Entry) -> int:
    return entry.seq


def _place_of(entry: _Entry) -> int:
    return entry.place


class Turn:
    """One exchange while it runs and for a while after: its events, its followers, its end.

    Only the turn's own task publishes, or takes what another instance published. `cancel` may be called from anywhere,
    any number of times. A run that continues after a person was asked is a separate turn, which begins with the
    `earlier` events of the one before. `cut` is the record of the run that the end of a process cut off, if the service
    restarts it. `follows` is the id of the exchange that this process ran before it in its session, None if it ran none
    or does not remember it.

    What is shown of the exchange begins at the index `shown_from`: everything before was replaced when the turn ran
    again. It stays in `events`, where followers have their cursors.
    """

    def __init__(self, ask: Ask, before: "Turn | None" = None, *, cut: AskRecord | None = None) -> None:
        self.ask = ask
        self.cut = cut
        self.events: EventLog = EventLog(None if before is None else before.events)
        self.earlier = len(self.events)
        self.shown_from: int = 0 if before is None else before.shown_from
        self._seq = self.events[-1].seq if self.events else 0
        self._seq_before = self._seq
        # The events up to this number are not here, where another instance runs the turn: nobody asked for them.
        self.begins_after = 0
        self.runs_before = 0
        """How many runs the last `Restarted` says to have been before; 0 without one."""
        self._replaces = False
        self.follows: str | None = None
        self.ended = False
        self.ended_at = 0.0
        self.bytes_held: int = _given_weight(ask) if before is None else before.bytes_held
        self.cancel_requested = False
        # Another instance may continue it: it gets no end here except from that instance, or from storage.
        self.let_go = False
        # Other instances have its question, and may run its agent again.
        self.may_move = False
        # It is to continue at one of them once its agent has finished a step.
        self.moves_after_step = False
        # It is stopped by the end of the process: where it has not begun, it is refused.
        self.refused_by_drain = False
        # A turn that was taken over waits for its session: it was accepted before this one, which has no lease yet.
        self.gives_way = False
        # It counts as one that its user has in progress.
        self.counted = False
        # Its session was deleted while it ran: it must not be found after its end.
        self.forgotten = False
        # The exchange ran before: it is replayed from history, asked again after an interruption, or restarted by the
        # service. In the last case alone, `begin_again`, earlier followers can use its numbers.
        self.restarted = cut is not None
        # Set while the turn runs: it must not end with the session's old preferences or title.
        self.preferences: dict[str, Any] | None = None
        self.title: str | None = None
        self._begun = False
        self._settled = False
        self._over: asyncio.Event | None = None
        self._followers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.head = dumps({"session_id": ask.session_id, "exchange_id": ask.exchange_id})[1:-1]
        """`"session_id":…,"exchange_id":…` as JSON: the part that all its native frames share."""

    @property
    def has_published(self) -> bool:
        """Whether this run has any event."""
        return len(self.events) > self.earlier

    @property
    def question(self) -> ChatMessage | None:
        """The user's message, once it has been published."""
        whole = (said for said in self.events.without_text(self.shown_from) if isinstance(said, Whole))
        return next((said.message for said in whole if said.message.role == "user"), None)

    @property
    def next_seq(self) -> int:
        """The number of the next event."""
        return self._seq + 1

    def continue_after(self, seq: int) -> None:
        """Continue numbering after `seq`, the last of the run before, if that is known from storage."""
        self._seq = max(self._seq, seq)
        self._seq_before = max(self._seq_before, seq)

    def begin_again(self, runs_before: int) -> None:
        """Publish that this run, after `runs_before` that broke off, replaces what was shown of the exchange.

        Its numbers are above those of all these runs, whichever process they were in. 0: above those of this turn
        alone, for what comes from history. Followers continue from where they are.
        """
        self._seq = max(self._seq, (self._seq_before // RUN_SEQS + runs_before) * RUN_SEQS)
        self.publish(Restarted(runs_before))

    @property
    def followed(self) -> bool:
        """Whether it has any follower."""
        return bool(self._followers)

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for its end."""
        return self._over is not None

    def bind(self, task: "asyncio.Task[None] | None") -> None:
        """Set the task that runs this turn, so that it can be cancelled; None: a stop is only noted for now."""
        self._task = task

    async def wait_ended(self) -> None:
        """Wait for the terminal event."""
        if not self.ended:
            self._over = self._over or asyncio.Event()
            await self._over.wait()

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
        refused = isinstance(payload, Failed) and payload.refused and not self.has_published
        self._append(0 if refused else self._seq + 1, payload)

    def take(self, event: TurnEvent, *, goes_on: bool = False) -> None:
        """Append an event of the run elsewhere that this turn mirrors, with its number, and wake the followers.

        A duplicate, or an event after the end, is dropped. `goes_on`: the event asked a person, and what follows it is
        the run that they let continue.
        """
        known = event.seq <= self._seq and (event.seq > 0 or self.has_published)
        if not self.ended and not known:
            self._append(event.seq, event.payload, goes_on=goes_on)

    def _append(self, seq: int, payload: Payload, *, goes_on: bool = False) -> None:
        weight = _weight(payload)  # first: what cannot be encoded raises here, before anyone has seen it
        if isinstance(payload, Restarted):
            self.restarted = self._replaces = True
            self.runs_before = payload.runs_before
            self.shown_from = self.earlier = len(self.events)
        self.events.append(seq, payload)
        self._seq = max(self._seq, seq)
        self.bytes_held += weight
        if goes_on:
            self.earlier = len(self.events)
        elif isinstance(payload, _TERMINAL):
            self._end()
        for wake in self._followers:
            wake()

    def _end(self) -> None:
        self.ended = True
        self.ended_at = time.monotonic()
        if self._over is not None:
            self._over.set()
            self._over = None
        self.events.seal()
        # It can no longer be stopped, is kept for a while, and a task would keep its whole context alive.
        self._task = None

    def mirror_from_now_on(self, *, run_over: bool = False) -> None:
        """Release it: it gets no end here except from another instance, or from storage. Its followers wake.
        `run_over`: nothing of its run is being recorded any more, so that it can be stopped."""
        self.let_go = True
        self._settled = self._settled and not run_over
        for wake in self._followers:
            wake()

    def end_unseen(self) -> None:
        """End it without an event: its follower has all events, the end included, and this process has none."""
        self._end()
        for wake in self._followers:
            wake()

    def after(self, seq: int) -> int:
        """The index in `events` of the next one for a client that has them up to `seq` (0: none).

        It is that of the first one that is shown for a client whose events were replaced, or have other numbers here.
        """
        renumbered = self.restarted and not self._replaces
        if not seq or renumbered or not self.events or seq > self.events[-1].seq:
            return self.shown_from
        return max(self.shown_from, self.events.after(seq))

    def continues_from(self, seq: int) -> bool:
        """Whether a client that has the events up to `seq` would hear what comes after them, and nothing again."""
        return self.begins_after == seq or (self.begins_after < seq <= self._seq and bool(self.events))

    def numbers(self, seq: int) -> bool:
        """Whether the events up to `seq` that a client has are those that are shown, under the same numbers."""
        if self.restarted and not self._replaces:
            return False
        return not self.shown_from or seq >= self.events[self.shown_from - 1].seq

    def follow(self, wake: Callable[[], None]) -> None:
        """Call `wake` after each event from now on; the caller reads `events` from its own cursor."""
        self._followers.append(wake)

    def unfollow(self, wake: Callable[[], None]) -> None:
        """Stop calling `wake`."""
        if wake in self._followers:
            self._followers.remove(wake)

    def abandon(self) -> None:
        """End its run without an end event, since another instance may continue it. No effect before it is accepted;
        once it is settled, what becomes of its end is left to storage."""
        if self.ended or self.let_go or not self.has_published:
            return
        if self._task is not None and self._begun and not self._settled:
            self._task.cancel()
        self.mirror_from_now_on()

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
    if isinstance(payload, _FRAGMENTS):
        return _TEXT_BYTES + len(payload.text)
    if isinstance(payload, CustomPart | GraphPart):
        return 200 + len(payload.json)
    if isinstance(payload, Whole):
        return 200 + _message_weight(payload.message)
    if isinstance(payload, Final | Awaiting | Cancelled | Failed):
        return 400 + sum(_message_weight(message) for message in payload.messages)
    if isinstance(payload, Cited):
        return 400 + len(dumps(payload.hits))
    return 400


def _frame_bytes(payload: Payload) -> FrameBytes:
    """Roughly the bytes of the frames that say an event, no fragment, in each protocol: 0 where it has none for it."""
    if isinstance(payload, Whole):
        size = _FRAME_BYTES + len(payload.message.json)
        return FrameBytes(size, size)
    if isinstance(payload, Failed):
        return _failed_bytes(payload)
    if isinstance(payload, Final | Awaiting | Cancelled):
        return _end_bytes(payload)
    if isinstance(payload, SILENT):
        return _NO_FRAMES
    said = 0
    if isinstance(payload, CustomPart):
        said = len(payload.json)
    elif isinstance(payload, Cited):
        said = len(dumps(payload.hits))
    elif isinstance(payload, SessionChanged):
        said = _session_bytes(payload.session)
    return FrameBytes(_FRAME_BYTES + said, 0)


def _end_bytes(end: Final | Awaiting | Cancelled) -> FrameBytes:
    if isinstance(end, Awaiting):  # clients that wait for a person have the messages already
        size = _FRAME_BYTES + len(dumps(end.payload))
        return FrameBytes(size, size)
    size = _FRAME_BYTES + _messages_bytes(end.messages) + _session_bytes(end.session)
    if isinstance(end, Cancelled):
        return FrameBytes(size, size)
    # The compatible protocol has no ledger, and sends the answer as a message of its own before.
    return FrameBytes(size + len(end.ledger), size + _FRAME_BYTES + _messages_bytes(end.messages[-1:]))


def _failed_bytes(failed: Failed) -> FrameBytes:
    said = _FRAME_BYTES + len(failed.text.encode())
    if failed.session is None or not failed.messages:
        return FrameBytes(said + _ERROR_BYTES, said)
    told = _FRAME_BYTES + _messages_bytes(failed.messages) + _session_bytes(failed.session)
    return FrameBytes(said + _ERROR_BYTES, told)


def _messages_bytes(messages: tuple[ChatMessage, ...]) -> int:
    return sum(len(message.json) + 1 for message in messages)


def _session_bytes(session: Session) -> int:
    return len(dumps(session.wire()))


def _given_weight(ask: Ask) -> int:
    """The same of the conversation that came with an ask: each text, and as it is sent to a model."""
    calls = [call for item in ask.given or () for call in item.calls]
    texts = sum(200 + 2 * len(item.text) for item in ask.given or ())
    if ask.graph is not None:
        texts += 2 * len(dumps(ask.graph.stored()))
    return texts + sum(200 + 2 * len(call.arguments) for call in calls)


def _message_weight(message: ChatMessage) -> int:
    """Roughly the bytes of a message: its encoding, and its metadata as objects, which take at most as much again."""
    return 2 * len(message.json)
