"""REST of agents: listing them, how long their turns take, and, if the configuration allows it, creating, changing and
deleting them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from agentic_backend.agent import Catalog
from agentic_backend.agent.catalog import MADE_LABEL
from agentic_backend.agent.created import CreatedAgents
from agentic_backend.agent.policy import AgentPolicy
from agentic_backend.chat.frames import storable_json
from agentic_backend.errors import AgentNotFound, AgentRefused, BadRequest, Forbidden
from agentic_backend.settings import (
    DEFAULT_MODEL,
    MAX_STARTER_CHARS,
    MAX_STARTERS,
    AgentSettings,
    AgentTuning,
    ChatOptions,
    FieldSpec,
    McpServerRef,
)
from agentic_backend.verdict import Windows
from backend_kit.auth import Identity
from backend_kit.wire import CODES, dumps, storable

LEAST_TURNS: Final = 5
"""For fewer turns their duration is not reported: they might all be of one other person."""
_STATIC: Final = "Agents come from the configuration file alone (ai.use_static_config_only)."
_CONFIGURED: Final = "This agent comes from the configuration file."
_AgentId = Annotated[str, PathParam(max_length=128), AfterValidator(storable)]
_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=80), AfterValidator(storable)]
_Key = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(storable)]
_Starter = Annotated[str, StringConstraints(max_length=MAX_STARTER_CHARS, pattern=r"\S"), AfterValidator(storable)]
_Words = Annotated[str, StringConstraints(max_length=2000), AfterValidator(storable)]


class _Body(BaseModel):
    """Unknown keys are ignored: the output of `GET /agents` may be sent back."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True)


class CreateAgent(_Body):
    """Body of `POST /agents/create`."""

    name: _Name
    type: _Key = "agent"
    class_path: _Key | None = None


class _Value(_Body):
    key: _Key
    default: JsonValue = None


class _Server(_Body):
    id: _Key


class _Tuning(_Body):
    role: _Words = ""
    description: _Words = ""
    tags: Annotated[list[_Key], Field(max_length=16)] = []
    fields: Annotated[list[_Value], Field(max_length=100)] = []
    mcp_servers: Annotated[list[_Server], Field(max_length=16)] = []


class _Options(ChatOptions):
    model_config = ConfigDict(extra="ignore")  # as in every body, where the configuration refuses


class UpdateAgent(_Body):
    """Body of `PUT /agents/update`: the whole AgentSettings; of a field its key and value (`default`) count."""

    id: _Key
    name: _Name
    enabled: bool = True
    type: _Key = "agent"
    class_path: _Key | None = None
    model: _Key = DEFAULT_MODEL
    further_models: Annotated[list[_Key], Field(max_length=100)] = []
    starters: Annotated[list[_Starter], Field(max_length=MAX_STARTERS)] = []
    tuning: _Tuning = _Tuning()
    chat_options: _Options = _Options()

    def settings(self) -> AgentSettings:
        """The agent that it describes. Raises `BadRequest` for a value that cannot be stored, or for a duplicate."""
        tuning = self.tuning
        values = {one.key: one.default for one in tuning.fields}
        if len(values) != len(tuning.fields):
            raise BadRequest("duplicate field", field="tuning.fields")
        if len(set(self.starters)) != len(self.starters):
            raise BadRequest("duplicate starter", field="starters")
        try:
            storable_json(values)
        except ValueError:
            raise BadRequest("a value that cannot be stored", field="tuning.fields") from None
        fields = tuple(FieldSpec(key=key, default=value) for key, value in values.items())
        servers = tuple(McpServerRef(id=one.id) for one in tuning.mcp_servers)
        own = self.model_dump(exclude={"tuning", "chat_options", "further_models", "starters"})
        return AgentSettings(
            **own,
            further_models=tuple(self.further_models),
            starters=tuple(self.starters),
            tuning=AgentTuning(
                role=tuning.role,
                description=tuning.description,
                tags=tuple(tuning.tags),
                fields=fields,
                mcp_servers=servers,
            ),
            chat_options=self.chat_options,
        )


@dataclass(frozen=True, slots=True)
class AgentServices:
    """What the routes need. `made` is None if agents come only from the configuration; `policy` decides who may do
    what."""

    catalog: Catalog
    created: CreatedAgents | None
    policy: AgentPolicy

    def may_edit(self, identity: Identity) -> bool:
        """Whether this caller may create, change and delete agents."""
        return self.created is not None and self.policy.may_create(identity)

    def may_edit_any(self, identity: Identity) -> bool:
        """Whether there is an agent that this caller may change and delete, or create."""
        return self.created is not None and self.policy.may_edit_any(identity)

    def editable(self, identity: Identity) -> CreatedAgents:
        """The created agents, for a caller who may change any. Raises `Forbidden`, or HTTPException 403 if nobody
        may."""
        if self.created is None:
            raise HTTPException(403, _STATIC)
        if not self.policy.may_edit_any(identity):
            raise Forbidden
        return self.created

    def expect_known(self, identity: Identity, agent_id: str) -> None:
        """Raise `AgentNotFound` for an unknown agent, and for one that the caller may not use."""
        if agent_id not in self.catalog.names() or not identity.uses(agent_id):
            raise AgentNotFound

    def expect_editable(self, identity: Identity, agent_id: str) -> None:
        """Raise `AgentNotFound` for an agent that is unknown to the caller, HTTPException 403 for a configured one, and
        `Forbidden` for one that they may not edit."""
        self.expect_known(identity, agent_id)
        if self.catalog.is_configured(agent_id):
            raise HTTPException(403, _CONFIGURED)
        if not self.policy.may_edit(identity, agent_id):
            raise Forbidden


def add_agents(router: APIRouter, services: Callable[[], AgentServices], caller: Any) -> None:
    """Add the routes. `services()` is called at each request."""

    async def editable(identity: caller) -> CreatedAgents:
        return services().editable(identity)

    # A dependency, so that a caller who may change nothing is refused before the body is read.
    editor = Annotated[CreatedAgents, Depends(editable)]

    @router.get("/agents")
    async def agents(identity: caller) -> list[dict[str, Any]]:
        """The agents that the caller may ask, with the models that a turn of each may choose."""
        return [agent for agent in services().catalog.list() if identity.may_ask(agent["id"])]

    @router.get("/agents/editable")
    async def editable_agents(made: editor, identity: caller) -> Response:
        """The agents that the caller may change, and what agents can be made from: kinds, models, MCP servers. For
        callers who may change any, if the configuration allows it."""
        return Response(dumps(_editable(services(), made, identity)), media_type="application/json")

    @router.post("/agents/create")
    async def create_agent(body: CreateAgent, made: editor, identity: caller) -> Response:
        """Create an agent of a known kind, which its creator may share: for editors, if the configuration allows it."""
        state = services()
        if not state.may_edit(identity):
            raise Forbidden
        answer = await _answer(state.catalog, made.create(body.name, body.type, body.class_path, identity))
        await state.policy.look()  # its creator may share it
        return answer

    @router.put("/agents/update")
    async def update_agent(body: UpdateAgent, made: editor, identity: caller) -> Response:
        """Change an agent that was created over REST; the body is the whole agent."""
        services().expect_editable(identity, body.id)
        return await _answer(services().catalog, made.update(body.settings(), identity))

    @router.delete("/agents/{agent_id}", status_code=204)
    async def delete_agent(agent_id: str, made: editor, identity: caller) -> None:
        """Delete an agent that was created over REST. A running turn ends normally."""
        services().expect_editable(identity, agent_id)
        await made.delete(agent_id, identity)


def _editable(state: AgentServices, made: CreatedAgents, identity: Identity) -> dict[str, Any]:
    """Body of `GET /agents/editable`; no kinds if the caller may create no agents."""
    catalog = state.catalog
    names = catalog.names()
    kinds = [
        {"class_path": path, "name": None if (first := catalog.first_of_class(path)) is None else names[first]}
        for path in (catalog.classes if state.may_edit(identity) else ())
    ]
    return {
        "agents": [
            agent
            for agent in catalog.list()
            if not catalog.is_configured(agent["id"])
            and identity.uses(agent["id"])
            and state.policy.may_edit(identity, agent["id"])
        ],
        "kinds": kinds,
        "models": catalog.labelled(catalog.models),
        "mcp_servers": sorted(made.mcp_servers),
    }


async def _answer(catalog: Catalog, doing: Awaitable[AgentSettings]) -> Response:
    """The agent as in `GET /agents`, or the sentence that says why it was refused."""
    try:
        agent = await doing
    except AgentRefused as refused:
        detail = {"code": refused.code.value, "message": refused.sentence}
        if refused.field is not None:
            detail["field"] = refused.field
        return Response(dumps({"detail": detail}), CODES[refused.code].status, media_type="application/json")
    return Response(dumps(catalog.wire(agent)), media_type="application/json")


class AgentPace(BaseModel):
    """Turns that the answering instance has measured in the last day, and their median; null if there are too few, and
    for agents that were created over REST, which are measured together."""

    turns: int | None = None
    median_ms: float | None = None


def add_pace(
    router: APIRouter, services: Callable[[], AgentServices], windows: Callable[[], Windows], caller: Any
) -> None:
    """Add the route. `services()` and `windows()` are called at each request."""

    @router.get("/agents/{agent_id}/pace")
    async def agent_pace(agent_id: _AgentId, identity: caller) -> AgentPace:
        """The median time that turns of an agent took in the last day, for everybody who may ask it."""
        return await _pace(services(), windows(), identity, agent_id)


async def _pace(state: AgentServices, windows: Windows, identity: Identity, agent_id: str) -> AgentPace:
    if agent_id not in state.catalog.names() or not identity.may_ask(agent_id):
        raise AgentNotFound
    label = state.catalog.label(agent_id)
    if label == MADE_LABEL:
        return AgentPace()
    turns, median_ms = await asyncio.to_thread(windows.day.pace, label)
    if turns < LEAST_TURNS or median_ms is None:
        return AgentPace()
    return AgentPace(turns=turns, median_ms=round(median_ms, 3))
