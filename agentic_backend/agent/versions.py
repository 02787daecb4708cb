"""Versions of agents that are made over LangGraph's API: what a client says of one, and the agent that it makes.

A version names a configured agent, its `graph_id`, and values that it changes, its `context`. Where that agent has a
class, they are values of the class's tunable fields; where it hosts a graph, they go to the graph with each turn.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from agentic_backend.agent.catalog import AgentClass, Catalog
from agentic_backend.errors import AgentNotFound, AgentRefused
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec

MAX_VERSIONS: Final = 100
"""Versions of one agent; beyond that the oldest are deleted."""
_OWN_NAMES: Final = frozenset(
    {
        "user_id",
        "session_id",
        "model",
        "language",
        "thread_id",
        "run_id",
        "checkpoint_id",
        "checkpoint_map",
        "checkpoint_ns",
    }
)
_OWN_BEGINNINGS: Final = ("__", "langgraph_")


@dataclass(frozen=True, slots=True)
class AgentVersion:
    """One version. `config` is as the client gave it, with the values of `context` in `configurable`."""

    number: int
    graph_id: str
    name: str
    description: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    """None until it is stored."""


@dataclass(frozen=True, slots=True)
class VersionChange:
    """What a client says of a new version; None: as it was. `metadata` is merged into what is there."""

    graph_id: str | None = None
    name: str | None = None
    description: str | None = None
    config: Mapping[str, Any] | None = None
    context: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None

    def of(self, before: AgentVersion, number: int) -> AgentVersion:
        """The version that it makes of an earlier one."""
        same_values = self.config is None and self.context is None
        return AgentVersion(
            number,
            before.graph_id if self.graph_id is None else self.graph_id,
            before.name if self.name is None else self.name,
            before.description if self.description is None else self.description,
            before.config if same_values else self.config or {},
            before.context if same_values else self.context or {},
            {**before.metadata, **(self.metadata or {})},
        )


class VersionedSettings:
    """Makes settings of versions, and the reverse, by the agents of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def settings(
        self,
        agent_id: str,
        version: AgentVersion,
        before: AgentSettings | None,
        declared: Collection[str] | None = None,
    ) -> AgentSettings:
        """The agent as it is stored. What a version does not say stays as it was `before`; where it is new, or was made
        of another agent, it is as that of the configured one. `declared` are the names that a hosted graph's context
        has.

        Raises `AgentNotFound` or `AgentRefused`.
        """
        source = self._source(agent_id, version, before)
        made_of = self._class(version.graph_id, source)
        if made_of is None:
            _check_names(version.context, declared)
            parts: dict[str, Any] = {"context": dict(version.context), "tuning": AgentTuning()}
        else:
            if strange := version.context.keys() - {spec.key for spec in made_of.fields}:
                raise AgentRefused(f"{min(strange)} is no field of this kind of agent.", field="context")
            values = {**self._values(made_of, version.graph_id), **version.context}
            fields = tuple(FieldSpec(key=key, default=value) for key, value in values.items())
            parts = {"class_path": made_of.path, "tuning": AgentTuning(fields=fields)}
        kept = source if before is None else before.model_copy(update={"graph": source.graph})
        tuning = kept.tuning.model_copy(
            update={"fields": parts["tuning"].fields, "description": version.description or ""}
        )
        return kept.model_copy(update={**parts, "id": agent_id, "name": version.name, "tuning": tuning})

    def running(self, stored: AgentSettings, version: AgentVersion | None) -> AgentSettings:
        """A stored agent of a graph with what the configured agent says of how it runs. Raises `AgentRefused`."""
        source = None if version is None else self._catalog.source_of(version.graph_id)
        if source is None or source.graph is None:
            raise AgentRefused("graph_id names no agent of a graph.", field="graph_id")
        own = ("id", "name", "enabled", "model", "further_models", "starters", "tuning", "chat_options")
        update: dict[str, Any] = {key: getattr(stored, key) for key in own}
        return source.model_copy(update={**update, "context": {**source.context, **stored.context}})

    def first(self, agent: AgentSettings, at: datetime) -> AgentVersion:
        """The first version of an agent that was made without one."""
        graph_id = self._catalog.first_of_class(agent.class_path) or agent.id
        return self.changed(AgentVersion(1, graph_id, agent.name, created_at=at), agent)

    def changed(self, version: AgentVersion, agent: AgentSettings) -> AgentVersion:
        """The version with an agent's name, description and values, after it was changed otherwise."""
        version = replace(version, name=agent.name, description=agent.tuning.description or None)
        made_of = None if agent.graph is not None else self._catalog.class_named(agent.class_path, agent.type)
        if made_of is None:
            return version
        found = self._catalog.class_of(version.graph_id)
        if found is None or found.path != made_of.path:
            version = replace(version, graph_id=self._catalog.first_of_class(made_of.path) or agent.id)
        begun = self._values(made_of, version.graph_id)
        values = {spec.key: spec.default for spec in agent.tuning.fields if spec.default != begun.get(spec.key)}
        config = {key: value for key, value in version.config.items() if key != "configurable"}
        return replace(version, context=values, config=config | ({"configurable": values} if values else {}))

    def hosts(self, graph_id: str) -> bool:
        """Whether this is a configured agent of a graph."""
        source = self._catalog.source_of(graph_id)
        return source is not None and source.graph is not None

    def _source(self, agent_id: str, version: AgentVersion, before: AgentSettings | None) -> AgentSettings:
        """The configured agent that a version names, or the agent itself: no configured one has its class."""
        found = self._catalog.source_of(version.graph_id)
        if found is None and version.graph_id == agent_id:
            found = before
        if found is None:
            raise AgentNotFound(field="graph_id")
        return found

    def _class(self, graph_id: str, source: AgentSettings) -> AgentClass | None:
        """The class of a configured agent, or of one that stands for itself; None for one of a graph."""
        if source.graph is not None:
            return None
        found = self._catalog.class_of(graph_id) or self._catalog.class_named(source.class_path, source.type)
        if found is None:
            raise AgentRefused("graph_id names an agent of which none can be made.", field="graph_id")
        return found

    def _values(self, made_of: AgentClass, graph_id: str) -> dict[str, Any]:
        """The values with which agents of a configured one begin: its own, else those of the class."""
        source = self._catalog.source_of(graph_id)
        if source is None:
            return {spec.key: spec.default for spec in made_of.fields}
        return {spec.key: source.tuned(spec.key, spec.default) for spec in made_of.fields}


def _check_names(context: Mapping[str, Any], declared: Collection[str] | None) -> None:
    for name in context:
        if name in _OWN_NAMES or name.startswith(_OWN_BEGINNINGS):
            raise AgentRefused(f"{name} is set by the service.", field="context")
        if declared is not None and name not in declared:
            raise AgentRefused(f"{name} is not in the context of this graph.", field="context")
