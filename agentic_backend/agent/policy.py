"""Who may use, edit and share each agent: the one place that decides it, for every door.

Plain relations: users, groups and roles of a verified caller, by agent. An agent without a relation is as it always
was: everybody uses it, `ai.agent_editor_roles` edit it, operators share it. Who may share an agent may edit it, and who
may edit it may use it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, Literal, Protocol

from agentic_backend.errors import HistoryUnavailable
from backend_kit.auth import AuditEvent, Identity

LOOK_EVERY_S: Final = 5.0
_FIRST_LOOK_S: Final = 0.5


class Relation(StrEnum):
    """What a subject may do with an agent."""

    USE = "use"
    EDIT = "edit"
    SHARE = "share"


SubjectKind = Literal["user", "group", "role"]


@dataclass(frozen=True, slots=True, order=True)
class AgentGrant:
    """One relation: this subject, by its `sub`, the name of a group or of a role, has it with this agent."""

    agent_id: str
    relation: Relation
    kind: SubjectKind
    subject: str


@dataclass(slots=True)
class Subjects:
    """Who has one relation with one agent."""

    users: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    roles: set[str] = field(default_factory=set)

    def have(self, caller: Identity) -> bool:
        """Whether the caller is one of them: by their id, a group or a role of theirs, letter by letter."""
        return (
            caller.uid in self.users
            or not self.groups.isdisjoint(caller.groups)
            or not self.roles.isdisjoint(caller.roles)
        )

    def add(self, kind: SubjectKind, subject: str) -> None:
        """Add a subject."""
        {"user": self.users, "group": self.groups, "role": self.roles}[kind].add(subject)


@dataclass(frozen=True, slots=True)
class PolicyRoles:
    """The roles of the configuration; None without authentication, where every caller may do everything."""

    operators: frozenset[str] | None
    editors: frozenset[str] | None


class GrantStore(Protocol):
    """Where relations are kept, for all instances. Every method may raise `HistoryUnavailable`."""

    async def revision(self) -> str:
        """A text that differs after each change."""

    async def all(self) -> list[AgentGrant]:
        """All of them."""

    async def replace(self, agent_id: str, grants: Iterable[AgentGrant], event: AuditEvent) -> None:
        """Let an agent have exactly these. With each that comes or goes an event is stored, made of this one."""


class AgentPolicy:
    """Answers from memory, without waiting. A change made here counts at once, one made elsewhere within 5 s."""

    def __init__(self, store: GrantStore, roles: PolicyRoles) -> None:
        self._store = store
        self._roles = roles
        self._grants: Mapping[str, Mapping[Relation, Subjects]] = {}
        self._revision: str | None = None
        self._looking = asyncio.Lock()
        self._loaded = asyncio.Event()

    @property
    def loaded(self) -> bool:
        """Whether the relations have been read once. Before that nobody may use anything."""
        return self._loaded.is_set()

    def agents_of(self, caller: Identity) -> Callable[[str], bool]:
        """Says which agents the caller may use, also as that changes."""
        return partial(self.may_use, caller)

    def may_use(self, caller: Identity, agent_id: str) -> bool:
        """Whether the caller may ask the agent, and learn that it exists."""
        if self._owns_all(caller):
            return True
        if not self.loaded:
            return False
        of_agent = self._grants.get(agent_id, {})
        if Relation.USE not in of_agent or of_agent[Relation.USE].have(caller):
            return True
        return self.may_edit(caller, agent_id)

    def may_edit(self, caller: Identity, agent_id: str) -> bool:
        """Whether the caller may change and delete the agent, where it was made over REST."""
        if self.may_create(caller) or self._has(caller, agent_id, Relation.EDIT):
            return True
        return self.may_share(caller, agent_id)

    def may_share(self, caller: Identity, agent_id: str) -> bool:
        """Whether the caller may say who uses, edits and shares the agent."""
        operators = self._roles.operators
        is_operator = operators is not None and not operators.isdisjoint(caller.roles)
        return self._owns_all(caller) or is_operator or self._has(caller, agent_id, Relation.SHARE)

    def may_create(self, caller: Identity) -> bool:
        """Whether the caller may make agents, and edit those of everybody."""
        editors = self._roles.editors
        return self._owns_all(caller) or (editors is not None and not editors.isdisjoint(caller.roles))

    def may_edit_any(self, caller: Identity) -> bool:
        """Whether there is any agent that the caller may edit."""
        return self.may_create(caller) or any(self.may_edit(caller, agent_id) for agent_id in self._grants)

    def grants_of(self, agent_id: str) -> Mapping[Relation, Subjects]:
        """The relations of an agent; without `USE` everybody uses it."""
        return self._grants.get(agent_id, {})

    async def replace(self, agent_id: str, grants: Iterable[AgentGrant], event: AuditEvent) -> None:
        """See `GrantStore.replace`; it counts here when this returns."""
        await self._store.replace(agent_id, grants, event)
        await self.look()

    async def follow_changes(self) -> None:
        """Look for changes until cancelled. While the store is unavailable the relations stay as they are."""
        while True:
            with suppress(HistoryUnavailable):
                await self.look()
            await asyncio.sleep(LOOK_EVERY_S if self.loaded else _FIRST_LOOK_S)

    async def look(self) -> None:
        """Read the relations, if they have changed. May raise `HistoryUnavailable`."""
        async with self._looking:
            revision = await self._store.revision()
            if revision == self._revision:
                return
            # What is read may be newer than the revision before it: the next look then reads it again.
            grants: dict[str, dict[Relation, Subjects]] = defaultdict(lambda: defaultdict(Subjects))
            for one in await self._store.all():
                grants[one.agent_id][one.relation].add(one.kind, one.subject)
            self._grants = {agent_id: dict(relations) for agent_id, relations in grants.items()}
            self._revision = revision
            self._loaded.set()

    def _has(self, caller: Identity, agent_id: str, relation: Relation) -> bool:
        subjects = self._grants.get(agent_id, {}).get(relation)
        return subjects is not None and subjects.have(caller)

    def _owns_all(self, caller: Identity) -> bool:
        """Without authentication the one user; not whom a front end names."""
        return self._roles.operators is None and not caller.acting
