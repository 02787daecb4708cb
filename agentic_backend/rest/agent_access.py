"""REST routes for who may use, edit and share an agent: read and set by those who may share it."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from agentic_backend.agent.policy import AgentGrant, Relation, SubjectKind, Subjects
from agentic_backend.errors import Forbidden
from agentic_backend.rest.agents import AgentServices
from backend_kit.auth import AuditAction, AuditEvent, Identity
from backend_kit.wire import storable

_Subject = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(storable)]
_AgentId = Annotated[str, PathParam(max_length=128), AfterValidator(storable)]


class SubjectsBody(BaseModel):
    """Users by their `sub`, groups and roles by their names, letter by letter."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    users: Annotated[list[_Subject], Field(max_length=500)] = []
    groups: Annotated[list[_Subject], Field(max_length=500)] = []
    roles: Annotated[list[_Subject], Field(max_length=100)] = []

    @classmethod
    def of(cls, subjects: Subjects | None) -> "SubjectsBody":
        """As they are sent."""
        found = subjects or Subjects()
        return cls(users=sorted(found.users), groups=sorted(found.groups), roles=sorted(found.roles))

    def subjects(self) -> Iterator[tuple[SubjectKind, str]]:
        """Each of them."""
        yield from (("user", one) for one in self.users)
        yield from (("group", one) for one in self.groups)
        yield from (("role", one) for one in self.roles)


class AgentAccess(BaseModel):
    """Who may do what with an agent. `use` null: everybody. A misspelled field must not be taken for that."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    use: SubjectsBody | None = None
    edit: SubjectsBody = SubjectsBody()
    share: SubjectsBody = SubjectsBody()

    @model_validator(mode="after")
    def _use_is_of_somebody(self) -> "AgentAccess":
        if self.use is not None and not any(self.use.subjects()):
            raise ValueError("`use` names somebody, or is null for everybody")
        return self

    def grants(self, agent_id: str) -> list[AgentGrant]:
        """As it is stored."""
        parts = ((Relation.USE, self.use), (Relation.EDIT, self.edit), (Relation.SHARE, self.share))
        return [
            AgentGrant(agent_id, relation, kind, subject)
            for relation, part in parts
            if part is not None
            for kind, subject in part.subjects()
        ]


def add_agent_access(router: APIRouter, services: Callable[[], AgentServices], caller: Any) -> None:
    """Add both routes. `services()` is called at each request."""

    @router.get("/agents/{agent_id}/access")
    async def agent_access(agent_id: _AgentId, identity: caller) -> AgentAccess:
        """Who may use, edit and share an agent: shown to those who may share it."""
        return _shown(_shared(services(), identity, agent_id), agent_id)

    @router.put("/agents/{agent_id}/access")
    async def set_agent_access(agent_id: _AgentId, identity: caller, body: AgentAccess) -> AgentAccess:
        """Replace who may use, edit and share an agent, for those who may share it. It takes effect here at once, at
        other instances within 5 s; a running turn ends normally."""
        state = _shared(services(), identity, agent_id)
        event = AuditEvent.by(identity, AuditAction.AGENT_SHARED, "agent", agent_id)
        await state.policy.replace(agent_id, body.grants(agent_id), event)
        return _shown(state, agent_id)


def _shared(state: AgentServices, identity: Identity, agent_id: str) -> AgentServices:
    """Raise AgentNotFound for an agent that the caller may not use, Forbidden for one that they may not share."""
    state.expect_known(identity, agent_id)
    if not state.policy.may_share(identity, agent_id):
        raise Forbidden
    return state


def _shown(state: AgentServices, agent_id: str) -> AgentAccess:
    has = state.policy.grants_of(agent_id)
    return AgentAccess(
        use=SubjectsBody.of(has[Relation.USE]) if Relation.USE in has else None,
        edit=SubjectsBody.of(has.get(Relation.EDIT)),
        share=SubjectsBody.of(has.get(Relation.SHARE)),
    )
