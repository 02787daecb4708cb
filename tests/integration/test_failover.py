"""Postgres fails over under conversations: the service goes on by itself, and says what is gone."""

import asyncio

import psycopg
import pytest

from tests.support.replicas import DATABASE
from tests.support.service import hear_until, say

pytestmark = [pytest.mark.postgres, pytest.mark.one_instance("cuts the connections of one process")]


async def answer(socket, session_id, exchange_id):
    """The terminal frame of an ask."""
    ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Who are you?"}
    await say(socket, **ask, client_exchange_id=exchange_id)
    return (await hear_until(socket, "final", "error"))[-1]


def exchanges(replicated, session_id):
    query = "SELECT DISTINCT exchange_id FROM session_history WHERE session_id = %s ORDER BY exchange_id"
    with psycopg.connect(replicated.dsn_of(DATABASE)) as connection:
        return [exchange_id for (exchange_id,) in connection.execute(query, (session_id,))]


async def test_only_what_an_asynchronous_standby_had_not_received_is_gone(start_service, replicated, caplog):
    postgres = {**replicated.database.settings(), "connect_timeout": 2, "pool_timeout": 2}
    async with start_service(storage={"postgres": postgres}) as service, service.native() as socket:
        persistence = service.service.running.persistence
        old = await service.create_session()
        await answer(socket, old, "e1")
        assert (await persistence.batcher.flush(60)).left == 0
        await asyncio.to_thread(replicated.caught_up)
        await asyncio.to_thread(replicated.standby.receive, on=False)
        new = await service.create_session()
        assert (await answer(socket, old, "e2"))["durable"] == "spool"
        await answer(socket, new, "n1")
        assert (await persistence.batcher.flush(60)).left == 0

        await asyncio.to_thread(replicated.primary.kill)
        # Nobody takes writes yet.
        assert (await answer(socket, old, "e3"))["type"] == "final"
        assert (await answer(socket, new, "n2"))["type"] == "final"
        await asyncio.to_thread(replicated.fail_over, lagging=True)
        assert (await persistence.batcher.flush(60)).left == 0

        assert exchanges(replicated, old) == ["e1", "e3"]
        assert persistence.spool.dead_letters == 1
        assert "reason=session_missing" in caplog.text
        assert (await answer(socket, new, "n3"))["code"] == "session_not_found"
        assert (await answer(socket, old, "e4"))["type"] == "final"
        assert len(await service.history(old)) == 6
        assert (await answer(socket, await service.create_session(), "f1"))["type"] == "final"
