"""Changes of a thread's state by a client: for hosted graphs, which have a state of their own."""

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from agentic_backend.agent import GraphInput, StateChange
from agentic_backend.agent.hosted import HostedAgent
from agentic_backend.chat.frames import CleanText
from agentic_backend.chat.handshake import traceparent_of
from agentic_backend.session.models import Session, graph_state_of
from agentic_backend.session.stream import Ask, Failed
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.langgraph.asking import graph_fork, waiting_state
from agentic_backend.surfaces.langgraph.bodies import BODY, AnyJson, RequestBody, checked_body, json_body, json_response
from agentic_backend.surfaces.langgraph.errors import Faulty, refusal_of
from agentic_backend.surfaces.langgraph.names import session_of_thread
from agentic_backend.surfaces.langgraph.states import checkpoint_in, read_line
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.http import request_id
from backend_kit.wire import dumps


class _ChangeBody(RequestBody):
    values: AnyJson = None
    as_node: CleanText | None = None


def add_changes(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """The route that changes a thread's state."""

    @router.post("/threads/{thread_id}/state", openapi_extra=BODY)
    async def change(thread_id: str, request: Request, identity: caller) -> Response:
        """Change the state of a hosted graph, as if one of its nodes had returned the values."""
        state = services()
        session = await session_of_thread(state.store, identity.uid, thread_id)
        graph = state.catalog.graph(session.agent_id)
        if graph is None:
            raise Faulty("The state of this agent is its history: only a hosted graph has one of its own.", "values")
        return await _changed(state, request, identity, session, graph)


async def _changed(
    services: DoorServices, request: Request, identity: Identity, session: Session, graph: HostedAgent
) -> Response:
    said = await json_body(request)
    body = checked_body(said, _ChangeBody)
    fork, checkpoint = None, await waiting_state(services, session, graph.id)
    if (wanted := checkpoint_in(said, "checkpoint") or checkpoint_in(said, "checkpoint_id")) is not None:
        fork, checkpoint = await graph_fork(graph, await read_line(services, session), wanted)
    ask = Ask(
        session_id=session.id,
        agent_id=graph.id,
        message="",
        exchange_id=str(uuid4()),
        user_id=identity.uid,
        received_at=time.perf_counter(),
        request_id=request_id(request.scope),
        credentials=request.state.credentials,
        traceparent=traceparent_of(request),
        after_rank=None if fork is None else fork.after_rank,
        any_branch=fork is not None,
        graph=GraphInput(change=StateChange(body.values, body.as_node), checkpoint=checkpoint),
    )
    turn = services.registry.submit(ask)
    await turn.wait_ended()
    end = turn.events[-1].payload
    if isinstance(end, Failed):
        return refusal_of(end, request)
    ref = graph_state_of(end.messages[-1], graph.id) if isinstance(end, Ended) else ""
    state = await graph.state(session.id, session.user_id, ref)
    if state is None:
        raise Faulty("The state was not changed: the run was stopped.", "values")
    at = state["checkpoint"]
    return json_response(dumps({"checkpoint": at, "configurable": at, "checkpoint_id": at["checkpoint_id"]}))
