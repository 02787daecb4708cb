"""Graphs that ask a person: `interrupt` in nodes, in tools and in graphs within graphs, and langchain's reviews."""

import re

import pytest

from tests.hosted.stage import agents, answer, ask, shown, stream, talk, text_of, told
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {
    "ai": agents(
        Trip="questions",
        Nested="questions:nested",
        Paying="questions:paying",
        Reviewed="agent:reviewed",
        Exit={"graph": "questions", "durability": "exit"},
        Sync={"graph": "questions", "durability": "sync"},
    )
}
ADDS = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")
BOTH = wants(("c1", "add", '{"a": 2, "b": 3}'), ("c2", "shout", '{"text": "hey"}'))


async def waiting(service, agent, message="Hello", way=talk):
    """A session that has asked a person, with its ask and what it asks."""
    session_id = await service.create_session(agent_id=agent)
    asked = ask(session_id, agent, message)
    frames = await way(service, asked)
    assert frames[-1]["type"] == "awaiting_human", frames[-1]
    return asked, frames


def ids_of(payload):
    """The ids of the questions, by the words of each."""
    return {re.sub(r"\s+", " ", question["question"]): question["id"] for question in payload["questions"]}


@pytest.mark.parametrize("way", [talk, stream])
@pytest.mark.parametrize("agent", ["Trip", "Nested", "Exit", "Sync"])
async def test_two_questions_at_once_answered_together(hosted, agent, way):
    asked, frames = await waiting(hosted, agent, way=way)
    payload = frames[-1]["payload"]
    ids = ids_of(payload)
    assert [question["stage"] for question in payload["questions"] if "stage" in question] == ["value"]
    where = ids.pop("Where to?")
    (when,) = ids.values()
    both = {"answers": {where: "Oslo", when: {"value": "Friday"}}}
    frames = await way(hosted, answer(asked, both))
    assert text_of(frames) == "Booked on Friday, to Oslo."
    history = await hosted.history(asked["session_id"])
    assert frames[-1]["messages"] == history
    assert [message["rank"] for message in history] == [0, 1, 2]
    assert history[1]["metadata"]["extras"]["decision"]["answer"] == both


@pytest.mark.parametrize("agent", ["Trip", "Nested", "Exit", "Sync"])
async def test_two_questions_at_once_answered_one_by_one(hosted, agent):
    asked, frames = await waiting(hosted, agent)
    ids = ids_of(frames[-1]["payload"])
    frames = await talk(hosted, answer(asked, {"answers": {ids["Where to?"]: "Oslo"}}))
    assert frames[-1]["type"] == "awaiting_human"
    payload = frames[-1]["payload"]
    assert "questions" not in payload
    assert payload["interrupt_id"] in ids.values()
    assert payload["metadata"] == {"value": {"ask": "when", "days": ["Monday", "Friday"]}}
    frames = await talk(hosted, answer(asked, {"answers": {payload["interrupt_id"]: "Monday"}}))
    assert text_of(frames) == "Booked on Monday, to Oslo."
    assert [one["role"] for one in await hosted.history(asked["session_id"])] == ["user", "user", "user", "assistant"]


async def test_a_question_in_a_tool_and_the_next_question_of_the_conversation(hosted, stage):
    pays = wants(("c1", "pay", '{"amount": 7}'))
    stage.play(pays, says("Paid."), says("You are welcome."))
    asked, frames = await waiting(hosted, "Paying", "Pay 7")
    assert shown(frames) == [("user", "Pay 7"), ("tool_call", 'pay({"amount": 7})'), ("awaiting_human",)]
    assert frames[-1]["payload"]["question"] == "Pay 7?"
    frames = await talk(hosted, answer(asked, {"text": "yes"}))
    assert shown(frames) == [("user", "yes"), ("tool_result", "paid"), ("delta", "Paid."), ("final",)]
    await talk(hosted, ask(asked["session_id"], "Paying", "Thanks"))
    assert stage.asked() == [
        ("user", "Pay 7"),
        ("assistant", ""),
        ("tool", "paid"),
        ("assistant", "Paid."),
        ("user", "Thanks"),
    ]


async def test_who_lets_a_question_be_leaves_no_trace_of_it(hosted, stage):
    stage.play(says("Fine."), wants(("c1", "pay", '{"amount": 7}')), says("Sure."))
    session_id = await hosted.create_session(agent_id="Paying")
    await talk(hosted, ask(session_id, "Paying", "Hello"))
    asked = ask(session_id, "Paying", "Pay 7")
    assert (await talk(hosted, asked))[-1]["type"] == "awaiting_human"
    await talk(hosted, ask(session_id, "Paying", "Never mind"))
    assert stage.asked() == [("user", "Hello"), ("assistant", "Fine."), ("user", "Never mind")]
    late = await talk(hosted, answer(asked, {"text": "yes"}))
    assert late[-1]["code"] == "not_awaiting"


EDITED = {"type": "edit", "edited_action": {"name": "add", "args": {"a": 2, "b": 30}}}
REVIEWS = {
    "approve": ({"choice_id": "approve"}, "5"),
    "reject": ({"choice_id": "reject", "answer": "Not now"}, "Not now"),
    "edit": ({"decisions": [EDITED]}, "32"),
}


@pytest.mark.parametrize("decision", REVIEWS)
async def test_a_review_of_a_call(hosted, stage, decision):
    payload, ends = REVIEWS[decision]
    stage.play(ADDS, says("Done."))
    asked, frames = await waiting(hosted, "Reviewed", "Add 2 and 3")
    question = frames[-1]["payload"]
    assert question["stage"] == "action_review"
    assert question["action_requests"][0]["args"] == {"a": 2, "b": 3}
    assert question["review_configs"][0]["action_name"] == "add"
    assert [choice["id"] for choice in question["choices"]] == ["approve", "reject"]
    frames = await talk(hosted, answer(asked, payload))
    (result,) = [one[1] for one in shown(frames) if one[0] == "tool_result"]
    assert result.startswith("failed: ") == (decision == "reject")
    assert ends in result
    assert text_of(frames) == "Done."
    assert ends in stage.asked()[-1][1]
    history = await hosted.history(asked["session_id"])
    assert [told(one) for one in history][-1] == ("final", "Done.")
    (decided,) = [one for one in history if "decision" in one["metadata"].get("extras", {})]
    assert decided["metadata"]["extras"]["decision"]["answer"] == payload


async def test_of_two_calls_the_one_that_needs_it_is_reviewed(hosted, stage):
    stage.play(BOTH, says("Done."))
    asked, frames = await waiting(hosted, "Reviewed", "Both")
    assert [one["name"] for one in frames[-1]["payload"]["action_requests"]] == ["add"]
    frames = await talk(hosted, answer(asked, {"choice_id": "approve"}))
    results = sorted(one[1] for one in shown(frames) if one[0] == "tool_result")
    assert results == ["5", "HEY"]


async def test_to_wait_for_a_person_is_no_failure(hosted):
    """After all of the above: no phase of a node, of LangGraph or of the turn has failed."""
    found = re.findall(r'app_phase_latency_seconds_count\{phase="(\w+)",status="(\w+)"\} (\d+)', await hosted.metrics())
    failed = {phase: status for phase, status, count in found if status != "ok" and int(float(count))}
    assert failed == {}
    assert {"where", "when", "tools", "graph", "state_read", "state_write"} <= {phase for phase, _, _ in found}


async def test_a_question_over_a_restart(start_process, stage):
    """Two at once, one answered before the process ends and one after."""
    sections = {
        "env": {"MODEL_URL": stage.url, "MOCK_URL": ""},
        "ai": agents(Trip="questions", Reviewed="agent:reviewed"),
    }
    stage.play(ADDS, says("Done."))
    async with start_process("scripted", **sections) as service:
        trip, frames = await waiting(service, "Trip")
        ids = ids_of(frames[-1]["payload"])
        assert (await talk(service, answer(trip, {"answers": {ids["Where to?"]: "Oslo"}})))[-1]["type"] == (
            "awaiting_human"
        )
        reviewed, _ = await waiting(service, "Reviewed", "Add 2 and 3")
    async with start_process("scripted", **sections) as service:
        assert (await talk(service, trip))[-1]["type"] == "awaiting_human"  # asked again, it still waits
        when = {"value": "Monday"}
        assert text_of(await talk(service, answer(trip, when))) == "Booked on Monday, to Oslo."
        assert (await talk(service, answer(trip, when)))[-1]["code"] == "not_awaiting"
        assert text_of(await talk(service, answer(reviewed, {"choice_id": "approve"}))) == "Done."
        assert stage.asked()[-1] == ("tool", "5")
