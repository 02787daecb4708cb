"""The states of a thread: its conversation after each question and each answer, made from its history.

Each exchange has two checkpoints, after its question and at its end; an empty one comes before the first. Their ids are
derived from the ranks of messages, so that they are the same everywhere and always.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Literal

from fastapi import APIRouter, Request, Response

from agentic_backend.agent.people import run_of
from agentic_backend.errors import BadRequest
from agentic_backend.events import ChatMessage
from agentic_backend.session.branches import Branching
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.past_exchanges import AWAITING
from agentic_backend.session.stream import SpokenBy, TextDelta, Turn, Whole
from agentic_backend.surfaces.follow import whole_events
from agentic_backend.surfaces.langgraph.bodies import json_body, json_response
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread
from agentic_backend.surfaces.langgraph.messages import AGENT, Transcript, answer, message_id, with_more
from agentic_backend.surfaces.langgraph.messages import asked as messages_of
from agentic_backend.surfaces.langgraph.names import checkpoint_id_of, names_of_agent, session_of_thread
from agentic_backend.surfaces.langgraph.people import interrupts, task_of
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps, loads

_MOST: Final = 1000
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the states in one response, each of which repeats all messages before it: it ends with the state that
exceeds this."""
ROOT_RANK: Final = -1
Kind = Literal["root", "question", "end"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state in the conversation: after the message `rank`, with its first `count` messages. `question` is what a
    person is asked there."""

    kind: Kind
    rank: int
    count: int
    exchange_id: str = ""
    agent_id: str = ""
    created_at: str | None = None
    question: Mapping[str, Any] | None = None
    error: str | None = None
    state: str = ""
    """The state of a hosted graph, by its name in history."""
    cut: bool = False
    """Whether the run that ends there was stopped or failed."""
    asked: int | None = None
    """The index of the question among the messages; None if nothing was asked."""


@dataclass(slots=True)
class Line:
    """A conversation as states: its messages as JSON, and its checkpoints, the oldest first."""

    session: Session
    names_of: Callable[[str], dict[str, str]]
    """What metadata says of an agent."""
    messages: Sequence[bytes] = ()
    checkpoints: list[Checkpoint] = field(default_factory=list)

    @property
    def head(self) -> Checkpoint | None:
        """The newest checkpoint; None if nothing was asked yet."""
        return self.checkpoints[-1] if len(self.checkpoints) > 1 else None

    @property
    def newest_state(self) -> int | None:
        """The place of the newest checkpoint that is a state of the session's hosted graph."""
        agent_id = self.session.agent_id
        places = range(len(self.checkpoints) - 1, -1, -1)
        return next((p for p in places if self.checkpoints[p].state and self.checkpoints[p].agent_id == agent_id), None)

    def find(self, checkpoint_id: str) -> int | None:
        """The place of the checkpoint with this id."""
        places = range(len(self.checkpoints))
        return next((place for place in places if self.id_of(place) == checkpoint_id), None)

    def id_of(self, place: int) -> str:
        """The id of the checkpoint at a place."""
        return checkpoint_id_of(self.session.id, self.checkpoints[place].rank)

    def values(self, count: int | None = None) -> bytes:
        """The state's values with the first `count` messages, all without one, as JSON."""
        return b'{"messages":[%b]}' % b",".join(self.messages if count is None else self.messages[:count])

    def snapshot(self, place: int) -> bytes:
        """A state in LangGraph's shape, as JSON."""
        one = self.checkpoints[place]
        asked = [] if one.question is None else interrupts(one.question)
        waits = one.question is not None or one.kind == "question"
        fields = {
            "next": ["__start__"] if one.kind == "root" else [AGENT] if waits else [],
            "tasks": [self._task(place, asked)] if waits or one.error else [],
            "metadata": self.metadata(place),
            "created_at": one.created_at,
            "checkpoint": self._checkpoint(place),
            "parent_checkpoint": self._checkpoint(place - 1) if place else None,
            "interrupts": asked,
            "checkpoint_id": self.id_of(place),
            "parent_checkpoint_id": self.id_of(place - 1) if place else None,
        }
        return b'{"values":%b,%b' % (self.values(one.count), dumps(fields)[1:])

    def _checkpoint(self, place: int) -> dict[str, str]:
        return {"checkpoint_id": self.id_of(place), "thread_id": self.session.id, "checkpoint_ns": ""}

    def metadata(self, place: int) -> dict[str, Any]:
        """The metadata of the state at a place."""
        one = self.checkpoints[place]
        about: dict[str, Any] = {"source": "loop" if place else "input", "step": place - 1, "parents": {}}
        if one.agent_id:
            about |= self.names_of(one.agent_id)
        about["thread_id"] = self.session.id
        return about | ({"run_id": one.exchange_id} if one.exchange_id else {})

    def _task(self, place: int, asked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        one = self.checkpoints[place]
        return {
            "id": self.id_of(place) if one.question is None else task_of(one.question),
            "name": AGENT,
            "path": ["__pregel_pull", AGENT],
            "error": one.error,
            "interrupts": list(asked),
            "checkpoint": None,
            "state": None,
            "result": None,
        }


NOTHING: Final = (
    b'{"values":{},"next":[],"tasks":[],"metadata":null,"created_at":null,"checkpoint":null,"parent_checkpoint":null,'
    b'"interrupts":[],"checkpoint_id":null,"parent_checkpoint_id":null}'
)
"""The state of a thread in which nothing was asked yet."""


async def messages_in(
    services: DoorServices, session_id: str, user_id: str, window: HistoryWindow | None = None
) -> AsyncIterator[dict[str, Any]]:
    """The messages of a session's live branch, decoded, by ascending rank. May raise `HistoryUnavailable`."""
    async for page in services.store.pages(session_id, user_id, window or HistoryWindow()):
        for message in page.messages:
            yield loads(message)
        if page.large is not None:
            pieces = [piece async for piece in services.store.message(session_id, user_id, page.large)]
            if pieces:
                yield loads(b"".join(pieces))


async def read_line(services: DoorServices, session: Session) -> Line:
    """The states of a session. May raise `HistoryUnavailable`."""
    transcript, line = Transcript(), Line(session, partial(names_of_agent, services))
    line.checkpoints.append(Checkpoint("root", ROOT_RANK, 0))
    last: dict[str, Any] | None = None
    with services.kpi.phase("history_get"):
        async for message in messages_in(services, session.id, session.user_id):
            if (message["role"], message["channel"]) == ("user", "final"):
                if last is not None:
                    line.checkpoints.append(_end(last, transcript))
                transcript.take(message)
                line.checkpoints.append(_question(message, transcript))
            else:
                transcript.take(message)
            last = message
    if last is not None:
        line.checkpoints.append(_end(last, transcript))
    line.messages = transcript.closed
    line.checkpoints = _with_agents(line.checkpoints)
    return line


def _question(message: Mapping[str, Any], transcript: Transcript) -> Checkpoint:
    count = transcript.count
    asked = count - 1 if messages_of(message) else None
    at = message["timestamp"]
    return Checkpoint("question", message["rank"], count, message["exchange_id"], created_at=at, asked=asked)


def _end(message: Mapping[str, Any], transcript: Transcript) -> Checkpoint:
    transcript.close()
    metadata = message["metadata"]
    extras = metadata.get("extras", {})
    question = extras["awaiting"]["payload"] if extras.get("status") == AWAITING else None
    return Checkpoint(
        "end",
        message["rank"],
        transcript.count,
        message["exchange_id"],
        metadata.get("agent_id", ""),
        message["timestamp"],
        question,
        extras.get("error"),
        extras.get("checkpoint") or ("" if question is None else run_of(question)),
        "error" in extras or extras.get("status") == "interrupted",
    )


def _with_agents(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The same, where each question gets the agent of its answer: only the answer says who was asked."""
    known = {one.exchange_id: one.agent_id for one in checkpoints if one.kind == "end"}
    return [_of(one, known.get(one.exchange_id, one.agent_id)) for one in checkpoints]


def _of(one: Checkpoint, agent_id: str) -> Checkpoint:
    return one if one.agent_id == agent_id else replace(one, agent_id=agent_id)


async def values_of(services: DoorServices, session: Session) -> tuple[bytes | None, dict[str, Any]]:
    """The values of a thread as JSON, None before its first run, and its interrupts by their tasks."""
    line = await read_line(services, session)
    head = line.head
    if head is None:
        return None, {}
    asked = {} if head.question is None else {task_of(head.question): interrupts(head.question)}
    newest = await _newest_of_graph(services, line)
    return line.values() if newest is None else dumps(newest["values"]), asked


async def _newest_of_graph(services: DoorServices, line: Line, *, subgraphs: bool = False) -> dict[str, Any] | None:
    """The newest state of a hosted graph, with what people have seen since, as runs that were stopped or failed leave
    no state. None if the thread is not a graph's, or it has no state."""
    place = line.newest_state
    graph = services.catalog.graph(line.session.agent_id)
    if graph is None or place is None:
        return None
    one, session = line.checkpoints[place], line.session
    state = await graph.state(session.id, session.user_id, one.state, subgraphs=subgraphs)
    since = [loads(message) for message in line.messages[one.count :]]
    _name_agent(line, state)
    if state is not None and since and isinstance(state["values"], dict):
        state["values"] = with_more(state["values"], since)
    return state


def _name_agent(line: Line, state: dict[str, Any] | None) -> None:
    """Name the graph and the assistant that a state belongs to."""
    if state is not None and state["metadata"]:
        state["metadata"] |= line.names_of(line.session.agent_id)


async def _state_at(services: DoorServices, line: Line, checkpoint_id: str | None, where: str, *, deep: bool) -> bytes:
    """The state of a checkpoint, the newest without one, as JSON. Raises `NoThread`."""
    if line.head is None and checkpoint_id is None:
        return NOTHING
    if checkpoint_id is None:
        newest = await _newest_of_graph(services, line, subgraphs=deep)
        return line.snapshot(len(line.checkpoints) - 1) if newest is None else dumps(newest)
    graph, session = services.catalog.graph(line.session.agent_id), line.session
    if graph is not None:
        told = await graph.state(session.id, session.user_id, checkpoint_id, subgraphs=deep)
        if told is not None:
            _name_agent(line, told)
            return dumps(told)
    return line.snapshot(place_of(line, checkpoint_id, where))


async def _states_of_graph(
    services: DoorServices, line: Line, limit: int, before: str | None, metadata: Mapping[str, Any]
) -> list[bytes] | None:
    """The states of a hosted graph, the newest first; None if the thread is not a graph's, or it has no state."""
    graph, place, session = services.catalog.graph(line.session.agent_id), line.newest_state, line.session
    if graph is None or place is None:
        return None
    names = line.names_of(session.agent_id)
    if any(metadata.get(key, name) != name for key, name in names.items()):
        return []
    named = [one.exchange_id for one in line.checkpoints if one.state]
    state = line.checkpoints[place].state
    found = await graph.states(
        session.id,
        session.user_id,
        state,
        limit=limit,
        before=before or "",
        metadata={key: value for key, value in metadata.items() if key not in names},
        exchanges=named,
        most_bytes=_MOST_BYTES,
    )
    ids = {one["checkpoint_id"] for one in found}
    for one, older in zip_longest(found, found[1:]):
        _name_agent(line, one)
        # A fork continues from a state that is superseded, but clients must be able to follow the parents as one line.
        if older is not None and one["parent_checkpoint_id"] not in ids:
            one |= {"parent_checkpoint": older["checkpoint"], "parent_checkpoint_id": older["checkpoint_id"]}
    if before is None and not metadata and found:
        found[0] = await _newest_of_graph(services, line) or found[0]
    return [dumps(one) for one in found]


def add_states(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """The routes of a thread's states."""

    @router.get("/threads/{thread_id}/state")
    async def state(thread_id: str, request: Request, identity: caller) -> Response:
        """The newest state of a thread; while a run is in progress, the one after its question."""
        line = await read_running_line(services(), await _session(services(), identity, thread_id))
        return json_response(await _state_at(services(), line, None, "", deep=_deep(request)))

    @router.get("/threads/{thread_id}/state/{checkpoint_id}")
    async def state_at(thread_id: str, checkpoint_id: str, request: Request, identity: caller) -> Response:
        """The state of a checkpoint."""
        line = await _line(services(), identity, thread_id)
        told = await _state_at(services(), line, checkpoint_id, "checkpoint_id", deep=_deep(request))
        return json_response(told)

    @router.post("/threads/{thread_id}/state/checkpoint")
    async def state_of(thread_id: str, request: Request, identity: caller) -> Response:
        """The state of the checkpoint in the body; the newest without an id."""
        body = await json_body(request)
        wanted, deep = checkpoint_in(body, "checkpoint"), body.get("subgraphs") is True
        line = await _line(services(), identity, thread_id)
        return json_response(await _state_at(services(), line, wanted, "checkpoint.checkpoint_id", deep=deep))

    @router.post("/threads/{thread_id}/history")
    async def history(thread_id: str, request: Request, identity: caller) -> Response:
        """The states of a thread, the newest first."""
        body = await json_body(request)
        limit, metadata = body.get("limit", 10), body.get("metadata") or {}
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _MOST:
            raise Faulty(f"limit is a number from 1 to {_MOST}.", "limit")
        if not isinstance(metadata, dict):
            raise Faulty("metadata is an object.", "metadata")
        before = checkpoint_in(body, "before")
        session = await _session(services(), identity, thread_id)
        if before is None:
            line = await read_running_line(services(), session, "end")
        else:
            line = await read_line(services(), session)
        shown = await _states_of_graph(services(), line, limit, before, metadata)
        if shown is None:
            end = len(line.checkpoints) if before is None else place_of(line, before, "before")
            shown = _chosen(line, range(end - 1, -1, -1) if line.head is not None else (), metadata, limit)
        return json_response(b"[%b]" % b",".join(shown))


def _deep(request: Request) -> bool:
    return request.query_params.get("subgraphs") == "true"


def _chosen(line: Line, places: Iterable[int], metadata: Mapping[str, Any], limit: int) -> list[bytes]:
    shown: list[bytes] = []
    size = 0
    for place in places:
        if len(shown) == limit or size > _MOST_BYTES:
            break
        about = line.metadata(place) if metadata else {}
        if all(about.get(key) == value for key, value in metadata.items()):
            shown.append(line.snapshot(place))
            size += len(shown[-1])
    return shown


def checkpoint_in(body: Mapping[str, Any], name: str) -> str | None:
    """The id of the checkpoint that a body names, as such or as an object. Raises BadRequest."""
    said = body.get(name)
    if isinstance(said, dict):
        configured = said.get("configurable")
        of_config = configured.get("checkpoint_id") if isinstance(configured, dict) else None
        said = said.get("checkpoint_id", of_config)
    if said is not None and not isinstance(said, str):
        raise BadRequest("no checkpoint", field=name)
    return said or None


def place_of(line: Line, checkpoint_id: str, field_: str) -> int:
    """The place of a checkpoint. Raises `NoThread`."""
    place = line.find(checkpoint_id)
    if place is None:
        raise NoThread("There is no such checkpoint.", field_)
    return place


async def read_running_line(services: DoorServices, session: Session, kind: Kind = "question") -> Line:
    """The states of a session: those of its history, then that of the run in progress with its text so far. Clients
    rejoin a thread whose state has a next node, and a client that stops a run reads its history before the stop is
    complete; there, a state with a next node and without a question (`kind`) would be a breakpoint.

    May raise `HistoryUnavailable`."""
    # Before history: what ends while that is read is then in one of the two.
    here = services.registry.turns_of(session.id, session.user_id)
    here = [turn for turn in here if turn.ask.human is None and not turn.ended]
    question = None
    if all(turn.question is None for turn in here):
        question = await services.registry.asked_now(session.id, session.user_id)
    line = await read_line(services, session)
    turn = next((one for one in here if one.question is not None), None)
    question = question if turn is None else turn.question
    if question is not None and question.rank > line.checkpoints[-1].rank:
        _add_running(line, question, turn, kind)
    return line


def _add_running(line: Line, question: ChatMessage, turn: Turn | None, kind: Kind) -> None:
    behind = Branching.of(question).after_rank
    if behind is not None:
        line.checkpoints = [one for one in line.checkpoints if one.rank <= max(behind, ROOT_RANK)]
    before = line.messages[: line.checkpoints[-1].count]
    message = loads(question.json)
    said = [dumps(one) for one in messages_of(message)] if turn is None else running_messages(turn)
    line.messages = [*before, *said]
    asked = len(before) if messages_of(message) else None
    line.checkpoints.append(
        Checkpoint(
            kind,
            question.rank,
            len(line.messages),
            question.exchange_id,
            created_at=message["timestamp"],
            asked=asked,
        )
    )


def running_messages(turn: Turn) -> list[bytes]:
    """The messages of a running turn, each as JSON, including the text so far."""
    transcript, text, spoken = Transcript(), None, None
    for _, payload in whole_events(turn):
        if isinstance(payload, Whole):
            transcript.take(payload.message)
            text = None if text is not None and text.rank == payload.message.rank else text
        elif isinstance(payload, TextDelta):
            text = (
                payload if text is None or text.rank != payload.rank else replace(text, text=text.text + payload.text)
            )
        elif isinstance(payload, SpokenBy):
            spoken = payload
    transcript.close()
    if text is None:
        return transcript.closed
    named = spoken.message_id if spoken is not None and spoken.rank == text.rank else None
    return [*transcript.closed, dumps(answer(text.text, named or message_id(turn.ask.exchange_id, text.rank)))]


async def _session(services: DoorServices, identity: Identity, thread_id: str) -> Session:
    return await session_of_thread(services.store, identity.uid, thread_id)


async def _line(services: DoorServices, identity: Identity, thread_id: str) -> Line:
    return await read_line(services, await _session(services, identity, thread_id))
