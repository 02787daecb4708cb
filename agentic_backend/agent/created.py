"""Agents that are created over REST: validated, kept in a store, and added to the catalog."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from pydantic import ValidationError

from agentic_backend.agent.catalog import AgentClass, AgentUnusable, Catalog
from agentic_backend.agent.fields import checked
from agentic_backend.agent.versions import AgentVersion, VersionChange, VersionedSettings
from agentic_backend.errors import AgentNotFound, AgentRefused, Conflict, HistoryUnavailable, TooLarge
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec
from backend_kit.auth import Actor, AuditAction, AuditEvent
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024
"""Size limit of one agent as JSON: every `GET /agents` repeats it."""
LOOK_EVERY_S: Final = 5.0
_FIRST_LOOK_S: Final = 0.1


_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class KeptAgent:
    """An agent as it is stored; `payload` is its AgentSettings as JSON.

    `version` is the one in force, None for an agent that was made without; `newest` is the highest number of any.
    """

    id: str
    name: str
    payload: Mapping[str, Any]
    version: AgentVersion | None = None
    newest: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None


class AgentStore(Protocol):
    """Where created agents are kept, for all instances. Every method may raise `HistoryUnavailable`."""

    async def revision(self) -> str:
        """A text that differs after each change of any agent."""

    async def all(self) -> list[KeptAgent]:
        """All of them, by name."""

    async def create(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """Store a new agent, which its maker may share, its version and the event with it. False if its name or its id
        is taken."""

    async def update(self, agent: KeptAgent, event: AuditEvent, versions: Sequence[AgentVersion] = ()) -> bool:
        """Replace an agent whose newest change was at `agent.updated_at`, store the event, and add versions. False if
        it was changed since or no longer exists, or another agent has its name."""

    async def versions(self, agent_id: str) -> list[AgentVersion]:
        """The versions of an agent, the newest first."""

    async def delete(self, agent_id: str, event: AuditEvent) -> bool:
        """Delete an agent, and store the event. False if it does not exist."""


class CreatedAgents:
    """Keeps a catalog in line with the store. A change made here is in the catalog immediately, one made by another
    instance within 5 s, when the store is next read."""

    def __init__(self, catalog: Catalog, store: AgentStore, *, most: int, mcp_servers: Collection[str] = ()) -> None:
        """`most` may be kept; `mcp_servers` are the ids that an agent may name."""
        self._catalog = catalog
        self._versioned = VersionedSettings(catalog)
        self._store = store
        self._most = most
        self._mcp_servers = mcp_servers
        self._revision: str | None = None
        self._kept: dict[str, KeptAgent] = {}
        self._looking = asyncio.Lock()
        self._loaded = asyncio.Event()

    @property
    def mcp_servers(self) -> Collection[str]:
        """Ids of the servers that an agent may name."""
        return self._mcp_servers

    @property
    def loaded(self) -> bool:
        """Whether the store has been read once."""
        return self._loaded.is_set()

    async def wait_loaded(self) -> None:
        """Wait until the store has been read once."""
        await self._loaded.wait()

    async def follow_changes(self) -> None:
        """Look for changes until cancelled. While the store is unavailable the agents stay as they are."""
        while True:
            with suppress(HistoryUnavailable):
                await self._look()
            await asyncio.sleep(LOOK_EVERY_S if self.loaded else _FIRST_LOOK_S)

    async def create(self, name: str, kind: str, class_path: str | None, by: Actor) -> AgentSettings:
        """A new agent of a known class with the class's own values. Raises `AgentRefused` or `Conflict`."""
        await self._look()
        if len(self._kept) >= self._most:
            raise AgentRefused(f"There are {self._most} agents already.")
        made_of = self._class_of(class_path, kind)
        agent = AgentSettings(
            id=secrets.token_urlsafe(8),
            name=name,
            type=kind,
            class_path=made_of.path,
            tuning=AgentTuning(fields=made_of.fields),
            chat_options=made_of.chat_options,
        )
        event = AuditEvent.by(by, AuditAction.AGENT_CREATED, "agent", agent.id)
        if not await self._store.create(self._checked(agent), event):
            raise Conflict
        await self._look()
        return agent

    async def update(self, agent: AgentSettings, by: Actor) -> AgentSettings:
        """Replace a created agent. Of its fields only the values are taken; the rest comes from the class. What it has
        of versions gets one more.

        Raises `AgentNotFound`, `AgentRefused`, `Conflict` or `TooLarge`.
        """

        def change(kept: KeptAgent, known: AgentSettings) -> _Change:
            before, number = kept.version, kept.newest + 1
            if known.graph is not None and before is not None:
                graph, context = kept.payload["graph"], kept.payload["context"]
                changed = agent.model_copy(update={"graph": graph, "class_path": None, "context": context})
            else:
                made_of = self._class_of(agent.class_path or known.class_path, agent.type)
                values = {field.key: field.default for field in agent.tuning.fields}
                if strange := values.keys() - {field.key for field in made_of.fields}:
                    raise AgentRefused(f"{min(strange)} is no field of this kind of agent.", field="tuning.fields")
                changed = _of_class(agent, made_of)
            if before is None:
                return _Change(changed, None)
            return _Change(changed, self._versioned.changed(replace(before, number=number, created_at=None), changed))

        return await self._replace(agent.id, change, by)

    async def make_version(self, change: VersionChange, agent_id: str | None, name: str, by: Actor) -> str:
        """A new agent by its first version; its id, which may be given. `name` is for one that the change gives none.

        Raises `AgentNotFound` for a `graph_id` of no configured agent, `AgentRefused`, `Conflict` or `TooLarge`.
        """
        await self._look()
        if len(self._kept) >= self._most:
            raise AgentRefused(f"There are {self._most} agents already.")
        agent_id = agent_id or secrets.token_urlsafe(8)
        if agent_id in self._catalog.names() or self.kept(agent_id) is not None:
            raise Conflict(field="assistant_id")
        version = change.of(AgentVersion(0, "", name), 1)
        agent = self._versioned.settings(agent_id, version, None, await self._declared(version, by))
        kept = replace(self._checked(self._valued(agent), version), version=version)
        event = AuditEvent.by(by, AuditAction.AGENT_CREATED, "agent", agent_id)
        if not await self._store.create(kept, event):
            raise Conflict
        await self._look()
        return agent_id

    async def add_version(self, agent_id: str, change: VersionChange, by: Actor) -> None:
        """Change a created agent, which adds a version. Raises `AgentNotFound`, also for it, and as `make_version`."""
        await self._look()
        begun = self.kept(agent_id)
        if begun is None:
            raise AgentNotFound
        declared = await self._declared(change.of(self.version_of(begun), 0), by)

        def make(kept: KeptAgent, known: AgentSettings) -> _Change:
            first = self.version_of(kept)
            version = change.of(first, max(kept.newest, 1) + 1)
            before = _before(kept, known) if version.graph_id == first.graph_id else None
            agent = self._versioned.settings(agent_id, version, before, declared)
            return _Change(agent, version, first if kept.version is None else None)

        await self._replace(agent_id, make, by)

    async def set_version(self, agent_id: str, number: int, by: Actor) -> None:
        """Let a version of a created agent be in force.

        Raises `AgentNotFound`, also for an unknown version, or as `make_version` where it does not fit any more."""
        await self._look()
        found = [one for one in await self.versions(agent_id) if one.number == number]
        if not found:
            raise AgentNotFound(field="version")
        declared = await self._declared(found[0], by)

        def make(kept: KeptAgent, known: AgentSettings) -> _Change:
            before = _before(kept, known) if found[0].graph_id == self.version_of(kept).graph_id else None
            return _Change(self._versioned.settings(agent_id, found[0], before, declared), found[0])

        await self._replace(agent_id, make, by)

    async def versions(self, agent_id: str) -> list[AgentVersion]:
        """The versions of a created agent, the newest first. Raises `AgentNotFound`."""
        kept = self.kept(agent_id)
        if kept is None:
            raise AgentNotFound
        return await self._store.versions(agent_id) if kept.version is not None else [self.version_of(kept)]

    def kept(self, agent_id: str) -> KeptAgent | None:
        """A created agent as it is stored."""
        return self._kept.get(agent_id)

    def version_of(self, kept: KeptAgent) -> AgentVersion:
        """The version of a created agent that is in force. Raises `AgentNotFound` where it does not run here."""
        if kept.version is not None:
            return kept.version
        agent = self._catalog.created_agent(kept.id)
        if agent is None:
            raise AgentNotFound
        return self._versioned.first(agent, kept.created_at or datetime.now(UTC))

    def made_of(self, agent_id: str) -> str:
        """The configured agent of which a created one was made; the agent itself for any other."""
        kept = self.kept(agent_id)
        if kept is None or (kept.version is None and self._catalog.created_agent(agent_id) is None):
            return agent_id
        return self.version_of(kept).graph_id

    async def delete(self, agent_id: str, by: Actor) -> None:
        """Delete an agent; its running turns finish normally. Raises `AgentNotFound`."""
        gone = not await self._store.delete(agent_id, AuditEvent.by(by, AuditAction.AGENT_DELETED, "agent", agent_id))
        await self._look()
        if gone:
            raise AgentNotFound

    async def _replace(
        self, agent_id: str, make: Callable[[KeptAgent, AgentSettings], "_Change"], by: Actor
    ) -> AgentSettings:
        """Store what `make` makes of a created agent, again where somebody else has changed it meanwhile."""
        for _attempt in range(_ATTEMPTS):
            await self._look()
            kept, known = self.kept(agent_id), self._catalog.created_agent(agent_id)
            if kept is None or known is None:
                raise AgentNotFound
            change = make(kept, known)
            agent = self._valued(change.agent)
            stored = self._checked(agent, change.version)
            stored = replace(stored, version=change.version, updated_at=kept.updated_at)
            versions = [one for one in (change.first, change.version) if one is not None]
            event = AuditEvent.by(by, AuditAction.AGENT_CHANGED, "agent", agent_id)
            if await self._store.update(stored, event, versions):
                await self._look()
                return self._catalog.created_agent(agent_id) or agent
        raise Conflict

    def _valued(self, agent: AgentSettings) -> AgentSettings:
        """The agent with the fields of its class, where it has one. Raises `AgentRefused`."""
        return agent if agent.graph is not None else _of_class(agent, self._class_of(agent.class_path, agent.type))

    async def _declared(self, version: AgentVersion, by: Actor) -> Collection[str] | None:
        """The names that the context of a hosted graph has, None where nobody has declared any."""
        if not self._versioned.hosts(version.graph_id):
            return None
        return await self._catalog.drawing(version.graph_id, by.uid).takes()

    async def _look(self) -> None:
        """Bring the catalog in line with the store."""
        async with self._looking:
            revision = await self._store.revision()
            if revision == self._revision:
                return
            # The agents may be newer than the revision that was read before them: the next look then reads them again.
            self._kept = {kept.id: kept for kept in await self._store.all()}
            self._catalog.put_created(
                [agent for kept in self._kept.values() if (agent := self._usable(kept)) is not None]
            )
            self._revision = revision
            self._loaded.set()

    def _usable(self, kept: KeptAgent) -> AgentSettings | None:
        """The agent as this instance runs it, or None if it does not fit this instance's configuration."""
        try:
            agent = AgentSettings.model_validate_json(dumps(kept.payload))
            if agent.graph is not None:
                agent = self._versioned.running(agent, kept.version)
            agent = self._valued(agent)
            self._expect_known(agent)
            self._catalog.check(agent)
        except (ValidationError, AgentRefused, AgentUnusable):
            logger.warning("the agent %s of the store does not fit this configuration: left out", kept.id)
            return None
        return agent

    def _checked(self, agent: AgentSettings, version: AgentVersion | None = None) -> KeptAgent:
        """The stored form of an agent that can run."""
        self._expect_known(agent)
        if any(kept.name == agent.name and kept.id != agent.id for kept in self._kept.values()) or any(
            one["name"] == agent.name and one["id"] != agent.id for one in self._catalog.list()
        ):
            raise Conflict(field="name")
        payload = agent.model_dump(mode="json")
        if len(dumps(payload)) > MAX_BYTES:
            raise TooLarge
        runs = agent if agent.graph is None else self._versioned.running(agent, version)
        try:
            self._catalog.check(runs)
            self._catalog.try_build(runs)
        except AgentUnusable:
            raise AgentRefused("No agent can be made with these values.") from None
        return KeptAgent(agent.id, agent.name, payload)

    def _expect_known(self, agent: AgentSettings) -> None:
        if (where := agent.unknown_model(self._catalog.models)) is not None:
            raise AgentRefused(f"{where} names a model that is not configured.", field=where)
        if not {server.id for server in agent.tuning.mcp_servers}.issubset(self._mcp_servers):
            raise AgentRefused("mcp_servers names a server that is not configured.", field="tuning.mcp_servers")

    def _class_of(self, class_path: str | None, kind: str) -> AgentClass:
        found = self._catalog.class_named(class_path, kind)
        if found is None:
            raise AgentRefused("class_path names no agent of this service.", field="class_path")
        return found


@dataclass(frozen=True, slots=True)
class _Change:
    """An agent as it is to be stored, with the version that is in force then, and where it had none before, its
    first."""

    agent: AgentSettings
    version: AgentVersion | None
    first: AgentVersion | None = None


def _before(kept: KeptAgent, known: AgentSettings) -> AgentSettings:
    """A created agent's own settings: where it is one of a graph, those that run have more."""
    return AgentSettings.model_validate_json(dumps(kept.payload)) if known.graph is not None else known


def _of_class(agent: AgentSettings, made_of: AgentClass) -> AgentSettings:
    """The agent with the fields of its class, filled with its own values. Raises `AgentRefused` for a value that is
    not allowed."""
    values = {field.key: field.default for field in agent.tuning.fields}
    fields = tuple(_with(spec, _allowed(spec, values.get(spec.key))) for spec in made_of.fields)
    tuning = agent.tuning.model_copy(update={"fields": fields})
    # Never a graph: what it names would be imported, and this agent comes from a client.
    return agent.model_copy(update={"class_path": made_of.path, "graph": None, "tuning": tuning})


def _allowed(spec: FieldSpec, value: Any) -> Any:
    try:
        return checked(spec, value)
    except ValueError as refused:
        raise AgentRefused(f"{refused}.", field=f"tuning.fields.{spec.key}") from None


def _with(spec: FieldSpec, value: Any) -> FieldSpec:
    return spec if value is None else spec.model_copy(update={"default": value})
