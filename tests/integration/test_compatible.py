"""The compatible protocol as existing clients speak it, frame by frame."""

import asyncio
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, hear, hear_until, hits, say


def ask(session_id, message="Hello", **more):
    return {"session_id": session_id, "agent_id": "Georges", "message": message, **more}


async def closed_with(socket):
    """Read to the end of the socket; its close code."""
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code


async def test_a_titled_session_sends_stream_frames_and_one_final(service):
    session_id = await service.create_session(title="Mine")
    async with service.compatible() as socket:
        await say(socket, **ask(session_id, client_exchange_id="e1"))
        heard = await hear_until(socket, "final")
    assert [frame["type"] for frame in heard] == ["stream", "stream", "final"]
    user, answer, final = heard[0]["message"], heard[1]["message"], heard[2]
    assert (user["role"], user["channel"], user["rank"]) == ("user", "final", 0)
    assert (answer["role"], answer["channel"], answer["rank"]) == ("assistant", "final", 1)
    assert final["messages"] == [user, answer]
    assert final["session"]["next_rank"] == 2
    assert set(final["session"]) == {
        "id",
        "user_id",
        "agent_id",
        "title",
        "updated_at",
        "next_rank",
        "preferences",
    }
    assert answer["metadata"]["finish_reason"] == "stop"
    assert answer["metadata"]["token_usage"]["output_tokens"] > 0
    assert len(json.dumps(final)) < 32 * 1024


async def test_a_session_without_title_gets_one_after_the_answer(service):
    session_id = await service.create_session(title=None)
    async with service.compatible() as socket:
        await say(socket, **ask(session_id, "What is a turn?"))
        heard = await hear_until(socket, "final")
        assert [frame["type"] for frame in heard] == ["stream", "stream", "session", "final"]
        assert heard[2]["session"]["title"] == "What is a turn?"
        await say(socket, **ask(session_id, "And now?"))
        heard = await hear_until(socket, "final")
    assert [frame["type"] for frame in heard] == ["stream", "stream", "final"]


async def test_three_asks_on_one_socket_are_answered_in_order(service):
    session_id = await service.create_session()
    async with service.compatible() as socket:
        for number in range(3):
            await say(socket, **ask(session_id, f"question {number}", client_exchange_id=f"e{number}"))
        finals = [(await hear_until(socket, "final"))[-1] for _ in range(3)]
    exchanges = [final["messages"][0]["exchange_id"] for final in finals]
    assert exchanges == ["e0", "e1", "e2"]
    ranks = [message["rank"] for final in finals for message in final["messages"]]
    assert ranks == [0, 1, 2, 3, 4, 5]


async def test_the_ninth_ask_that_waits_is_refused_after_the_others_are_answered(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        session_id = await service.create_session()
        async with service.compatible() as socket:
            for number in range(10):
                await say(socket, **ask(session_id, f"question {number}"))
            async with asyncio.timeout(PATIENCE_S):
                while not hits(service, "asks_per_socket"):  # noqa: ASYNC110 - a metric tells nobody
                    await asyncio.sleep(0.01)
            model.go.set()
            finals = [(await hear_until(socket, "final"))[-1] for _ in range(9)]
            assert [final["messages"][0]["parts"][0]["text"] for final in finals] == [f"question {n}" for n in range(9)]
            assert (await hear(socket))["code"] == "rate_limited"
            assert await closed_with(socket) == 1011


async def test_a_bad_frame_is_answered_after_the_asks_before_it(start_service):
    async with start_service(model="mock;ttft=300;tokens=3") as service:
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, **ask(session_id))
            await socket.send("{")
            await hear_until(socket, "final")
            assert (await hear(socket))["code"] == "bad_request"
            assert await closed_with(socket) == 1011


@pytest.mark.one_instance("its process drains")
async def test_asks_that_wait_when_a_drain_begins_or_come_in_it_are_each_told_so(start_service):
    """In their order, behind the answer that was being written; nothing of them is stored."""
    async with held_model() as model, start_service(ai=model.ai, deadlines={"drain_s": 600}) as service:
        sessions = [await service.create_session() for _ in range(4)]
        async with service.compatible() as socket, service.native() as native:
            for number, session_id in enumerate(sessions[:3]):
                await say(socket, **ask(session_id, client_exchange_id=f"e{number}"))
            await hear(socket)
            await say(native, type="ask", **ask(sessions[3], client_exchange_id="n0"))
            await hear_until(native, "message")
            draining = asyncio.ensure_future(service.service.drain())
            while not service.service.running.hub.draining:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            await say(socket, **ask(sessions[3], client_exchange_id="e3"))
            await say(native, type="ask", **ask(sessions[0], client_exchange_id="n1"))
            refused = (await hear_until(native, "error"))[-1]
            assert (refused["code"], refused["exchange_id"]) == ("draining", "n1")
            model.go.set()
            assert (await hear_until(socket, "final"))[-1]["session"]["id"] == sessions[0]
            told = [await hear(socket) for _ in range(3)]
            assert [(frame["type"], frame["code"], frame["session_id"]) for frame in told] == [
                ("error", "draining", session_id) for session_id in sessions[1:]
            ]
            await hear_until(native, "final")
            assert [await closed_with(socket), await closed_with(native)] == [1012, 1012]
            await draining


async def test_close_4000_cancels_whatever_is_being_written(start_service):
    async with start_service(model="mock;tokens=300;gap=5") as service:
        session_ids = [await service.create_session() for _ in range(30)]

        async def ask_and_stop(number):
            async with service.compatible() as socket:
                await say(socket, **ask(session_ids[number], client_exchange_id=f"e{number}"))
                await asyncio.sleep(number % 5 * 0.004)
                await socket.close(4000)

        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(ask_and_stop(number))
        turns = [service.turn(f"e{number}") for number in range(30)]
        async with asyncio.timeout(PATIENCE_S):
            for turn in turns:
                if turn is not None:  # stopped before its first step
                    await turn.wait_ended()
        ends = {type(turn.events[-1].payload).__name__ for turn in turns if turn is not None}
        assert ends == {"Cancelled"}


@pytest.mark.parametrize("token", [None, ""])
async def test_a_handshake_without_token_is_accepted_and_closed_with_4401(service, token):
    async with service.compatible(token=token) as socket:
        assert await closed_with(socket) == 4401


async def test_any_token_will_do_without_authentication(service):
    session_id = await service.create_session()
    async with service.compatible("?token=whatever", token=None) as socket:
        await say(socket, **ask(session_id))
        await hear_until(socket, "final")


async def test_a_foreign_origin_is_refused_before_the_socket_opens(service):
    for origin in ["https://evil.example", "null", f"http://127.0.0.1:{service.port}.evil.example"]:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(service.ws_url + "?token=x", origin=origin)
        assert refusal.value.response.status_code == 403


async def test_close_4000_cancels_and_the_turn_is_in_history_as_interrupted(start_service):
    async with start_service(model="mock;ttft=600000") as service:
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, **ask(session_id, client_exchange_id="e1"))
            await hear(socket)
            await socket.close(4000, "client_stop")
        turn = service.turn("e1")
        async with asyncio.timeout(PATIENCE_S):
            await turn.wait_ended()
        messages = await service.history(session_id)
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["metadata"]["finish_reason"] == "cancelled"
    assert messages[1]["metadata"]["extras"]["status"] == "interrupted"


async def test_any_other_close_lets_the_turn_finish_into_history(start_service):
    async with start_service(model="mock;ttft=300;tokens=5") as service:
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, **ask(session_id, client_exchange_id="e1"))
            await hear(socket)
        turn = service.turn("e1")
        async with asyncio.timeout(PATIENCE_S):
            await turn.wait_ended()
        messages = await service.history(session_id)
    assert messages[1]["metadata"]["finish_reason"] == "stop"
    assert len(messages[1]["parts"][0]["text"].split()) == 5


async def test_a_model_failure_is_a_final_with_a_safe_text_and_the_code(start_service):
    async with start_service(
        model="mock;error=1;status=500", ai={"default_chat_model": {"settings": {"max_retries": 0}}}
    ) as service:
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, **ask(session_id))
            heard = await hear_until(socket, "final")
            assert [frame["type"] for frame in heard] == ["stream", "final"]
            answer = heard[-1]["messages"][-1]
            assert answer["metadata"]["finish_reason"] == "other"
            assert answer["metadata"]["extras"]["error"] == "llm_unavailable"
            assert answer["parts"][0]["text"] == "The model is unavailable. Try again."
            await say(socket, **ask(session_id, "again"))
            assert (await hear_until(socket, "final"))[-1]["messages"][0]["rank"] == 2


@pytest.mark.parametrize(
    ("frame", "code", "session"),
    [
        ("{", "bad_request", "unknown-session"),
        ('{"session_id":"abc","agent_id":"Georges"}', "bad_request", "abc"),
        ('{"type":"dance","session_id":"abc"}', "unknown_type", "abc"),
        ('{"session_id":"nobody","agent_id":"Georges","message":"m"}', "session_not_found", "nobody"),
    ],
)
async def test_a_bad_frame_ends_the_socket_with_an_error_and_1011(service, frame, code, session):
    async with service.compatible() as socket:
        await socket.send(frame)
        error = await hear(socket)
        assert error["type"] == "error"
        assert (error["code"], error["session_id"]) == (code, session)
        assert isinstance(error["content"], str)
        assert await closed_with(socket) == 1011


async def test_an_unknown_agent_is_refused(service):
    session_id = await service.create_session()
    async with service.compatible() as socket:
        await say(socket, session_id=session_id, agent_id="Nobody", message="m")
        assert (await hear(socket))["code"] == "agent_not_found"
        assert await closed_with(socket) == 1011


async def test_the_history_window_counts_from_the_newest(service):
    session_id = await service.create_session()
    async with service.compatible() as socket:
        for number in range(3):
            await say(socket, **ask(session_id, f"question {number}"))
            await hear_until(socket, "final")
    whole = await service.history(session_id)
    assert [message["rank"] for message in whole] == [0, 1, 2, 3, 4, 5]
    assert await service.history(session_id, "?limit=2") == whole[4:]
    assert await service.history(session_id, "?limit=2&offset=2") == whole[2:4]
    assert await service.history(session_id, "?limit=10&offset=4") == whole[:2]
    assert await service.history(session_id, "?offset=6") == []
    cut = await service.history(session_id, "?limit=1&text_limit=3&text_offset=1")
    assert cut[0]["parts"][0]["text"] == whole[5]["parts"][0]["text"][1:4]
    assert await service.get(f"/chatbot/session/{session_id}/message/3") == whole[3]


async def test_what_is_unknown_or_not_yours_is_403_and_a_missing_message_404(service):
    for method, path in [
        ("GET", "/chatbot/session/nobody/history"),
        ("GET", "/chatbot/session/nobody/message/0"),
        ("DELETE", "/chatbot/session/nobody"),
    ]:
        async with service.http.request(method, BASE + path) as response:
            assert response.status == 403
            assert (await response.json())["detail"]["code"] == "session_not_found"
    session_id = await service.create_session()
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}/message/7") as response:
        assert response.status == 404
        assert (await response.json())["detail"]["code"] == "message_not_found"


async def test_sessions_are_listed_and_deleted_with_their_history(service):
    first, second = await service.create_session("One"), await service.create_session("Two")
    async with service.compatible() as socket:
        await say(socket, **ask(first))
        await hear_until(socket, "final")
    listed = await service.get("/chatbot/sessions")
    assert [session["id"] for session in listed] == [first, second]
    assert listed[0]["agents"] == [{"id": "Georges", "name": "Georges"}]
    async with service.http.delete(f"{BASE}/chatbot/session/{first}") as response:
        assert response.status == 200
        assert await response.json() is True
    assert [session["id"] for session in await service.get("/chatbot/sessions")] == [second]
    async with service.http.get(f"{BASE}/chatbot/session/{first}/history") as response:
        assert response.status == 403
    async with service.compatible() as socket:
        await say(socket, **ask(first))
        assert (await hear(socket))["code"] == "session_not_found"


async def test_the_limit_of_sessions_is_told_in_the_compatible_words(start_service):
    async with start_service(ai={"max_concurrent_sessions_per_user": 2}) as service:
        await service.create_session()
        await service.create_session()
        async with service.http.post(f"{BASE}/chatbot/session") as response:
            assert response.status == 403
            assert (await response.json())["detail"] == "Session limit reached (2 sessions per user)."


async def test_the_agents_and_the_health_routes_have_their_shapes(service):
    agents = await service.get("/agents")
    assert agents[0]["id"] == "Georges"
    assert {"id", "name", "enabled", "tuning", "chat_options"} <= set(agents[0])
    assert await service.get("/healthz") == {"status": "ok"}
    ready = await service.get("/ready")
    assert ready["status"] == "ready"
    assert ready["dependencies"]["postgres"]["status"] == "up"


async def test_the_baseline_answers_with_the_same_frames_and_stores_nothing(service):
    async with service.compatible("-baseline") as socket:
        await say(socket, **ask("anything"))
        heard = await hear_until(socket, "final")
    assert [frame["type"] for frame in heard] == ["stream", "stream", "final"]
    assert await service.get("/chatbot/sessions") == []


async def test_the_same_ask_twice_is_one_turn_and_another_text_a_conflict(service):
    session_id = await service.create_session()
    async with service.compatible() as socket:
        await say(socket, **ask(session_id, client_exchange_id="e1"))
        first = (await hear_until(socket, "final"))[-1]
        await say(socket, **ask(session_id, client_exchange_id="e1"))
        again = (await hear_until(socket, "final"))[-1]
        assert again == first
        await say(socket, **ask(session_id, "something else", client_exchange_id="e1"))
        assert (await hear_until(socket, "error"))[-1]["code"] == "conflict"
    assert len(await service.history(session_id)) == 2
