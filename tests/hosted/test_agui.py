"""Graphs of anybody at the door of AG-UI: their steps, their questions, and the conversation that a client sends."""

from uuid import uuid4

import pytest

from tests.hosted.stage import agents
from tests.support.agui import Thread, joined, kinds
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {"ai": agents(Tools="tools", Trip="questions", Paying="questions:paying")}
TEXT = ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]
CALL = ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
ADDS = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")


def run_of(*between):
    return ["RUN_STARTED", "STEP_STARTED", *between, "STEP_FINISHED", "RUN_FINISHED"]


async def run(hosted, thread, **more):
    return await thread.run(hosted, uuid4().hex, **more)


async def test_tool_steps_and_a_second_question_with_the_first_edited(hosted, stage):
    stage.play(ADDS, says("It is ", "5."), ADDS, says("Still 5."))
    thread = Thread("Tools")
    thread.say("Add 2 and 3")
    events = await run(hosted, thread)
    assert kinds(events) == run_of(*TEXT, *CALL, "TOOL_CALL_RESULT", *TEXT)
    assert [(one["role"], one["content"]) for one in thread.messages] == [
        ("user", "Add 2 and 3"),
        ("assistant", "Let me see."),
        ("tool", "5"),
        ("assistant", "It is 5."),
    ]
    thread.messages[0]["content"] = "Add 2 and 3, please"
    thread.say("Again")
    again = await run(hosted, thread)
    assert stage.asked(2) == [
        ("user", "Add 2 and 3, please"),
        ("assistant", "Let me see."),
        ("tool", "5"),
        ("assistant", "It is 5."),
        ("user", "Again"),
    ]
    # The model gave the second call the id of the first: the client has both, each with its result.
    calls = [call["id"] for one in thread.messages for call in one.get("toolCalls", ())]
    assert len(set(calls)) == len(calls) == 2
    assert [one["toolCallId"] for one in thread.messages if one["role"] == "tool"] == calls
    assert kinds(again) == kinds(events)


async def test_two_questions_at_once(hosted):
    thread = Thread("Trip")
    thread.say("Hello")
    events = await run(hosted, thread)
    asked = {one["message"]: one["id"] for one in events[-1]["outcome"]["interrupts"]}
    where = asked.pop("Where to?")
    (when,) = asked.values()
    entries = [
        {"interruptId": when, "status": "resolved", "payload": "Friday"},
        {"interruptId": where, "status": "resolved", "payload": {"text": "Oslo"}},
    ]
    went_on = await run(hosted, thread, resume=entries)
    assert thread.text() == "Booked on Friday, to Oslo."
    again = Thread("Trip", thread.thread_id, thread.messages[:1])
    assert joined(await again.run(hosted, went_on[0]["runId"], resume=entries)) == joined(went_on)


async def test_a_question_in_a_tool_and_the_next_question(hosted, stage):
    stage.play(wants(("c1", "pay", '{"amount": 7}')), says("Paid."), says("You are welcome."))
    thread = Thread("Paying")
    thread.say("Pay 7")
    (asked,) = (await run(hosted, thread))[-1]["outcome"]["interrupts"]
    assert (asked["message"], asked["reason"]) == ("Pay 7?", "input_required")
    answered = await run(hosted, thread, resume=[{"interruptId": asked["id"], "status": "resolved", "payload": "yes"}])
    assert kinds(answered) == run_of("TOOL_CALL_RESULT", *TEXT)
    thread.say("Thanks")
    await run(hosted, thread)
    assert stage.asked() == [
        ("user", "Pay 7"),
        ("assistant", ""),
        ("tool", "paid"),
        ("assistant", "Paid."),
        ("user", "Thanks"),
    ]
