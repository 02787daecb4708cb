"""Agents that are created over REST: validated, kept in a store, and added to the catalog."""

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import ValidationError

from agentic_backend.agent.catalog import AgentClass, AgentUnusable, Catalog
from agentic_backend.agent.fields import checked
from agentic_backend.errors import AgentNotFound, AgentRefused, Conflict, HistoryUnavailable, TooLarge
from agentic_backend.settings import AgentSettings, AgentTuning, FieldSpec
from backend_kit.auth import Actor, AuditAction, AuditEvent
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * 1024
"""Size limit of one agent as JSON: every `GET /agents` repeats it."""
LOOK_EVERY_S: Final = 5.0
_FIRST_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class KeptAgent:
    """An agent as it is stored; `payload` is its AgentSettings as JSON."""

    id: str
    name: str
    payload: Mapping[str, Any]


class AgentStore(Protocol):
    """Where created agents are kept, for all instances. Every method may raise `HistoryUnavailable`."""

    async def revision(self) -> str:
        """A text that differs after each change of any agent."""

    async def all(self) -> list[KeptAgent]:
        """All of them, by name."""

    async def create(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """Store a new agent, which its maker may share, and the event with it. False if its name is taken."""

    async def update(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """Replace an agent, and store the event. False if it no longer exists or another agent has its name."""

    async def delete(self, agent_id: str, event: AuditEvent) -> bool:
        """Delete an agent, and store the event. False if it does not exist."""


class CreatedAgents:
    """Keeps a catalog in line with the store. A change made here is in the catalog immediately, one made by another
    instance within 5 s, when the store is next read."""

    def __init__(self, catalog: Catalog, store: AgentStore, *, most: int, mcp_servers: Collection[str] = ()) -> None:
        """`most` may be kept; `mcp_servers` are the ids that an agent may name."""
        self._catalog = catalog
        self._store = store
        self._most = most
        self._mcp_servers = mcp_servers
        self._revision: str | None = None
        self._kept: list[KeptAgent] = []
        self._looking = asyncio.Lock()
        self._loaded = asyncio.Event()

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
        """Replace a created agent. Of its fields only the values are taken; the rest comes from the class.

        Raises `AgentNotFound`, `AgentRefused`, `Conflict` or `TooLarge`.
        """
        await self._look()
        known = self._catalog.created_agent(agent.id)
        if known is None:
            raise AgentNotFound
        made_of = self._class_of(agent.class_path or known.class_path, agent.type)
        values = {field.key: field.default for field in agent.tuning.fields}
        if strange := values.keys() - {field.key for field in made_of.fields}:
            raise AgentRefused(f"{min(strange)} is no field of this kind of agent.")
        changed = _of_class(agent, made_of)
        event = AuditEvent.by(by, AuditAction.AGENT_CHANGED, "agent", agent.id)
        if not await self._store.update(self._checked(changed), event):
            await self._look()
            raise Conflict if self._catalog.created_agent(agent.id) is not None else AgentNotFound
        await self._look()
        return changed

    async def delete(self, agent_id: str, by: Actor) -> None:
        """Delete an agent; its running turns finish normally. Raises `AgentNotFound`."""
        gone = not await self._store.delete(agent_id, AuditEvent.by(by, AuditAction.AGENT_DELETED, "agent", agent_id))
        await self._look()
        if gone:
            raise AgentNotFound

    async def _look(self) -> None:
        """Bring the catalog in line with the store."""
        async with self._looking:
            revision = await self._store.revision()
            if revision == self._revision:
                return
            # The agents may be newer than the revision that was read before them: the next look then reads them again.
            self._kept = await self._store.all()
            self._catalog.put_made([agent for kept in self._kept if (agent := self._usable(kept)) is not None])
            self._revision = revision
            self._loaded.set()

    def _usable(self, kept: KeptAgent) -> AgentSettings | None:
        """The agent as this instance runs it, or None if it does not fit this instance's configuration."""
        try:
            agent = AgentSettings.model_validate_json(dumps(kept.payload))
            agent = _of_class(agent, self._class_of(agent.class_path, agent.type))
            self._expect_known(agent)
            self._catalog.check(agent)
        except (ValidationError, AgentRefused, AgentUnusable):
            logger.warning("the agent %s of the store does not fit this configuration: left out", kept.id)
            return None
        return agent

    def _checked(self, agent: AgentSettings) -> KeptAgent:
        """The stored form of an agent that can run."""
        self._expect_known(agent)
        if any(kept.name == agent.name and kept.id != agent.id for kept in self._kept) or any(
            one["name"] == agent.name and one["id"] != agent.id for one in self._catalog.list()
        ):
            raise Conflict
        payload = agent.model_dump(mode="json")
        if len(dumps(payload)) > MAX_BYTES:
            raise TooLarge
        try:
            self._catalog.check(agent)
            self._catalog.try_build(agent)
        except AgentUnusable:
            raise AgentRefused("No agent can be made with these values.") from None
        return KeptAgent(agent.id, agent.name, payload)

    def _expect_known(self, agent: AgentSettings) -> None:
        if (where := agent.unknown_model(self._catalog.models)) is not None:
            raise AgentRefused(f"{where} names a model that is not configured.")
        if not {server.id for server in agent.tuning.mcp_servers}.issubset(self._mcp_servers):
            raise AgentRefused("mcp_servers names a server that is not configured.")

    def _class_of(self, class_path: str | None, kind: str) -> AgentClass:
        found = self._catalog.class_named(class_path, kind)
        if found is None:
            raise AgentRefused("class_path names no agent of this service.")
        return found


def _of_class(agent: AgentSettings, made_of: AgentClass) -> AgentSettings:
    """The agent with the fields of its class, filled with its own values. Raises `AgentRefused` for a value that is
    not allowed."""
    values = {field.key: field.default for field in agent.tuning.fields}
    try:
        fields = tuple(_with(spec, checked(spec, values.get(spec.key))) for spec in made_of.fields)
    except ValueError as refused:
        raise AgentRefused(f"{refused}.") from None
    tuning = agent.tuning.model_copy(update={"fields": fields})
    # Never a graph: what it names would be imported, and this agent comes from a client.
    return agent.model_copy(update={"class_path": made_of.path, "graph": None, "tuning": tuning})


def _with(spec: FieldSpec, value: Any) -> FieldSpec:
    return spec if value is None else spec.model_copy(update={"default": value})
