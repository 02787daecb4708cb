"""What doors stand on, in a real service: streams in a protocol of their own, unkept turns, tasks, their switches."""

import sys
from typing import Any
from uuid import uuid4

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentic_backend.chat.follow import Follow
from agentic_backend.session.stream import Ask, Failed, Final, TextDelta, Turn, TurnEvent
from agentic_backend.surfaces.follow import follow_of, turn_stream
from backend_kit.http import request_id
from tests.support.following import ask_frame
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService, StartService, hear, hits, say

pytestmark = pytest.mark.one_instance("adds a route to one process")

DOORS = ("openai", "agui", "mcp", "langgraph")


class Plain:
    """The text alone, and its number of events."""

    headers = ((b"x-door", b"plain"),)
    heartbeat = b"~"
    over = False
    owed = None

    def __init__(self) -> None:
        self.last = 0

    def write(self, turn: Turn, event: TurnEvent) -> bytes:  # noqa: ARG002 - of the port
        self.last = event.seq
        if isinstance(event.payload, TextDelta):
            return event.payload.text.encode()
        return b"[%d]" % event.seq if event.terminal else b""

    def refuse(self, request: Request, failure: Failed) -> Response:
        told = {"no": failure.code, "id": request_id(request.scope), "after": failure.retry_after_ms}
        return JSONResponse(told, 418)


def door(service: RunningService, *, kept: bool = True, **more: Any) -> None:
    """Add a door at /plain: `?say=…`, `?after=…` to go on with exchange e1."""
    services = service.service.running.doors

    async def answer(request: Request) -> Response:
        query = request.query_params
        registry = services.registry if kept else services.unkept
        session_id = query.get("session") or str(uuid4())

        def begin() -> Follow:
            if "after" in query:
                return follow_of(registry.resume(session_id, "e1", "admin"), int(query["after"]))
            return follow_of(registry.submit(Ask(session_id, "Georges", query["say"], "e1", "admin", 0.0, **more)))

        return await turn_stream(services, request, "admin", begin, Plain())

    service.service.app.router.routes.append(Route("/plain", answer))


async def heard(service: RunningService, query: str) -> tuple[int, str, Any]:
    async with service.http.get(f"/plain?{query}") as response:
        return response.status, response.headers.get("x-door", ""), await response.text()


async def test_a_door_writes_the_events_as_its_clients_have_them_and_goes_on_behind_a_number(
    service: RunningService,
) -> None:
    door(service)
    session = await service.create_session()
    status, name, text = await heard(service, f"session={session}&say=Hello")
    answer = (await service.history(session))[-1]["parts"][0]["text"]
    assert (status, name) == (200, "plain")
    assert text.startswith(answer)
    last = int(text[len(answer) + 1 : -1])
    assert await heard(service, f"session={session}&after={last - 1}") == (200, "plain", f"[{last}]")


async def test_an_ask_that_is_refused_is_the_doors_own_answer(service: RunningService) -> None:
    door(service)
    status, name, text = await heard(service, "session=unknown&say=Hello")
    assert (status, name) == (418, "")
    assert '"no":"session_not_found"' in text


async def test_streams_of_doors_count_among_the_others(start_service: StartService) -> None:
    async with start_service(limits={"per_user": {"sockets": 1}}) as service:
        door(service)
        session = await service.create_session()
        async with service.native() as socket:
            await say(socket, type="ping")
            await hear(socket)
            status, _, text = await heard(service, f"session={session}&say=Hello")
        assert (status, '"no":"rate_limited"' in text, '"after":2000' in text) == (418, True, True)
        assert hits(service, "per_user_sockets") == 1
        assert await service.history(session) == []


async def test_a_silent_stream_has_the_doors_heartbeats_and_a_drain_waits_for_it(start_service: StartService) -> None:
    async with start_service("mock;ttft=600000", deadlines={"heartbeat_s": 2}) as service:
        door(service)
        session = await service.create_session()
        async with service.http.get(f"/plain?session={session}&say=Hello") as response:
            assert await response.content.readexactly(1) == b"~"
            running = service.service.running
            assert len(running.hub) == 1
            turn = service.turn("e1")
            assert turn is not None
            turn.cancel()
            assert (await response.content.read()).strip(b"~").startswith(b"[")
            assert await running.hub.wait_empty(PATIENCE_S) == 0


async def test_a_client_that_leaves_stops_a_turn_that_wants_it(start_service: StartService) -> None:
    async with start_service("mock;ttft=600000", deadlines={"heartbeat_s": 2}) as service:
        door(service, on_disconnect="cancel")
        session = await service.create_session()
        async with service.http.get(f"/plain?session={session}&say=Hello") as response:
            await response.content.readexactly(1)
            turn = service.turn("e1")
        assert turn is not None
        await turn.wait_ended()
        assert turn.cancel_requested


async def test_nothing_is_stored_of_an_unkept_turn_and_its_drain_is_waited_for(service: RunningService) -> None:
    door(service, kept=False)
    status, _, text = await heard(service, "say=Hello")
    assert (status, "[" in text) == (200, True)
    running = service.service.running
    await running.persistence.flush(PATIENCE_S)
    assert await service.get("/chatbot/sessions") == []
    doors = running.doors
    turn = doors.unkept.submit(Ask("any", "Georges", "Hello", "e2", "admin", 0.0))
    await turn.wait_ended()
    end = turn.events[-1].payload
    assert isinstance(end, Final)
    assert (end.durable, doors.unkept.find("e2", "admin")) == ("none", None)
    assert running.turns.registries == (doors.registry, doors.unkept, running.baseline)


async def test_turns_of_all_registries_share_the_limits(start_service: StartService) -> None:
    async with start_service("mock;ttft=600000", limits={"per_user": {"turns": 1}}) as service:
        doors = service.service.running.doors
        running = doors.unkept.submit(Ask("any", "Georges", "Hello", "e1", "admin", 0.0))
        session = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask_frame(session, "e2"))
            assert (await hear(socket))["code"] == "too_many_turns"
            running.cancel()
            await running.wait_ended()
        refused = doors.unkept.submit(Ask("any", "Nobody", "Hello", "e3", "admin", 0.0))
        await refused.wait_ended()
        assert refused.events[-1].payload.code == "agent_not_found"


async def test_a_front_ends_task_goes_to_the_model_of_titles(start_service: StartService) -> None:
    async with start_service() as service:
        answer = await service.service.running.doors.answer_task(
            [{"role": "system", "content": "Name it."}, {"role": "user", "content": "### Task: a title"}]
        )
        assert answer.text
        assert answer.model
        assert answer.usage["total_tokens"] == answer.usage["input_tokens"] + answer.usage["output_tokens"]
        assert await service.get("/chatbot/sessions") == []


async def test_a_door_that_is_off_is_not_imported_and_answers_nothing(start_service: StartService) -> None:
    off = dict.fromkeys(DOORS, False)
    before = {name: f"agentic_backend.surfaces.{name}" in sys.modules for name in DOORS}
    async with start_service(doors=off) as service:
        after = {name: f"agentic_backend.surfaces.{name}" in sys.modules for name in DOORS}
        assert after == before
        async with service.http.get("/v1/models") as response:
            assert response.status == 404
