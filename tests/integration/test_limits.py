"""Limits that no flood of sockets or asks meets: each lets in exactly what it says, has its code, and is counted."""

import asyncio
from contextlib import aclosing

import pytest
from websockets.exceptions import ConnectionClosed

from tests.support.following import ask_frame, over_stream
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, headers_of, token_of
from tests.support.service import BASE, hear, hear_until, hits, say

SLOW = "mock;ttft=600000"
STREAM = f"{BASE}/chatbot/query/stream"


async def refused(service, frame):
    """Status, code and Retry-After of what the event stream answers."""
    async with service.http.post(STREAM, json=frame) as response:
        return response.status, (await response.json())["detail"]["code"], response.headers.get("Retry-After")


async def test_of_a_hundred_sessions_asked_for_at_once_the_last_place_has_one_winner(start_service):
    """docs/trust.md#E10."""

    async def create(service, user):
        async with service.http.post(f"{BASE}/chatbot/session", headers=headers_of(user)) as response:
            return response.status, await response.json()

    async with start_service(ai={"max_concurrent_sessions_per_user": 5}, security=SECURITY) as service:
        for _ in range(4):
            assert (await create(service, "ann"))[0] == 200
        answers = await asyncio.gather(*(create(service, "ann") for _ in range(100)))
        assert sorted(status for status, _ in answers) == [200] + [403] * 99
        words = {"detail": "Session limit reached (5 sessions per user)."}
        assert all(body == words for status, body in answers if status == 403)
        assert (await create(service, "bob"))[0] == 200
        assert hits(service, "max_concurrent_sessions_per_user") == 99


@pytest.mark.one_instance("its limit is of one process")
@pytest.mark.parametrize(
    ("limits", "limit", "answer"),
    [
        ({"max_sockets": 6}, "max_sockets", (503, "overloaded", "2")),
        ({"per_address": {"sockets": 6}}, "per_address_sockets", (429, "rate_limited", "2")),
        ({"per_user": {"sockets": 6}}, "per_user_sockets", (429, "rate_limited", "2")),
        ({"max_turns": 6, "queue_length": 0}, "max_turns", (503, "overloaded", "2")),
        ({"per_user": {"turns": 6}}, "per_user_turns", (429, "too_many_turns", "1")),
        ({"per_user": {"asks_per_min": 1, "burst": 6}}, "per_user_asks_per_min", (429, "rate_limited", None)),
    ],
)
async def test_of_many_event_streams_at_once_exactly_those_within_a_limit_are_answered(
    start_service, limits, limit, answer
):
    async def told(service, session_id):
        async with aclosing(over_stream(service, ask_frame(session_id, session_id))) as frames:
            try:
                await anext(frames)
            except AssertionError:
                return False
            await done.wait()
            return True

    done = asyncio.Event()
    # Its end is not waited for: the turns that were let in would outlast any.
    async with start_service(SLOW, limits=limits, deadlines={"drain_s": 0.1}) as service:
        sessions = [await service.create_session() for _ in range(25)]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(told(service, session_id)) for session_id in sessions[:24]]
            await _until(lambda: sum(task.done() for task in asked) == 18)
            status, code, after = await refused(service, ask_frame(sessions[24]))
            # The bucket says when the next is in it: a minute at most.
            assert (status, code, after if answer[2] else None) == answer
            assert 1 <= int(after) <= 60
            done.set()
        assert sum(task.result() for task in asked) == 6
        assert hits(service, limit) == 19


async def _until(true):
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - tasks of which any may end
            await asyncio.sleep(0.01)


async def test_what_is_too_long_is_counted_on_every_channel(start_service):
    async with start_service(limits={"max_message_chars": 10, "max_frame_bytes": 4096}) as service:
        session_id = await service.create_session()
        long = ask_frame(session_id, message="x" * 11)
        async with service.native() as socket:
            await say(socket, **long)
            assert (await hear(socket))["code"] == "message_too_long"
        async with service.compatible() as socket:
            await say(socket, **long)
            assert (await hear(socket))["code"] == "message_too_long"
        assert await refused(service, long) == (422, "message_too_long", None)
        assert hits(service, "max_message_chars") == 3
        async with service.native() as socket:
            await say(socket, **ask_frame(session_id, message="x" * 5000))
            with pytest.raises(ConnectionClosed):
                await hear(socket)
            assert socket.close_code == 1009
        assert [await each.running.hub.wait_empty(PATIENCE_S) for each in service.instances] == [0] * len(
            service.instances
        )
        assert hits(service, "max_frame_bytes") == 1


async def test_what_may_wait_for_a_session_or_on_a_socket_is_bounded_and_counted(start_service):
    async with start_service(SLOW) as service:
        one = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask_frame(one, "e0"))
            await hear_until(socket, "message")
            for number in range(1, 10):
                await say(socket, **ask_frame(one, f"e{number}", if_busy="queue"))
            busy = await hear(socket)
            assert (busy["code"], busy["exchange_id"], busy["retry_after_ms"]) == ("session_busy", "e9", 1000)
            assert hits(service, "asks_per_session") == 1
            for number in range(24):
                await say(socket, **ask_frame(await service.create_session(), f"f{number}"))
            limited = (await hear_until(socket, "error"))[-1]
            assert (limited["code"], limited["retry_after_ms"]) == ("rate_limited", 1000)
            assert hits(service, "asks_per_socket") == 1
            for exchange in ("e", "f"):
                for number in reversed(range(24)):
                    turn = service.turn(f"{exchange}{number}")
                    if turn is not None:
                        turn.cancel()


@pytest.mark.one_instance("its limit is of one process")
async def test_the_baseline_keeps_the_limits_of_turns(start_service):
    limits = {"per_user": {"turns": 2}, "max_turns": 3, "queue_length": 0}
    async with start_service(SLOW, limits=limits, security=SECURITY) as service:

        async def first_frame(user):
            socket = await service.compatible("-baseline", token_of(user))
            held.append(socket)
            await say(socket, **ask_frame("anything", f"e{len(held)}"))
            return await hear(socket)

        held = []
        frames = [await first_frame(user) for user in ("ann", "ann", "ann", "bob", "bob")]
        told = [frame.get("code", frame["type"]) for frame in frames]
        assert told == ["stream", "stream", "too_many_turns", "stream", "overloaded"]
        assert (hits(service, "per_user_turns"), hits(service, "max_turns")) == (1, 1)
        for socket in held:
            await socket.close(4000)
        await _until(lambda: service.running_turns == 0)
        assert (await first_frame("ann"))["type"] == "stream"
        await held[-1].close(4000)
