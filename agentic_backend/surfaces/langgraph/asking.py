"""Turns a request for a run into an ask: of a question, of a person's answer, or of another branch."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID, uuid4

from starlette.requests import Request

from agentic_backend.agent import GraphInput, GraphMode
from agentic_backend.agent.hosted import HostedAgent
from agentic_backend.agent.people import run_of
from agentic_backend.chat.handshake import traceparent_of
from agentic_backend.errors import AgentNotFound, Conflict, MessageTooLong, NotAwaiting
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.opening import is_of_doors
from agentic_backend.session.past_exchanges import OpenQuestion, open_question
from agentic_backend.session.store import newest_message
from agentic_backend.session.stream import Ask, Turn
from agentic_backend.surfaces.langgraph.bodies import json_body
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread
from agentic_backend.surfaces.langgraph.messages import NOTE, Message, Transcript, noted
from agentic_backend.surfaces.langgraph.names import agent_of, is_uuid, session_of_thread
from agentic_backend.surfaces.langgraph.people import answer_of, run_id_of_answer
from agentic_backend.surfaces.langgraph.reading import RunRequest, read_run
from agentic_backend.surfaces.langgraph.states import (
    ROOT_RANK,
    Line,
    messages_in,
    place_of,
    read_line,
    read_running_line,
)
from agentic_backend.surfaces.langgraph.stream import RunView
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.http import request_id
from backend_kit.wire import dumps, loads

_GRAPH_MODES: Final[tuple[GraphMode, ...]] = ("values", "updates")
_REMEMBERED: Final = 100
"""Exchanges that come before messages which a client adds to a thread together with its question."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that may begin: `begin` starts its turn."""

    ask: Ask
    wish: RunRequest
    view: RunView
    begin: Callable[[], Turn]

    @property
    def path(self) -> str:
        """The address of the run, below the API's base."""
        run = f"/runs/{self.view.run_id}"
        return run if self.view.base is not None else f"/threads/{self.view.thread_id}{run}"


async def prepare(
    services: DoorServices,
    request: Request,
    identity: Identity,
    thread_id: str | None,
    body: Mapping[str, Any] | None = None,
) -> Begun:
    """The run that a request asks for, in a thread or without one; by its `body`, or by another body that it names.
    Raises ServiceError."""
    try:
        wish = read_run(await json_body(request) if body is None else body, services.max_message_chars)
    except MessageTooLong:
        services.limit_hit("max_message_chars")
        raise
    agent_id = _agent(services, identity, wish.assistant)
    if services.catalog.graph(agent_id) is None:
        expect_for_agent(wish)
    if thread_id is None:
        return await _alone(services, request, identity, wish, agent_id)
    session = await open_thread(services, identity.uid, thread_id, agent_id, create=wish.create)
    if wish.resumes:
        return await _resumed(services, request, identity, wish, session, agent_id)
    return await _asked(services, request, identity, wish, session, agent_id)


def expect_for_agent(wish: RunRequest) -> None:
    """Raise `Faulty` for what only a hosted graph can take."""
    question = wish.question
    for name in ("update", "goto"):
        if wish.command.get(name):
            raise Faulty(f"{name} is for graphs: this agent has no state of its own.", f"command.{name}")
    if isinstance(wish.input, dict) and (others := sorted(wish.input.keys() - {"messages"})):
        raise Faulty("This agent takes messages alone.", f"input.{others[0][:64]}")
    if question is None:
        return
    if not question.last:
        raise Faulty("The last message is the user's question.", question.at.removesuffix(".content"))
    if not question.text.strip():
        raise Faulty("The question has no text.", question.at)


async def open_thread(services: DoorServices, user_id: str, thread_id: str, agent_id: str, *, create: bool) -> Session:
    """The session of a thread, created for this agent if allowed. Raises `NoThread`, `Faulty` or `Conflict`."""
    known = services.registry.session_of(thread_id, user_id)
    if known is not None:
        return known
    if not create:
        try:
            return await session_of_thread(services.store, user_id, thread_id)
        except NoThread:
            raise NoThread("Thread or assistant not found.", "thread_id") from None
    found = await services.store.get(thread_id, user_id)
    if found is not None:
        return found
    if not is_uuid(thread_id):
        raise Faulty("Invalid thread ID: must be a UUID", "thread_id")
    if is_of_doors(UUID(thread_id)):
        raise Conflict(field="thread_id")
    return await services.sessions.open(thread_id, user_id, agent_id)


def _agent(services: DoorServices, identity: Identity, name: str) -> str:
    try:
        return agent_of(services.catalog, identity, name)
    except AgentNotFound:
        known = ", ".join(filter(identity.may_ask, services.catalog.ids()))
        raise Faulty(
            f"Invalid assistant. Must be either:\n- A valid assistant UUID, or\n- One of the agents: {known}",
            "assistant_id",
        ) from None


async def _alone(
    services: DoorServices, request: Request, identity: Identity, wish: RunRequest, agent_id: str
) -> Begun:
    """A run without a thread. If it is to be kept, it gets a thread of its own."""
    is_graph = services.catalog.graph(agent_id) is not None
    if wish.question is None and not is_graph:
        raise Faulty("A run without a thread begins with a question.", "input")
    session_id = str(uuid4())
    if not wish.temporary:
        session = await services.sessions.open(session_id, identity.uid, agent_id, likely_new=True)
        return await _asked(services, request, identity, wish, session, agent_id)
    graph = graph_input(wish, needs_values=True) if is_graph else None
    ask = _ask(request, identity, wish, session_id, agent_id, given=_given((), wish), graph=graph)
    sent = [] if is_graph else [message for message, _ in wish.earlier]
    before = [{**one, "id": one["id"] or f"{ask.exchange_id}-{number}"} for number, one in enumerate(sent)]
    ask = replace(ask, note={NOTE: {**_note(wish), "before": before}})
    view = view_alone(services, ask, wish.modes)
    return Begun(ask, wish, view, lambda: services.unkept.submit(ask))


def view_alone(services: DoorServices, ask: Ask, modes: Sequence[str]) -> RunView:
    """What a stream shows of a run without a thread."""
    note = noted(ask.note)
    return RunView(
        ask.exchange_id,
        ask.session_id,
        ask.exchange_id,
        modes=frozenset(modes or note.get("modes", ("values",))),
        base=b",".join(dumps(message) for message in note.get("before", ())),
        graph=services.catalog.graph(ask.agent_id) is not None,
        subgraphs=bool(note.get("subgraphs")),
    )


async def _asked(
    services: DoorServices, request: Request, identity: Identity, wish: RunRequest, session: Session, agent_id: str
) -> Begun:
    if (graph := services.catalog.graph(agent_id)) is not None:
        ask = await _ask_of_graph(services, request, identity, wish, session, graph)
    else:
        fork = await fork_of(services, session, wish)
        added = [item for message, item in wish.earlier if not message["id"]]
        given = None
        if added:
            given = _given(await _history_before(services, session, fork), wish)
        ask = _ask(request, identity, wish, session.id, agent_id, given=given, fork=fork)
    is_graph = ask.graph is not None
    modes = frozenset(wish.modes)
    view = RunView(ask.exchange_id, session.id, ask.exchange_id, modes=modes, graph=is_graph, subgraphs=wish.subgraphs)
    return Begun(ask, wish, view, lambda: services.registry.submit(ask))


async def _ask_of_graph(
    services: DoorServices,
    request: Request,
    identity: Identity,
    wish: RunRequest,
    session: Session,
    graph: HostedAgent,
) -> Ask:
    """The ask of a hosted graph, which continues from a state of its own."""
    agent_id = graph.id
    fork, checkpoint, unseen = await _rolled_back(services, session, wish), "", []
    newest = await _newest_in(services, session.id, session.user_id) if session.next_rank else {}
    line = None
    if wish.checkpoint_id is not None or _was_cut(newest):
        line = await read_line(services, session)
    if line is not None and wish.checkpoint_id is not None:
        fork, checkpoint = await graph_fork(graph, line, wish.checkpoint_id)
    else:
        checkpoint = _waiting_state(newest, agent_id)
    if line is not None and fork is None and not checkpoint:
        unseen = _unseen(line)
    given = graph_input(wish, checkpoint=checkpoint, unseen=unseen)
    return _ask(request, identity, wish, session.id, agent_id, given=None, fork=fork, graph=given)


def _unseen(line: Line) -> list[Message]:
    """What people have seen since the newest state of a graph: the questions and texts of runs that left no state. Tool
    calls without a result are left out, since models refuse them."""
    place = line.newest_state
    since = [loads(one) for one in line.messages[0 if place is None else line.checkpoints[place].count :]]
    answered = {one["tool_call_id"] for one in since if one["type"] == "tool"}
    whole = [one for one in since if answered.issuperset(call["id"] for call in one.get("tool_calls", ()))]
    called = {call["id"] for one in whole for call in one.get("tool_calls", ())}
    return [one for one in whole if one["type"] != "tool" or one["tool_call_id"] in called]


def _was_cut(newest: Mapping[str, Any]) -> bool:
    """Whether the newest run of a thread was stopped or failed."""
    extras = newest.get("metadata", {}).get("extras", {})
    return "error" in extras or extras.get("status") == "interrupted"


def graph_input(
    wish: RunRequest, *, checkpoint: str = "", needs_values: bool = False, unseen: Sequence[Message] = ()
) -> GraphInput:
    """What a hosted graph is asked for, after messages that it has not seen yet. Raises `Faulty`."""
    update, goto = wish.command.get("update"), wish.command.get("goto")
    if update is not None and not isinstance(update, dict):
        raise Faulty("An update is an object.", "command.update")
    places = goto if isinstance(goto, list) else [] if goto is None else [goto]
    if not all(isinstance(one, str) or (isinstance(one, dict) and "node" in one) for one in places):
        raise Faulty("goto names nodes.", "command.goto")
    given = wish.input if isinstance(wish.input, dict) and not wish.resumes else None
    if given is not None and unseen:
        sent = given.get("messages", [])
        given = {**given, "messages": [*unseen, *(sent if isinstance(sent, list) else [sent])]}
    modes: set[GraphMode] = {mode for mode in _GRAPH_MODES if mode in wish.modes}
    return GraphInput(
        input=given,
        continues=given is None and not wish.resumes and update is None and not places,
        update=update,
        goto=tuple(places),
        checkpoint=checkpoint,
        context=wish.graph_context,
        configurable=wish.configurable,
        durability=wish.durability,
        modes=frozenset(modes | {"values"} if needs_values else modes),
        subgraphs=wish.subgraphs,
    )


async def _history_before(
    services: DoorServices, session: Session, fork: "StartingPoint | None"
) -> Sequence[HistoryItem]:
    """What an agent remembers of a thread where a run begins."""
    up_to = None if fork is None else fork.after_rank
    if not session.next_rank or up_to == ROOT_RANK:
        return ()
    return await services.store.remembered(session.id, session.user_id, _REMEMBERED, up_to)


def _given(before: Sequence[HistoryItem], wish: RunRequest) -> tuple[HistoryItem, ...] | None:
    given = (*before, *(item for _, item in wish.earlier))
    return given or None


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a run begins: after the message `after_rank`, or again with the question of the exchange `regenerate`,
    which was sent as `question`."""

    after_rank: int | None = None
    regenerate: str | None = None
    question: Mapping[str, Any] = field(default_factory=dict)


async def _rolled_back(services: DoorServices, session: Session, wish: RunRequest) -> StartingPoint | None:
    """After what preceded the run that this one replaces; None if none runs."""
    turns = services.registry.turns_of(session.id, session.user_id) if wish.strategy == "rollback" else []
    if not turns:
        return None
    if turns[0].ask.human is None:
        return StartingPoint(after_rank=session.next_rank - 1)
    # It continues with a question that history has, so the whole exchange is replaced.
    checkpoints = (await read_line(services, session)).checkpoints
    exchange_id = turns[0].ask.exchange_id
    places = [p for p, one in enumerate(checkpoints) if one.kind == "question" and one.exchange_id == exchange_id]
    return StartingPoint(after_rank=checkpoints[places[0] - 1].rank if places else session.next_rank - 1)


async def fork_of(services: DoorServices, session: Session, wish: RunRequest) -> StartingPoint | None:
    """Where the run of an agent of ours begins; None: at the end. Raises `NoThread` or `Faulty`."""
    if wish.checkpoint_id is None:
        if wish.question is None:
            raise Faulty("There is nothing to run: neither a question nor an answer.", "input")
        return await _rolled_back(services, session, wish)
    line = await read_running_line(services, session)
    place = place_of(line, wish.checkpoint_id, "checkpoint.checkpoint_id")
    chosen, last = line.checkpoints[place], line.checkpoints[-1]
    if chosen.kind == "question":
        if wish.question is not None:
            if chosen is last or (chosen is line.checkpoints[-2] and last.cut):
                return None  # it had no answer when the client looked, and still has none
            raise Faulty("A question without its answer is followed by no other.", "checkpoint")
        sent = {} if chosen.asked is None else loads(line.messages[chosen.asked])
        return StartingPoint(regenerate=chosen.exchange_id, question=sent)
    if wish.question is None:
        raise Faulty("There is nothing to run from this checkpoint.", "input")
    return None if place == len(line.checkpoints) - 1 else StartingPoint(after_rank=chosen.rank)


async def waiting_state(services: DoorServices, session: Session, agent_id: str) -> str:
    """The state in which a hosted graph waits for a person, which no answer names yet; "" if it does not wait."""
    newest = await _newest_in(services, session.id, session.user_id) if session.next_rank else {}
    return _waiting_state(newest, agent_id)


def _waiting_state(newest: Mapping[str, Any], agent_id: str) -> str:
    waiting = OpenQuestion.in_message(newest)
    return run_of(waiting.question) if waiting is not None and waiting.agent_id == agent_id else ""


async def graph_fork(graph: HostedAgent, line: Line, asked: str) -> tuple[StartingPoint | None, str]:
    """Where a run of a hosted graph begins in its thread, and the state from which: "" for the newest.

    From the state at the end of a run, the new run comes after it; from a state within a run, it replaces that run.
    """
    state, _, _ = asked.partition(".")
    ends = [one for one in line.checkpoints if one.kind == "end" and one.agent_id == graph.id and one.state]
    named = next((one for one in ends if one.state.partition(".")[0] == state), None)
    if named is not None and named is ends[-1]:
        return None, "" if named.question is None else named.state
    if named is not None:
        return StartingPoint(after_rank=named.rank), named.state
    found = await graph.state(line.session.id, line.session.user_id, asked)
    of_run = None if found is None else (found["metadata"] or {}).get("run_id")
    place = next(
        (p for p, one in enumerate(line.checkpoints) if one.kind == "question" and one.exchange_id == of_run), None
    )
    if place is None:
        return None, asked
    question = line.checkpoints[place].asked
    sent = {} if question is None else loads(line.messages[question])
    return StartingPoint(after_rank=line.checkpoints[place - 1].rank, question=sent), asked


async def _newest_in(services: DoorServices, session_id: str, user_id: str) -> dict[str, Any]:
    """The newest message of a session, decoded; empty without one. May raise `HistoryUnavailable`."""
    with services.kpi.phase("history_get"):
        newest = await newest_message(services.store, session_id, user_id)
    message: dict[str, Any] = loads(newest) if newest else {}
    return message


async def waiting_in(services: DoorServices, session_id: str, user_id: str) -> OpenQuestion | None:
    """The exchange of a session that waits for a person, None if there is none. May raise `HistoryUnavailable`."""
    with services.kpi.phase("history_get"):
        return await open_question(services.store, session_id, user_id)


async def _resumed(
    services: DoorServices, request: Request, identity: Identity, wish: RunRequest, session: Session, agent_id: str
) -> Begun:
    """The run of a person's answer. Raises `NotAwaiting`."""
    waiting = await waiting_in(services, session.id, identity.uid)
    if waiting is None or waiting.agent_id != agent_id:
        raise NotAwaiting(field="command.resume")
    checkpoint = waiting.question["checkpoint_id"]
    is_graph = services.catalog.graph(agent_id) is not None
    run_id = run_id_of_answer(waiting.exchange_id, checkpoint)
    ask = Ask(
        session_id=session.id,
        agent_id=agent_id,
        message="",
        exchange_id=waiting.exchange_id,
        user_id=identity.uid,
        received_at=time.perf_counter(),
        runtime_context=wish.context.given(),
        language=wish.context.language,
        on_disconnect=wish.on_disconnect,
        request_id=request_id(request.scope),
        credentials=request.state.credentials,
        traceparent=traceparent_of(request),
        human=answer_of(waiting.question, wish.resume),
        model=wish.context.model,
        note={NOTE: _note(wish) | {"run_id": run_id, "answers": checkpoint}},
        graph=graph_input(wish) if is_graph else None,
    )
    modes = frozenset(wish.modes)
    view = RunView(run_id, session.id, waiting.exchange_id, checkpoint, modes, graph=is_graph, subgraphs=wish.subgraphs)
    return Begun(ask, wish, view, lambda: services.registry.submit(ask))


def _ask(
    request: Request,
    identity: Identity,
    wish: RunRequest,
    session_id: str,
    agent_id: str,
    *,
    given: tuple[HistoryItem, ...] | None,
    fork: StartingPoint | None = None,
    graph: GraphInput | None = None,
) -> Ask:
    question, begins = wish.question, fork or StartingPoint()
    return Ask(
        session_id=session_id,
        agent_id=agent_id,
        message=question.text if question is not None else _text_of(begins),
        exchange_id=str(uuid4()),
        user_id=identity.uid,
        received_at=time.perf_counter(),
        runtime_context=wish.context.given(),
        language=wish.context.language,
        if_busy=wish.if_busy,
        on_disconnect=wish.on_disconnect,
        request_id=request_id(request.scope),
        credentials=request.state.credentials,
        traceparent=traceparent_of(request),
        model=wish.context.model,
        given=given,
        note={NOTE: _note(wish, begins.question)},
        after_rank=begins.after_rank,
        regenerate=begins.regenerate,
        any_branch=fork is not None,
        graph=graph,
    )


def _text_of(begins: StartingPoint) -> str:
    """The text of the question that a graph continues with; an exchange that is asked again has it itself."""
    content = begins.question.get("content", "") if begins.regenerate is None else ""
    blocks = content if isinstance(content, list) else [content]
    texts = [one.get("text", "") if isinstance(one, dict) else one for one in blocks]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _note(wish: RunRequest, question: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is stored with the question, so that it and its run can be shown later as they were sent. `question` is that
    of an exchange which is asked again."""
    note: dict[str, Any] = {}
    message = wish.question.message if wish.question is not None else question
    if message:
        note = {key: message[key] for key in ("id", "name") if message.get(key)}
        if wish.question is None or message["content"] != wish.question.text:
            note["content"] = message["content"]
    if wish.metadata:
        note["metadata"] = wish.metadata
    if wish.modes != ("values",):
        note["modes"] = wish.modes
    if wish.subgraphs:
        note["subgraphs"] = True
    if wish.strategy != "enqueue":
        note["strategy"] = wish.strategy
    return note


def base_of(services: DoorServices, session_id: str, user_id: str) -> Callable[[int, int | None], Any]:
    """Reads what a thread had before a run (`stream.LoadBase`)."""

    async def load(below: int, behind: int | None) -> bytes:
        transcript = Transcript()
        with services.kpi.phase("history_get"):
            window = HistoryWindow() if behind is None else HistoryWindow(up_to=behind)
            async for message in messages_in(services, session_id, user_id, window):
                if message["rank"] >= below:
                    break
                transcript.take(message)
        transcript.close()
        return transcript.json

    return load
