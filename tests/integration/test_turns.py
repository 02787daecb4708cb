"""Turns on the native protocol: cancelling, busy sessions, limits, what a disconnect does, failures in mid-stream."""

import asyncio
import json

import pytest

from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.raw import PING, PONG, TEXT, frame, head, peer
from tests.support.service import hear, hear_until, say


def ask(session_id, message="Hello", agent_id="Georges", **more):
    return {"type": "ask", "session_id": session_id, "agent_id": agent_id, "message": message, **more}


SLOW = "mock;ttft=600000"


async def ended(service, exchange_id):
    turn = service.turn(exchange_id)
    async with asyncio.timeout(PATIENCE_S):
        await turn.wait_ended()


async def test_cancel_ends_a_turn_at_a_slow_first_token_and_keeps_the_question(start_service):
    async with start_service(model=SLOW) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, client_exchange_id="e1"))
            await hear_until(socket, "message")
            await say(socket, type="cancel", exchange_id="e1")
            cancelled = (await hear_until(socket, "cancelled"))[-1]
            assert [message["role"] for message in cancelled["messages"]] == ["user", "assistant"]
            await say(socket, type="cancel", exchange_id="e1")
            assert (await hear(socket))["code"] == "exchange_not_found"
        assert (await service.history(session_id))[1]["metadata"]["extras"]["status"] == "interrupted"


async def test_a_cancel_in_the_same_segment_as_its_ask_ends_the_turn(start_service):
    async with start_service(model=SLOW, limits={"per_user": {"turns": 1}}) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number in range(3):
                frames = [
                    ask(session_id, client_exchange_id=f"e{number}"),
                    {"type": "cancel", "exchange_id": f"e{number}"},
                ]
                for frame in frames:
                    socket.protocol.send_text(json.dumps(frame).encode())
                socket.transport.write(b"".join(socket.protocol.data_to_send()))
                assert (await hear_until(socket, "cancelled"))[-1]["exchange_id"] == f"e{number}"
                turn = service.turn(f"e{number}")
                assert turn is None or turn.ended
                await say(socket, type="ping")
                await hear_until(socket, "pong")
        assert service.running_turns == 0


async def test_cancel_in_mid_stream_keeps_the_text_so_far(start_service):
    async with start_service(model="mock;tokens=9;stall=3") as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, client_exchange_id="e1"))
            heard = await hear_until(socket, "delta")
            await say(socket, type="cancel", exchange_id="e1")
            heard += await hear_until(socket, "cancelled")
        text = "".join(frame["text"] for frame in heard if frame["type"] == "delta")
        assert heard[-1]["messages"][1]["parts"][0]["text"] == text
        deltas = sum(frame["type"] == "delta" for frame in heard)
        assert heard[-1]["messages"][1]["metadata"]["extras"]["deltas"] == deltas > 0
        assert [frame["seq"] for frame in heard] == sorted({frame["seq"] for frame in heard})


@pytest.mark.one_instance("who waits for a turn elsewhere has no place in a line: decision 68")
async def test_a_busy_session_rejects_queues_or_replaces(start_service):
    async with start_service(model=SLOW) as service:
        session_id = await service.create_session()
        async with service.native() as one, service.native() as other:
            await say(one, **ask(session_id, client_exchange_id="e1"))
            await hear_until(one, "message")
            await say(other, **ask(session_id, client_exchange_id="e2"))
            refused = await hear(other)
            assert (refused["code"], refused["retryable"]) == ("session_busy", True)
            assert refused["retry_after_ms"] == 1000
            await say(other, **ask(session_id, client_exchange_id="e3", if_busy="queue"))
            await say(other, **ask(session_id, client_exchange_id="e4", if_busy="replace"))
            assert (await hear_until(one, "cancelled"))[-1]["exchange_id"] == "e1"
            # The one that waited runs first; the one that replaces has cancelled only what ran then.
            assert (await hear_until(other, "accepted"))[-1]["exchange_id"] == "e3"
            await say(other, type="cancel", exchange_id="e4")
            heard = await hear_until(other, "cancelled")
            assert heard[-1]["exchange_id"] == "e4"
            await say(other, type="cancel", exchange_id="e3")
            await hear_until(other, "cancelled")
        ranks = [message["rank"] for message in await service.history(session_id)]
        assert ranks == [0, 1, 2, 3]


async def test_on_disconnect_cancel_ends_the_turn_and_continue_does_not(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        stopped, finished = await service.create_session(), await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(stopped, client_exchange_id="e1", on_disconnect="cancel"))
            await say(socket, **ask(finished, client_exchange_id="e2"))
            await hear_until(socket, "message")
            await hear_until(socket, "message")
        await ended(service, "e1")
        model.go.set()
        await ended(service, "e2")
        assert (await service.history(stopped))[1]["metadata"]["finish_reason"] == "cancelled"
        assert (await service.history(finished))[1]["metadata"]["finish_reason"] == "stop"


@pytest.mark.one_instance("its limit is of one process")
async def test_above_max_turns_an_ask_is_told_its_place_and_gets_the_slot(start_service):
    limits = {"max_turns": 1, "queue_length": 1, "queue_deadline_s": 600}
    async with held_model() as model, start_service(ai=model.ai, limits=limits) as service:
        sessions = [await service.create_session() for _ in range(3)]
        async with service.native() as socket:
            for number, session_id in enumerate(sessions):
                await say(socket, **ask(session_id, client_exchange_id=f"e{number}"))
            heard = []
            while sum(frame["type"] == "final" for frame in heard) < 2:
                heard.append(await hear(socket))
                if heard[-1]["type"] == "error":
                    model.go.set()
        accepted = {frame["exchange_id"]: frame for frame in heard if frame["type"] == "accepted"}
        assert "queue_position" not in accepted["e0"]
        assert accepted["e1"]["queue_position"] == 1
        overloaded = next(frame for frame in heard if frame["type"] == "error")
        assert (overloaded["exchange_id"], overloaded["code"]) == ("e2", "overloaded")
        assert "seq" not in overloaded


@pytest.mark.one_instance("its limit is of one process")
async def test_the_deadline_of_the_queue_is_a_numbered_error(start_service):
    limits = {"max_turns": 1, "queue_length": 1, "queue_deadline_s": 2}
    async with start_service(model=SLOW, limits=limits) as service:
        first, second = await service.create_session(), await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(first, client_exchange_id="e0"))
            await hear_until(socket, "message")
            await say(socket, **ask(second, client_exchange_id="e1"))
            heard = await hear_until(socket, "error")
            assert [frame["seq"] for frame in heard] == [1, 2]
            assert heard[-1]["code"] == "overloaded"
            await say(socket, type="cancel", exchange_id="e0")
            await hear_until(socket, "cancelled")
            # What never began may be asked again under the same id.
            await say(socket, **ask(second, client_exchange_id="e1"))
            await hear_until(socket, "message")
            await say(socket, type="cancel", exchange_id="e1")
            await hear_until(socket, "cancelled")


@pytest.mark.one_instance("of two sockets that are opened at once instances do not know which is older")
async def test_the_limits_of_a_user_are_kept(start_service):
    limits = {"per_user": {"sockets": 1, "turns": 1, "asks_per_min": 1, "burst": 2}, "per_address": {"sockets": 3}}
    async with start_service(model=SLOW, limits=limits) as service:
        sessions = [await service.create_session() for _ in range(3)]
        async with service.native() as oldest, service.native() as socket:
            async with asyncio.timeout(PATIENCE_S):
                await oldest.wait_closed()
            assert oldest.close_code == 4409
            await say(socket, **ask(sessions[0], client_exchange_id="e0"))
            await hear_until(socket, "message")
            await say(socket, **ask(sessions[1], client_exchange_id="e1"))
            assert (await hear(socket))["code"] == "too_many_turns"
            await say(socket, type="cancel", exchange_id="e0")
            await hear_until(socket, "cancelled")
            await say(socket, **ask(sessions[1], client_exchange_id="e2"))
            await hear_until(socket, "message")
            await say(socket, type="cancel", exchange_id="e2")
            await hear_until(socket, "cancelled")
            await say(socket, **ask(sessions[2], client_exchange_id="e3"))
            assert (await hear(socket))["code"] == "rate_limited"


async def test_a_failure_in_mid_stream_keeps_the_partial_text(start_service):
    async with start_service(model="mock;tokens=20;truncate=5") as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            heard = await hear_until(socket, "error")
            assert (heard[-1]["code"], heard[-1]["partial"]) == ("llm_protocol", True)
            assert heard[-1]["seq"] == len(heard) or heard[-1]["seq"] > 2
        text = "".join(frame["text"] for frame in heard if frame["type"] == "delta")
        stored = (await service.history(session_id))[1]
        assert stored["parts"][0]["text"] == text
        assert stored["metadata"]["extras"]["error"] == "llm_protocol"


async def test_after_an_answer_without_sense_the_next_ask_on_the_socket_is_answered(start_service, caplog):
    models = {
        "Garbled": "mock;tokens=8;garbage=4",
        "Cut": "mock;tokens=8;truncate=4",
        "Empty": "mock;tokens=8;garbage=0",
    }
    plain = "agentic_backend.agent.plain"
    agents = [{"name": name, "class_path": plain, "model": name.lower()} for name in models]
    ai = {
        "agents": [{"name": "Georges", "class_path": plain}, *agents],
        "chat_models": [{"id": name.lower(), "title": name, "name": knobs} for name, knobs in models.items()],
    }
    async with start_service(ai=ai) as service, service.native() as socket:
        for name in models:
            failing = await service.create_session(agent_id=name)
            await say(socket, **ask(failing, agent_id=name))
            assert (await hear_until(socket, "error"))[-1]["code"] == "llm_protocol"
            await say(socket, **ask(await service.create_session()))
            await hear_until(socket, "final")
    assert "Traceback" not in caplog.text


async def test_a_message_that_waits_in_a_long_turn_does_not_end_the_socket(start_service):
    """docs/trust.md#D7: the turn outlasts the keepalive several times over, with asks before it; a ping without a pong
    would be the last."""
    server = {"ping_interval_s": 0.4, "ping_timeout_s": PATIENCE_S}
    async with start_service(model=SLOW, server=server) as service, peer(service.port) as client:
        session_id = await service.create_session()
        answer = await client.upgrade(
            head("/agentic/v1/chatbot/query/ws", "Authorization: Bearer local", "Sec-WebSocket-Protocol: turnwise.v1")
        )
        assert answer.startswith(b"HTTP/1.1 101 ")
        for number in range(20):
            await client.send(frame(TEXT, json.dumps(ask(session_id, client_exchange_id=f"e{number}")).encode()))
        pings, busy = 0, 0
        while pings < 8:
            opcode, payload = await client.hear()
            assert opcode in {TEXT, PING}
            if opcode == PING:
                pings += 1
                await client.send(frame(PONG, payload))
            else:
                busy += json.loads(payload).get("code") == "session_busy"
        assert busy == 19
        await client.send(frame(TEXT, json.dumps({"type": "cancel", "exchange_id": "e0"}).encode()))
        opcode, payload = await client.hear()
        while opcode == PING:
            opcode, payload = await client.hear()
        assert json.loads(payload)["type"] == "cancelled"


async def test_the_deadline_of_a_turn_is_its_own_code(start_service):
    async with start_service(model=SLOW, deadlines={"turn_s": 0.2}) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            assert (await hear_until(socket, "error"))[-1]["code"] == "turn_deadline"


async def test_silence_is_broken_by_a_heartbeat_and_an_idle_socket_is_closed(start_service):
    async with start_service(deadlines={"heartbeat_s": 1}) as service, service.native() as socket:
        assert await hear(socket) == {"type": "heartbeat"}
    async with start_service(deadlines={"idle_s": 1}) as service, service.native() as socket:
        async with asyncio.timeout(PATIENCE_S):
            await socket.wait_closed()
        assert socket.close_code == 4408


async def test_turn_two_knows_turn_one(service):
    session_id = await service.create_session()
    async with service.native() as socket:
        await say(socket, **ask(session_id, "My name is Ada."))
        await hear_until(socket, "final")
        await say(socket, **ask(session_id, "What is my name?"))
        final = (await hear_until(socket, "final"))[-1]
    assert "Ada" in final["messages"][1]["parts"][0]["text"]


async def test_deleting_a_session_stops_its_turn(start_service):
    async with start_service(model=SLOW) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, client_exchange_id="e1"))
            await say(socket, **ask(session_id, client_exchange_id="e2", if_busy="queue"))
            await hear_until(socket, "message")
            async with service.http.delete(f"/agentic/v1/chatbot/session/{session_id}") as response:
                assert response.status == 200
            ends = {}
            while len(ends) < 2:
                frame = await hear(socket)
                if frame["type"] in {"cancelled", "error"}:
                    ends[frame["exchange_id"]] = frame
            assert ends["e1"]["type"] == "cancelled"
            assert ends["e2"]["code"] == "session_not_found"
        assert await service.get("/chatbot/sessions") == []
