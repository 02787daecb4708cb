"""The same ask over a restart: answered from history where it has ended, run again where the restart cut it off."""

import re

import psycopg
import pytest

from agentic_backend.app import Parts
from agentic_backend.session.registry import RegistryRules
from tests.support.agentic import start_process
from tests.support.service import hear, hear_until, say

__all__ = ["start_process"]

DEAD_MODEL = "mock;status=500"
"""Whoever asks this one anything fails: an answer of such a service is not the model's."""
SLOW = "mock;tokens=9;stall=3"
"""An answer that begins and never ends."""
NEVER = {"agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain", "restart": "never"}]}
"""What is cut off runs again where its user asks again (tests/integration/test_restart.py: where the service does)."""


def ask(session_id, exchange_id="e1", message="Hello", **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message}
    return {**head, "client_exchange_id": exchange_id, **more}


async def answered(service, session_id, *, exchange_id="e1", message="Hello"):
    async with service.native() as socket:
        await say(socket, **ask(session_id, exchange_id, message))
        return await hear_until(socket, "final")


def rows_of(database, session_id):
    """(rank, exchange, role, channel) of the session's rows in Postgres."""
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(
            "SELECT rank, exchange_id, role, channel FROM session_history WHERE session_id = %s ORDER BY rank",
            (session_id,),
        ).fetchall()


async def test_an_answer_is_told_again_after_a_restart_in_both_protocols_without_the_model(start_service, database):
    async with start_service() as service:
        session_id = await service.create_session()
        first = await answered(service, session_id)
        await answered(service, session_id, exchange_id="e2", message="And more?")
        stored = await service.history(session_id)
    async with start_service(DEAD_MODEL) as service:
        again = await answered(service, session_id)
        assert [frame["seq"] for frame in again] == list(range(1, len(again) + 1))
        assert [frame["type"] for frame in again] == ["accepted", "message", "delta", "final"]
        assert again[-1]["messages"] == first[-1]["messages"] == stored[:2]
        assert again[2]["text"] == "".join(frame["text"] for frame in first if frame["type"] == "delta")
        assert again[-1]["ledger"] == stored[1]["metadata"]["extras"]["ledger"]
        assert again[-1]["durable"] == "db"
        assert again[-1]["session"]["next_rank"] == 4
        async with service.compatible() as socket:
            await say(socket, **ask(session_id, "e2", "And more?"))
            frames = await hear_until(socket, "final")
        assert [frame["type"] for frame in frames] == ["stream", "stream", "final"]
        assert frames[-1]["messages"] == stored[2:]
        async with service.native() as socket:
            await say(socket, **ask(session_id, message="Something else"))
            refused = await hear(socket)
            assert (refused["type"], refused["code"], "seq" in refused) == ("error", "conflict", False)
        assert await service.history(session_id) == stored
    assert rows_of(database, session_id) == [
        (rank, exchange_id, role, "final")
        for rank, (exchange_id, role) in enumerate(
            (exchange_id, role) for exchange_id in ("e1", "e2") for role in ("user", "assistant")
        )
    ]


@pytest.mark.one_instance("looks into one process")
@pytest.mark.parametrize("persistence", [{}, {"ack": "db", "replicas": "many"}], ids=["one instance", "many"])
async def test_an_ask_that_many_have_followed_is_still_answered_once(start_service, persistence):
    parts = Parts(turns=RegistryRules(kept_s=0.0))
    async with start_service(persistence=persistence, parts=parts) as service:
        session_id = await service.create_session()
        first = (await answered(service, session_id, exchange_id="e0"))[-1]
        for number in range(1, 70):
            await answered(service, session_id, exchange_id=f"e{number}", message="And more?")
        service.turns.expire()
        stored = await service.history(session_id)
        again = await answered(service, session_id, exchange_id="e0")
        assert again[-1]["messages"] == first["messages"] == stored[:2]
        service.turns.expire()
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e0", "Something else"))
            assert (await hear(socket))["code"] == "conflict"
        assert await service.history(session_id) == stored


async def test_failures_and_stops_are_told_again_as_what_they_were(start_service):
    async with start_service("mock;tokens=20;truncate=5") as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, "broken"))
            broken = (await hear_until(socket, "error"))[-1]
    async with start_service("mock;ttft=600000") as service, service.native() as socket:
        await say(socket, **ask(session_id, "stopped"))
        await hear_until(socket, "message")
        await say(socket, type="cancel", exchange_id="stopped")
        stopped = (await hear_until(socket, "cancelled"))[-1]
    async with start_service() as service, service.native() as socket:
        await say(socket, **ask(session_id, "broken"))
        heard = await hear_until(socket, "error")
        assert (heard[-1]["code"], heard[-1]["partial"]) == (broken["code"], True)
        assert [frame["type"] for frame in heard] == ["accepted", "message", "delta", "error"]
        await say(socket, **ask(session_id, "stopped"))
        assert (await hear_until(socket, "cancelled"))[-1]["messages"] == stopped["messages"]
        assert len(await service.history(session_id)) == 4


async def cut(start_process, session_of):
    """Kill a service in the middle of the answer of exchange e2; the session."""
    async with start_process(SLOW, ai=NEVER) as service:
        session_id = await session_of(service)
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e2", "Who are you?"))
            await hear_until(socket, "delta")
            await service.ask_on_disk("e2")
            await service.process.until(service.process.kill)
    return session_id


async def test_a_killed_service_leaves_a_marked_turn_that_runs_again_in_its_place(start_process, database):
    async def with_a_first_turn(service):
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e1"))
            await hear_until(socket, "delta")
            await say(socket, type="cancel", exchange_id="e1")
            await hear_until(socket, "cancelled")
        return session_id

    session_id = await cut(start_process, with_a_first_turn)
    async with start_process("mock;tokens=3", app={"metrics_enabled": True}) as service:
        history = await service.history(session_id)
        assert [message["rank"] for message in history] == [0, 1, 2, 3]
        question, marked = history[2:]
        assert question["parts"][0]["text"] == "Who are you?"
        assert marked["parts"] == [{"type": "text", "text": ""}]
        assert marked["metadata"]["finish_reason"] == "cancelled"
        assert marked["metadata"]["extras"] == {"status": "interrupted", "interrupted_by": "restart"}
        final = (await answered(service, session_id, exchange_id="e2", message="Who are you?"))[-1]
        assert final["messages"][0] == question
        assert [message["rank"] for message in final["messages"]] == [2, 3]
        assert final["messages"][1]["metadata"]["finish_reason"] == "stop"
        assert await service.history(session_id) == [*history[:2], *final["messages"]]
        third = (await answered(service, session_id, exchange_id="e3", message="And then?"))[-1]
        assert third["session"]["next_rank"] == 6
    async with start_process(DEAD_MODEL) as service:
        assert (await answered(service, session_id, exchange_id="e2", message="Who are you?"))[-1]["messages"] == (
            final["messages"]
        )
    rows = rows_of(database, session_id)
    assert [row[0] for row in rows] == list(range(6))
    assert [row[2:] for row in rows if row[1] == "e2"] == [("user", "final"), ("assistant", "final")]


async def test_a_cut_off_turn_that_was_followed_by_another_stays_marked_and_is_remembered_by_no_agent(
    start_process, database
):
    session_id = await cut(start_process, lambda service: service.create_session())
    async with start_process() as service:
        final = (await answered(service, session_id, exchange_id="e3", message="My name is Ada."))[-1]
        assert [message["rank"] for message in final["messages"]] == [2, 3]
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e2", "Who are you?"))
            assert (await hear(socket))["code"] == "conflict"
        # The mock repeats what it was told of: the marked question is not among it.
        final = (await answered(service, session_id, exchange_id="e4", message="What is my name?"))[-1]
        assert "Ada" in final["messages"][1]["parts"][0]["text"]
    rows = rows_of(database, session_id)
    assert [row[0] for row in rows] == list(range(6))
    assert [row[1] for row in rows] == ["e2", "e2", "e3", "e3", "e4", "e4"]


@pytest.mark.parametrize("created_before", [False, True])
async def test_an_ordinary_turn_asks_storage_for_no_exchange(start_process, created_before):
    measured = {"metrics_enabled": True}
    session_id = None
    if created_before:
        async with start_process() as service:
            session_id = await service.create_session()
            await answered(service, session_id, exchange_id="e0")
    async with start_process(app=measured) as service:
        session_id = session_id or await service.create_session()
        for number in range(1, 5):
            await answered(service, session_id, exchange_id=f"e{number}")
        reads = {op: await statements(service, op) for op in ("get_session", "exchange_ids", "exchange")}
        once = 1 if created_before else 0
        assert reads == {"get_session": once, "exchange_ids": once, "exchange": 0}


async def statements(service, op):
    """How many statements of the name the process has run."""
    found = re.findall(
        rf'^app_db_statement_seconds_count{{op="{op}",pool="main"}} (\S+)$', await service.metrics(), re.MULTILINE
    )
    return int(float(found[0])) if found else 0
