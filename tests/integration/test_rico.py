"""Rico on the whole service: both protocols, real Postgres, the shipped model, a knowledge flow over HTTP."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from aiohttp import web
from websockets.asyncio.client import connect

from agentic_backend.app import Parts
from tests.agentic_backend.knowledge.fake import FakeKnowledge, answers, fake_knowledge, hit, silent
from tests.support.patience import PATIENCE_S
from tests.support.service import NATIVE, PATIENT_CLIENT, RunningService, StartService, hear, hear_until, say

QUESTION = "Where is a finished turn appended?"
PASSAGE = "A finished turn is appended to the spool, and then final is sent."
SECRET = "s" * 32
FRAME_BYTES = 32_768
"""What the load client of the compatible protocol reads."""


@pytest.fixture
async def knowledge() -> AsyncIterator[FakeKnowledge]:
    async with fake_knowledge(hit("bees", "Bees make honey."), hit("spool", PASSAGE)) as running:
        yield running


def rico_on(knowledge: FakeKnowledge, **tunables: Any) -> dict[str, Any]:
    """The changes of a configuration that put Rico beside Georges."""
    fields = [{"key": f"rag.{key}", "default": value} for key, value in tunables.items()]
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag", "tuning": {"fields": fields}},
    ]
    return {"ai": {"knowledge_flow_url": knowledge.base_url, "agents": agents}}


async def ask_native(service: RunningService, message: str = QUESTION, token: str = "local", **more: Any) -> list[Any]:
    session_id = await service.create_session(agent_id="Rico")
    async with service.native(token) as socket:
        await say(socket, type="ask", session_id=session_id, agent_id="Rico", message=message, **more)
        return await hear_until(socket, "final")


async def test_a_native_turn_has_sources_before_text_and_citations_at_its_end(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    async with start_service(**rico_on(knowledge)) as service:
        heard = await ask_native(service)
        history = await service.history(heard[-1]["session_id"])
    kinds = [frame["type"] for frame in heard]
    assert kinds[:3] == ["accepted", "message", "sources"]
    assert set(kinds[3:-1]) == {"delta"}
    final = heard[-1]
    answer = final["messages"][-1]
    text, link = answer["parts"]
    assert text["text"] == f"{PASSAGE} [1]"
    assert (link["kind"], link["source_id"], link["document_uid"]) == ("citation", "1", "spool")
    assert answer["metadata"]["sources"] == heard[2]["sources"]
    assert answer["metadata"]["sources"][0]["citation_url"] == link["href"]
    assert final["warnings"] == []
    depths = {row["phase"]: row["depth"] for row in final["ledger"]}
    assert depths["kf_vector_search"] == depths["vector_search"] + 1
    assert history == final["messages"]


async def test_a_compatible_final_with_large_passages_fits_the_frame_that_clients_read(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    knowledge.hits = [hit(f"d{n}", "Un tour terminé est ajouté au spool. " * 200, title="é" * 500) for n in range(100)]
    async with start_service(**rico_on(knowledge, top_k=100, top_r=20)) as service:
        session_id = await service.create_session(agent_id="Rico")
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Rico", message="Où est le tour terminé ?")
            heard = await hear_until(socket, "final")
    assert [frame["type"] for frame in heard] == ["stream", "stream", "final"]
    assert len(heard[-1]["messages"][-1]["metadata"]["sources"]) == 20
    assert len(json.dumps(heard[-1], ensure_ascii=False).encode()) < FRAME_BYTES


async def test_without_knowledge_flow_the_answer_says_so_in_both_protocols(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    knowledge.search = answers(503)
    async with start_service(**rico_on(knowledge)) as service:
        heard = await ask_native(service)
        session_id = await service.create_session(agent_id="Rico")
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Rico", message=QUESTION)
            compatible = (await hear_until(socket, "final"))[-1]
        ready = await service.get("/ready")
    assert heard[-1]["warnings"] == ["answered_without_documents"]
    assert "sources" not in [frame["type"] for frame in heard]
    for final in (heard[-1], compatible):
        extras = final["messages"][-1]["metadata"]["extras"]
        assert extras["warnings"] == ["answered_without_documents"]
        assert "error" not in extras
    assert (ready["status"], ready["dependencies"]["knowledge_flow"]["status"]) == ("ready", "unknown")


@pytest.mark.one_instance("an instance says what it has reached itself")
async def test_ready_calls_nothing_up_that_was_never_reached(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    async def told(service: Any) -> str:
        return str((await service.get("/ready"))["dependencies"]["knowledge_flow"]["status"])

    async with start_service(**rico_on(knowledge)) as service:
        before = await told(service)
        await ask_native(service)
        assert (before, await told(service)) == ("unknown", "up")


async def test_while_the_model_of_knowledge_flow_is_fetched_the_answer_says_so_and_no_circuit_opens(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    async def preparing(_request: web.Request, _body: Any) -> web.StreamResponse:
        return web.json_response({}, status=503, headers={"X-Cause": "model_preparing"})

    knowledge.search = preparing
    async with start_service(**rico_on(knowledge)) as service:
        for _ in range(6):
            heard = await ask_native(service)
        ready = await service.get("/ready")
    assert heard[-1]["warnings"] == ["answered_without_documents", "documents_being_prepared"]
    assert ready["dependencies"]["knowledge_flow"]["status"] == "up"
    assert len(knowledge.bodies("search")) == 6


@pytest.mark.one_instance("an instance says what it has reached itself")
async def test_ready_tells_that_knowledge_flow_is_down_and_stays_ready(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    knowledge.search = answers(503)
    async with start_service(**rico_on(knowledge)) as service:
        for _ in range(5):
            await ask_native(service)
        ready = await service.get("/ready")
    assert (ready["status"], ready["dependencies"]["knowledge_flow"]["status"]) == ("ready", "down")


async def test_an_agent_that_requires_documents_fails_with_its_code_in_both_protocols(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    knowledge.search = answers(500)
    async with start_service(**rico_on(knowledge, require_documents=True)) as service:
        session_id = await service.create_session(agent_id="Rico")
        async with service.native() as socket:
            await say(socket, type="ask", session_id=session_id, agent_id="Rico", message=QUESTION)
            heard = [await hear(socket) for _ in range(3)]
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Rico", message=QUESTION)
            final = (await hear_until(socket, "final"))[-1]
    assert (heard[-1]["type"], heard[-1]["code"], heard[-1]["retryable"]) == ("error", "kf_unavailable", True)
    metadata = final["messages"][-1]["metadata"]
    assert (metadata["extras"]["error"], metadata["finish_reason"]) == ("kf_unavailable", "other")


async def test_turns_that_wait_for_documents_hold_up_no_other(
    start_service: StartService, knowledge: FakeKnowledge
) -> None:
    knowledge.search = silent
    # On a slow machine too, they wait for as long as the others are answered.
    patient = Parts(knowledge_s=60.0)
    unlimited = {"per_user": {"sockets": 0, "turns": 0, "asks_per_min": 0, "burst": 0}}
    async with start_service(**rico_on(knowledge), limits=unlimited, parts=patient) as service:
        waiting = [await service.create_session(agent_id="Rico") for _ in range(30)]
        other = await service.create_session()
        async with service.native() as slow, service.native() as socket:
            for session_id in waiting:
                ask = {"session_id": session_id, "agent_id": "Rico", "message": QUESTION}
                await say(slow, type="ask", **ask, client_exchange_id=session_id)
                await hear_until(slow, "message")
            for _ in range(5):
                await say(socket, type="ask", session_id=other, agent_id="Georges", message="Hello")
                await hear_until(socket, "final")
            for session_id in waiting:
                await say(slow, type="cancel", exchange_id=session_id)
            ends = [await hear(slow) for _ in waiting]
            assert [(end["type"], end["exchange_id"]) for end in ends] == [("cancelled", name) for name in waiting]


async def test_stopping_a_turn_ends_its_search(start_service: StartService, knowledge: FakeKnowledge) -> None:
    arrived, gone = asyncio.Event(), asyncio.Event()

    async def held(request: web.Request, body: Any) -> web.StreamResponse:
        arrived.set()
        try:
            return await silent(request, body)
        finally:
            gone.set()

    knowledge.search = held
    async with start_service(**rico_on(knowledge)) as service:
        session_id = await service.create_session(agent_id="Rico")
        async with service.compatible() as socket:
            await say(socket, session_id=session_id, agent_id="Rico", message=QUESTION)
            async with asyncio.timeout(PATIENCE_S):
                await arrived.wait()
            await socket.close(4000)
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()


async def test_the_trace_and_each_asks_own_id_go_along(start_service: StartService, knowledge: FakeKnowledge) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with start_service(**rico_on(knowledge)) as service:
        session_id = await service.create_session(agent_id="Rico")
        for given in (trace, "00-evil"):
            headers = {"Authorization": "Bearer local", "traceparent": given}
            async with connect(service.ws_url, additional_headers=headers, **PATIENT_CLIENT) as socket:
                await say(socket, session_id=session_id, agent_id="Rico", message=QUESTION)
                await hear_until(socket, "final")
    assert [call.headers.get("traceparent") for call in knowledge.calls] == [trace, None]
    ids = [call.headers["X-Request-ID"] for call in knowledge.calls]
    assert ids[0] != ids[1]


def token_of(user: str, name: str) -> str:
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + 600, "preferred_username": name, "typ": "Bearer"}
    return jwt.encode(claims, SECRET, "HS256")


async def test_the_asker_s_own_token_decides_what_is_found_and_is_kept_nowhere(
    start_service: StartService, knowledge: FakeKnowledge, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the renewed one; and what an ask claims about users and tokens counts for nothing."""
    caplog.set_level(logging.DEBUG, "agentic_backend")
    first, second, foreign = token_of("ada", "first"), token_of("ada", "second"), token_of("bob", "foreign")
    changes = rico_on(knowledge) | {"security": {"user": {"enabled": True}, "hs256_secret": SECRET}}
    said: list[Any] = []
    async with start_service(**changes) as service:
        service.http.headers["Authorization"] = f"Bearer {first}"
        session_id = await service.create_session(agent_id="Rico")
        ask = {"session_id": session_id, "agent_id": "Rico", "message": QUESTION}
        async with service.native(first) as socket:
            assert socket.subprotocol == NATIVE
            await say(socket, type="ask", **ask)
            said += await hear_until(socket, "final")
            await say(socket, type="auth", access_token=second)
            await say(socket, type="ask", **ask)
            said += await hear_until(socket, "final")
        async with service.compatible(token=second) as socket:
            context = {"user_id": "bob", "access_token": foreign, "refresh_token": foreign}
            await say(socket, **ask, access_token=foreign, runtime_context=context)
            said += await hear_until(socket, "final")
        said += await service.history(session_id)
    sent = [call.headers["Authorization"].removeprefix("Bearer ") for call in knowledge.calls]
    assert sent == [first, second, second]
    everything = json.dumps(said) + caplog.text + json.dumps([call.body for call in knowledge.calls])
    assert not any(token in everything for token in (first, second, foreign))
