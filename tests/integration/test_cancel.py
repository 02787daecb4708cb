"""What stops a turn stops the model too: its connection is closed, the slot is free, and history says interrupted."""

import asyncio
import json
import time

import pytest

from tests.support.following import ask_frame, heard, over_socket
from tests.support.patience import PATIENCE_S
from tests.support.service import hear, hear_until, say

SLOW = "mock;ttft=600000"
"""A first token that within the time of a test only a stop can forestall."""
ASKS = 1000
CLIENTS = 25


async def stats(service, mock_llm):
    """What the model says of itself."""
    async with service.http.get(mock_llm.base_url.removesuffix("/v1") + "/stats") as response:
        return await response.json()


async def until_open(service, mock_llm, count):
    """Ask the model until it has so many streams open; the milliseconds that it took."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while (await stats(service, mock_llm))["streams"]["open"] != count:
            pass
    return (time.monotonic() - began) * 1e3


async def by_frame(_service, socket):
    await say(socket, type="cancel", exchange_id="e1")


async def by_frame_of_another_socket(service, _socket):
    async with service.native() as other:
        await say(other, type="cancel", exchange_id="e1")
        await say(other, type="ping")
        assert (await hear(other))["type"] == "pong"


async def by_close_4000(_service, socket):
    await socket.close(4000)


async def by_leaving(_service, socket):
    socket.transport.abort()


@pytest.mark.parametrize(
    ("stop", "policy"),
    [
        (by_frame, "continue"),
        (by_frame_of_another_socket, "continue"),
        (by_close_4000, "continue"),
        (by_leaving, "cancel"),
    ],
)
async def test_a_stop_before_the_first_token_closes_the_models_connection(
    start_service, mock_llm, record_property, stop, policy
):
    async with start_service(SLOW) as service:
        before = (await stats(service, mock_llm))["streams"]["open"]
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask_frame(session_id, on_disconnect=policy))
            await hear_until(socket, "message")
            await until_open(service, mock_llm, before + 1)
            turn = service.turn("e1")
            await stop(service, socket)
            record_property("upstream_closed_ms", round(await until_open(service, mock_llm, before), 1))
            await turn.wait_ended()
            assert service.running_turns == 0
            user, answer = await service.history(session_id)
            assert (user["rank"], answer["rank"]) == (0, 1)
            assert answer["metadata"]["finish_reason"] == "cancelled"
            assert answer["metadata"]["extras"]["status"] == "interrupted"


async def test_close_4000_of_a_compatible_client_does_the_same(start_service, mock_llm, record_property):
    async with start_service(SLOW) as service:
        before = (await stats(service, mock_llm))["streams"]["open"]
        session_id = await service.create_session()
        async with service.compatible() as socket:
            await say(socket, **ask_frame(session_id))
            await hear(socket)
            await until_open(service, mock_llm, before + 1)
            turn = service.turn("e1")
            await socket.close(4000, "client_stop")
        record_property("upstream_closed_ms", round(await until_open(service, mock_llm, before), 1))
        await turn.wait_ended()
        assert service.running_turns == 0
        assert (await service.history(session_id))[1]["metadata"]["extras"]["status"] == "interrupted"


async def test_the_last_follower_that_leaves_cancels_and_no_other(start_service, mock_llm):
    async with start_service(SLOW) as service:
        session_id = await service.create_session()
        frame = ask_frame(session_id, on_disconnect="cancel")
        async with service.native() as first, service.native() as second:
            await say(first, **frame)
            await hear_until(first, "message")
            await say(second, type="resume", session_id=session_id, exchange_id="e1")
            await hear_until(second, "message")
            turn = service.turn("e1")
            await first.close()
            await say(second, type="ping")
            assert (await hear(second))["type"] == "pong"
            assert not turn.cancel_requested
            second.transport.abort()
            await turn.wait_ended()
        assert (await service.history(session_id))[1]["metadata"]["finish_reason"] == "cancelled"


@pytest.mark.timeout(300)
async def test_a_thousand_asks_that_are_sent_again_cost_one_model_call_each(start_service, mock_llm):
    async def client(number):
        session_id = await service.create_session()
        for turn in range(ASKS // CLIENTS):
            frame = ask_frame(session_id, f"{number}-{turn}", f"Question {turn}")
            assert [json.loads(text)["type"] for text in await heard(over_socket(service, frame), up_to=1)] == [
                "accepted"
            ]
            final = json.loads((await heard(over_socket(service, frame)))[-1])
            assert final["type"] == "final"
            assert [message["rank"] for message in final["messages"]] == [2 * turn, 2 * turn + 1]
        history = await service.history(session_id)
        assert [message["rank"] for message in history] == list(range(2 * ASKS // CLIENTS))
        assert history[-2:] == final["messages"]

    async with start_service("mock;tokens=1") as service:
        before = (await stats(service, mock_llm))["requests"]["chat"]
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(number))
        assert (await stats(service, mock_llm))["requests"]["chat"] - before == ASKS
