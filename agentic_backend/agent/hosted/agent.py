"""An agent that is somebody's compiled LangGraph graph: runs its turns, keeps its state, passes on what it asks."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphRecursionError, InvalidUpdateError
from langgraph.store.memory import InMemoryStore

from agentic_backend.agent.answering import UNKNOWN, with_ignored
from agentic_backend.agent.graph_input import MESSAGES, GraphInput, StateChange
from agentic_backend.agent.hosted.beginning import (
    Beginning,
    beginning_of,
    command_of,
    expect_readable,
    expect_taken,
    own_keys,
    question_id_of,
    stronger,
)
from agentic_backend.agent.hosted.current import CURRENT, HostedTurn
from agentic_backend.agent.hosted.exits import contain_exits
from agentic_backend.agent.hosted.graph_json import EXCHANGE, SnapshotNames, as_json
from agentic_backend.agent.hosted.loading import AnyGraph, GraphUnusable, LoadedGraph
from agentic_backend.agent.hosted.messages import messages_in
from agentic_backend.agent.hosted.speech import Speech
from agentic_backend.agent.hosted.state import PHASES as STATE_PHASES
from agentic_backend.agent.hosted.state import GraphState, StateRef, StateSaver, UserStore
from agentic_backend.agent.hosted.state_reads import SessionStates
from agentic_backend.agent.hosted.watch import GRAPH, Watch, node_phase
from agentic_backend.agent.interrupts import ResumedRun, Waiting
from agentic_backend.agent.kit import AgentKit
from agentic_backend.agent.people import answers_for, question_for, run_of
from agentic_backend.agent.run import AgentAnswer, AgentRun, MovesOn, chosen_model
from agentic_backend.errors import BadRequest, HistoryUnavailable, InputRefused, NotAwaiting, NotKept, TurnFailed
from agentic_backend.events import Custom, GraphOutput
from agentic_backend.llm.observer import LlmObserver, Unobserved
from agentic_backend.llm.prompt import HistoryItem, content_of
from agentic_backend.settings import AgentSettings, Restart
from backend_kit.kpi import current_ledger

PHASES: Final = (GRAPH, *STATE_PHASES)
"""Phases of every hosted graph, beyond those of its nodes."""
LABELLED_NODES: Final = 32
"""Nodes of a graph whose phases are labels of their own in the metrics; the others count as `other`."""
_INTERRUPT: Final = "__interrupt__"
_NOTHING: Final = GraphInput()


@dataclass(frozen=True, slots=True)
class Hosting:
    """What all hosted graphs of a process share: where they keep their state (None: nowhere), and who hears of the
    calls of their models. `callbacks` hear every step of every agent of the process."""

    state: GraphState | None = None
    observer: LlmObserver = field(default_factory=Unobserved)
    callbacks: Sequence[BaseCallbackHandler] = ()


@dataclass(frozen=True, slots=True)
class WaitingGraph:
    """A run that waits for a person: where its state is, and what it asks."""

    ref: StateRef
    questions: tuple[tuple[str, Any], ...]

    def payload(self) -> dict[str, Any]:
        """The question as the person gets it."""
        return question_for(self.questions, str(self.ref))


@dataclass(slots=True)
class _Outcome:
    """What a run of the graph left: the state's first and last values, and the questions that stop it, by their ids."""

    first: Any = None
    values: Any = None
    interrupts: dict[str, Any] = field(default_factory=dict)

    def take(self, namespace: tuple[str, ...], mode: str, data: Any, run: AgentRun) -> None:
        """Take one event of the graph's stream; what clients want to see of it goes on at once."""
        asked = run.graph
        if asked is not None and mode in asked.modes and (not namespace or asked.subgraphs):
            run.emit(GraphOutput(mode, namespace, as_json(data)))
        if mode == "custom":
            run.emit(Custom(data))
        elif namespace:
            return  # a subgraph's: its state and its questions come again as those of the graph
        elif mode == "values":
            if self.values is None:
                self.first = data
            self.values = data
        elif isinstance(data, dict) and (asked := data.get(_INTERRUPT)):
            # Nodes side by side ask one after the other.
            self.interrupts |= {one.id: one.value for one in asked}


class HostedAgent:
    """One hosted graph, ready to run turns of any session.

    What people see is the session's history, what the graph knows is its state, and history says which state belongs to
    it: every answered exchange names the checkpoint with which it ended. A turn begins from the newest one that history
    names. What a graph wrote in a turn that was stopped, failed or was lost with its process is discarded, and
    exchanges that the graph has not seen (another agent's) are passed to it with the question.
    """

    def __init__(
        self,
        settings: AgentSettings,
        loaded: LoadedGraph,
        kit: AgentKit,
        hosting: Hosting,
        recursion_limit: int,
        models: Sequence[str] = (),
    ) -> None:
        """A turn may choose one of `models`."""
        self.settings = settings
        self._loaded = loaded
        self._kit = kit
        self._observer = hosting.observer
        self._callbacks = hosting.callbacks
        self._saver = StateSaver(hosting.state) if hosting.state is not None else None
        self._store = UserStore(hosting.state) if hosting.state is not None else None
        self._recursion_limit = recursion_limit
        self._models = models
        self._names: dict[str, str] = {}

    @property
    def id(self) -> str:
        """The identifier in asks and sessions."""
        return self.settings.id

    @property
    def asks_people(self) -> bool:
        """Whether a run may wait for a person: nobody knows which nodes of a graph do."""
        return True

    @property
    def restart(self) -> Restart:
        """What becomes of a turn whose process died. Without a state of its steps, what its tools did is not known."""
        keeps_steps = self._saver is not None and self.settings.durability != "exit"
        return self.settings.restart or ("from_checkpoint" if keeps_steps else "never")

    @property
    def uses_credentials(self) -> bool:
        """Whether a run may use the asker's credentials: a graph never gets them."""
        return False

    @property
    def client_tools(self) -> bool:
        """Whether it takes functions of the client: a graph binds its own tools to its models."""
        return False

    def model_of(self, wanted: str | None, preferred: object = None, *, lenient: bool = False) -> str:
        """See `TurnAgent`."""
        return chosen_model(self._models, self.settings.model, wanted, preferred, lenient=lenient)

    def sees(self, model: str) -> bool:  # noqa: ARG002 - a graph may ask whichever it likes
        """See `TurnAgent`."""
        return self.settings.images

    def expect_input(self, given: GraphInput) -> None:
        """See `TurnAgent`."""
        expect_readable(given)
        if self._saver is None and (given.continues or given.commands or given.change or given.checkpoint):
            raise BadRequest("the graph keeps no state", field=given.beyond_question)
        if self._loaded.static is not None:
            expect_taken(given, self._loaded.static)

    def misses_state(self, session_id: str, history: Sequence[HistoryItem]) -> bool:
        """See `TurnAgent`."""
        return self._saver is not None and self._newest_in(history, session_id) is None

    def open_graph(self, user_id: str) -> AbstractAsyncContextManager[AnyGraph]:
        """The graph, to look at; one that is made for each run as it would be for this user. Raises `GraphUnusable`."""
        configurable = self._configured("", user_id, self.settings.model)
        return self._loaded.for_run({"configurable": configurable, "run_name": self.id})

    async def run(self, run: AgentRun) -> AgentAnswer:
        """See `TurnAgent`."""
        loop = asyncio.get_running_loop()
        contain_exits(loop)
        turn = HostedTurn(run, self._kit, self._observer, loop)
        token = CURRENT.set(turn)
        try:
            return await self._run(turn)
        finally:
            CURRENT.reset(token)

    async def claim(self, session_id: str, run_id: str) -> WaitingGraph:
        """The run that waits with this id. It can be answered once, since history says for how long it waits. Raises
        `NotAwaiting` where none does."""
        ref = StateRef.parse(run_id)
        if self._saver is None or ref is None or not ref.thread.startswith(self._line(session_id)):
            raise NotAwaiting
        found = await self._saver.aget_tuple({"configurable": ref.configurable})
        questions = [
            (one.id, one.value)
            for _, channel, value in (found.pending_writes if found is not None else None) or ()
            if channel == _INTERRUPT
            for one in value
        ]
        if not questions:
            raise NotAwaiting
        return WaitingGraph(ref, tuple(questions))

    def state_ref(self, session_id: str, checkpoint: str) -> StateRef | None:
        """The state of a session that is named as history names it, or as `state` does; None for any other text."""
        ref = StateRef.parse(checkpoint)
        if ref is not None and "/" not in ref.thread:
            return StateRef(self._line(session_id) + ref.thread, ref.checkpoint_id)
        return ref if ref is not None and ref.thread.startswith(self._line(session_id)) else None

    async def state(
        self, session_id: str, user_id: str, checkpoint: str, *, subgraphs: bool = False
    ) -> dict[str, Any] | None:
        """A state in the shape of LangGraph's API, JSON-ready; None where there is none of that name (`state_ref`).

        The newest of its thread has what tasks have done since; with `subgraphs`, the states of tasks that are graphs.
        Whose session it is the caller has checked. Raises `HistoryUnavailable`, or `TurnFailed` where the graph cannot
        be made.
        """
        ref = self.state_ref(session_id, checkpoint)
        if ref is None or self._saver is None:
            return None
        async with self._states_of(session_id, user_id) as states:
            return await states.find(ref, subgraphs=subgraphs)

    async def states(
        self,
        session_id: str,
        user_id: str,
        checkpoint: str,
        *,
        limit: int = 10,
        before: str = "",
        metadata: Mapping[str, Any] | None = None,
        exchanges: Collection[str] | None = None,
        most_bytes: int = 1 << 62,
    ) -> list[dict[str, Any]]:
        """The states of the thread that a state is of, as `state`, newest first, from that one on: `before` another,
        with all of this `metadata`, and of these `exchanges` alone, since a run that failed or was stopped leaves some
        that history does not name. Those of branches are among them. It ends with the one that passes `most_bytes` of
        JSON. Raises as `state`."""
        ref, last = self.state_ref(session_id, checkpoint), self.state_ref(session_id, before)
        if ref is None or self._saver is None or (before and last is None):
            return []
        async with self._states_of(session_id, user_id) as states:
            return await states.find_all(ref, last, limit, metadata or {}, exchanges, most_bytes)

    @asynccontextmanager
    async def _states_of(self, session_id: str, user_id: str) -> AsyncIterator[SessionStates]:
        """The graph's states of a session, to be read."""
        config: RunnableConfig = {"configurable": self._configured(session_id, user_id, self.settings.model)}
        try:
            async with self._loaded.for_run(config) as graph:
                names = SnapshotNames(session_id, self.id, self._line(session_id))
                yield SessionStates(self._reading(graph), names)
        except NotKept as failure:
            raise HistoryUnavailable("the state could not be read") from failure
        except GraphUnusable as failure:
            raise TurnFailed("the graph cannot be made") from failure

    async def _run(self, turn: HostedTurn) -> AgentAnswer:
        run = turn.run
        config = self._config(run)
        speech = Speech(run.emit)
        watch = Watch(speech, self._observer, self._names, turn.note_use)
        thread, begin = await self._begin(turn, config["configurable"], speech)
        config["callbacks"] = [watch, *self._callbacks]
        async with self._loaded.for_run(config) as graph:
            self._know_nodes(graph)
            if run.graph is not None:
                _expect_now(run.graph, graph)
                if run.graph.change is not None:
                    return await self._change(turn, graph, config, thread, run.graph.change)
            outcome = await self._stream(graph, begin, config, run, watch)
        if outcome.interrupts:
            saved = StateRef(thread, turn.checkpoint_id or "")
            raise Waiting(question_for(list(outcome.interrupts.items()), str(saved)))
        return self._answer(turn, thread, outcome, watch)

    async def _change(
        self, turn: HostedTurn, graph: AnyGraph, config: RunnableConfig, thread: str, change: StateChange
    ) -> AgentAnswer:
        """Change the state, from which the next turn goes on, since the answer names it."""
        assert self._saver is not None
        try:
            await self._reading(graph).aupdate_state(config, change.values, change.as_node)
        except InvalidUpdateError as failure:
            raise InputRefused(type(failure).__name__, field="as_node") from failure
        except (ValueError, NotImplementedError) as failure:
            raise InputRefused(type(failure).__name__, field="values") from failure
        await self._saver.keep_input(turn)
        extras = {"checkpoint": str(StateRef(thread, turn.checkpoint_id or "")), "state": "changed"}
        return AgentAnswer("", metadata={"model": "", "finish_reason": "stop", "extras": extras})

    async def _stream(
        self, graph: AnyGraph, begin: Any, config: RunnableConfig, run: AgentRun, watch: Watch
    ) -> _Outcome:
        """Run the graph to its end, or to its questions."""
        saver = self._saver if run.kept else None
        if not run.kept and self._saver is not None:
            # One of its own: all runs share the graph, and nothing of this one is to be stored.
            graph = copy(graph)
        graph.store = self._store if run.kept else InMemoryStore()
        graph.checkpointer = saver
        # What a graph's author has set counts: create_agent lets a loop of tools run until its turn is over.
        if (own := (graph.config or {}).get("recursion_limit")) is not None:
            config["recursion_limit"] = own
        steps = saver is not None and self.restart == "from_checkpoint"
        outcome, moves = _Outcome(), False
        wanted = run.graph.durability if run.graph is not None else None
        durability = stronger(self.settings.durability, wanted)
        how: dict[str, Any] = {"durability": durability} if saver is not None else {}
        watch.begin()
        try:
            stream: Any = graph.astream(
                begin,
                config,
                context=self._context(graph, run),
                # Messages come by `watch`: LangGraph's own stream of them wakes a task for each token.
                stream_mode=["updates", "values", "custom"],
                subgraphs=True,
                **how,
            )
            async with aclosing(stream) as events:
                async for namespace, mode, data in events:
                    outcome.take(namespace, mode, data, run)
                    # The graph's own values come behind each of its steps, before the next one begins.
                    if steps and mode == "values" and not namespace and run.moves():
                        moves = True
                        break
        except GraphRecursionError as failure:
            raise TurnFailed("recursion limit") from failure
        except Exception as failure:
            # Whatever a node raises: what came of a model is the model's failure, anything else the agent's.
            if (error := watch.model_failure(failure)) is not None:
                raise error from failure
            raise
        finally:
            watch.end()
        if moves:
            raise MovesOn
        return outcome

    def _answer(self, turn: HostedTurn, thread: str, outcome: _Outcome, watch: Watch) -> AgentAnswer:
        if turn.question_id is None and turn.before is None:
            turn.before = _ids_of(_messages_of(outcome.first))
        messages = _of_exchange(_messages_of(outcome.values), turn)
        text = watch.speech.answer(messages, outcome.values)
        metadata: dict[str, Any] = {
            "model": watch.model,
            "finish_reason": watch.finish_reason or "stop",
        }
        if (use := turn.use) is not None:
            metadata["token_usage"] = {
                "input_tokens": use.input_tokens,
                "output_tokens": use.output_tokens,
                "total_tokens": use.input_tokens + use.output_tokens,
            }
        if turn.checkpoint_id is not None:
            metadata["extras"] = {"checkpoint": str(StateRef(thread, turn.checkpoint_id))}
        # A graph gets the question alone.
        return with_ignored(AgentAnswer(text, metadata=metadata), turn.run, *UNKNOWN, "attachments_markdown")

    async def _begin(self, turn: HostedTurn, configurable: dict[str, Any], speech: Speech) -> tuple[str, Any]:
        """The thread of states on which the run goes on, and the graph's input. `configurable` gets where that is."""
        run = turn.run
        if run.resume is not None:
            return await self._go_on(turn, run.resume, configurable, speech)
        ref = await self._starts_from(run)
        thread = ref.thread if ref is not None else self._line(run.session_id) + _digest(run.exchange_id)
        begin = self._beginning(run, ref)
        turn.question_id = begin.question_id
        if self._saver is None or not run.kept:
            return thread, begin.told
        return await self._begin_on(thread, ref, begin, turn, configurable, speech)

    async def _begin_on(
        self,
        thread: str,
        ref: StateRef | None,
        begin: Beginning,
        turn: HostedTurn,
        configurable: dict[str, Any],
        speech: Speech,
    ) -> tuple[str, Any]:
        """`_begin` for a run that is kept, on this thread of states."""
        run, told = turn.run, begin.told
        head = None
        if ref is not None or run.restarted:
            head = await self._newest_of(thread)
        if run.restarted and (begun := await self._begun(head, ref, turn)) is not None:
            for message in begun:
                speech.take(message)
            told = None
        elif head is not None and ref is None:
            # What was left behind by the run that died. History names none of it.
            thread += "-" + _digest(head.checkpoint["id"])
            head = None
        elif ref is not None and (begin.addressed or (head is not None and head.checkpoint["id"] != ref.checkpoint_id)):
            configurable |= ref.configurable
            return thread, told
        if head is None or self._reads_as_graph:
            turn.head = thread, head
        configurable["thread_id"] = thread
        return thread, told

    async def _starts_from(self, run: AgentRun) -> StateRef | None:
        """The state from which a run starts: the one that its client names, else the newest. Raises `InputRefused`."""
        if run.graph is None or not run.graph.checkpoint:
            return self._newest(run)
        ref = self.state_ref(run.session_id, run.graph.checkpoint)
        if (
            self._saver is None
            or ref is None
            or await self._saver.aget_tuple({"configurable": ref.configurable}) is None
        ):
            raise InputRefused("no such state", field="checkpoint")
        return ref

    def _beginning(self, run: AgentRun, ref: StateRef | None) -> Beginning:
        """What the graph gets. A client that names a state knows what is in it, so nothing is added to its input.

        Raises `InputRefused` for a run that has nothing to go on from.
        """
        begin, given = None, run.graph
        if given is not None:
            begin = beginning_of(given, run.exchange_id, () if given.checkpoint else self._since(run))
        if begin is None:
            return Beginning({MESSAGES: self._new_messages(run)}, question_id_of(run.exchange_id))
        kept = self._saver is not None and run.kept
        if begin.addressed and not (kept and (ref is not None or begin.told is not None or _changes(run))):
            raise InputRefused("there is nothing to go on from", field="input")
        return begin

    async def _begun(
        self, head: CheckpointTuple | None, ref: StateRef | None, turn: HostedTurn
    ) -> list[BaseMessage] | None:
        """What the graph had said in this exchange before its process died; None if its state does not know of it, or
        if it does not go on from there."""
        if self.restart != "from_checkpoint" or _changes(turn.run):
            return None
        if head is None or head.metadata.get(EXCHANGE) != turn.run.exchange_id:
            return None
        messages = _left_in(head)
        if turn.question_id is not None:
            # Before its first step the question is not in the state yet.
            return _of_exchange(messages, turn) if any(one.id == turn.question_id for one in messages) else None
        if head.metadata.get("source") == "input":
            return None
        assert self._saver is not None
        start = None if ref is None else await self._saver.aget_tuple({"configurable": ref.configurable})
        turn.before = frozenset() if start is None else _ids_of(_messages_of(start.checkpoint["channel_values"]))
        return _of_exchange(messages, turn)

    async def _newest_of(self, thread: str) -> CheckpointTuple | None:
        """The newest state of a thread, in the types of the graph's schemas where `_reads_as_graph`."""
        assert self._saver is not None
        saver = self._saver.of_graph or self._saver
        return await saver.aget_tuple({"configurable": {"thread_id": thread}})

    @property
    def _reads_as_graph(self) -> bool:
        """Whether what is read before a run is what the graph itself would read."""
        return self._saver is not None and self._saver.of_graph is not None and not self._loaded.per_run

    async def _go_on(
        self, turn: HostedTurn, resume: ResumedRun, configurable: dict[str, Any], speech: Speech
    ) -> tuple[str, Any]:
        """`_begin` for a run that a person has answered to."""
        asked = resume.asked or resume.saved.payload()
        ref = StateRef.parse(run_of(asked))
        assert ref is not None
        assert self._saver is not None
        given = turn.run.graph or _NOTHING
        exchange_id, turn.question_id = turn.run.exchange_id, question_id_of(turn.run.exchange_id)
        answers, _ = command_of(given, exchange_id, resume=answers_for(asked, resume.answer, plain=True))
        waited = await self._saver.aget_tuple({"configurable": ref.configurable})
        head = await self._newest_of(ref.thread)
        if head is None or waited is None:
            raise NotAwaiting
        # Where it had gone on before its process died, what the person allowed is done, but was not shown.
        asked_by = _tasks_that_asked(waited, asked)
        for message in _left_in(waited, without=asked_by):
            speech.know(message)
        if head.checkpoint["id"] != ref.checkpoint_id:
            for message in _left_in(head):
                speech.take(message)
            configurable["thread_id"] = ref.thread
            return ref.thread, None
        for message in _written(waited, asked_by.__contains__):
            speech.take(message)
        configurable |= ref.configurable
        turn.checkpoint_id = ref.checkpoint_id  # one answer of several leaves the run where it is
        return ref.thread, answers

    def _new_messages(self, run: AgentRun) -> list[BaseMessage]:
        """The question, after what was said since the graph's newest state."""
        since = self._since(run)
        asked = question_id_of(run.exchange_id)
        if run.message or not since or since[-1].type != "tool":
            return [*since, HumanMessage(content_of(run.message, run.images), id=asked)]
        since[-1].id = asked  # the result of a client's tool is what the graph goes on from
        return since

    def _since(self, run: AgentRun) -> list[BaseMessage]:
        """What was said since the graph's newest state."""
        since: list[BaseMessage] = []
        for item in reversed(run.history):
            if self._saver is not None and self._own(item.checkpoint, run.session_id) is not None:
                break
            if item.text or item.calls:
                since.append(item.message())
        return since[::-1]

    def _newest(self, run: AgentRun) -> StateRef | None:
        """The newest state of this graph that the session's history names, in what the run has of it or before."""
        if self._saver is None:
            return None
        return self._newest_in(run.history, run.session_id) or self._own(run.checkpoint, run.session_id)

    def _newest_in(self, history: Sequence[HistoryItem], session_id: str) -> StateRef | None:
        found = (self._own(item.checkpoint, session_id) for item in reversed(history))
        return next((ref for ref in found if ref is not None), None)

    def _own(self, checkpoint: str, session_id: str) -> StateRef | None:
        ref = StateRef.parse(checkpoint)
        return ref if ref is not None and ref.thread.startswith(self._line(session_id)) else None

    def _line(self, session_id: str) -> str:
        """How the threads of this agent in a session begin. The session is what stands before the first slash."""
        return f"{session_id}/{quote(self.id, safe='')}/"

    def _config(self, run: AgentRun) -> RunnableConfig:
        configurable: dict[str, Any] = {
            **own_keys((run.graph or _NOTHING).configurable),
            **self._configured(run.session_id, run.user_id, run.model),
        }
        if run.language is not None:
            configurable["language"] = run.language
        return {
            "configurable": configurable,
            "metadata": {EXCHANGE: run.exchange_id},
            "recursion_limit": self._recursion_limit,
            "run_name": self.id,
        }

    def _configured(self, session_id: str, user_id: str, model: str | None) -> dict[str, Any]:
        return {**self.settings.context, "user_id": user_id, "session_id": session_id, "model": model}

    def _context(self, graph: AnyGraph, run: AgentRun) -> Any:
        if graph.context_schema is None:
            return None
        return {**(run.graph or _NOTHING).context, **self.settings.context}

    def _reading(self, graph: AnyGraph) -> AnyGraph:
        """A graph beside the one that all runs share, whose state can be read and changed."""
        graph = copy(graph)
        graph.checkpointer, graph.store = self._saver, self._store
        return graph

    def _know_nodes(self, graph: AnyGraph) -> None:
        """Give the first nodes of the graph phases of their own in the metrics."""
        if self._names:
            return
        ledger = current_ledger()
        for name in [name for name in graph.nodes if not name.startswith("__")]:
            self._names[name] = node_phase(name)
            if ledger is not None and len(self._names) <= LABELLED_NODES:
                ledger.kpi.try_register_phase(self._names[name])


def _changes(run: AgentRun) -> bool:
    """Whether the run only changes the state; such a change is made again if it was cut off."""
    return run.graph is not None and run.graph.change is not None


def _expect_now(given: GraphInput, graph: AnyGraph) -> None:
    """`expect_taken` for a graph that is there only now. Raises `InputRefused`."""
    try:
        expect_taken(given, graph)
    except BadRequest as refused:
        raise InputRefused(str(refused), field=refused.field) from None


def _left_in(head: CheckpointTuple, without: Collection[str] = ()) -> list[BaseMessage]:
    """The messages of a state, and of the nodes that have ended since, but for these tasks: a run that goes on from
    there does not run them again."""
    messages = _messages_of(head.checkpoint["channel_values"])
    return [*messages, *_written(head, lambda task: task not in without)]


def _written(head: CheckpointTuple, by: Callable[[str], bool]) -> list[BaseMessage]:
    """The messages that tasks have written since a state."""
    writes = head.pending_writes or ()
    values = [value for task, channel, value in writes if channel == MESSAGES and by(task)]
    return [message for value in values for message in messages_in({MESSAGES: value})]


def _tasks_that_asked(waiting: CheckpointTuple, asked: Mapping[str, Any]) -> set[str]:
    """The tasks whose questions these are. What they have written they wrote after the answer."""
    open_ids = {question["id"] for question in asked.get("questions", ())} or {asked.get("interrupt_id")}
    return {
        task
        for task, channel, value in waiting.pending_writes or ()
        if channel == _INTERRUPT and any(one.id in open_ids for one in value)
    }


def _digest(exchange_id: str) -> str:
    return hashlib.sha256(exchange_id.encode()).hexdigest()[:16]


def _ids_of(messages: list[BaseMessage]) -> frozenset[str]:
    return frozenset(one.id for one in messages if one.id is not None)


def _messages_of(values: Any) -> list[BaseMessage]:
    """The messages of a state, however its schema is made."""
    found = values.get(MESSAGES) if isinstance(values, dict) else getattr(values, MESSAGES, None)
    return [one for one in found if isinstance(one, BaseMessage)] if isinstance(found, list) else []


def _of_exchange(messages: list[BaseMessage], turn: HostedTurn) -> list[BaseMessage]:
    """The messages of this exchange: those behind its question, or where a graph dropped that, behind the last one; of
    a run without a question, those that are new."""
    if turn.question_id is None:
        return [one for one in messages if one.id not in (turn.before or ())]
    places = [place for place, one in enumerate(messages) if one.id == turn.question_id]
    if not places:
        places = [place for place, one in enumerate(messages) if isinstance(one, HumanMessage)]
    return messages[places[-1] + 1 :] if places else messages
