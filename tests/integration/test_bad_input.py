"""docs/trust.md#D2 and D3 on the native protocol: each broken frame has its code, and the socket is usable after it."""

import asyncio
import json
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from tests.agentic_backend.chat.test_frames import HOSTILE
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.service import hear, hear_until, say

UNKNOWN_TYPE = {"an unknown type": '{"type":"dance"}'}
ENDED_BY_THE_SERVER = {
    "a binary frame": (b"\x00\x01", 1003),
    "ten megabytes": ("x" * 10_000_000, 1009),
}


async def close_code(socket):
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code


@pytest.mark.parametrize("text", [*HOSTILE.values(), *UNKNOWN_TYPE.values()], ids=[*HOSTILE, *UNKNOWN_TYPE])
async def test_a_broken_frame_has_its_code_and_the_socket_goes_on(service, text):
    session_id = await service.create_session()
    async with service.native() as socket:
        await socket.send(text)
        error = await hear(socket)
        assert error["type"] == "error"
        assert error["code"] == ("unknown_type" if text in UNKNOWN_TYPE.values() else "bad_request")
        assert set(error) - {"field"} == {"type", "code", "message", "retryable", "request_id"}
        await say(socket, type="ask", session_id=session_id, agent_id="Georges", message="Hello")
        await hear_until(socket, "final")


async def test_a_message_that_is_too_long_is_told_apart(start_service):
    async with start_service(limits={"max_message_chars": 10}) as service, service.native() as socket:
        await say(socket, type="ask", session_id="s", agent_id="Georges", message="x" * 11)
        assert (await hear(socket))["code"] == "message_too_long"


async def test_the_third_broken_frame_in_ten_seconds_closes_with_1008(service):
    async with service.native() as socket:
        for _ in range(3):
            await socket.send("{")
        for _ in range(3):
            assert (await hear(socket))["code"] == "bad_request"
        assert await close_code(socket) == 1008


@pytest.mark.parametrize(("frame", "code"), ENDED_BY_THE_SERVER.values(), ids=ENDED_BY_THE_SERVER)
async def test_what_is_no_text_frame_closes_with_its_code(service, frame, code):
    async with service.native() as socket:
        with suppress(ConnectionClosed):  # it may be over before all of it is sent
            await socket.send(frame)
        assert await close_code(socket) == code


async def test_a_binary_frame_closes_at_once_although_a_turn_runs_which_goes_on(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Hello"}
            await say(socket, **ask, client_exchange_id="e1")
            await hear_until(socket, "message")
            await socket.send(b"\x00")
            assert await close_code(socket) == 1003
        turn = service.turn("e1")
        assert not turn.ended
        model.go.set()
        async with asyncio.timeout(PATIENCE_S):
            await turn.wait_ended()
        assert len(await service.history(session_id)) == 2


async def test_bad_utf8_closes_with_1007(service):
    async with service.native() as socket:
        await socket.send(b"\xff\xfe", text=True)
        assert await close_code(socket) == 1007


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"type": "ask", "session_id": "nobody", "agent_id": "Georges", "message": "m"}, "session_not_found"),
        ({"type": "ask", "session_id": "nobody", "agent_id": "Nobody", "message": "m"}, "agent_not_found"),
        ({"type": "cancel", "exchange_id": "nothing"}, "exchange_not_found"),
    ],
)
async def test_a_refusal_before_the_turn_has_no_number_and_the_socket_stays(service, frame, code):
    async with service.native() as socket:
        await say(socket, **frame)
        error = await hear(socket)
        assert (error["type"], error["code"]) == ("error", code)
        assert "seq" not in error
        await say(socket, type="ping")
        assert (await hear(socket))["type"] == "pong"


async def test_a_title_that_cannot_be_stored_is_refused(service):
    for title in ['"\\ud800"', '"a\\u0000b"']:
        body = f'{{"title":{title}}}'
        headers = {"Content-Type": "application/json"}
        async with service.http.post("/agentic/v1/chatbot/session", data=body, headers=headers) as response:
            assert response.status == 422
            assert (await response.json())["detail"]["code"] == "bad_request"
    assert await service.get("/chatbot/sessions") == []


async def test_no_input_comes_back_and_none_is_logged(service, caplog):
    canary = "canary-7f3a"
    async with service.native(token="canary-token-19c2") as socket:
        await socket.send(json.dumps({"type": "ask", "session_id": canary, "access_token": canary}))
        assert canary not in json.dumps(await hear(socket))
        await say(socket, type="auth", access_token="canary-renewal-55")
        await say(socket, type="ping")
        await hear_until(socket, "pong")
    assert "canary" not in caplog.text
