"""A turn that runs again before connections that live: what each door says of it, and that nothing of two runs is glued
together."""

import json
from uuid import uuid4

import openai
import pytest

from agentic_backend.session.stream import RUN_SEQS
from agentic_backend.surfaces.openai.response_events import OF_A_RERUN
from tests.integration.test_openai_door import client_of
from tests.integration.test_responses_door import ended
from tests.integration.test_responses_door import hear as hear_response
from tests.support.again_agent import ANSWER, SAID, THOUGHT, again
from tests.support.agui import Thread, custom
from tests.support.following import TERMINAL, ask_frame, heard, over_socket, over_stream, resume_frame, transcript
from tests.support.mcp_client import ERAS, mcp_client
from tests.support.service import hear_until, say

pytestmark = pytest.mark.one_instance("its agent begins again what one process runs")

AGENTS = {"ai": {"agents": [again()]}}
MESSAGES = [{"role": "user", "content": "Why?"}]


@pytest.fixture
async def service(start_service):
    async with start_service(**AGENTS) as service:
        yield service


def ask(session_id, message="Why?", **more):
    return ask_frame(session_id, message=message, agent_id="Again", **more)


@pytest.mark.parametrize("over", [over_socket, over_stream])
async def test_native_clients_are_told_in_the_middle_and_those_that_come_later_hear_the_last_run(service, over):
    session_id = await service.create_session(agent_id="Again")
    frames = await heard(over(service, ask(session_id)))
    told = [json.loads(frame) for frame in frames]
    numbers = [frame["seq"] for frame in told]
    assert numbers == sorted(set(numbers))
    (at,) = [place for place, frame in enumerate(told) if frame["type"] == "restarted"]
    assert told[at] == {"type": "restarted", "session_id": session_id, "exchange_id": "e1", "seq": RUN_SEQS + 1}
    texts = ["".join(one["text"] for one in part if one["type"] == "delta") for part in (told[:at], told[at:])]
    assert texts == ["".join(SAID), ANSWER]
    assert [frame["type"] for frame in told if frame["type"] in TERMINAL] == ["final"]
    for frame in (ask(session_id), resume_frame(session_id), resume_frame(session_id, after_seq=told[at - 1]["seq"])):
        assert transcript(await heard(over(service, frame))) == transcript(frames[at:])
    rest = await heard(over(service, resume_frame(session_id, after_seq=RUN_SEQS + 2)))
    assert transcript(rest) == transcript(frames[at + 2 :])


async def test_compatible_clients_get_the_messages_once_more_and_no_other_frame(service):
    session_id = await service.create_session(agent_id="Again")
    async with service.compatible() as socket:
        await say(socket, session_id=session_id, agent_id="Again", message="Why?", client_exchange_id="e1")
        frames = await hear_until(socket, "final")
        async with service.native() as other:
            await say(other, **resume_frame(session_id))
            final = (await hear_until(other, "final"))[-1]
    said = [frame["message"] for frame in frames if frame["type"] == "stream"]
    assert {frame["type"] for frame in frames} <= {"stream", "session", "final"}
    assert [message["role"] for message in said] == ["user", "system", "user", "assistant"]
    assert (said[0], said[-1]) == (said[2], final["messages"][-1])
    assert frames[-1]["messages"] == final["messages"]


async def said_by(client, messages, texts):
    """Add the pieces of the answer to `texts`."""
    async for chunk in await client.chat.completions.create(model="Again", messages=messages, stream=True):
        texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]


async def test_a_chat_completion_that_has_said_something_ends_with_an_error_to_try_again(service):
    async with client_of(service) as client:
        texts = []
        with pytest.raises(openai.APIError) as broken:
            await said_by(client, MESSAGES, texts)
        assert (broken.value.code, broken.value.message) == ("draining", "The service is restarting. Try again.")
        assert "".join(texts) == "".join(SAID)


async def test_a_chat_completion_that_has_said_nothing_goes_on_and_one_in_one_piece_has_the_last_run(service):
    async with client_of(service) as client:
        texts = []
        await said_by(client, [{"role": "user", "content": "silent"}], texts)
        assert "".join(texts) == ANSWER
        whole = await client.chat.completions.create(model="Again", messages=MESSAGES)
        message = whole.choices[0].message
        assert (message.content, message.model_extra["reasoning_content"]) == (ANSWER, THOUGHT)


async def test_a_response_that_has_said_something_ends_its_stream_and_is_heard_by_another(service):
    async with client_of(service) as client:
        stream = await client.responses.create(model="Again", input="Why?", stream=True, background=True)
        events = [event async for event in stream]
        name = events[0].response.id
        assert [event.type for event in events].count("response.created") == 1
        assert (events[-1].type, events[-1].code) == ("error", "draining")
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "".join(SAID)
        with pytest.raises(openai.ConflictError) as renumbered:
            await client.responses.retrieve(name, stream=True, starting_after=events[-1].sequence_number)
        assert renumbered.value.code == "events_renumbered"
        response = await ended(service, name)
        whole = await hear_response(service, response=name)
        assert whole[0]["sequence_number"] == OF_A_RERUN
        assert whole[-1]["response"] == response
        texts = [one["text"] for item in response["output"] for one in item.get("content", ())]
        assert texts == [ANSWER]


async def test_a_response_that_has_said_nothing_goes_on_and_one_in_one_piece_has_the_last_run(service):
    body = {"model": "Again", "input": "silent", "background": True}
    events = await hear_response(service, body)
    name = events[0]["response"]["id"]
    assert [event["sequence_number"] for event in events[:3]] == [0, 1, OF_A_RERUN + 2]
    again_heard = await hear_response(service, response=name)
    assert [event["type"] for event in again_heard[:2]] == ["response.created", "response.in_progress"]
    assert again_heard[2:] == events[2:]
    assert await hear_response(service, response=name, after=OF_A_RERUN + 3) == events[4:]
    async with client_of(service) as client:
        whole = await client.responses.create(model="Again", input="Why?")
        assert whole.output_text == ANSWER
        assert [item.type for item in whole.output] == ["reasoning", "message"]


async def test_a_run_of_ag_ui_takes_back_what_it_said_and_goes_on(service):
    thread = Thread("Again")
    thread.say("silent")
    await thread.run(service, "r0")
    before = [*thread.messages]
    thread.say("Why?")
    asked = thread.messages[-1]
    events = await thread.run(service, "r1")
    assert [event["type"] for event in events].count("MESSAGES_SNAPSHOT") == 1
    assert events[-1]["outcome"] == {"type": "success"}
    assert thread.messages[: len(before) + 1] == [*before, asked]
    shown = [(one["role"], one["content"]) for one in thread.messages[len(before) + 1 :] if one["content"]]
    assert shown == [("reasoning", THOUGHT), ("assistant", ANSWER)]
    assert len(custom(events, "ledger")) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_of_an_mcp_tool_has_the_last_run(service, era):
    told = []

    async def note(progress, _total, message):
        told.append((progress, message))

    async with mcp_client(service.port, era) as client:
        result = await client.call_tool("ask_Again", {"question": str(uuid4())}, progress_callback=note)
    assert result.structured_content["answer"] == ANSWER
    numbers, texts = zip(*told, strict=True)
    assert list(numbers) == sorted(set(numbers))
    assert "Starts again" in texts
