"""One run as Server-Sent Events: what is sent for each event of its turn, and from which position.

An exchange of ours is one run, plus one for each answer of a person whom the agent asked. An event's id is the number
of the turn's event, and which of the events made from it this is. Events that a client did not ask for are counted too,
so that an id means the same to everyone.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.sse import HEARTBEAT
from agentic_backend.errors import BadRequest
from agentic_backend.events import ChatMessage, Part
from agentic_backend.session.stream import (
    NO_STATE,
    Awaiting,
    Cancelled,
    CustomPart,
    Failed,
    GraphPart,
    Payload,
    Restarted,
    SpokenBy,
    TextDelta,
    ThoughtDelta,
    Turn,
    TurnEvent,
    Whole,
)
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.errors import refusal_of
from agentic_backend.surfaces.langgraph.messages import (
    AGENT,
    TOOLS,
    Message,
    Transcript,
    Update,
    answer,
    message_id,
    note_in,
    with_more,
)
from agentic_backend.surfaces.langgraph.people import interrupts
from backend_kit.wire import ServiceError, dumps, loads, message_for

MODES: Final = ("values", "updates", "messages-tuple", "custom")
"""The stream modes that there are."""
_ALWAYS: Final = "always"
_NEVER: Final = "never"
_FRAGMENTS: Final = (TextDelta, ThoughtDelta)
_MAX_ID_CHARS: Final = 32
_FROM_THE_FIRST: Final = "-1"
_CHUNK: Final = (
    b',"additional_kwargs":{},"response_metadata":{},"type":"AIMessageChunk","name":null,"id":%b,"tool_calls":[],'
    b'"invalid_tool_calls":[],"usage_metadata":null,"tool_call_chunks":[],"chunk_position":null},%b]\n\n'
)

LoadBase = Callable[[int, int | None], Awaitable[bytes]]
"""Reads the messages of the thread below a rank (up to another rank if the run branches off there) as the elements of a
JSON array."""
LoadState = Callable[[str, Payload], Awaitable[bytes | None]]
"""Reads, by the agent's id, the JSON of the state that a hosted graph's turn with this end left; None: it left none."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a client has of a run: everything up to the turn's event `seq`, and `more` of what the next event became."""

    seq: int
    more: int = 0

    @classmethod
    def read(cls, text: str | None) -> "Place | None":
        """The position in a `Last-Event-ID`; None without one, and for the position before the first event. Raises
        BadRequest."""
        if not text or text == _FROM_THE_FIRST:
            return None
        seq, dot, more = text.partition(".")
        numbers = [seq, more] if dot else [seq]
        if len(text) > _MAX_ID_CHARS or not all(number.isascii() and number.isdigit() for number in numbers):
            raise BadRequest("no place", field="Last-Event-ID")
        return cls(int(seq), int(more) if dot else 0)


@dataclass(frozen=True, slots=True)
class RunView:
    """Which run of an exchange a stream shows, and which parts of it.

    `answers` names the question to a person that the run answers (`checkpoint_id`); None for the run of the exchange's
    own question. `modes` are some of `MODES`; `base` has the messages before the run, None if they are in storage. With
    `graph` the state is the one that the graph itself emits, and with `subgraphs` also those of nested graphs.
    """

    run_id: str
    thread_id: str
    exchange_id: str
    answers: str | None = None
    modes: frozenset[str] = frozenset(("values",))
    base: bytes | None = None
    graph: bool = False
    subgraphs: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state's values, to be written once the messages before the run are known."""

    run: bytes
    beside: bytes = b""


@dataclass(frozen=True, slots=True)
class _RunEvent:
    """An event: its mode, its name and its data."""

    mode: str
    name: bytes
    data: bytes | Snapshot


class RunEvents:
    """Writes what happens in one run, from a client's position on. Implements `StreamWriter`."""

    heartbeat = HEARTBEAT

    def __init__(
        self, view: RunView, load_base: LoadBase, place: Place | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """`headers` of the answer, beside those of every stream."""
        self.headers = _encoded_headers(headers)
        self.over = False
        self.owed: Callable[[], Awaitable[bytes]] | None = None
        self._view = view
        self._load_base = load_base
        self._place = place
        self._base = view.base
        self._held: list[tuple[bytes, _RunEvent]] = []
        self._translator = RunTranslator(view)
        self._tells_text = "messages-tuple" in view.modes
        self._seq = 0

    def write(self, turn: Turn, event: TurnEvent) -> bytes:
        """See `StreamWriter`."""
        place, payload = self._place, event.payload
        if place is None and isinstance(payload, TextDelta) and self._translator.streams == payload.rank:
            # What most events are, once a token.
            self._seq = event.seq
            if not self._tells_text:
                return b""
            name, chunk = self._translator.name, self._translator.chunk
            return b'id: %d\nevent: %b\ndata: [{"content":%b%b' % (event.seq, name, dumps(payload.text), chunk)
        if place is not None and not turn.numbers(place.seq):
            # Another run of the turn replaced what the client has, or it is replayed from history: send all of it
            # again.
            self._place = place = None
            self._translator.again()
        if place is not None and self._seq < place.seq < event.seq and isinstance(payload, _FRAGMENTS):
            self._translator.take(event)
            self._seq, event = place.seq, _rest_of(turn, event, place.seq)
        told = self._translator.take(event)
        self.over = self._translator.over
        before, self._seq = self._seq, event.seq
        sent = self._behind(place, event.seq, [*_placed(told, before, event.seq)])
        wanted = [(name, one) for name, one in sent if one.mode in self._view.modes or one.mode == _ALWAYS]
        if self._base is None and any(isinstance(one.data, Snapshot) for _, one in wanted):
            self._held = wanted
            self.owed = self._flush_held
            return b""
        return self._encoded(wanted)

    def refuse(self, request: Request, failure: Failed) -> Response:
        """See `StreamWriter`."""
        return refusal_of(failure, request)

    async def _flush_held(self) -> bytes:
        """What was held back until the messages before the run were known."""
        first, behind = self._translator.first_rank, self._translator.behind
        try:
            self._base = await self._load_base(first, behind)
        except ServiceError as error:
            self.over = True
            return b"event: error\ndata: %b\n\n" % _error_values(error)
        finally:
            held, self._held, self.owed = self._held, [], None
        return self._encoded(held)

    def _behind(
        self, place: Place | None, seq: int, sent: list[tuple[bytes, _RunEvent]]
    ) -> list[tuple[bytes, _RunEvent]]:
        """The part that the client does not have."""
        if place is None or seq < place.seq:
            return sent if place is None else []
        if seq == place.seq:
            return []
        self._place = None
        return sent[place.more :]

    def _encoded(self, sent: Sequence[tuple[bytes, _RunEvent]]) -> bytes:
        return b"".join(b"id: %b\nevent: %b\ndata: %b" % (name, one.name, self._data(one.data)) for name, one in sent)

    def _data(self, data: bytes | Snapshot) -> bytes:
        if not isinstance(data, Snapshot):
            return data
        messages = b",".join(filter(None, (self._base, data.run)))
        return b'{"messages":[%b]%b}\n\n' % (messages, data.beside)


class RunTranslator:
    """Makes the events of a run from those of its turn."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._run = dumps({"run_id": view.run_id, "thread_id": view.thread_id})[1:]
        self.over = False
        self.first_rank = 0
        self.behind: int | None = None
        self._attempt = 0
        self._renamed = ""
        self._begin()

    def _begin(self) -> None:
        """As before the first event of the turn's run."""
        self._transcript = Transcript()
        self._in_run = self._view.answers is None
        self._started = False
        self._ranked = False
        self._step = 0
        self.streams: int | None = None
        """The rank of the text that is being streamed; None outside of the run."""
        self.name = b"messages"
        """The name of their events."""
        self.chunk = b""
        """What follows each piece in its event."""
        self._thoughts = 0
        self._thinks = False
        self._spoken: SpokenBy | None = None
        self._graph_values: bytes | None = None

    @property
    def state(self) -> bytes | Snapshot:
        """The state's values at the end of the run, without what a person is asked."""
        if self._graph_values is None:
            return Snapshot(self._transcript.json)
        left = self._left()
        return left[0].data if left else self._graph_values + b"\n\n"

    def begin_at(self, rank: int) -> None:
        """Note the rank of the first available event, unless one was noted before."""
        if not self._ranked:
            self._ranked, self.first_rank = True, rank

    def close(self) -> list[_RunEvent]:
        """What the end of a run completes if no event of the turn marks that end."""
        return [one for update in self._transcript.close() for one in self._completed(update)]

    def again(self) -> None:
        """The client has something of another run of the turn, to which what it gets now must not be appended."""
        self._attempt += 1

    def take(self, event: TurnEvent) -> list[_RunEvent]:
        """What is sent for an event."""
        payload = event.payload
        if isinstance(payload, Restarted):
            self._attempt = max(self._attempt + self._started, payload.runs_before)
            self._begin()
            return []
        self._note_rank(payload)
        if not self._in_run:
            self._before_run(payload)
            return []
        if self.over:
            return []
        return [*self._opening(), *self._take(payload)]

    def _note_rank(self, payload: Payload) -> None:
        """Note where in the conversation the available events begin."""
        rank = payload.message.rank if isinstance(payload, Whole) else None
        rank = payload.rank if isinstance(payload, TextDelta) else rank
        if rank is None and isinstance(payload, Ended | Awaiting | Cancelled | Failed) and payload.messages:
            rank = payload.messages[0].rank
        if rank is None or self._ranked:
            return
        self._ranked, self.first_rank = True, rank
        if isinstance(payload, Whole):
            behind = payload.message.metadata.get("extras", {}).get("after_rank")
            self.behind = behind if isinstance(behind, int) else None

    def _before_run(self, payload: Payload) -> None:
        """What the exchange had before the run: it belongs to the state, and was sent by another run."""
        if isinstance(payload, Awaiting):
            self._in_run = payload.payload.get("checkpoint_id") == self._view.answers
        elif isinstance(payload, Whole):
            self._transcript.take(payload.message)
            self._in_run = note_in(payload.message.metadata).get("answers") == self._view.answers
            if self._in_run:
                self.streams = None

    def _opening(self) -> Iterator[_RunEvent]:
        """The beginning of the run."""
        if self._started:
            return
        self._started = True
        attempt = self._attempt + 1
        self._renamed = "" if attempt == 1 else f"~{attempt}"
        yield _RunEvent(_ALWAYS, b"metadata", b'{"run_id":%b,"attempt":%d}\n\n' % (dumps(self._view.run_id), attempt))
        if self._view.answers is not None and not self._view.graph:
            yield self._values()

    def _take(self, payload: Payload) -> list[_RunEvent]:
        if isinstance(payload, TextDelta):
            return self._text(payload)
        if isinstance(payload, ThoughtDelta):
            return [self._thought(payload)]
        if isinstance(payload, Whole):
            return self._whole(payload.message)
        if isinstance(payload, CustomPart):
            return [_RunEvent("custom", b"custom", payload.json + b"\n\n")]
        if isinstance(payload, GraphPart):
            return [self._of_graph(payload)]
        if isinstance(payload, SpokenBy):
            self._spoken = payload
        if isinstance(payload, Ended | Awaiting | Cancelled | Failed):
            return [*self._end(payload), _RunEvent(_ALWAYS, b"end", b"null\n\n")]
        return []

    def _text(self, delta: TextDelta) -> list[_RunEvent]:
        if self.streams == delta.rank:
            return [self._token(delta)]
        self.streams, self._thinks = delta.rank, False
        spoken = self._spoken if self._spoken is not None and self._spoken.rank == delta.rank else None
        if spoken is None:
            self.name, id_, about = b"messages", self._id(delta.rank), self._about(AGENT)
        else:
            self.name = self._named("messages", spoken.namespace)
            id_, about = f"{spoken.message_id}{self._renamed}", self._about(spoken.node, spoken.step)
        self.chunk = _CHUNK % (dumps(id_), about)
        return [self._token(delta)]

    def _token(self, delta: TextDelta) -> _RunEvent:
        return _RunEvent("messages-tuple", self.name, b'[{"content":%b%b' % (dumps(delta.text), self.chunk))

    def _of_graph(self, said: GraphPart) -> _RunEvent:
        """What a graph emits itself. Output of nested graphs goes only to clients that asked for it."""
        # What the run asks a person is sent at its end, in every mode.
        asks = b'"__interrupt__"' in said.json and "__interrupt__" in (loads(said.json) or {})
        if said.mode == "values" and not said.namespace and not asks:
            self._graph_values = None if said.json == NO_STATE else said.json
        if said.json == NO_STATE:
            asks = True
        mode = said.mode if not asks and (self._view.subgraphs or not said.namespace) else _NEVER
        return _RunEvent(mode, self._named(said.mode, said.namespace), said.json + b"\n\n")

    def _named(self, name: str, namespace: Sequence[str]) -> bytes:
        """The name of an event, with the node that it comes from."""
        return "|".join((name, *namespace) if self._view.subgraphs else (name,)).encode()

    def _thought(self, delta: ThoughtDelta) -> _RunEvent:
        if not self._thinks:
            self._thinks = True
            self._thoughts += 1
        chunk = _chunk(answer("", f"{self._view.exchange_id}.t{self._thoughts}{self._renamed}"))
        chunk["additional_kwargs"] = {"reasoning_content": delta.text}
        return self._message(chunk, AGENT)

    def _whole(self, message: ChatMessage) -> list[_RunEvent]:
        """A message that is no answer."""
        said = loads(message.json)
        note = note_in(said["metadata"]) if (said["role"], said["channel"]) == ("user", "observation") else {}
        if note and note.get("answers") != self._view.answers:
            # Replayed from history, where the next run of the exchange follows this one.
            self.over = True
            return [self._values(), _RunEvent(_ALWAYS, b"end", b"null\n\n")]
        complete = self._transcript.take(said)
        told = [one for update in complete for one in self._completed(update)]
        if said["channel"] == "tool_call":
            told.append(self._calls(said["parts"]))
        elif (said["role"], said["channel"]) == ("assistant", "thought"):
            told += self._not_streamed(said)
        if (said["role"], said["channel"]) == ("user", "final") or said["channel"] == "tool_result":
            self._step += 1
            if not self._view.graph:
                told.append(self._values())
        return told

    def _not_streamed(self, said: Mapping[str, Any]) -> list[_RunEvent]:
        """A text of the model that came whole, from history."""
        streamed, self.streams = self.streams == said["rank"], None
        open_ = self._transcript.open_message
        if streamed or open_ is None or self._transcript.open_rank != said["rank"]:
            return []
        return [self._message(self._renamed_message(open_), AGENT)]

    def _completed(self, update: Update) -> Iterator[_RunEvent]:
        message = update.message
        if update.node == TOOLS:
            yield self._message(message, TOOLS)
        if not self._view.graph:
            yield _RunEvent("updates", b"updates", dumps({update.node: {"messages": [message]}}) + b"\n\n")

    def _calls(self, parts: Sequence[Part]) -> _RunEvent:
        """The calls of tools in a message of the model's."""
        open_ = self._transcript.open_message
        assert open_ is not None, "the transcript has just taken the calls"
        calls = [part for part in parts if part.get("type") == "tool_call"]
        first = len(open_["tool_calls"]) - len(calls)
        chunk = _chunk(answer("", f"{open_['id']}{self._renamed}"))
        chunk["tool_calls"] = open_["tool_calls"][first:]
        chunk["tool_call_chunks"] = [_call_chunk(part, number) for number, part in enumerate(calls, first)]
        return self._message(chunk, AGENT)

    def _end(self, end: Ended | Awaiting | Cancelled | Failed) -> list[_RunEvent]:
        self.over = True
        if isinstance(end, Failed):
            told: dict[str, Any] = {"error": end.code.value, "message": end.text}
            about = {"field": end.field, "retry_after_ms": end.retry_after_ms}
            told |= {name: value for name, value in about.items() if value is not None}
            return [*self._last(end.messages), *self._left(), _RunEvent(_ALWAYS, b"error", dumps(told) + b"\n\n")]
        if isinstance(end, Awaiting):
            return self._ask(end)
        last = self._last(end.messages)
        # A graph has already emitted its final state.
        done = isinstance(end, Ended) and self._graph_values is not None
        return last if done else [*last, *self._left()]

    def _left(self) -> list[_RunEvent]:
        """The state that a run leaves; for a graph that did not reach its end, with what people have seen since."""
        if self._graph_values is None:
            return [self._values()]
        values = loads(self._graph_values)
        own = values.get("messages")
        known = {one.get("id") for one in own if isinstance(one, dict)} if isinstance(own, list) else set()
        since = [
            one for one in map(loads, self._transcript.closed) if one["id"] not in known and one["type"] != "human"
        ]
        if not since:
            return []
        return [_RunEvent("values", b"values", dumps(with_more(values, since)) + b"\n\n")]

    def _ask(self, end: Awaiting) -> list[_RunEvent]:
        told = [one for update in self._transcript.close() for one in self._completed(update)]
        asked = dumps([{**one, "response_schema": None} for one in interrupts(end.payload)])
        told.append(_RunEvent("updates", b"updates", b'{"__interrupt__":%b}\n\n' % asked))
        beside = b',"__interrupt__":%b' % asked
        values: bytes | Snapshot = Snapshot(self._transcript.json, beside)
        if self._graph_values is not None:
            values = with_beside(self._graph_values, beside) + b"\n\n"
        return [*told, _RunEvent("values", b"values", values)]

    def _last(self, messages: Sequence[ChatMessage]) -> list[_RunEvent]:
        """The answer, if there is one: what of it was not streamed, and the complete message."""
        if not messages or (messages[-1].role, messages[-1].channel) != ("assistant", "final"):
            return [one for update in self._transcript.close() for one in self._completed(update)]
        told = [one for update in self._transcript.take(messages[-1]) for one in self._completed(update)]
        open_ = self._transcript.open_message
        if open_ is not None and self._transcript.open_rank == messages[-1].rank:
            whole = self._renamed_message(open_)
            told.append(self._message(_closing(whole) if self.streams == messages[-1].rank else whole, AGENT))
        return told + [one for update in self._transcript.close() for one in self._completed(update)]

    def _values(self) -> _RunEvent:
        return _RunEvent("values", b"values", Snapshot(self._transcript.json))

    def _message(self, message: Message, node: str) -> _RunEvent:
        return _RunEvent("messages-tuple", b"messages", b"[%b,%b]\n\n" % (dumps(message), self._about(node)))

    def _about(self, node: str, step: int | None = None) -> bytes:
        of_step = self._step if step is None else step
        return b'{"langgraph_node":%b,"langgraph_step":%d,%b' % (dumps(node), of_step, self._run)

    def _id(self, rank: int) -> str:
        return f"{message_id(self._view.exchange_id, rank)}{self._renamed}"

    def _renamed_message(self, message: Message) -> Message:
        return message if not self._renamed else {**message, "id": f"{message['id']}{self._renamed}"}


def with_beside(values: bytes, beside: bytes) -> bytes:
    """A JSON object with fields added, each with a comma before it. A graph's object may be empty while none of its
    output channels has a value."""
    return b"{%b}" % b"".join((values[1:-1], beside)).removeprefix(b",")


def _rest_of(turn: Turn, event: TurnEvent, seq: int) -> TurnEvent:
    """The part of joined fragments that comes after the number `seq`."""
    events = turn.events
    places = range(events.after(seq), events.after(event.seq))
    fragments = [one for one in (events[place].payload for place in places) if isinstance(one, _FRAGMENTS)]
    return TurnEvent(event.seq, replace(fragments[-1], text="".join(one.text for one in fragments)))


def _placed(told: Sequence[_RunEvent], before: int, seq: int) -> Iterator[tuple[bytes, _RunEvent]]:
    """Each event with its id: the position of a client that has it."""
    last = len(told) - 1
    for number, one in enumerate(told):
        yield (b"%d" % seq if number == last else b"%d.%d" % (before, number + 1)), one


def _chunk(message: Message) -> Message:
    """A piece of a model's message."""
    return {**message, "type": "AIMessageChunk", "tool_call_chunks": [], "chunk_position": None}


def _closing(message: Message) -> Message:
    """The last piece of a message whose text was streamed: all the rest of it."""
    return {**_chunk(message), "content": "", "tool_calls": [], "chunk_position": "last"}


def _call_chunk(part: Part, index: int) -> dict[str, Any]:
    arguments = dumps(part["args"]).decode()
    about = {"name": part["name"], "args": arguments, "id": part["call_id"], "index": index}
    return {**about, "type": "tool_call_chunk"}


class RunValues:
    """The result of a run: its final values as JSON, for clients that do not follow its events. White space is sent
    first while that takes long. Implements `StreamWriter`."""

    heartbeat = b"\n"

    def __init__(
        self, view: RunView, load_base: LoadBase, load_state: LoadState, headers: Mapping[str, str] | None = None
    ) -> None:
        """`load_state` reads the state of a hosted graph; `headers` of the response, in addition to those of every
        stream."""
        self.headers = [(b"content-type", b"application/json"), *_encoded_headers(headers)]
        self.over = False
        self.owed: Callable[[], Awaitable[bytes]] | None = None
        self._view = view
        self._load_base = load_base
        self._load_state = load_state
        self._translator = RunTranslator(view)
        self._values: Snapshot | bytes | None = None
        self._error: bytes | None = None
        self._ended: tuple[str, Payload] | None = None

    def write(self, turn: Turn, event: TurnEvent) -> bytes:
        """See `StreamWriter`."""
        for one in self._translator.take(event):
            if one.name == b"values":
                self._values = one.data
            elif one.name == b"error" and isinstance(one.data, bytes):
                self._error = one.data.strip()
        if self._translator.over or (turn.ended and event.seq == turn.events[-1].seq):
            self._ended, self.owed = (turn.ask.agent_id, event.payload), self._end_values
        return b""

    def refuse(self, request: Request, failure: Failed) -> Response:
        """See `StreamWriter`."""
        return refusal_of(failure, request)

    async def _end_values(self) -> bytes:
        """The values, with `__interrupt__` if the run asks a person; `__error__` alone if it failed, or they cannot be
        read."""
        self.over = True
        try:
            return await self._final_values()
        except ServiceError as error:
            return b'{"__error__":%b}' % _error_values(error)
        finally:
            self.owed = None

    async def _final_values(self) -> bytes:
        if self._error is not None:
            return b'{"__error__":%b}' % self._error
        values = self._values or Snapshot(b"")
        if self._view.graph and isinstance(values, Snapshot) and self._ended is not None:
            # The graph's own state was not sent: only its messages are known.
            state = await self._load_state(*self._ended)
            values = values if state is None else state
        if isinstance(values, bytes):
            return values.strip()
        base = self._view.base
        if base is None:
            base = await self._load_base(self._translator.first_rank, self._translator.behind)
        return b'{"messages":[%b]%b}' % (b",".join(filter(None, (base, values.run))), values.beside)


def _encoded_headers(headers: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]


def _error_values(error: ServiceError) -> bytes:
    return dumps({"error": error.code.value, "message": message_for(error.code)})
