"""A turn outlives its socket: cut anywhere, it goes on where the client was, and sent twice it is one."""

import asyncio
import json

import pytest

from tests.support.following import (
    after,
    ask_frame,
    heard,
    last_seq,
    over_socket,
    resume_frame,
    transcript,
)
from tests.support.held_model import held_model
from tests.support.service import hear, hear_until, say

TOKENS = 10
EVENTS = 2 + TOKENS + 2  # accepted, question; session, final; fewer where the model's pieces came together
MODEL = f"mock;tokens={TOKENS};gap=25"


async def test_a_socket_cut_at_any_event_and_resumed_hears_what_an_uncut_one_does(start_service):
    async def cut_at(index):
        session_id = await service.create_session(title=None)
        frame = ask_frame(session_id, f"e{index}")
        uncut = group.create_task(heard(over_socket(service, frame)))
        first = await heard(over_socket(service, frame), up_to=index)
        again = after(first, frame)
        rest = await heard(over_socket(service, again)) if again else []
        assert transcript(first + rest) == transcript(await uncut)
        return last_seq(first)

    async with start_service(MODEL) as service:
        async with asyncio.TaskGroup() as group:
            cuts = [group.create_task(cut_at(index)) for index in range(EVENTS)]
        assert len({cut.result() for cut in cuts}) > EVENTS / 3  # they were cut in different places


async def test_an_ended_turn_is_replayed_from_any_event(service):
    session_id = await service.create_session(title=None)
    whole = await heard(over_socket(service, ask_frame(session_id)))
    for index, frame in enumerate(whole[:-1]):
        rest = await heard(over_socket(service, resume_frame(session_id, after_seq=last_seq([frame]))))
        assert transcript(whole[: index + 1] + rest) == transcript(whole)
    assert await heard(over_socket(service, {**resume_frame(session_id), "after_seq": 0})) != []


async def test_a_resume_of_what_ended_nothing_says_nothing_and_another_number_hears_all_of_it(service):
    session_id = await service.create_session()
    whole = await heard(over_socket(service, ask_frame(session_id)))
    async with service.native() as socket:
        await say(socket, **resume_frame(session_id, after_seq=last_seq(whole)))
        await say(socket, type="ping")
        assert (await hear(socket))["type"] == "pong"
        await say(socket, **resume_frame(session_id, after_seq=last_seq(whole) + 1))
        assert (await hear(socket))["seq"] == 1


async def test_two_sockets_follow_one_turn_and_a_second_resume_on_one_starts_over(start_service):
    async with held_model() as model, start_service(ai=model.ai) as service:
        session_id = await service.create_session()
        async with service.native() as one, service.native() as other:
            await say(one, **ask_frame(session_id))
            await hear_until(one, "message")
            await say(other, **resume_frame(session_id, after_seq=1))
            await say(one, **resume_frame(session_id))
            again = await hear_until(one, "message")
            assert [frame["type"] for frame in again] == ["accepted", "message"]
            model.go.set()
            again += await hear_until(one, "final")
            heard_by_other = await hear_until(other, "final")
            assert heard_by_other[0]["type"] == "message"
            assert heard_by_other[-1] == again[-1]
            await say(one, type="ping")
            assert (await hear(one))["type"] == "pong"  # one end only


async def test_after_a_restart_the_finished_turn_is_told_from_history_whatever_the_number(start_service):
    async with start_service() as service:
        session_id = await service.create_session()
        first = await heard(over_socket(service, ask_frame(session_id)))
    async with start_service("mock;status=500") as service:
        for after_seq in (0, 3, last_seq(first)):
            told = [
                json.loads(text)
                for text in await heard(over_socket(service, resume_frame(session_id, after_seq=after_seq)))
            ]
            assert [(frame["seq"], frame["type"]) for frame in told] == [
                (1, "accepted"),
                (2, "message"),
                (3, "delta"),
                (4, "final"),
            ]
            assert told[-1]["messages"] == json.loads(first[-1])["messages"]


async def test_an_unknown_exchange_a_foreign_one_and_one_of_another_session_are_not_told_apart(start_service):
    async with start_service() as service:
        session_id = await service.create_session()
        other_id = await service.create_session()
        await heard(over_socket(service, ask_frame(session_id, "known")))
        answers = []
        async with service.native() as socket:
            for session, exchange in ((session_id, "unknown"), (other_id, "known"), ("no-session", "known")):
                await say(socket, **resume_frame(session, exchange))
                answer = await hear(socket)
                assert answer.pop("session_id") == session
                assert answer.pop("exchange_id") == exchange
                answer.pop("request_id")
                answers.append(answer)
    assert answers == [answers[0]] * 3
    assert answers[0]["code"] == "exchange_not_found"


@pytest.mark.parametrize("after_seq", [-1, 1.5, "1", True, None, 2**31])
async def test_a_number_that_is_none_is_a_bad_request(service, after_seq):
    async with service.native() as socket:
        await say(socket, **{**resume_frame("s"), "after_seq": after_seq})
        assert (await hear(socket))["code"] == "bad_request"
