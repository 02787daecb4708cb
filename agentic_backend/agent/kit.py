"""What an agent's graph is built from, and what an agent module has to offer."""

from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.agent.toolbox import Toolbox
from agentic_backend.knowledge import KnowledgeClient
from agentic_backend.settings import AgentSettings

Graph = CompiledStateGraph[Any, AgentRun, AgentState, Any]
"""A compiled graph that is given an `AgentState` with `message` and the `AgentRun` as its context."""


@dataclass(frozen=True, slots=True)
class AgentKit:
    """The shared, user-less things that a graph may use. `knowledge` is None where no documents can be searched, and
    `toolbox` where no tool server is configured."""

    chat_model: BaseChatModel
    model_name: str
    knowledge: KnowledgeClient | None = None
    toolbox: Toolbox | None = None


class Build(Protocol):
    """`build(settings, kit)` of an agent module: compiles the agent's graph, once per configuration.

    Nodes read the turn from `runtime: Runtime[AgentRun]`, hand text out through `runtime.context.emit`, time their
    steps with `backend_kit.kpi.phase`, and one of them leaves an `AgentAnswer` under `answer`. The graph is compiled
    without a checkpointer and keeps nothing of a run.

    A module whose graph calls LangGraph's `interrupt` says `INTERRUPTS: Final = True`. Its state then holds plain
    values alone (texts, numbers, lists, dicts), since it is stored while a person is waited for, and what stands before
    the `interrupt` in its node runs twice.

    The module may also have a `check(settings)`, called at the start of the service: it raises ValueError, with a text
    that names the field, for a tunable value that `build` could not use.
    """

    def __call__(self, settings: AgentSettings, kit: AgentKit) -> Graph: ...
