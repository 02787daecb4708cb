"""Titles by a model, with the whole service: after the answer, told late, kept by the turns that follow."""

import asyncio

import pytest

from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear, hear_until, say


def titled(mock_llm, name="mock;tokens=3"):
    return {"default_language_model": {"name": name, "settings": {"base_url": mock_llm.base_url}}}


def ask(session_id, exchange_id, message="How long do lentils boil?"):
    head = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message}
    return {**head, "client_exchange_id": exchange_id}


def title_is_made(service):
    """Whether one is being made in the background."""
    names = [name for each in service.instances for name in each.running.tasks.names]
    return any(name.startswith("title") for name in names)


@pytest.mark.one_instance("sockets at other instances are not told of a title")
async def test_the_title_comes_after_the_final_and_stays(start_service, mock_llm):
    async with start_service(ai=titled(mock_llm)) as service:
        session_id = await service.create_session(title=None)
        async with service.native() as socket, service.native() as other:
            await say(socket, **ask(session_id, "e1"))
            heard = await hear_until(socket, "final")
            first = [event for event in heard if event["type"] == "session"]
            assert [event["session"]["title"] for event in first] == ["How long do lentils boil?"]
            late = await hear(socket)
            assert (late["type"], set(late)) == ("session", {"type", "session"})
            title = late["session"]["title"]
            assert title not in ("", "How long do lentils boil?")
            assert (await hear(other))["session"]["title"] == title
            await say(socket, **ask(session_id, "e2"))
            heard = await hear_until(socket, "final")
            assert [event for event in heard if event["type"] == "session"] == []
            assert heard[-1]["session"]["title"] == title
        assert (await service.get("/chatbot/sessions"))[0]["title"] == title
        await service.flush()
        assert (await service.get("/chatbot/sessions"))[0]["title"] == title
    async with start_service() as service:
        assert (await service.get("/chatbot/sessions"))[0]["title"] == title


async def test_a_slow_title_delays_nothing_and_is_taken_by_the_turn_that_runs(start_service):
    async with (
        held_model() as answers,
        held_model() as titles,
        start_service(ai={**answers.ai, "default_language_model": titles.named}) as service,
    ):
        session_id = await service.create_session(title=None)
        async with service.native() as socket:
            answers.go.set()
            await say(socket, **ask(session_id, "e1"))
            await hear_until(socket, "final")
            answers.go.clear()
            await say(socket, **ask(session_id, "e2"))
            await hear_until(socket, "message")
            titles.go.set()
            late = await hear(socket)
            assert late["type"] == "session"
            answers.go.set()
            heard = await hear_until(socket, "final")
            assert "session" not in [event["type"] for event in heard]
            assert "seq" not in late
            assert heard[-1]["session"]["title"] == late["session"]["title"]
        assert (await service.get("/chatbot/sessions"))[0]["title"] == late["session"]["title"]
        assert service.sample("app_phase_latency_seconds_count", phase="llm_invoke_title", status="ok")


async def test_a_session_that_was_created_with_a_title_keeps_it(start_service, mock_llm):
    async with start_service(ai=titled(mock_llm)) as service:
        session_id = await service.create_session("Mine")
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e1"))
            assert "session" not in [event["type"] for event in await hear_until(socket, "final")]
        assert not title_is_made(service)
        assert (await service.get("/chatbot/sessions"))[0]["title"] == "Mine"


@pytest.mark.one_instance("sockets at other instances are not told of a title")
async def test_the_compatible_protocol_hears_of_the_first_title_alone(start_service, mock_llm):
    async with start_service(ai=titled(mock_llm)) as service:
        session_id = await service.create_session(title=None)
        async with service.compatible() as socket, service.native() as other:
            await say(socket, **ask(session_id, "e1"))
            heard = await hear_until(socket, "final")
            assert [event["type"] for event in heard] == ["stream", "stream", "session", "final"]
            title = (await hear(other))["session"]["title"]
            await say(socket, **ask(session_id, "e2"))
            heard = await hear_until(socket, "final")
            assert [event["type"] for event in heard] == ["stream", "stream", "final"]
            assert heard[-1]["session"]["title"] == title


async def test_a_model_that_fails_leaves_the_first_title(start_service, mock_llm):
    async with start_service(ai=titled(mock_llm, "mock;error=400")) as service:
        session_id = await service.create_session(title=None)
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e1"))
            await hear_until(socket, "final")
            async with asyncio.timeout(PATIENCE_S):
                while title_is_made(service):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
        assert (await service.get("/chatbot/sessions"))[0]["title"] == "How long do lentils boil?"
        async with service.http.delete(f"{BASE}/chatbot/session/{session_id}") as response:
            assert response.status == 200


async def test_nobody_else_is_told(start_service, mock_llm):
    async with start_service(ai=titled(mock_llm), security=SECURITY) as service:
        async with service.http.post(f"{BASE}/chatbot/session", headers=headers_of("ann")) as response:
            session_id = (await response.json())["id"]
        async with service.native(token_of("ann")) as ann, service.native(token_of("bob")) as bob:
            await say(ann, **ask(session_id, "e1"))
            await hear_until(ann, "final")
            assert (await hear(ann))["type"] == "session"
            # Whatever the service had to tell bob would come before its answer to this.
            await say(bob, type="ping")
            assert (await hear(bob))["type"] == "pong"
