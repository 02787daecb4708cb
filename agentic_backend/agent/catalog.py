"""The agents of the configuration, each with its graph compiled once."""

import hashlib
import importlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from agentic_backend.agent import plain, rag, tools
from agentic_backend.agent.interrupts import Checkpoints, RunMemory, SavedRun, Waiting, question_of
from agentic_backend.agent.kit import AgentKit, Build, Graph
from agentic_backend.agent.run import AgentAnswer, AgentRun
from agentic_backend.errors import AgentNotFound, NotAwaiting, TurnFailed
from agentic_backend.settings import AgentSettings
from backend_kit.kpi import phase
from backend_kit.wire import dumps

BUILT_IN: Final[dict[str, ModuleType]] = {"Georges": plain, "Rico": rag, "Sammy": tools}
"""Modules of agents that come with the service, by the last part of their `class_path`."""


class AgentUnusable(ValueError):
    """An agent's `class_path` leads to no agent module, or that cannot use a tunable value. The text names the agent
    and the path or field."""


class Agent:
    """One agent, ready to run turns of any session. Holds a compiled graph and nothing of a user."""

    def __init__(
        self, settings: AgentSettings, graph: Graph, recursion_limit: int, checkpoints: Checkpoints | None = None
    ) -> None:
        """With `checkpoints` the agent may interrupt itself to ask a person."""
        self.settings = settings
        self._graph = graph
        self._config: RunnableConfig = {"recursion_limit": recursion_limit}
        self._checkpoints = checkpoints
        self._memory = RunMemory()
        if checkpoints is not None:
            graph.checkpointer = self._memory.saver

    @property
    def id(self) -> str:
        """The identifier in asks and sessions."""
        return self.settings.id

    @property
    def name(self) -> str:
        """The name in the chat page."""
        return self.settings.name

    async def run(self, run: AgentRun) -> AgentAnswer:
        """Run one turn, or the rest of one that waited. Cancelling it closes the model's connection at once.

        Raises `TurnFailed`, or `Waiting` once a run that a person has to answer to is stored.
        """
        if self._checkpoints is None:
            return self._answered(await self._invoke({"message": run.message}, self._config, run))
        thread = self._memory.thread()
        try:
            begin: Any = {"message": run.message}
            if run.resume is not None:
                begin = await self._memory.restore(thread, run.resume)
            state = await self._invoke(begin, {**self._config, **thread}, run, durability="exit")
            if asked := state.get("__interrupt__"):
                raise await self._kept(thread, run, asked[0].value)
            return self._answered(state)
        finally:
            await self._memory.forget(thread)

    async def claim(self, session_id: str, run_id: str) -> SavedRun:
        """Take over a run that waits, for good. Raises `NotAwaiting` where none does, or `HistoryUnavailable`."""
        saved = None
        if self._checkpoints is not None:
            with phase("checkpoint_take"):
                saved = await self._checkpoints.take(session_id, run_id)
        if saved is None:
            raise NotAwaiting
        return saved

    async def _invoke(self, begin: Any, config: RunnableConfig, run: AgentRun, **how: Any) -> dict[str, Any]:
        try:
            # Without stream modes: text goes through `run.emit`, at none of the graph's 44 µs a token.
            state: dict[str, Any] = await self._graph.ainvoke(begin, config, context=run, **how)
        except GraphRecursionError as failure:
            raise TurnFailed("recursion limit") from failure
        return state

    async def _kept(self, thread: RunnableConfig, run: AgentRun, asked: Any) -> Waiting:
        saved = await self._memory.saved(thread)
        payload = question_of(asked, saved.id)
        assert self._checkpoints is not None
        with phase("checkpoint_keep"):
            await self._checkpoints.keep(run.session_id, saved)
        return Waiting(payload)

    def _answered(self, state: dict[str, Any]) -> AgentAnswer:
        answer = state.get("answer")
        if not isinstance(answer, AgentAnswer):
            raise TurnFailed(f"agent {self.id} left no answer")
        return answer


class Catalog:
    """Configuration to agents. Graphs are compiled at first use, once per agent and configuration, at most
    `max_graphs` of them; `on_lookup` is told of each look-up whether it was a hit."""

    def __init__(
        self,
        agents: Sequence[AgentSettings],
        kit: AgentKit,
        *,
        recursion_limit: int = 40,
        max_graphs: int = 1024,
        on_lookup: Callable[[bool], None] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """`checkpoints` is where runs wait for a person; without it a turn that would wait fails.

        Raises `AgentUnusable` for an enabled agent whose module cannot be found or refuses its settings.
        """
        self._kit = kit
        self._recursion_limit = recursion_limit
        self._max_graphs = max_graphs
        self._on_lookup = on_lookup
        self._checkpoints = checkpoints
        self._settings = {agent.id: (agent, _digest(agent)) for agent in agents}
        modules = {agent.id: _module_of(agent) for agent in agents if agent.enabled}
        self._builds = {agent.id: _build_of(agent, modules[agent.id]) for agent in agents if agent.enabled}
        self._interrupting = {agent_id for agent_id, module in modules.items() if _interrupts(module)}
        self._compiled: OrderedDict[tuple[str, str], Agent] = OrderedDict()

    def get(self, agent_id: str) -> Agent:
        """The agent. Raises `AgentNotFound` where there is none of that id or it is disabled. Phase `agent_init`."""
        with phase("agent_init"):
            build = self._builds.get(agent_id)
            if build is None:
                raise AgentNotFound
            settings, digest = self._settings[agent_id]
            agent = self._compiled.get((agent_id, digest))
            if self._on_lookup is not None:
                self._on_lookup(agent is not None)
            if agent is None:
                checkpoints = self._checkpoints if agent_id in self._interrupting else None
                agent = Agent(settings, build(settings, self._kit), self._recursion_limit, checkpoints)
                self._compiled[agent_id, digest] = agent
                if len(self._compiled) > self._max_graphs:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end((agent_id, digest))
            return agent

    def default_id(self) -> str | None:
        """The agent of a session that names none: the first that is enabled."""
        return next(iter(self._builds), None)

    def __contains__(self, agent_id: object) -> bool:
        """Whether an ask may name this agent."""
        return agent_id in self._builds

    def list(self) -> list[dict[str, Any]]:
        """Every configured agent as AgentSettings of the wire, disabled ones included and marked."""
        return [settings.model_dump(mode="json") for settings, _ in self._settings.values()]

    async def aclose(self) -> None:
        """Forget the graphs. Turns that run keep theirs."""
        self._compiled.clear()


def _digest(settings: AgentSettings) -> str:
    return hashlib.sha256(dumps(settings.model_dump(mode="json"))).hexdigest()


def _interrupts(module: ModuleType) -> bool:
    return getattr(module, "INTERRUPTS", False) is True


def _build_of(settings: AgentSettings, module: ModuleType) -> Build:
    """The agent's `build`. Without a class_path it is a plain agent with prompts of its own.

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


def _module_of(settings: AgentSettings) -> ModuleType:
    path = settings.class_path
    if path is None:
        return plain
    if (built_in := BUILT_IN.get(path.rpartition(".")[2])) is not None:
        return built_in
    try:
        return importlib.import_module(path)
    except (ImportError, ValueError, TypeError) as failure:
        raise AgentUnusable(f"agent {settings.id}: class_path {path} cannot be imported") from failure
