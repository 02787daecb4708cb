"""An instance that is replaced: what it cannot finish goes on at another one, and its clients go there."""

import asyncio
import signal

import pytest
from websockets.exceptions import ConnectionClosed

from tests.agentic_backend.records import until
from tests.integration.test_takeover import GEORGES, NEVER, QUICK, SLOW, of_never, pair
from tests.support.agentic import start_process
from tests.support.fleet import MANY, heard_final, listening, open_asks, stored
from tests.support.following import ask_frame, resume_frame
from tests.support.service import say

__all__ = ["start_process"]

pytestmark = pytest.mark.servers

AGENTS = {"agents": [GEORGES, NEVER]}
SOON = {"deadlines": {"drain_s": 1}}


async def closed_with(client) -> int:
    """The code with which the service closes a client's socket, which has had no end of its turn."""
    with pytest.raises(ConnectionClosed) as closed:
        await client.until("no such frame")
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


async def test_what_an_ending_instance_cannot_finish_goes_on_at_another(start_process, database):
    async with (
        start_process(SLOW, ai=AGENTS, **MANY, **SOON) as one,
        start_process(QUICK, ai=AGENTS, **MANY) as other,
    ):
        moved, alone, never = [await one.create_session(agent_id=agent) for agent in ("Georges", "Georges", "Never")]
        async with (
            listening(one, ask_frame(moved, "moved")) as client,
            listening(one, ask_frame(alone, "alone")) as lonely,
            listening(one, of_never(never, "never")) as unlucky,
        ):
            last, *_ = await asyncio.gather(*(each.until("delta") for each in (client, lonely, unlucky)))
            one.process.send(signal.SIGTERM)
            await unlucky.until("cancelled")
            assert await closed_with(client) == 1012
            async with listening(other, resume_frame(moved, "moved", last["seq"])) as again:
                restarted = await again.until("restarted")
                assert restarted["seq"] > last["seq"]
                assert (await again.end())["type"] == "final"
            assert await one.ended() == 0
        await until(lambda: stored(database, alone) == pair("alone"))  # nobody came for this one
        assert (await other.history(alone))[-1]["metadata"]["finish_reason"] == "stop"
        assert stored(database, moved) == pair("moved")
        await until(lambda: open_asks(database) == 0)
        await heard_final(other, ask_frame(moved, "next"))


async def test_who_follows_a_turn_of_another_instance_goes_there(start_process, database):
    async with (
        start_process(SLOW, ai=AGENTS, **MANY) as one,
        start_process(SLOW, ai=AGENTS, **MANY) as other,
    ):
        session_id = await other.create_session()
        async with listening(other, ask_frame(session_id, "e1")) as asker:
            await asker.until("delta")
            async with listening(one, resume_frame(session_id, "e1", 0)) as follower:
                await follower.until("delta")
                one.process.send(signal.SIGTERM)
                assert await closed_with(follower) == 1012
            await say(asker.socket, type="cancel", exchange_id="e1")
            assert (await asker.end())["type"] == "cancelled"  # it ran on, and its model never ends
        assert await one.ended() == 0
    assert stored(database, session_id) == pair("e1")


async def test_the_last_instance_stops_what_it_cannot_finish(start_process, database):
    async with start_process(SLOW, ai=AGENTS, **MANY, **SOON) as one:
        session_id = await one.create_session()
        async with listening(one, ask_frame(session_id, "e1")) as client:
            await client.until("delta")
            one.process.send(signal.SIGTERM)
            await client.until("cancelled")
        assert await one.ended() == 0
    assert stored(database, session_id) == pair("e1")
