"""Several instances, all alive: whichever a client asks, it is as if there were one."""

import asyncio
import json
import signal
from contextlib import aclosing

import pytest

from tests.agentic_backend.llm.scripted import scripted
from tests.agentic_backend.records import until
from tests.integration.test_cancel import SLOW, stats, until_open
from tests.integration.test_deletion import delete, left
from tests.integration.test_human import DONE, NOTES, answer, answered, asked, goes_on_after, sections, used
from tests.support.agentic import start_process
from tests.support.fleet import (
    MANY,
    assert_same_bytes,
    heard_end,
    heard_final,
    held,
    listening,
    open_asks,
    read,
    stored,
    text_of,
    two_instances,
)
from tests.support.following import (
    after,
    ask_frame,
    heard,
    last_seq,
    over_socket,
    over_stream,
    resume_frame,
    seq_of,
    transcript,
)
from tests.support.held_model import held_model
from tests.support.service import BASE, hear, hear_until, say
from tests.support.tool_server import tool_server

__all__ = ["start_process", "tool_server"]

TOKENS = 10
EVENTS = 2 + TOKENS + 2  # as in test_resume
STREAMED = f"mock;tokens={TOKENS};gap=25"
STREAM = f"{BASE}/chatbot/query/stream"
MEASURED = {"app": {"metrics_enabled": True}}


@pytest.mark.parametrize("then", [over_socket, over_stream], ids=["socket", "stream"])
async def test_cut_at_any_event_a_client_goes_on_at_the_other_instance(start_process, then):
    async def cut_at(index):
        here, there = instances if index % 2 else reversed(instances)
        session_id = await here.create_session(title=None)
        frame = ask_frame(session_id, f"e{index}")
        uncut = group.create_task(heard(over_socket(here, frame)))
        first = await heard(over_socket(here, frame), up_to=index)
        again = after(first, frame)
        rest = await heard(then(there, again)) if again else []
        whole = await uncut
        assert transcript(first + rest) == transcript(whole)
        assert_same_bytes(rest, whole)
        assert await here.history(session_id) == await there.history(session_id)
        return last_seq(first)

    async with two_instances(start_process, STREAMED) as instances:
        async with asyncio.TaskGroup() as group:
            cuts = [group.create_task(cut_at(index)) for index in range(EVENTS)]
        assert len({cut.result() for cut in cuts}) > EVENTS / 3  # they were cut in different places


async def test_an_ended_turn_is_told_by_the_other_instance_while_its_own_lives_and_after(start_process):
    async with two_instances(start_process) as (one, other):
        session_id = await one.create_session(title=None)
        whole = await heard(over_socket(one, ask_frame(session_id)))
        for index, frame in enumerate(whole[:-1]):
            seq = seq_of(frame)
            for rest in (
                await heard(over_socket(other, resume_frame(session_id, after_seq=seq))),
                await heard(over_stream(other, resume_frame(session_id), last_event_id=seq)),
            ):
                assert transcript(whole[: index + 1] + rest) == transcript(whole)
                assert_same_bytes(rest, whole)
        assert await heard(over_stream(other, resume_frame(session_id), last_event_id=last_seq(whole))) == []
        one.process.send(signal.SIGTERM)
        assert await one.ended() == 0
        told = [json.loads(text) for text in await heard(over_socket(other, resume_frame(session_id)))]
        assert told[-1]["messages"] == json.loads(whole[-1])["messages"]
        assert [frame["type"] for frame in told][-1:] == ["final"]


async def test_a_cancel_at_the_other_instance_closes_the_models_connection(start_process, mock_llm, database):
    async with two_instances(start_process, SLOW) as (one, other):
        before = (await stats(one, mock_llm))["streams"]["open"]
        session_id = await one.create_session()
        async with (
            listening(one, ask_frame(session_id)) as asker,
            other.native() as stopper,
        ):
            await asker.until("message")
            await until_open(one, mock_llm, before + 1)
            async with listening(other, resume_frame(session_id)) as follower:
                await follower.until("message")
                await say(stopper, type="cancel", exchange_id="e1")
                ends = await asyncio.gather(asker.end(), follower.end())
            await until_open(one, mock_llm, before)
            assert ends[0] == ends[1]
            assert (ends[0]["type"], [message["rank"] for message in ends[0]["messages"]]) == ("cancelled", [0, 1])
            await read(stopper)  # a cancel that was obeyed has no answer
            for exchange_id in ("e1", "unknown"):
                await say(stopper, type="cancel", exchange_id=exchange_id)
                assert (await hear(stopper))["code"] == "exchange_not_found"
        assert await other.history(session_id) == ends[0]["messages"]
        assert stored(database, session_id) == [(0, "e1", "user"), (1, "e1", "assistant")]
        await until(lambda: open_asks(database) == 0)


async def test_the_same_ask_at_both_is_one_turn(start_process, database):
    async with held_model(begins="Well, ") as model, two_instances(start_process, ai=model.ai) as (one, other):
        session_id = await one.create_session(title=None)
        frame = ask_frame(session_id)
        async with listening(one, frame) as here, listening(other, frame) as there:
            await asyncio.gather(here.until("delta"), there.until("delta"))
            for service in (one, other):
                async with listening(service, ask_frame(session_id, message="Another text")) as client:
                    assert (await client.until("error"))["code"] == "conflict"
            async with aclosing(over_stream(other, frame)) as stream:
                streamed = [await anext(stream)]
                model.go.set()
                ends = await asyncio.gather(here.end(), there.end())
                streamed += [text async for text in stream]
        heard_here, heard_there = ([json.dumps(frame) for frame in client.frames] for client in (here, there))
        assert transcript(heard_here) == transcript(heard_there)
        assert (ends[0], ends[0]["type"]) == (json.loads(streamed[-1]), "final")
        assert text_of(ends[0]) == "Well, one two three"
        assert stored(database, session_id) == [(0, "e1", "user"), (1, "e1", "assistant")]
        # And again: as it was told, at the one of them that has run it.
        again = [await heard_final(service, frame) for service in (one, other)]
        assert ends[0] in again
        assert [end["messages"] for end in again] == [ends[0]["messages"]] * 2


async def test_another_ask_finds_the_session_busy_at_the_other_instance(start_process):
    async with held_model(begins="Well, ") as model, two_instances(start_process, ai=model.ai) as (one, other):
        first, second = [await one.create_session() for _ in range(2)]
        async with (
            listening(one, ask_frame(first, "runs")) as runs,
            listening(one, ask_frame(second, "stopped")) as stopped,
        ):
            await asyncio.gather(runs.until("delta"), stopped.until("delta"))
            async with other.http.post(STREAM, json=ask_frame(first, "refused")) as response:
                assert (response.status, (await response.json())["detail"]["code"]) == (409, "session_busy")
            async with listening(other, ask_frame(first, "refused")) as refused:
                error = await refused.until("error")
                assert (error["code"], error["retryable"], "seq" in error) == ("session_busy", True, False)
            async with (
                listening(other, ask_frame(first, "waits", if_busy="queue")) as waits,
                listening(other, ask_frame(second, "replaces", if_busy="replace")) as replaces,
            ):
                await read(waits.socket)
                assert (await stopped.end())["type"] == "cancelled"
                await replaces.until("delta")
                model.go.set()
                ends = [await client.end() for client in (runs, waits, replaces)]
        assert [end["type"] for end in ends] == ["final"] * 3
        assert [[message["rank"] for message in end["messages"]] for end in ends] == [[0, 1], [2, 3], [2, 3]]
        for session_id, exchanges in ((first, ["runs", "waits"]), (second, ["stopped", "replaces"])):
            for service in (one, other):
                told = await service.history(session_id)
                assert [message["exchange_id"] for message in told[::2]] == exchanges
                assert [message["rank"] for message in told] == [0, 1, 2, 3]


async def test_a_person_answers_at_the_other_instance(start_process, tool_server, database):
    async with (
        scripted(NOTES, DONE) as model,
        two_instances(start_process, **sections(model, tool_server)) as (one, other),
    ):
        session_id = await one.create_session(agent_id="Sammy")
        waiting = await asked(one, session_id)
        told = await asked(other, session_id)
        assert told[-1]["payload"] == waiting[-1]["payload"]
        went_on = await answered(other, session_id)
        assert went_on[-1]["type"] == "final"
        goes_on_after(waiting, went_on)
        for service in (one, other):
            assert (await answered(service, session_id))[-1]["code"] == "not_awaiting"
            # Who heard the question hears what became of it, wherever it was asked.
            resumed = await heard_final(service, resume_frame(session_id, after_seq=waiting[-1]["seq"]))
            assert resumed["messages"] == went_on[-1]["messages"]
            assert await service.history(session_id) == went_on[-1]["messages"]
        assert await used(tool_server, "note") == 1
        assert len(model.requests) == 2


async def test_of_two_answers_at_two_instances_one_is_taken(start_process, tool_server):
    async with (
        scripted(NOTES, DONE) as model,
        two_instances(start_process, **sections(model, tool_server)) as instances,
    ):
        session_id = await instances[0].create_session(agent_id="Sammy")
        await asked(instances[0], session_id)
        answers = [answered(service, session_id) for service in instances * 3]
        ends = [frames[-1] for frames in await asyncio.gather(*answers)]
        assert sorted(end["type"] for end in ends) == ["error"] * 5 + ["final"]
        assert {end["code"] for end in ends if end["type"] == "error"} <= {"not_awaiting", "session_busy"}
        assert await used(tool_server, "note") == 1
        assert answer(session_id, {})["exchange_id"] == "e1"


async def test_a_delete_at_the_other_instance_ends_the_turn_and_leaves_nothing(start_process, database):
    async with held_model(begins="Well, ") as model, two_instances(start_process, ai=model.ai) as (one, other):
        session_id = await one.create_session()
        async with listening(one, ask_frame(session_id)) as asker:
            await asker.until("delta")
            async with listening(other, resume_frame(session_id)) as follower:
                await follower.until("delta")
                assert await delete(other, session_id) == (200, True)
                ends = await asyncio.gather(asker.end(), follower.end())
        for end in ends:
            assert (end["type"], end.get("code")) in {("cancelled", None), ("error", "session_not_found")}
        for service in (one, other):
            assert (await heard_end(service, ask_frame(session_id, "e2")))["code"] == "session_not_found"
            assert (await heard_end(service, resume_frame(session_id)))["code"] == "exchange_not_found"
        await until(lambda: open_asks(database) == 0)
        assert set((await left(database, session_id)).values()) == {0}


async def test_what_is_said_of_a_session_at_one_is_known_at_the_other(start_process):
    async with two_instances(start_process) as (one, other):
        session_id = await one.create_session(title=None)
        titled = (await heard_final(one, ask_frame(session_id, "e1", "Where is the mill?")))["session"]["title"]
        for number, (here, there) in enumerate(((one, other), (other, one))):
            url = f"{BASE}/chatbot/session/{session_id}/preferences"
            async with there.http.put(url, json={"preferences": {"colour": number}}) as response:
                assert response.status == 200
            session = (await heard_final(here, ask_frame(session_id, f"then {number}")))["session"]
            assert (session["preferences"], session["title"]) == ({"colour": number}, titled)
            assert (await there.get("/chatbot/sessions"))[0]["next_rank"] == session["next_rank"] == 4 + 2 * number
        opinion = {"rating": 5, "messageId": "1", "sessionId": session_id, "agentName": "Georges"}
        async with other.http.post(f"{BASE}/chatbot/feedback", json=opinion) as response:
            assert response.status == 204
        assert [row["rating"] for row in await one.get(f"/chatbot/feedback?session_id={session_id}")] == [5]


async def looked_up(service, result):
    """How often the history of a session was found in memory (hit), or read (miss)."""
    wanted = f'app_cache_requests_total{{cache="history",result="{result}"}} '
    return sum(float(line.split()[1]) for line in (await service.metrics()).splitlines() if line.startswith(wanted))


async def test_a_session_stays_where_it_is_until_another_instance_is_asked(start_process, database):
    async with two_instances(start_process, **MEASURED) as (one, other):
        session_id = await one.create_session()

        async def says(service, exchange_id, text):
            return text_of(await heard_final(service, ask_frame(session_id, exchange_id, text)))

        await says(one, "e0", "My name is Ada.")
        holder = held(database, session_id)
        misses = await looked_up(one, "miss")
        for number in range(3):
            assert await says(one, f"here {number}", "What is my name?") == "Your name is Ada."
        assert await looked_up(one, "miss") == misses  # nothing was read again
        assert await looked_up(one, "hit") >= 3
        assert held(database, session_id) == holder
        # Another instance needs nothing but the ask; what the first remembers is old then, and it knows.
        await says(other, "there", "My name is Bob.")
        taken = held(database, session_id)
        assert (taken[0] != holder[0], taken[1] > holder[1]) == (True, True)
        assert await says(one, "back", "What is my name?") == "Your name is Bob."
        assert held(database, session_id)[1] > taken[1]
        ranks = [message["rank"] for message in await other.history(session_id)]
        assert ranks == list(range(12))


async def test_an_instance_that_leaves_in_order_leaves_its_sessions_at_once(start_process, database):
    async with held_model() as model, two_instances(start_process, ai=model.ai) as (one, other):
        session_id = await one.create_session()
        async with listening(one, ask_frame(session_id)) as asker:
            await asker.until("message")
            one.process.send(signal.SIGTERM)
            await one.line("drain 2/5")
            model.go.set()
            assert (await asker.until("final"))["durable"] == "db"
        assert await one.ended() == 0
        async with other.native() as socket:
            # At once: nobody waits until an instance that has said goodbye counts as dead.
            await say(socket, **ask_frame(session_id, "e2"))
            assert [message["rank"] for message in (await hear_until(socket, "final"))[-1]["messages"]] == [2, 3]


async def test_turns_that_were_never_run_leave_nothing_open(start_process, database):
    limits = {"max_turns": 1, "queue_deadline_s": 600}
    async with two_instances(start_process, SLOW, limits=limits) as (one, other):
        busy, session_id = await one.create_session(), await one.create_session()
        async with listening(one, ask_frame(busy, "busy")) as first, listening(one, ask_frame(session_id)) as second:
            await first.until("message")
            await second.until("accepted")
            assert open_asks(database) == 2
            async with other.native() as stopper:
                for exchange_id in ("e1", "busy"):
                    await say(stopper, type="cancel", exchange_id=exchange_id)
                assert (await second.end())["type"] == "cancelled"
                assert (await first.end())["type"] == "cancelled"
        await until(lambda: open_asks(database) == 0)
        async with listening(other, ask_frame(session_id, "next")) as client:
            await client.until("message")
            other.process.send(signal.SIGTERM)
            assert await other.ended() == 0
        async with listening(one, resume_frame(session_id, "next")) as client:
            await client.until("restarted")  # it went on here, and was none of the dead
            one.process.send(signal.SIGTERM)
            await client.until("cancelled")
        assert await one.ended() == 0
        assert open_asks(database) == 0


async def test_one_that_has_the_database_alone_lets_nobody_in(start_process, database):
    """The fleet's tables are there in any mode: a sole owner has no peers, and its turns no leases."""
    async with start_process() as service:
        session_id = await service.create_session()
        await heard_final(service, ask_frame(session_id))
        assert open_asks(database) == 0
    async with start_process(**MANY) as one:
        assert (await heard_final(one, ask_frame(session_id, "e2")))["messages"][0]["rank"] == 2
    async with start_process() as service:
        assert (await heard_final(service, ask_frame(session_id, "e3")))["messages"][0]["rank"] == 4


async def test_what_a_dead_instance_acknowledged_in_its_spool_comes_back_with_it(start_process, database, tmp_path):
    def spooled(name):
        return {"persistence": {"ack": "spool", "replicas": "many", "spool_dir": str(tmp_path / name)}}

    async with held_model(begins="Well, ") as model, start_process(ai=model.ai, **spooled("other")) as other:
        async with start_process(ai=model.ai, **spooled("one")) as one:
            session_id, quiet = await one.create_session(), await one.create_session()
            async with listening(one, ask_frame(session_id)) as client:
                await client.until("delta")
                one.process.kill()
                seen = client.frames[-1]["seq"]
        # Only who has its spool knows whether its turn has ended; a session without a turn is anybody's at once.
        codes = set()
        while "session_recovering" not in codes:
            refusal = await heard_end(other, ask_frame(session_id, "too early"))
            assert refusal["retryable"]
            codes.add(refusal["code"])
        assert codes <= {"session_busy", "session_recovering"}
        model.go.set()
        assert (await heard_end(other, ask_frame(quiet, "e1")))["type"] == "final"
        async with start_process(ai=model.ai, **spooled("one")) as one:
            frames = [json.loads(frame) for frame in await heard(over_socket(other, resume_frame(session_id)))]
            assert [frame["type"] for frame in frames].count("restarted") == 1
            assert frames[0]["type"] == "restarted"
            assert frames[0]["seq"] > seen
            assert frames[-1]["type"] == "final"
            assert await one.history(session_id) == frames[-1]["messages"]
            await until(lambda: open_asks(database) == 0)
            assert (await heard_end(other, ask_frame(session_id, "e2")))["messages"][0]["rank"] == 2
