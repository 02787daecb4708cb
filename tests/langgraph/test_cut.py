"""The stream of a run, cut after any of its events: behind `Last-Event-ID` comes what is missing, and nothing twice."""

import asyncio
from uuid import uuid4

import pytest

from tests.langgraph.stage import AGENTS, BEARER, GEORGES, GRAPHS, told
from tests.langgraph.wire import asks, begin, joined, rejoin, run_of, texts_of, values_of
from tests.support.again_agent import ANSWER, SAID, again
from tests.support.fleet import MANY, two_instances

TOKENS = 8
STREAMED = f"mock;tokens={TOKENS};gap=25"
STALLS = "mock;tokens=9;stall=3"
"""An answer that begins and never ends."""
QUICK = "mock;tokens=3"
EVENTS = {"agent": 10, "Georges": 2 + TOKENS + 6, "Teller": 20}
ANSWERS = {"decisions": [{"type": "approve"}, {"type": "approve"}]}


def thread_of():
    return str(uuid4())


async def cut_everywhere(service, there, thread_id, whole):
    """An ended run, cut after each event and gone on with at `there`."""
    run_id = run_of(whole)
    assert whole[-1].name == "end"
    for cut in range(len(whole) + 1):
        after = whole[cut - 1].id if cut else "-1"
        rest = await rejoin(there, thread_id, run_id, after)
        assert joined([*whole[:cut], *rest]) == joined(whole), cut
    # Without a place it is told from the first event, too.
    assert joined(await rejoin(there, thread_id, run_id, None)) == joined(whole)


@pytest.mark.parametrize("agent", ["agent", "Georges", "Teller"])
async def test_an_ended_run_is_told_from_any_event_on(start_service, agent):
    async with start_service(STREAMED, **AGENTS) as service:
        thread_id = thread_of()
        whole = await begin(service, thread_id, asks(agent))
        assert len({one.id for one in whole}) == len(whole)
        await cut_everywhere(service, service, thread_id, whole)


@pytest.mark.parametrize("agent", ["agent", "Georges", "Teller"])
async def test_a_running_run_is_told_from_any_event_on(start_service, agent):
    async def cut_at(number):
        thread_id = thread_of()
        first = await begin(service, thread_id, asks(agent), most=number)
        run_id = run_of(first)
        rest = await rejoin(service, thread_id, run_id, first[-1].id)
        whole = await rejoin(service, thread_id, run_id, "-1")
        assert whole[-1].name == "end"
        assert joined([*first, *rest]) == joined(whole), number

    async with start_service(STREAMED, **AGENTS) as service, asyncio.TaskGroup() as group:
        for number in range(1, EVENTS[agent]):
            group.create_task(cut_at(number))


@pytest.mark.parametrize(
    ("agent", "text", "answer"), [("asker", "hi", "yes"), ("Teller", "review", ANSWERS)], ids=["hosted", "ours"]
)
async def test_a_question_and_the_run_behind_its_answer_are_told_from_any_event_on(start_service, agent, text, answer):
    async with start_service(**AGENTS) as service:
        thread_id = thread_of()
        asked = await begin(service, thread_id, asks(agent, text))
        assert "__interrupt__" in values_of(asked)[-1]
        await cut_everywhere(service, service, thread_id, asked)
        went_on = await begin(service, thread_id, asks(agent, input=None, command={"resume": answer}))
        assert run_of(went_on) != run_of(asked)
        assert "__interrupt__" not in values_of(went_on)[-1]
        await cut_everywhere(service, service, thread_id, went_on)
        # The first run is what it was.
        await cut_everywhere(service, service, thread_id, asked)


@pytest.mark.parametrize("agent", ["agent", "Georges"])
async def test_a_run_goes_on_at_another_instance(start_process, agent):
    async def cut_at(number):
        here, there = instances if number % 2 else reversed(instances)
        thread_id = thread_of()
        first = await begin(here, thread_id, asks(agent), most=number)
        run_id = run_of(first)
        rest = await rejoin(there, thread_id, run_id, first[-1].id)
        whole = await rejoin(here, thread_id, run_id, "-1")
        assert whole[-1].name == "end"
        assert joined([*first, *rest]) == joined(whole), number
        # Once it has ended, too.
        for after in ("-1", first[-1].id):
            ended = await rejoin(there, thread_id, run_id, after)
            assert values_of([*first, *ended])[-1] == values_of(whole)[-1]

    agents = {"ai": {"agents": [*GRAPHS, GEORGES]}}
    async with two_instances(start_process, STREAMED, **agents) as instances, asyncio.TaskGroup() as group:
        for number in range(1, EVENTS[agent]):
            group.create_task(cut_at(number))


async def begun(service, thread_id, **more):
    """The events of a run up to some text, which is in the spool by then."""
    heard = await begin(service, thread_id, asks("Georges", **more), most="messages")
    assert any(texts_of(heard).values())
    await service.ask_on_disk(run_of(heard))
    return heard


def came_again(rest, run_id):
    """The end of what a client hears whose run was run again: all of it, as if it were of another message."""
    assert rest[0].name == "metadata"
    assert rest[0].data == {"run_id": run_id, "attempt": 2}
    assert rest[-1].name == "end"
    question, answer = values_of(rest)[-1]["messages"]
    assert (question["type"], answer["type"]) == ("human", "ai")
    assert len(answer["content"].split()) == 3
    return answer


async def test_after_a_kill_the_run_runs_again_and_its_text_is_there_once(start_process):
    agents = {"agents": [GEORGES]}
    async with start_process(STALLS, ai=agents) as service:
        thread_id = thread_of()
        first = await begun(service, thread_id)
        run_id = run_of(first)
        await service.process.until(service.process.kill)
    async with start_process(QUICK, ai=agents) as service:
        rest = await rejoin(service, thread_id, run_id, first[-1].id)
        came_again(rest, run_id)
        texts = texts_of(rest)
        # A hook that has the text so far must not glue the new one to it.
        assert not set(texts) & set(texts_of(first))
        async with service.http.get(f"/threads/{thread_id}/state") as response:
            state = await response.json()
        assert [kind for kind, _ in told(state["values"])] == ["human", "ai"]
        async with service.http.get(f"/threads/{thread_id}/runs/{run_id}") as response:
            assert (await response.json())["status"] == "success"


async def test_the_runs_of_a_killed_instance_go_on_at_another(start_process):
    agents = {"agents": [GEORGES]}
    async with start_process(STALLS, ai=agents, **MANY) as one, start_process(QUICK, ai=agents, **MANY) as other:
        thread_id = thread_of()
        first = await begin(one, thread_id, asks("Georges"), most="messages")
        run_id = run_of(first)
        async with asyncio.TaskGroup() as group:
            follows = group.create_task(rejoin(other, thread_id, run_id, "-1"))
            await rejoin(other, thread_id, run_id, "-1", most="messages")  # as far as that one
            await one.process.until(one.process.kill)
        followed = follows.result()
        at = [place for place, event in enumerate(followed) if event.name == "metadata"]
        assert [followed[place].data["attempt"] for place in at] == [1, 2]
        answer = came_again(followed[at[1] :], run_id)
        rest = await rejoin(other, thread_id, run_id, first[-1].id)
        assert values_of(rest)[-1]["messages"][-1]["content"] == answer["content"]


@pytest.mark.parametrize("text", ["Why?", "silent"])
async def test_what_a_run_that_begins_again_had_said_is_of_another_message(start_service, text):
    async with start_service(ai={"agents": [again()]}) as service:
        thread_id = thread_of()
        heard = await begin(service, thread_id, asks("Again", text))
        at = [place for place, event in enumerate(heard) if event.name == "metadata"]
        before, after = heard[: at[-1]], heard[at[-1] :]
        assert "".join(texts_of(before).values()) == ("".join(SAID) if text == "Why?" else "")
        assert [one for one in texts_of(after).values() if one] == [ANSWER]
        assert not set(texts_of(before)) & set(texts_of(after))
        assert told(values_of(heard)[-1]) == [("human", text), ("ai", ANSWER)]
        for cut in range(1, len(heard)):
            rest = await rejoin(service, thread_id, run_of(heard), heard[cut - 1].id)
            if rest[0].name == "metadata":
                assert joined(rest)[1:] == joined(after)[1:], cut
            else:
                assert joined([*heard[:cut], *rest])[-1] == joined(heard)[-1]


async def test_what_is_no_place_is_refused(start_service):
    async with start_service(QUICK, **AGENTS) as service:
        thread_id = thread_of()
        whole = await begin(service, thread_id, asks("Georges"))
        path = f"/threads/{thread_id}/runs/{run_of(whole)}/stream"
        for place in ("nonsense", "1.x", "-2", "9" * 40):
            async with service.http.get(path, headers={**BEARER, "Last-Event-ID": place}) as response:
                assert response.status == 422, place
                assert (await response.json())["field"] == "Last-Event-ID"
