"""A hosted graph goes on from the state that it had where a branch begins, whatever it has done since."""

import signal

import pytest

from tests.agentic_backend.llm.scripted import stalls_after
from tests.hosted.stage import agents, answer, ask, stream, talk, text_of
from tests.support.service import hear_until, say
from tests.support.tool_model import says, wants

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECTIONS = {"ai": agents(Tools="tools", Notes="odd:notes_graph", Paying="questions:paying")}
ADDS = wants(("c1", "add", '{"a": 2, "b": 3}'), text="Let me see.")


def again(session_id, agent, regenerate):
    return ask(session_id, agent, "") | {"regenerate": regenerate}


async def test_a_graph_knows_what_stands_before_the_branch(hosted, stage):
    stage.play(says("One."), ADDS, says("It is 5."), says("Three."), says("Zwei."), says("Drei."))
    session_id = await hosted.create_session(agent_id="Tools")
    first, second, third = (ask(session_id, "Tools", message) for message in ("First", "Add 2 and 3", "Third"))
    ends = [(await talk(hosted, frame))[-1]["messages"][-1]["rank"] for frame in (first, second, third)]
    assert text_of(await stream(hosted, ask(session_id, "Tools", "Zweitens", after_rank=ends[0]))) == "Zwei."
    assert stage.asked() == [("user", "First"), ("assistant", "One."), ("user", "Zweitens")]
    await talk(hosted, ask(session_id, "Tools", "Drittens"))
    assert stage.asked()[2:] == [("user", "Zweitens"), ("assistant", "Zwei."), ("user", "Drittens")]
    history = await hosted.history(session_id)
    assert [message["parts"][0]["text"] for message in history] == [
        "First", "One.", "Zweitens", "Zwei.", "Drittens", "Drei.",
    ]  # fmt: skip
    assert len(await hosted.history(session_id, "?branches=1")) > len(history) + 4


async def test_an_answer_is_made_again_from_the_same_state(hosted):
    session_id = await hosted.create_session(agent_id="Notes")
    frames = [ask(session_id, "Notes", message) for message in "abc"]
    for frame in frames:
        await talk(hosted, frame)
    for _ in range(2):
        regenerated = again(session_id, "Notes", frames[2]["client_exchange_id"])
        assert text_of(await talk(hosted, regenerated)) == "Seen: a, b."
        frames[2] = regenerated
    assert text_of(await talk(hosted, ask(session_id, "Notes", "d"))) == "Seen: a, b, c."
    assert text_of(await talk(hosted, again(session_id, "Notes", frames[0]["client_exchange_id"]))) == "Seen: ."
    assert text_of(await talk(hosted, ask(session_id, "Notes", "e"))) == "Seen: a."


async def test_a_branch_that_was_cut_off_goes_on_where_it_was(start_process, stage):
    on = {
        "model": "scripted",
        "env": {"MODEL_URL": stage.url},
        "ai": {
            **agents(Tools="tools"),
            "default_chat_model": {"name": "scripted", "settings": {"base_url": stage.url}},
        },
    }
    stage.play(says("One."), says("Two."), says("Three."))
    async with start_process(**on) as service:
        session_id = await service.create_session(agent_id="Tools")
        for message in ("First", "Second"):
            await talk(service, ask(session_id, "Tools", message))
        fork = ask(session_id, "Tools", "Zweitens", after_rank=1)
        stage.play(ADDS, stalls_after())
        async with service.native() as socket:
            await say(socket, **fork)
            frames = await hear_until(socket, "message")
            while frames[-1]["message"]["channel"] != "tool_result":
                frames = await hear_until(socket, "message")
            await service.ask_on_disk(fork["client_exchange_id"])
            service.process.send(signal.SIGKILL)
            await service.process.until(service.process.wait)
    stage.play(says("It is 5."), says("Drei."))
    async with start_process(**on, app={"log_level": "info"}) as service:
        await service.line(rf"exchange_id={fork['client_exchange_id']} .* status=ok ")
        assert stage.asked(0)[:3] == [("user", "First"), ("assistant", "One."), ("user", "Zweitens")]
        await talk(service, ask(session_id, "Tools", "Drittens"))
        asked = stage.asked()
        assert ("user", "Second") not in asked
        assert asked[-2:] == [("assistant", "It is 5."), ("user", "Drittens")]


async def test_a_branch_may_leave_a_question_to_a_person_and_ask_its_own(hosted, stage):
    pays = wants(("c1", "pay", '{"amount": 7}'))
    stage.play(says("One."), pays, pays, says("Paid."), says("Three."))
    session_id = await hosted.create_session(agent_id="Paying")
    await talk(hosted, ask(session_id, "Paying", "First"))
    left, own = ask(session_id, "Paying", "Pay"), ask(session_id, "Paying", "Zahle", after_rank=1)
    for frame in (left, own):
        assert (await talk(hosted, frame))[-1]["type"] == "awaiting_human"
    assert (await talk(hosted, answer(left, {"text": "yes"})))[-1]["code"] == "not_awaiting"
    assert text_of(await talk(hosted, answer(own, {"text": "yes"}))) == "Paid."
    told = [("user", "First"), ("assistant", "One."), ("user", "Zahle"), ("assistant", ""), ("tool", "paid")]
    assert stage.asked() == told
    await talk(hosted, ask(session_id, "Paying", "Third"))
    assert stage.asked() == [*told, ("assistant", "Paid."), ("user", "Third")]
    assert {one["exchange_id"] for one in await hosted.history(session_id)}.isdisjoint({left["client_exchange_id"]})
