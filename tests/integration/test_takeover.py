"""An instance that dies, stands still or loses Postgres: its turns go on elsewhere, once, and it has no say any more.

Each of these tests waits until an instance counts as dead, which takes as long as in production.
"""

import asyncio
import json

import pytest

from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, finish, scripted, stalls_after, token
from tests.agentic_backend.records import until
from tests.integration.test_clocks import host_with
from tests.support.agentic import start_process
from tests.support.fleet import (
    MANY,
    cut_off,
    frozen,
    heard_final,
    held,
    in_contact,
    listening,
    open_asks,
    proxied,
    read,
    silent,
    stored,
    text_of,
    two_instances,
)
from tests.support.following import ask_frame, heard, over_stream, resume_frame
from tests.support.tool_model import says, wants
from tests.support.tool_server import counts, tool_server

__all__ = ["start_process", "tool_server"]

SLOW = "mock;tokens=9;stall=3"
"""An answer that begins and never ends."""
QUICK = "mock;tokens=3"
GEORGES = {"name": "Georges", "class_path": "agentic_backend.agent.plain"}
NEVER = {**GEORGES, "name": "Never", "restart": "never"}
CUT_OFF = {"status": "interrupted", "interrupted_by": "restart"}
DEAD_S = 10.0
"""So long without a heartbeat, and an instance counts as dead: where Postgres was there to hear one."""


def of_never(session_id, exchange_id):
    return ask_frame(session_id, exchange_id) | {"agent_id": "Never"}


def pair(exchange_id, first=0):
    """The rows of an exchange of a question and an answer."""
    return [(first, exchange_id, "user"), (first + 1, exchange_id, "assistant")]


async def taken_over(client, last):
    """How an exchange ends that is run again for this client, which had it up to the event `last`."""
    restarted = await client.until("restarted")
    assert restarted["seq"] > last["seq"]
    end = await client.end()
    after = client.frames[client.frames.index(restarted) :]
    assert [frame["type"] for frame in after].count("restarted") == 1
    numbers = [frame["seq"] for frame in after]
    assert numbers == sorted(set(numbers))
    assert after[-1] == end
    return end


@pytest.mark.parametrize(
    "clocks", [(None, None), pytest.param(("+1h", "-1h"), marks=pytest.mark.faketime)], ids=["", "clocks apart"]
)
async def test_the_turns_of_a_killed_instance_go_on_at_another(start_process, database, clocks):
    agents = {"agents": [GEORGES, NEVER]}
    one_host, other_host = (host_with(offset) if offset else None for offset in clocks)
    async with (
        start_process(SLOW, ai=agents, env=one_host, **MANY) as one,
        start_process(QUICK, ai=agents, env=other_host, **MANY) as other,
    ):
        followed, alone = [await one.create_session() for _ in range(2)]
        never = await one.create_session(agent_id="Never")
        async with (
            listening(one, ask_frame(followed, "followed")) as asker,
            listening(one, ask_frame(alone, "alone")) as lonely,
            listening(one, of_never(never, "never")) as unlucky,
        ):
            last, *_ = await asyncio.gather(*(client.until("delta") for client in (asker, lonely, unlucky)))
        async with listening(other, resume_frame(followed, "followed")) as before, asyncio.TaskGroup() as group:
            await before.until("delta")
            stream = group.create_task(heard(over_stream(other, resume_frame(followed, "followed"))))
            await one.process.until(one.process.kill)
            async with (
                listening(other, resume_frame(followed, "followed", last["seq"])) as resumed,
                listening(other, ask_frame(followed, "followed")) as again,
            ):
                ends = [await taken_over(client, last) for client in (before, resumed, again)]
            streamed = [json.loads(text) for text in await stream]
        assert [end["type"] for end in ends] == ["final"] * 3
        assert ends[0] == ends[1] == ends[2] == streamed[-1]
        assert "restarted" in {frame["type"] for frame in streamed}
        assert (len(text_of(ends[0]).split()), ends[0]["messages"][-1]["metadata"]["extras"]["restarted"]) == (3, True)

        # Nobody came for this one, and it has its answer.
        await until(lambda: stored(database, alone) == pair("alone"))
        assert (await other.history(alone))[-1]["metadata"]["finish_reason"] == "stop"
        # This one may not be run again unless it is asked again.
        await until(lambda: stored(database, never) == pair("never"))
        assert (await other.history(never))[-1]["metadata"]["extras"] == CUT_OFF
        await heard_final(other, of_never(never, "never"))
        assert stored(database, never) == pair("never")
        assert "status" not in (await other.history(never))[-1]["metadata"]["extras"]
        await until(lambda: open_asks(database) == 0)

        # It comes back, and is as good as any.
        async with start_process(QUICK, ai=agents, env=one_host, **MANY) as back:
            for session_id, exchange_id, service in ((followed, "next", back), (alone, "then", other)):
                end = await heard_final(service, ask_frame(session_id, exchange_id))
                assert [message["rank"] for message in end["messages"]] == [2, 3]
            told = await heard_final(back, resume_frame(followed, "followed", last["seq"]))
            assert told["messages"] == ends[0]["messages"]
            assert await back.history(followed) == await other.history(followed)
        assert stored(database, followed) == pair("followed") + pair("next", 2)


@pytest.mark.parametrize("clocks", [pytest.param(("-1h", "+1h"), marks=pytest.mark.faketime), (None, None)])
async def test_an_instance_that_stood_still_writes_nothing_and_calls_no_tool(
    start_process, database, tool_server, clocks
):
    stands_still = asyncio.Event()

    async def late_answer(write):
        await write(SSE_HEAD)
        await write(token("Stale"))
        await stands_still.wait()
        for piece in (token(" answer"), finish(), DONE):
            await write(piece)

    async def late_call(write):
        await stands_still.wait()
        await wants(("c1", "add", '{"a": 1, "b": 2}'))(write)

    call = wants(("c2", "add", '{"a": 1, "b": 2}'))
    hosts = [host_with(offset) if offset else None for offset in clocks]
    async with (
        scripted(late_answer, says("Fresh answer")) as model,
        scripted(late_call, call, says("It is 3.")) as tool_model,
    ):
        sammy = {
            "name": "Sammy",
            "class_path": "agentic_backend.agent.tools",
            "restart": "from_question",
            "model": "tools",
            "tuning": {"mcp_servers": [{"id": "notes"}]},
        }
        settings = {
            "ai": {
                "default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}},
                "chat_models": [
                    {"id": "tools", "name": "scripted", "settings": {"base_url": tool_model.base_url}},
                ],
                "agents": [GEORGES, sammy],
            },
            "mcp": {"servers": [{"id": "notes", "url": tool_server.url}]},
            **MANY,
        }
        async with (
            start_process("scripted", env=hosts[0], **settings) as one,
            start_process("scripted", env=hosts[1], **settings) as other,
        ):
            georges, sammys = await one.create_session(), await one.create_session(agent_id="Sammy")
            asks = ask_frame(georges), ask_frame(sammys, "e2") | {"agent_id": "Sammy"}
            async with listening(one, asks[0]) as asker, listening(one, asks[1]) as tool_asker:
                last = await asker.until("delta"), await tool_asker.until("message")
                await until(lambda: len(tool_model.requests) == 1)
                async with (
                    frozen(one),
                    listening(other, resume_frame(georges)) as follower,
                    listening(other, resume_frame(sammys, "e2")) as tool_follower,
                ):
                    stands_still.set()  # what the models say to it waits in its sockets
                    told = await taken_over(follower, last[0]), await taken_over(tool_follower, last[1])
                assert [text_of(end) for end in told] == ["Fresh answer", "It is 3."]
                # It wakes, and says what the others said.
                assert (await taken_over(asker, last[0]), await taken_over(tool_asker, last[1])) == told
            assert (await counts(tool_server))["counts"]["add"] == 1
            assert stored(database, georges) == pair("e1")
            assert [message["rank"] for message in await one.history(sammys)] == list(range(4))
            assert await one.history(sammys) == await other.history(sammys) == told[1]["messages"]
            for service, exchange_id in ((one, "e3"), (other, "e4")):
                assert text_of(await heard_final(service, ask_frame(georges, exchange_id))) == "Fresh answer"
            assert stored(database, georges) == pair("e1") + pair("e3", 2) + pair("e4", 4)


async def test_an_instance_without_postgres_lets_its_turns_go_and_its_clients_hear_the_others(start_process, database):
    stale = stalls_after(token("Stale"))
    async with proxied(database) as (proxy, storage), scripted(stale, says("Fresh answer")) as model:
        ai = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        async with (
            start_process(ai=ai, storage=storage, **MANY) as one,
            start_process(ai=ai, **MANY) as other,
        ):
            session_id = await one.create_session()
            async with listening(one, ask_frame(session_id)) as asker:
                last = await asker.until("delta")
                async with cut_off(proxy), listening(other, resume_frame(session_id)) as follower:
                    told = await taken_over(follower, last)
                    await model.gone.wait()  # it has ended its own run
                    await read(asker.socket)  # and is alive
                assert (told["type"], text_of(told)) == ("final", "Fresh answer")
                assert await taken_over(asker, last) == told
            assert stored(database, session_id) == pair("e1")
            await in_contact(one)  # and then it serves as before
            end = await heard_final(one, ask_frame(session_id, "e2", if_busy="queue"))
            assert [message["rank"] for message in end["messages"]] == [2, 3]
            assert await other.history(session_id) == await one.history(session_id)


async def test_an_outage_of_postgres_makes_nobody_a_dead_instance(start_process, database):
    stale = stalls_after(token("Stale"))
    async with proxied(database) as (proxy, storage), scripted(stale, says("Fresh answer")) as model:
        ai = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        async with two_instances(start_process, ai=ai, storage=storage) as (one, other):
            session_id = await one.create_session()
            async with listening(one, ask_frame(session_id)) as asker:
                last = await asker.until("delta")
                async with listening(other, resume_frame(session_id)) as follower:
                    await follower.until("delta")
                    holder, _ = held(database, session_id)
                    async with cut_off(proxy):
                        await until(lambda: silent(database, DEAD_S + 1))
                    # Its holder could not know whether it still was: it runs the turn again itself.
                    ends = await asyncio.gather(taken_over(asker, last), taken_over(follower, last))
            assert (ends[0], text_of(ends[0])) == (ends[1], "Fresh answer")
            assert held(database, session_id)[0] == holder
            assert stored(database, session_id) == pair("e1")
            await in_contact(other)
            assert (await heard_final(other, ask_frame(session_id, "e2")))["messages"][0]["rank"] == 2
