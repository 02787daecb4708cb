"""Assistants of LangGraph's Agent Server API: the agents that the caller may ask, and those that clients create."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from fastapi import APIRouter, HTTPException, Request, Response

from agentic_backend.agent.created import CreatedAgents
from agentic_backend.agent.drawing import Drawing
from agentic_backend.errors import AgentNotFound, AgentRefused, Conflict, Forbidden
from agentic_backend.surfaces.langgraph.assistant_values import (
    ChangeAssistant,
    CountAssistants,
    ListVersions,
    MakeAssistant,
    SearchAssistants,
    SetLatest,
    contains,
    expect_uuid,
    of_configuration,
    of_version,
    version_json,
)
from agentic_backend.surfaces.langgraph.bodies import json_response, read_body
from agentic_backend.surfaces.langgraph.errors import Faulty
from agentic_backend.surfaces.langgraph.names import agent_of, assistant_id_of
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import Code, dumps

_STARTED: Final = datetime.now(UTC)
_STATIC: Final = "Agents come from the configuration file alone (ai.use_static_config_only)."
_CONFIGURED: Final = "This agent comes from the configuration file."
_MAX_XRAY: Final = 32


def add_assistants(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """Add the routes. `services()` is called at each request."""
    _add_reading(router, services, caller)
    _add_graphs(router, services, caller)
    _add_making(router, services, caller)


def _add_reading(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/assistants/search")
    async def search_assistants(request: Request, identity: caller) -> Response:
        """The assistants that the caller may use and that match, a page at a time."""
        read = await read_body(request, SearchAssistants)
        found = [one for one in _assistants(services(), identity) if read.fits(one)]
        if (by := read.sort_by) is not None:
            found.sort(key=lambda one: one[by], reverse=(read.sort_order or "desc").lower() == "desc")
        end = read.offset + read.limit
        headers = {"X-Pagination-Total": str(len(found))}
        if end < len(found):
            headers["X-Pagination-Next"] = str(end)
        shown = found[read.offset : end]
        if read.select is not None:
            shown = [{key: one[key] for key in read.select} for one in shown]
        return json_response(dumps(shown), headers)

    @router.post("/assistants/count")
    async def count_assistants(request: Request, identity: caller) -> Response:
        """How many assistants the caller may use."""
        read = await read_body(request, CountAssistants)
        return json_response(dumps(sum(read.fits(one) for one in _assistants(services(), identity))))

    @router.get("/assistants/{assistant_id}")
    async def get_assistant(assistant_id: str, identity: caller) -> Response:
        """An assistant by its id."""
        state = services()
        return json_response(dumps(_assistant(state, agent_of(state.catalog, identity, expect_uuid(assistant_id)))))

    @router.post("/assistants/{assistant_id}/versions")
    async def assistant_versions(assistant_id: str, request: Request, identity: caller) -> Response:
        """The versions of an assistant, the newest first."""
        state = services()
        agent_id = agent_of(state.catalog, identity, expect_uuid(assistant_id))
        read = await read_body(request, ListVersions)
        if state.made is None or state.made.kept(agent_id) is None:
            found = [{key: one for key, one in _assistant(state, agent_id).items() if key != "updated_at"}]
        else:
            found = [version_json(agent_id, one) for one in await state.made.versions(agent_id)]
        fitting = [one for one in found if contains(one["metadata"], read.metadata or {})]
        return json_response(dumps(fitting[read.offset : read.offset + read.limit]))


def _add_graphs(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    def drawing(assistant_id: str, identity: Identity) -> tuple[str, Drawing]:
        catalog = services().catalog
        agent_id = agent_of(catalog, identity, assistant_id)
        return agent_id, catalog.drawing(agent_id, identity.uid)

    @router.get("/assistants/{assistant_id}/graph")
    async def assistant_graph(assistant_id: str, request: Request, identity: caller) -> Response:
        """Nodes and edges of an assistant's graph, named by its id or the graph's."""
        xray = _xray(request.query_params.get("xray", "false"))
        return json_response(dumps(await drawing(assistant_id, identity)[1].nodes(xray)))

    @router.get("/assistants/{assistant_id}/schemas")
    async def assistant_schemas(assistant_id: str, identity: caller) -> Response:
        """JSON schemas of an assistant's input and output."""
        agent_id, drawn = drawing(expect_uuid(assistant_id), identity)
        graph_id = _assistant(services(), agent_id)["graph_id"]
        return json_response(dumps({"graph_id": graph_id, **await drawn.schemas()}))

    @router.get("/assistants/{assistant_id}/subgraphs")
    async def assistant_subgraphs(assistant_id: str, request: Request, identity: caller) -> Response:
        """The graphs within an assistant's graph, with their schemas."""
        return await subgraphs(assistant_id, request, identity, None)

    @router.get("/assistants/{assistant_id}/subgraphs/{namespace}")
    async def assistant_subgraph(assistant_id: str, namespace: str, request: Request, identity: caller) -> Response:
        """The graph of one node of an assistant's graph."""
        return await subgraphs(assistant_id, request, identity, namespace)

    async def subgraphs(assistant_id: str, request: Request, identity: Identity, namespace: str | None) -> Response:
        recurse = _flag(request.query_params.get("recurse", "false"), "recurse")
        drawn = drawing(expect_uuid(assistant_id), identity)[1]
        return json_response(dumps(await drawn.subgraphs(namespace, recurse=recurse)))


def _add_making(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/assistants")
    async def make_assistant(request: Request, identity: caller) -> Response:
        """Create an assistant from a configured agent: for editors, where the configuration allows it."""
        state = services()
        made = _editable(state, identity)
        if not state.policy.may_create(identity):
            raise Forbidden
        read = await read_body(request, MakeAssistant)
        agent_id = None if read.assistant_id is None else expect_uuid(read.assistant_id)
        if agent_id is not None and (there := _named(state, agent_id)) is not None:
            if read.if_exists == "raise" or not identity.may_ask(there):
                raise Conflict(field="assistant_id")
            return json_response(dumps(_assistant(state, there)))
        read = read.model_copy(update={"graph_id": agent_of_graph(state, identity, read.graph_id)})
        name = f"{read.graph_id[:60]} {(UUID(agent_id) if agent_id else uuid4()).hex[:8]}"
        agent_id = await _or_refusal(made.make_version(read.change(), agent_id, name, identity))
        await state.policy.look()  # its creator may share it
        return json_response(dumps(_assistant(state, agent_id)))

    @router.patch("/assistants/{assistant_id}")
    async def change_assistant(assistant_id: str, request: Request, identity: caller) -> Response:
        """Change an assistant that a client created: what is not given stays, and metadata is merged."""
        state = services()
        made, agent_id = _expect_editable(state, identity, assistant_id)
        read = await read_body(request, ChangeAssistant)
        if read.graph_id is not None:
            own = _assistant(state, agent_id)["graph_id"]
            graph_id = own if read.graph_id == own else agent_of_graph(state, identity, read.graph_id)
            read = read.model_copy(update={"graph_id": graph_id})
        await _or_refusal(made.add_version(agent_id, read.change(), identity))
        return json_response(dumps(_assistant(state, agent_id)))

    @router.delete("/assistants/{assistant_id}", status_code=204)
    async def delete_assistant(assistant_id: str, request: Request, identity: caller) -> Response:
        """Delete an assistant that a client created. A running turn ends normally."""
        made, agent_id = _expect_editable(services(), identity, assistant_id)
        if _flag(request.query_params.get("delete_threads", "false"), "delete_threads"):
            raise Faulty("delete_threads is not there: threads are their users' own.", "delete_threads")
        await made.delete(agent_id, identity)
        return Response(status_code=204)

    @router.post("/assistants/{assistant_id}/latest")
    async def set_latest(assistant_id: str, request: Request, identity: caller) -> Response:
        """Make a version of an assistant the current one."""
        state = services()
        made, agent_id = _expect_editable(state, identity, assistant_id)
        read = await read_body(request, SetLatest)
        await _or_refusal(made.set_version(agent_id, read.version, identity))
        return json_response(dumps(_assistant(state, agent_id)))


def agent_of_graph(state: DoorServices, identity: Identity, graph_id: str) -> str:
    """The id of the configured agent that `graph_id` names. Raises `AgentNotFound`, also for one that the caller may
    not use."""
    if state.catalog.source_of(graph_id) is None or not identity.uses(graph_id):
        raise AgentNotFound(field="graph_id")
    return graph_id


def _assistants(state: DoorServices, identity: Identity) -> list[dict[str, Any]]:
    return [_assistant(state, agent_id) for agent_id in state.catalog.ids() if identity.may_ask(agent_id)]


def _assistant(state: DoorServices, agent_id: str) -> dict[str, Any]:
    """An agent as an assistant. Raises `AgentNotFound`."""
    kept = None if state.made is None else state.made.kept(agent_id)
    if state.made is not None and kept is not None:
        version = state.made.version_of(kept)
        return of_version(agent_id, version, kept.created_at or _STARTED, kept.updated_at or _STARTED)
    settings = state.catalog.settings_of(agent_id)
    if settings is None:
        raise AgentNotFound(field="assistant_id")
    return of_configuration(settings, _STARTED)


def _named(state: DoorServices, assistant_id: str) -> str | None:
    """The agent that has this assistant id, whether or not the caller may use it."""
    return next((one for one in state.catalog.names() if assistant_id in (one, assistant_id_of(one))), None)


def _editable(state: DoorServices, identity: Identity) -> CreatedAgents:
    """The store of agents, for a caller who may create or change some. Called before the body is read."""
    if state.made is None:
        raise HTTPException(403, {"code": Code.FORBIDDEN.value, "message": _STATIC})
    if not state.policy.may_edit_any(identity):
        raise Forbidden
    return state.made


def _expect_editable(state: DoorServices, identity: Identity, assistant_id: str) -> tuple[CreatedAgents, str]:
    """The store of agents, and the id of an agent that the caller may change."""
    made = _editable(state, identity)
    agent_id = _named(state, expect_uuid(assistant_id))
    if agent_id is None or not identity.uses(agent_id):
        raise AgentNotFound(field="assistant_id")
    if state.catalog.is_configured(agent_id):
        raise HTTPException(403, {"code": Code.FORBIDDEN.value, "message": _CONFIGURED})
    if not state.policy.may_edit(identity, agent_id):
        raise Forbidden
    return made, agent_id


async def _or_refusal(doing: Awaitable[Any]) -> Any:
    """The result, or the sentence that says why an agent was refused."""
    try:
        return await doing
    except AgentRefused as refused:
        raise Faulty(refused.sentence, refused.field) from None


def _xray(given: str) -> bool | int:
    """How deep to look into nested graphs."""
    if given.isascii() and given.isdigit() and len(given) <= 2 and int(given) <= _MAX_XRAY:
        return int(given) or False
    return _flag(given, "xray")


def _flag(given: str, field: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise Faulty(f"{field} is neither true nor false.", field)
    return given.lower() == "true"
