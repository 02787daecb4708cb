"""The agents of the configuration, each with its graph compiled once."""

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, get_args

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from agentic_backend.agent import plain, rag, tools
from agentic_backend.agent.answering import UNKNOWN, with_ignored
from agentic_backend.agent.drawing import Drawing
from agentic_backend.agent.graph_input import GraphInput
from agentic_backend.agent.hosted import GRAPH, HostedAgent, Hosting
from agentic_backend.agent.hosted.loading import GraphUnusable, LoadedGraph, import_agent, load_graph
from agentic_backend.agent.hosted.openai_streams import read_streams_plainly
from agentic_backend.agent.interrupts import Checkpoints, RunMemory, SavedRun, Waiting
from agentic_backend.agent.kit import AgentKit, Build, Graph
from agentic_backend.agent.people import question_for
from agentic_backend.agent.run import AgentAnswer, AgentRun, chosen_model
from agentic_backend.agent.straight import StraightGraph
from agentic_backend.errors import AgentNotFound, BadRequest, NotAwaiting, TurnFailed
from agentic_backend.llm.langchain import callbacks_configured
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.settings import AgentSettings, ChatOptions, FieldSpec, Restart
from backend_kit.kpi import current_ledger, phase
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

BUILT_IN: Final[dict[str, ModuleType]] = {"Georges": plain, "Rico": rag, "Sammy": tools}
"""Agent modules that ship with the service, by the last part of their `class_path`."""
STRAIGHT: Final = frozenset({plain.__name__, rag.__name__})
"""Modules of ours whose graphs `StraightGraph` runs. All others, and every team's, run by LangGraph's own engine."""
MADE_LABEL: Final = "made"
"""The metric label of all agents created over REST: their own ids come and go."""


class AgentUnusable(ValueError):
    """An agent's `class_path` names no agent module, or its module cannot use a tunable value. The text names the
    agent and the path or field."""


class Agent:
    """One agent, ready to run turns of any session. It holds a compiled graph and no user's data."""

    def __init__(
        self,
        settings: AgentSettings,
        graph: Graph,
        recursion_limit: int,
        checkpoints: Checkpoints | None = None,
        models: Sequence[str] = (),
        *,
        straight: bool = False,
        restart: Restart = "never",
        uses_credentials: bool = True,
        client_tools: bool = False,
        seeing: Collection[str] = (),
        callbacks: Sequence[BaseCallbackHandler] = (),
    ) -> None:
        """With `checkpoints` the agent may interrupt itself to ask a person. A turn may choose one of `models`;
        those of `seeing` get images.

        A `straight` graph is run by `StraightGraph`, any other by LangGraph's engine, as all are where `callbacks`
        listen. Raises `NotStraight`.
        """
        self.settings = settings
        self.restart = restart
        self.uses_credentials = uses_credentials
        self.client_tools = client_tools
        self._models = models
        self._seeing = seeing
        self._graph = graph
        self._straight = StraightGraph(graph) if straight and not callbacks else None
        self._recursion_limit = recursion_limit
        self._config: RunnableConfig = {"recursion_limit": recursion_limit}
        if callbacks:
            self._config["callbacks"] = list(callbacks)
        self._checkpoints = checkpoints
        self._memory = RunMemory()
        if checkpoints is not None:
            graph.checkpointer = self._memory.saver

    @property
    def id(self) -> str:
        """The identifier in asks and sessions."""
        return self.settings.id

    @property
    def asks_people(self) -> bool:
        """Whether a run may wait for a person."""
        return self._checkpoints is not None

    @property
    def name(self) -> str:
        """The name in the chat page."""
        return self.settings.name

    def model_of(self, wanted: str | None, preferred: object = None, *, lenient: bool = False) -> str:
        """See `TurnAgent`."""
        return chosen_model(self._models, self.settings.model, wanted, preferred, lenient=lenient)

    def sees(self, model: str) -> bool:
        """See `TurnAgent`."""
        return model in self._seeing

    def expect_input(self, given: GraphInput) -> None:
        """See `TurnAgent`: it takes a question alone."""
        if (at := given.beyond_question) is not None:
            raise BadRequest(field=at)

    def open_graph(self, user_id: str) -> AbstractAsyncContextManager[Graph]:  # noqa: ARG002 - as of a hosted one
        """The graph, to look at."""
        return nullcontext(self._graph)

    def misses_state(self, session_id: str, history: Sequence[HistoryItem]) -> bool:  # noqa: ARG002 - of `TurnAgent`
        """False: what these graphs know of a session is its history."""
        return False

    async def run(self, run: AgentRun) -> AgentAnswer:
        """Run one turn, or the rest of one that waited. Cancelling it immediately closes the model's connection.

        Raises `TurnFailed`, or `Waiting` once a run that needs a person's answer has been stored.
        """
        if self._checkpoints is None:
            return self._answered(await self._invoke({"message": run.message}, self._config, run), run)
        thread = self._memory.thread()
        try:
            begin: Any = {"message": run.message}
            if run.resume is not None:
                begin = await self._memory.restore(thread, run.resume)
            state = await self._invoke(begin, {**self._config, **thread}, run, durability="exit")
            if asked := state.get("__interrupt__"):
                raise await self._kept(thread, run, [(one.id, one.value) for one in asked])
            return self._answered(state, run)
        finally:
            await self._memory.forget(thread)

    async def claim(self, session_id: str, run_id: str) -> SavedRun:
        """Claim a waiting run permanently. Raises `NotAwaiting` if none waits, or `HistoryUnavailable`."""
        saved = None
        if self._checkpoints is not None:
            with phase("checkpoint_take"):
                saved = await self._checkpoints.take(session_id, run_id)
        if saved is None:
            raise NotAwaiting
        return saved

    async def _invoke(self, begin: Any, config: RunnableConfig, run: AgentRun, **how: Any) -> dict[str, Any]:
        try:
            if self._straight is not None and not callbacks_configured():
                return await self._straight.run(begin, context=run, recursion_limit=self._recursion_limit)
            # Without stream modes: text goes through `run.emit`, which avoids the graph's 44 µs a token.
            ledger = current_ledger()
            with nullcontext() if ledger is None else ledger.name_gaps(GRAPH):
                state: dict[str, Any] = await self._graph.ainvoke(begin, config, context=run, **how)
        except GraphRecursionError as failure:
            raise TurnFailed("recursion limit") from failure
        return state

    async def _kept(self, thread: RunnableConfig, run: AgentRun, asked: Sequence[tuple[str, Any]]) -> Waiting:
        saved = await self._memory.saved(thread)
        payload = question_for(asked, saved.id)
        assert self._checkpoints is not None
        if run.kept:
            with phase("checkpoint_keep"):
                await self._checkpoints.keep(run.session_id, saved)
        return Waiting(payload)

    def _answered(self, state: dict[str, Any], run: AgentRun) -> AgentAnswer:
        answer = state.get("answer")
        if not isinstance(answer, AgentAnswer):
            raise TurnFailed(f"agent {self.id} left no answer")
        # A module of another's may know what they are for.
        return with_ignored(answer, run, *UNKNOWN) if self.settings.is_own else answer


@dataclass(frozen=True, slots=True)
class AgentClass:
    """A module from which agents can be created, with the `class_path` that names it, its tunable values, and the
    controls that the page shows for its first configured agent."""

    path: str
    module: ModuleType
    fields: tuple[FieldSpec, ...]
    chat_options: ChatOptions


@dataclass(frozen=True, slots=True)
class _Entry:
    """One agent of the catalog. `build` is of its module, `graph` what it hosts instead; it has neither where it is
    disabled. `straight` is whether its module is in `STRAIGHT`."""

    settings: AgentSettings
    digest: str
    build: Build | None = None
    interrupts: bool = False
    straight: bool = False
    restart: Restart = "never"
    uses_credentials: bool = True
    images: bool = False
    graph: LoadedGraph | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be asked."""
        return self.build is not None or self.graph is not None


class Catalog:
    """Maps configuration to agents. Graphs are compiled at first use, once per agent and configuration, at most
    `max_graphs` of them; `on_lookup` is called with whether each look-up was a hit.

    In addition to the configured agents it can have created ones; `put_created` replaces all of them while turns run.
    """

    def __init__(
        self,
        agents: Sequence[AgentSettings],
        kit: AgentKit,
        *,
        recursion_limit: int = 40,
        max_graphs: int = 1024,
        on_lookup: Callable[[bool], None] | None = None,
        checkpoints: Checkpoints | None = None,
        hosting: Hosting | None = None,
    ) -> None:
        """`checkpoints` is where runs wait for a person; without it a turn that would wait fails. `hosting` is what
        hosted graphs share; without it they keep no state.

        Raises `AgentUnusable` for an enabled agent whose module or graph cannot be found, or refuses its settings.
        """
        self._kit = kit
        self._recursion_limit = recursion_limit
        self._max_graphs = max_graphs
        self._on_lookup = on_lookup
        self._checkpoints = checkpoints
        self._hosting = hosting or Hosting()
        enabled = [agent for agent in agents if agent.enabled]
        modules = {agent.id: _module_of(agent) for agent in enabled if agent.graph is None}
        graphs = {agent.id: _graph_of(agent) for agent in enabled if agent.graph is not None}
        self._graphs = {(agent.graph, agent.graph_base): graphs[agent.id] for agent in enabled if agent.id in graphs}
        self._configured = {agent.id: _entry_of(agent, modules.get(agent.id), graphs.get(agent.id)) for agent in agents}
        self._made: dict[str, _Entry] = {}
        self._compiled: OrderedDict[tuple[str, str], Agent | HostedAgent] = OrderedDict()
        self.classes: Mapping[str, AgentClass] = _classes(agents, modules)

    def get(self, agent_id: str) -> Agent | HostedAgent:
        """The agent. Raises `AgentNotFound` if the id is unknown or the agent is disabled. Phase `agent_init`."""
        with phase("agent_init"):
            entry = self._entry(agent_id)
            if entry is None or not entry.usable:
                raise AgentNotFound
            key = (agent_id, entry.digest)
            agent = self._compiled.get(key)
            if self._on_lookup is not None:
                self._on_lookup(agent is not None)
            if agent is None:
                agent = self._compiled[key] = self._compile(entry)
                if len(self._compiled) > self._max_graphs:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(key)
            return agent

    def put_created(self, agents: Iterable[AgentSettings]) -> None:
        """Replace all created agents; running turns keep theirs.

        Agents with the id of a configured one are skipped. Raises `AgentUnusable` for one that `check` would refuse.
        """
        made = [agent for agent in agents if agent.id not in self._configured]
        self._made = {agent.id: self._made_of(agent) for agent in made}
        for key in [key for key in self._compiled if (entry := self._entry(key[0])) is None or entry.digest != key[1]]:
            del self._compiled[key]

    def check(self, agent: AgentSettings) -> None:
        """Raise `AgentUnusable` for an agent of no known class or graph, or one whose module refuses its settings."""
        if agent.graph is not None:
            self._loaded(agent)
            return
        module = self._class_of(agent).module
        _build_of(agent, module)
        _restart_of(agent, module)
        _check_taken(agent, module)

    def try_build(self, agent: AgentSettings) -> None:
        """Compile the agent's graph as a test, without keeping it. Raises `AgentUnusable` if it does not compile."""
        if agent.graph is not None:
            return  # it is there
        try:
            _build_of(agent, self._class_of(agent).module)(agent, self._kit.of(agent))
        except ValueError as failure:
            raise AgentUnusable(f"agent {agent.id}: {failure}") from failure

    def class_named(self, class_path: str | None, kind: str) -> AgentClass | None:
        """The class that a path names, found without an import. Without a path, the class of the built-in agent named
        `kind`, else the plain one."""
        if class_path is None:
            return self.classes[BUILT_IN.get(kind, plain).__name__]
        built_in = BUILT_IN.get(class_path.rpartition(".")[2])
        return self.classes.get(class_path if built_in is None else built_in.__name__)

    def class_of(self, agent_id: str) -> AgentClass | None:
        """The class of a configured agent; None if it is none, is disabled or hosts a graph."""
        entry = self._configured.get(agent_id)
        if entry is None or entry.build is None:
            return None
        return self.class_named(entry.settings.class_path or plain.__name__, entry.settings.type)

    def source_of(self, agent_id: str) -> AgentSettings | None:
        """The settings of a configured agent; None if it is none, or is disabled."""
        entry = self._configured.get(agent_id)
        return entry.settings if entry is not None and entry.usable else None

    def first_of_class(self, path: str | None) -> str | None:
        """The id of the first configured agent of a class; None if there is none."""
        return next((name for name in self._configured if (found := self.class_of(name)) and found.path == path), None)

    def graph(self, agent_id: str) -> HostedAgent | None:
        """The agent, if it is a hosted graph; None for any other, and where there is none."""
        try:
            agent = self.get(agent_id)
        except AgentNotFound:
            return None
        return agent if isinstance(agent, HostedAgent) else None

    def drawing(self, agent_id: str, user_id: str) -> Drawing:
        """What the agent's graph is made of, as a turn of this user would run it. Raises `AgentNotFound`."""
        entry, agent = self._entry(agent_id), self.get(agent_id)
        assert entry is not None
        if entry.graph is not None:
            return Drawing(partial(agent.open_graph, user_id))
        made_of = self.class_of(agent_id) or self.class_named(entry.settings.class_path, entry.settings.type)
        values = {spec.key: agent.settings.tuned(spec.key, spec.default) for spec in made_of.fields} if made_of else {}
        return Drawing(partial(agent.open_graph, user_id), taken=made_of.fields if made_of else (), values=values)

    @property
    def models(self) -> Collection[str]:
        """Ids of the configured models."""
        return self._kit.models

    def ids(self) -> Sequence[str]:
        """The agents that a client may ask for, in their order; `list` gives everything that clients see of each."""
        return [entry.settings.id for entry in self._entries() if entry.usable]

    def names(self) -> dict[str, str]:
        """What every agent is called, by its id; disabled ones are included."""
        return {entry.settings.id: entry.settings.name for entry in self._entries()}

    def __contains__(self, agent_id: object) -> bool:
        """Whether a client may ask for this agent."""
        entry = self._entry(agent_id)
        return entry is not None and entry.usable

    def is_configured(self, agent_id: str) -> bool:
        """Whether the agent comes from the configuration."""
        return agent_id in self._configured

    def settings_of(self, agent_id: str) -> AgentSettings | None:
        """The settings of any agent, or None."""
        entry = self._entry(agent_id)
        return None if entry is None else entry.settings

    def created_agent(self, agent_id: str) -> AgentSettings | None:
        """The created agent of that id, or None."""
        entry = self._made.get(agent_id)
        return None if entry is None else entry.settings

    def label(self, agent_id: str) -> str:
        """The agent's name in metrics: one of a closed set, the configured agents and two more."""
        if agent_id in self._made:
            return MADE_LABEL
        return agent_id if agent_id in self else "unknown"

    def wire(self, agent: AgentSettings) -> dict[str, Any]:
        """AgentSettings as sent to clients, with the models a turn may choose: id and label, the agent's own first."""
        models, seeing = self.labelled(self._kit.choices(agent)), self._seeing(agent)
        choices = [{**model, "vision": model["id"] in seeing} for model in models]
        return {**agent.model_dump(mode="json", exclude={"context"}), "model_choices": choices}

    def labelled(self, models: Iterable[str]) -> Sequence[dict[str, Any]]:
        """Configured models as sent to clients: id, title, description."""
        known = self._kit.models
        return [{"id": name, "title": known[name].title, "description": known[name].description} for name in models]

    def _seeing(self, agent: AgentSettings) -> Collection[str]:
        """Ids of the models to which the agent shows images."""
        if agent.graph is not None:
            return self.models if agent.images else ()
        entry = self._entry(agent.id)
        return self._kit.seeing if entry is not None and entry.images else ()

    def list(self) -> list[dict[str, Any]]:
        """Every agent as AgentSettings as sent to clients; disabled agents are included and marked."""
        return [self.wire(entry.settings) for entry in self._entries()]

    async def start(self) -> None:
        """Make the hosted graphs that are made on a loop, in the task that calls `aclose`. Raises `AgentUnusable`."""
        for entry in self._configured.values():
            if entry.graph is not None:
                try:
                    await entry.graph.start()
                except GraphUnusable as failure:
                    raise AgentUnusable(f"agent {entry.settings.id}: {failure}") from failure
        if any(entry.graph is not None for entry in self._configured.values()):
            logger.info("%d ChatOpenAI of graphs read their streams as plain JSON", read_streams_plainly())

    async def aclose(self) -> None:
        """Drop the graphs, and close what the builders of hosted ones opened. After the last turn."""
        self._compiled.clear()
        for entry in self._configured.values():
            if entry.graph is not None:
                await entry.graph.aclose()

    def _entry(self, agent_id: Any) -> _Entry | None:
        return self._configured.get(agent_id) or self._made.get(agent_id)

    def _entries(self) -> Sequence[_Entry]:
        return [*self._configured.values(), *self._made.values()]

    def _compile(self, entry: _Entry) -> Agent | HostedAgent:
        settings = entry.settings
        if entry.graph is not None:
            kit, models = self._kit.of(settings), self._kit.choices(settings)
            return HostedAgent(settings, entry.graph, kit, self._hosting, self._recursion_limit, models)
        assert entry.build is not None
        graph = entry.build(settings, self._kit.of(settings))
        checkpoints = self._checkpoints if entry.interrupts else None
        models = self._kit.choices(settings)
        if not entry.straight:
            logger.info("agent %s is run by LangGraph's engine", settings.id)
        return Agent(
            settings,
            graph,
            self._recursion_limit,
            checkpoints,
            models,
            straight=entry.straight,
            restart=entry.restart,
            uses_credentials=entry.uses_credentials,
            client_tools=settings.client_tools,
            seeing=self._seeing(settings),
            callbacks=self._hosting.callbacks,
        )

    def _made_of(self, agent: AgentSettings) -> _Entry:
        if agent.graph is not None:
            return _entry_of(agent, None, self._loaded(agent) if agent.enabled else None)
        return _entry_of(agent, self._class_of(agent).module)

    def _loaded(self, agent: AgentSettings) -> LoadedGraph:
        """The graph of a created agent: one that a configured agent has loaded, since nothing is imported for it."""
        found = self._graphs.get((agent.graph, agent.graph_base))
        if found is None:
            raise AgentUnusable(f"agent {agent.id}: graph: of no configured agent")
        return found

    def _class_of(self, agent: AgentSettings) -> AgentClass:
        found = self.classes.get(agent.class_path or "")
        if found is None:
            raise AgentUnusable(f"agent {agent.id}: class_path: no such class")
        return found


def _entry_of(settings: AgentSettings, module: ModuleType | None, graph: LoadedGraph | None = None) -> _Entry:
    digest = hashlib.sha256(dumps(settings.model_dump(mode="json"))).hexdigest()
    if graph is not None:
        _check_taken(settings, None)
        return _Entry(settings, digest, graph=graph)
    if module is None or not settings.enabled:
        return _Entry(settings, digest)
    _check_taken(settings, module)
    return _Entry(
        settings,
        digest,
        _build_of(settings, module),
        interrupts=getattr(module, "INTERRUPTS", False) is True,
        straight=module.__name__ in STRAIGHT,
        restart=_restart_of(settings, module),
        uses_credentials=getattr(module, "CREDENTIALS", True) is not False,
        images=getattr(module, "IMAGES", False) is True,
    )


def _classes(agents: Iterable[AgentSettings], modules: Mapping[str, ModuleType]) -> dict[str, AgentClass]:
    """The modules that are known without an import: those of the service, and those that the configuration names.

    The tunable fields are the module's `FIELDS`, else those that the first agent of that module lists.
    """
    named = [(agent, module) for agent in agents if (module := modules.get(agent.id)) is not None]
    options = {module.__name__: agent.chat_options for agent, module in reversed(named)}

    def class_of(path: str, module: ModuleType, fields: Sequence[FieldSpec]) -> AgentClass:
        shown = options.get(module.__name__, ChatOptions())
        return AgentClass(path, module, tuple(getattr(module, "FIELDS", fields)), shown)

    classes = {module.__name__: class_of(module.__name__, module, ()) for module in BUILT_IN.values()}
    for agent, module in named:
        if agent.class_path is not None:
            classes.setdefault(agent.class_path, class_of(agent.class_path, module, agent.tuning.fields))
    return classes


def _build_of(settings: AgentSettings, module: ModuleType) -> Build:
    """The agent's `build`. Without a class_path, that of a plain agent with the configured prompts.

    The path comes from the operator's file, which may name any module; a path that a client sent must never get here.
    """
    build = getattr(module, "build", None)
    if not callable(build):
        raise AgentUnusable(f"agent {settings.id}: module {module.__name__} has no build(settings, kit)")
    if (check := getattr(module, "check", None)) is not None:
        try:
            check(settings)
        except ValueError as failure:
            raise AgentUnusable(f"agent {settings.id}: {failure}") from failure
    return build  # type: ignore[no-any-return]


def _graph_of(settings: AgentSettings) -> LoadedGraph:
    try:
        return load_graph(settings.graph or "", base=settings.graph_base)
    except GraphUnusable as failure:
        raise AgentUnusable(f"agent {settings.id}: {failure}") from failure


def _restart_of(settings: AgentSettings, module: ModuleType) -> Restart:
    """What becomes of its turns that a kill cut off: as configured, else as the module declares, else nothing."""
    declared: Restart = getattr(module, "RESTART", "never")
    if declared not in get_args(Restart):
        raise AgentUnusable(f"agent {settings.id}: RESTART of module {module.__name__} is none of {get_args(Restart)}")
    restart = settings.restart or declared
    if restart == "from_checkpoint":
        # What waits for a person is a run that has ended: in the middle of one these graphs keep nothing.
        raise AgentUnusable(f"agent {settings.id}: restart: from_checkpoint needs a graph that keeps checkpoints")
    return restart


def _check_taken(settings: AgentSettings, module: ModuleType | None) -> None:
    """Raise for an agent that is to take functions of clients, or images, and whose module or graph does not."""
    if settings.client_tools and getattr(module, "CLIENT_TOOLS", False) is not True:
        what = "a graph" if module is None else f"module {module.__name__}"
        raise AgentUnusable(f"agent {settings.id}: client_tools: {what} does not take functions of clients")
    if settings.images and module is not None:
        raise AgentUnusable(f"agent {settings.id}: images: only of a hosted graph; a module declares IMAGES")


def _module_of(settings: AgentSettings) -> ModuleType:
    path = settings.class_path
    if path is None:
        return plain
    if (built_in := BUILT_IN.get(path.rpartition(".")[2])) is not None:
        return built_in
    try:
        return import_agent(path)
    except GraphUnusable as failure:
        raise AgentUnusable(f"agent {settings.id}: {failure}") from failure
