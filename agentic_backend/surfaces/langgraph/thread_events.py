"""The runs of one thread as the events of its stream: what is sent for each event of a turn, and under which number.

A thread's events are numbered throughout, the same at every instance and whenever they are sent. The number (`seq`) is
made of four, the first the most significant:

    rank 21 bits | telling 4 bits | event 20 bits | part 8 bits

`rank` is that of the run's first message: of the question, or of the person's answer that let it go on. `telling` is
how many runs of the turn broke off before; 15 if it is replayed from history, as other events than those that were
streamed. `event` is the number of the turn's event, `part` which of the events made from it this is. A run's end has
the same numbers in every case (`_END`), so that a client that has it gets nothing twice.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.sse import HEARTBEAT
from agentic_backend.session.stream import (
    RUN_SEQS,
    Awaiting,
    Cancelled,
    Failed,
    Payload,
    Restarted,
    Terminal,
    TextDelta,
    Turn,
    TurnEvent,
    Whole,
)
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.blocks import BlockTranslator
from agentic_backend.surfaces.langgraph.errors import refusal_of
from agentic_backend.surfaces.langgraph.messages import note_in
from agentic_backend.surfaces.langgraph.names import checkpoint_id_of
from agentic_backend.surfaces.langgraph.people import interrupts
from agentic_backend.surfaces.langgraph.stream import RunTranslator, RunView, Snapshot
from backend_kit.wire import Code, InvalidJson, ServiceError, dumps, loads, message_for

CHANNELS: Final = ("values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks", "custom")
_PART_BITS: Final = 8
_EVENT_BITS: Final = 20
_TELLING_BITS: Final = 4
RUN_BITS: Final = _PART_BITS + _EVENT_BITS + _TELLING_BITS
_LAST_PART: Final = (1 << _PART_BITS) - 1
_LAST_EVENT: Final = (1 << _EVENT_BITS) - 1
_HISTORY: Final = (1 << _TELLING_BITS) - 1
_END: Final = (_HISTORY << _EVENT_BITS | _LAST_EVENT) << _PART_BITS
"""Parts of a run's end, counted down from the last: its state, what it asks, that it has ended."""
_UNNUMBERED: Final = b".end"
_ANY_SEQ: Final = 1 << 62
"""Above the numbers of all events of a turn."""
_MAX_RANK: Final = (1 << 21) - 1
"""Beyond this, numbers would not fit JavaScript's: a thread is streamed up to two million messages."""
_EVENT: Final = (
    b'id: %d\nevent: %b\ndata: {"type":"event","event_id":"%b","seq":%d,"method":"%b","params":{"namespace":[],'
    b'"timestamp":%d,"data":%b}}\n\n'
)
_METHODS: Final = {"input": b"input.requested"}
_QUESTION: Final = ("user", "final")
_DECISION: Final = ("user", "observation")


class Before(NamedTuple):
    """What a thread has before an exchange: its messages as the elements of a JSON array, how many of them are
    questions, and the rank of the last question."""

    messages: bytes
    questions: int
    asked_at: int


LoadBefore = Callable[[int, int | None], Awaitable[Before]]
"""Reads that below a rank (up to another rank if the exchange branches off there)."""


def seq_before(rank: int) -> int:
    """The number of a client that has all runs before the one that begins at this rank."""
    return max(0, (rank << RUN_BITS) - 1)


def rank_of(seq: int) -> int:
    """The rank of the run that a number belongs to."""
    return seq >> RUN_BITS


def has_end(seq: int) -> bool:
    """Whether a number is that of a run's last event."""
    return seq & ((1 << RUN_BITS) - 1) == _END | _LAST_PART


@dataclass(frozen=True, slots=True)
class EventsWanted:
    """What a client subscribes to: methods, and the names of custom events if it takes only some."""

    methods: frozenset[bytes]
    customs: frozenset[str] | None = None

    @classmethod
    def of(cls, channels: Sequence[str], namespaces: Sequence[Sequence[str]] | None) -> "EventsWanted":
        """Parse a list of channels. All events are of the root namespace."""
        if namespaces is not None and [] not in [list(one) for one in namespaces]:
            return cls(frozenset())
        methods = {_METHODS.get(one, one.encode()) for one in channels if ":" not in one}
        names = {one.partition(":")[2] for one in channels if one.startswith("custom:")}
        if b"custom" in methods or not names:
            return cls(frozenset(methods))
        return cls(frozenset({*methods, b"custom"}), frozenset(names))


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A state that a run can begin from, after the message with `rank`: at the exchange's end, else at its question."""

    rank: int
    ends: bool


Data = bytes | Snapshot | _Checkpoint
"""The data of an event; a state and a checkpoint need what was before the exchange."""
Saying = tuple[bytes, Data]
"""The method of an event, and its data."""


class Numbered(NamedTuple):
    """An event with its number and its id."""

    seq: int
    id: bytes
    method: bytes
    data: Data


@dataclass(slots=True)
class ExchangeProgress:
    """What is known of the exchange that is being sent: its messages so far, where its run begins (None between two),
    the writers of its events, and what was before it."""

    turn: Turn
    translator: RunTranslator
    blocks: BlockTranslator
    past: list[TurnEvent] = field(default_factory=list)
    rank: int | None = None
    from_history: bool = False
    numbered_from: int = 0
    asked_at: int | None = None
    before: Before | None = None

    @classmethod
    def of(cls, turn: Turn, thread_id: str) -> "ExchangeProgress":
        """The exchange of a turn, of which nothing has been sent yet."""
        return cls(turn, _translator(turn, thread_id), BlockTranslator(turn.ask.exchange_id))


class ThreadWriter:
    """Writes what happens in the runs of a thread, one turn after the other. Implements `StreamWriter`."""

    heartbeat = HEARTBEAT
    headers: Sequence[tuple[bytes, bytes]] = ()

    def __init__(
        self,
        thread_id: str,
        wanted: EventsWanted,
        load_before: LoadBefore,
        since: int = 0,
        *,
        is_graph: Callable[[str], bool] = lambda _agent_id: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`since` is the number of the last event that the client has; `is_graph` says whether an agent is a hosted
        graph, which has states of its own; `clock` gives the time of an event in seconds."""
        self.over = False
        self.owed: Callable[[], Awaitable[bytes]] | None = None
        self.seq = since
        """Everything up to this number has been sent."""
        self.next_rank = 0
        """The rank after the messages of all runs that have been sent to their ends."""
        self._thread_id = thread_id
        self._wanted = wanted
        self._load_before = load_before
        self._clock = clock
        self._is_graph = is_graph
        self._held: list[Numbered] = []
        self._exchange: ExchangeProgress | None = None

    def write(self, turn: Turn, event: TurnEvent) -> bytes:
        """See `StreamWriter`."""
        exchange = self._exchange
        if exchange is None or exchange.turn is not turn:
            exchange = self._exchange = ExchangeProgress.of(turn, self._thread_id)
        payload = event.payload
        if isinstance(payload, TextDelta) and (said := self._more(exchange, event.seq, payload)) is not None:
            return said
        if isinstance(payload, Failed) and payload.refused:
            return self._refused(turn, payload)
        new = [one for one in self._take(exchange, event) if self._is_new(one)]
        if new:
            self.seq = max(self.seq, new[-1].seq)
        wanted = [one for one in new if self._wants(one)]
        if exchange.before is None and any(not isinstance(one.data, bytes) for one in wanted):
            self._held, self.owed = wanted, self._flush_held
            return b""
        return self._encoded(exchange, wanted)

    def _more(self, exchange: ExchangeProgress, seq: int, delta: TextDelta) -> bytes | None:
        """One more piece of the text that is open: what most events are."""
        told = exchange.blocks.more(delta)
        if told is None:
            return None
        place = self._place(exchange, seq)
        if place <= self.seq:
            return b""
        self.seq = place
        one = Numbered(place, b"%d" % place, *told)
        return self._frame(one, told[1]) if self._wants(one) else b""

    def refuse(self, request: Request, failure: Failed) -> Response:
        """See `StreamWriter`."""
        return refusal_of(failure, request)

    async def _flush_held(self) -> bytes:
        """What was held back until the messages before the exchange were read. Nothing else is written until then."""
        exchange = self._exchange
        assert exchange is not None
        try:
            exchange.before = await self._load_before(exchange.translator.first_rank, exchange.translator.behind)
        except ServiceError as error:
            return self.failed(error)
        finally:
            held, self._held, self.owed = self._held, [], None
        return self._encoded(exchange, held)

    def failed(self, error: ServiceError) -> bytes:
        """The end of a stream that cannot continue."""
        self.over = True
        return _failure(error.code.value, message_for(error.code))

    def _refused(self, turn: Turn, refused: Failed) -> bytes:
        """A turn that did not begin has no number of its own; one that was not found is no run at all."""
        if turn.ask.agent_id:
            return self._encoded(None, [one for one in self._unnumbered(turn, refused) if self._wants(one)])
        if refused.code in (Code.EXCHANGE_NOT_FOUND, Code.SESSION_NOT_FOUND):
            return b""
        self.over = True
        return _failure(refused.code.value, refused.text)

    def _unnumbered(self, turn: Turn, end: Payload) -> list[Numbered]:
        """The end of a run of which nothing was stored: it leaves no trace in the numbers either."""
        return [Numbered(self.seq, turn.ask.exchange_id.encode() + _UNNUMBERED, b"lifecycle", _ended(turn, end))]

    def _is_new(self, event: Numbered) -> bool:
        """Whether the client does not have it."""
        shared = event.seq & _LAST_PART == _LAST_PART and not _is_end(event.seq)
        return event.seq > self.seq or (shared and event.seq == self.seq) or event.id.endswith(_UNNUMBERED)

    def _take(self, exchange: ExchangeProgress, event: TurnEvent) -> list[Numbered]:
        """What is sent for an event."""
        payload = event.payload
        if isinstance(payload, Restarted):
            return self._again(exchange, event, payload)
        told: list[Numbered] = []
        begins = _beginning(payload)
        if begins is not None:
            told = self._begin(exchange, event, begins)
        if exchange.rank is None:
            return [*self._unnumbered(exchange.turn, payload)] if event.terminal else []
        parts = self._parts(exchange, event)
        if isinstance(payload, Whole) and _kind(payload) != _DECISION:
            exchange.past.append(event)
        told += self._numbered(exchange, event.seq, parts)
        return [*told, *self._end(exchange, payload)] if event.terminal else told

    def _parts(self, exchange: ExchangeProgress, event: TurnEvent) -> list[Saying]:
        """What an event of a run becomes, except for the run's end."""
        payload = event.payload
        begins = _beginning(payload) is not None
        parts: list[Saying] = [(b"lifecycle", _lifecycle(exchange.turn, "running"))] if begins else []
        parts += exchange.blocks.take(payload)
        return parts if _kind(payload) == _DECISION else [*parts, *self._of_state(exchange, event)]

    def _of_state(self, exchange: ExchangeProgress, event: TurnEvent) -> Iterator[Saying]:
        """What an event yields besides the model's messages; not the state at the run's end."""
        payload = event.payload
        asks = isinstance(payload, Whole) and _kind(payload) == _QUESTION
        if isinstance(payload, Whole) and asks and not self._is_graph(_agent_of(exchange.turn)):
            yield b"checkpoints", _Checkpoint(payload.message.rank, ends=False)
        for one in exchange.translator.take(event):
            if one.mode == "values" and not event.terminal:
                yield b"values", one.data.strip() if isinstance(one.data, bytes) else Snapshot(one.data.run)
            elif one.mode == "updates":
                yield from _update(one.data)
            elif one.mode == "custom":
                yield b"custom", _custom(one.data)

    def _begin(self, exchange: ExchangeProgress, event: TurnEvent, rank: int) -> list[Numbered]:
        """A question, or a person's answer: a run begins and, in a replay from history, the one before has ended."""
        turn = exchange.turn
        told: list[Numbered] = []
        if _kind(event.payload) == _QUESTION:
            exchange.asked_at = rank
            exchange.from_history = exchange.from_history or not turn.numbers(_ANY_SEQ)
            exchange.translator = self._translator(turn, event.payload)
        else:
            if exchange.rank is not None:
                parts = self._last_parts(exchange)
                told = [*self._numbered(exchange, event.seq, parts), *self._end(exchange, None)]
            exchange.translator = self._translator(turn, event.payload)
            for earlier in exchange.past:
                exchange.translator.take(earlier)
            exchange.translator.close()
            exchange.translator.begin_at(rank)
        exchange.rank = min(rank, _MAX_RANK)
        return told

    def _translator(self, turn: Turn, begins: Payload) -> RunTranslator:
        """The writer of a run that begins with this event: for a hosted graph whose client wanted it, of the graph's
        own output."""
        note = note_in(begins.message.metadata) if isinstance(begins, Whole) else {}
        graph = "values" in note.get("modes", ()) and self._is_graph(turn.ask.agent_id)
        return _translator(turn, self._thread_id, graph=graph)

    def _last_parts(self, exchange: ExchangeProgress) -> list[Saying]:
        """What is open at the end of a run, when that end shows only by the beginning of the next run."""
        updates = [each for one in exchange.translator.close() for each in _update(one.data)]
        return [*exchange.blocks.finish(), *updates]

    def _again(self, exchange: ExchangeProgress, event: TurnEvent, restarted: Restarted) -> list[Numbered]:
        """The turn runs again: what comes now replaces what was sent."""
        told = self._numbered(exchange, event.seq, [*exchange.blocks.again()])
        again = ExchangeProgress.of(exchange.turn, self._thread_id)
        again.from_history = exchange.from_history or not restarted.runs_before
        again.numbered_from = event.seq if again.from_history else 0
        self._exchange = again
        return told

    def _end(self, exchange: ExchangeProgress, end: Payload | None) -> list[Numbered]:
        """A run's end; None if only the next run of the exchange shows it."""
        assert exchange.rank is not None
        last = None
        if isinstance(end, Terminal) and end.messages:
            last = end.messages[-1].rank + isinstance(end, Awaiting)
            self.next_rank = max(self.next_rank, last + 1)
        parts = self._end_parts(exchange, end, last)
        first = (exchange.rank << RUN_BITS | _END) + _LAST_PART + 1 - len(parts)
        exchange.rank = None
        return [Numbered(seq, b"%d" % seq, *part) for seq, part in enumerate(parts, first)]

    def _end_parts(self, exchange: ExchangeProgress, end: Payload | None, last: int | None) -> list[Saying]:
        """What the end of a run becomes, after the message with rank `last`."""
        parts: list[Saying] = []
        if last is not None and not self._is_graph(_agent_of(exchange.turn)):
            parts.append((b"checkpoints", _Checkpoint(last, ends=True)))
        state = exchange.translator.state
        parts.append((b"values", state.strip() if isinstance(state, bytes) else state))
        if isinstance(end, Awaiting):
            parts += [(b"input.requested", _asked(one)) for one in interrupts(end.payload)]
        return [*parts, (b"lifecycle", _ended(exchange.turn, end))]

    def _numbered(self, exchange: ExchangeProgress, seq: int, parts: Sequence[Saying]) -> list[Numbered]:
        if not parts or exchange.rank is None:
            return []
        first = self._place(exchange, seq)
        return [_event(first, part, *one) for part, one in enumerate(parts)]

    def _place(self, exchange: ExchangeProgress, seq: int) -> int:
        """The number of the first part of a turn's event in a run."""
        assert exchange.rank is not None
        telling, number = divmod(seq, RUN_SEQS)
        telling = min(telling, _HISTORY - 1)
        if exchange.from_history:
            telling, number = _HISTORY, seq - exchange.numbered_from
        place = exchange.rank << _TELLING_BITS | telling
        return (place << _EVENT_BITS | min(number, _LAST_EVENT - 1)) << _PART_BITS

    def _wants(self, event: Numbered) -> bool:
        if event.method not in self._wanted.methods:
            return False
        names = self._wanted.customs
        if names is None or event.method != b"custom" or not isinstance(event.data, bytes):
            return True
        return loads(event.data).get("name") in names

    def _encoded(self, exchange: ExchangeProgress | None, events: Sequence[Numbered]) -> bytes:
        return b"".join(self._frame(one, self._data(exchange, one.data)) for one in events)

    def _frame(self, one: Numbered, data: bytes) -> bytes:
        at = round(self._clock() * 1000)
        return _EVENT % (one.seq, one.method, one.id, one.seq, one.method, at, data)

    def _data(self, exchange: ExchangeProgress | None, data: Data) -> bytes:
        if isinstance(data, bytes):
            return data
        assert exchange is not None
        assert exchange.before is not None, "it is read before anything that wants it is said"
        if isinstance(data, Snapshot):
            return b'{"messages":[%b]%b}' % (b",".join(filter(None, (exchange.before.messages, data.run))), data.beside)
        return dumps(self._checkpoint(exchange, exchange.before, data))

    def _checkpoint(self, exchange: ExchangeProgress, before: Before, one: _Checkpoint) -> dict[str, Any]:
        """A checkpoint as in the thread's history."""
        told = {"id": checkpoint_id_of(self._thread_id, one.rank), "source": "loop"}
        asked_at = before.asked_at if exchange.asked_at is None else exchange.asked_at
        earlier = before.questions - (exchange.asked_at is None)
        if one.ends:
            told["parent_id"] = checkpoint_id_of(self._thread_id, asked_at)
            return {**told, "step": 2 * earlier + 1}
        behind = exchange.translator.behind
        parent = one.rank - 1 if behind is None else behind
        return {**told, "parent_id": checkpoint_id_of(self._thread_id, parent), "step": 2 * earlier}


def _event(first: int, part: int, method: bytes, data: Data) -> Numbered:
    """Events beyond the last available number share it; only their ids differ."""
    if part < _LAST_PART:
        return Numbered(first + part, b"%d" % (first + part), method, data)
    return Numbered(first + _LAST_PART, b"%d.%d" % (first + _LAST_PART, part), method, data)


def _is_end(seq: int) -> bool:
    return seq & _END == _END


def _translator(turn: Turn, thread_id: str, *, graph: bool = False) -> RunTranslator:
    run_id = turn.ask.exchange_id
    return RunTranslator(RunView(run_id, thread_id, run_id, graph=graph))


def _kind(payload: Payload) -> tuple[str, str] | None:
    return (payload.message.role, payload.message.channel) if isinstance(payload, Whole) else None


def _beginning(payload: Payload) -> int | None:
    """The rank of the message with which a run begins."""
    return payload.message.rank if isinstance(payload, Whole) and _kind(payload) in (_QUESTION, _DECISION) else None


def _update(data: Data) -> Iterator[tuple[bytes, bytes]]:
    """A node's update, as the node's name and the changes."""
    assert isinstance(data, bytes)
    for node, values in loads(data).items():
        if node != "__interrupt__":
            yield b"updates", dumps({"node": node, "values": values or {}})


def _custom(data: Data) -> bytes:
    """A custom event of an agent's code: as a named event if it has a name and a payload, else as a payload."""
    assert isinstance(data, bytes)
    try:
        said = loads(data)
    except InvalidJson:
        return b'{"payload":%b}' % data.strip()
    named = isinstance(said, dict) and isinstance(said.get("name"), str) and "payload" in said
    return data.strip() if named else b'{"payload":%b}' % data.strip()


def _asked(interrupt: dict[str, Any]) -> bytes:
    """A question to a person; some clients read it as `value`, some as `payload`."""
    return dumps({"interrupt_id": interrupt["id"], "payload": interrupt["value"], "value": interrupt["value"]})


def _ended(turn: Turn, end: Payload | None) -> bytes:
    """How a run ended. One that was stopped is `completed`: `interrupted` means to clients that it asks a person, and
    some then keep waiting."""
    if isinstance(end, Failed):
        return _lifecycle(turn, "failed", error=end.text, code=end.code.value)
    return _lifecycle(turn, "completed" if isinstance(end, Ended | Cancelled) else "interrupted")


def _lifecycle(turn: Turn, event: str, **about: str) -> bytes:
    return dumps({"event": event, **_graph(turn), **about})


def _graph(turn: Turn) -> dict[str, str]:
    agent = _agent_of(turn)
    return {"graph_name": agent} if agent else {}


def _agent_of(turn: Turn) -> str:
    """The agent of a turn; in a replay from history, its answer names it."""
    end = turn.events[-1].payload if turn.ended and len(turn.events) else None
    if turn.ask.agent_id or not (isinstance(end, Terminal) and end.messages):
        return turn.ask.agent_id
    agent: str = end.messages[-1].metadata.get("agent_id", "")
    return agent


def _failure(code: str, text: str) -> bytes:
    """The last frame of a stream whose history could not be read."""
    return b"event: error\ndata: %b\n\n" % dumps({"type": "error", "id": None, "error": code, "message": text})
