"""What an agent's graph is built from, and what an agent module must provide."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import langchain_core.tracers.context
import langchain_core.tracers.stdout  # noqa: F401 - as the line above: the first run of a graph would load them
from langchain_core.language_models import BaseChatModel
from langgraph.graph.state import CompiledStateGraph

from agentic_backend.agent.run import AgentRun, AgentState
from agentic_backend.agent.toolbox import Toolbox
from agentic_backend.knowledge import KnowledgeClient
from agentic_backend.settings import ANY_MODEL, AgentSettings

Graph = CompiledStateGraph[Any, AgentRun, AgentState, Any]
"""A compiled graph that is given an `AgentState` with `message` and the `AgentRun` as its context."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A chat model. `name` is used if its endpoint does not report one; `title` is its label for people, and
    `description` says what it is good for. With `vision` it takes images."""

    chat_model: BaseChatModel
    name: str
    title: str = ""
    description: str = ""
    vision: bool = False


@dataclass(frozen=True, slots=True)
class AgentKit:
    """The shared parts that a graph may use; none belongs to a user. `knowledge` is None if no documents can be
    searched, `toolbox` if no tool server is configured.

    `chat_model` is the agent's own model. A node that answers uses `model_for(run)`, since a turn may have chosen
    another of `models`, which has all configured models by id.
    """

    chat_model: BaseChatModel
    model_name: str
    knowledge: KnowledgeClient | None = None
    toolbox: Toolbox | None = None
    models: Mapping[str, NamedModel] = field(default_factory=dict)

    def model_for(self, run: AgentRun) -> NamedModel:
        """The model of this turn."""
        chosen = self.models.get(run.model) if run.model is not None else None
        return chosen or NamedModel(self.chat_model, self.model_name)

    @property
    def seeing(self) -> frozenset[str]:
        """Ids of the models that take images."""
        return frozenset(name for name, model in self.models.items() if model.vision)

    def choices(self, settings: AgentSettings) -> tuple[str, ...]:
        """Ids of the models that a turn of the agent may have, its own first."""
        further = self.models if ANY_MODEL in settings.further_models else settings.further_models
        wanted = dict.fromkeys((settings.model, *further))
        return tuple(name for name in wanted if name in self.models)

    def of(self, settings: AgentSettings) -> "AgentKit":
        """The kit with the agent's own model instead of the default one."""
        own = self.models.get(settings.model)
        return self if own is None else replace(self, chat_model=own.chat_model, model_name=own.name)


class Build(Protocol):
    """`build(settings, kit)` of an agent module: compiles the agent's graph, once per configuration.

    Nodes read the turn from `runtime: Runtime[AgentRun]`, emit text through `runtime.context.emit`, time their
    steps with `backend_kit.kpi.phase`, and one of them leaves an `AgentAnswer` under `answer`. The graph is compiled
    without a checkpointer and keeps nothing of a run.

    A module whose graph calls LangGraph's `interrupt` declares `INTERRUPTS: Final = True`. Its state must then consist
    of plain values (texts, numbers, lists, dicts), since it is stored while the run waits for a person, and the code
    before the `interrupt` in its node runs twice.

    A module whose turns may be run again after a kill of the service declares `RESTART: Final = "from_question"`: no
    node does what must not be done twice. It declares `CREDENTIALS: Final = False` too if no node uses
    `run.credentials`: with authentication on, only such a turn runs again before its user asks.

    A module that shows its model the images of questions, `run.images` and those of `run.history` (a `Prompt` has
    both), declares `IMAGES: Final = True`; to any other a question with images is refused.

    The module may also have a `check(settings)`, called at the start of the service: it raises ValueError, with a text
    that names the field, for a tunable value that `build` could not use.
    """

    def __call__(self, settings: AgentSettings, kit: AgentKit) -> Graph: ...
