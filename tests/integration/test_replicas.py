"""Several processes and one database: either one of them has it alone, or they take turns session by session."""

import asyncio
import signal

import psycopg
import pytest
import yaml

from agentic_backend.spool.claim import LOCK_KEY
from tests.agentic_backend.records import until, until_waiting
from tests.support.agentic import start_process
from tests.support.fleet import MANY, two_instances
from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from tests.support.service import configuration, hear, hear_until, merge, say

__all__ = ["start_process"]

OWNER = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
COMPETED = "mock;ttft=150;tokens=3"
HEAVY = ("sqlalchemy", "langgraph", "openai", "alembic")
"""Modules that take seconds to import."""


def ask(session_id, message="Hello", **more):
    return {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message, **more}


def query(dsn, statement, *parameters):
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement, parameters).fetchall()


@pytest.fixture
def second(database, mock_llm, tmp_path):
    """A process that is not expected to serve: with its own port, and a spool directory unless it is given one."""

    def make(spool_dir=None, **sections):
        port = free_port()
        settings = configuration("mock", database, mock_llm) | {
            "persistence": {"spool_dir": str(spool_dir or tmp_path / "spool-of-the-second")}
        }
        file = tmp_path / f"second-{port}.yaml"
        file.write_text(yaml.safe_dump(merge(merge(settings, {"app": {"port": port}}), sections)))
        variables = {"CONFIG_FILE": str(file), "ENV_FILE": "", "PYTHONPROFILEIMPORTTIME": "1"}
        return ForkedModule("agentic_backend", env=variables)

    return make


async def refused(process):
    """The last words of a process that ends before it serves, with exit code 3."""
    with process:
        assert await process.until(process.wait) == 3
        imported = {
            line.split("|")[-1].strip().partition(".")[0] for line in process.output.splitlines() if "|" in line
        }
        assert "psycopg" in imported or "sqlite3" in imported
        assert imported.isdisjoint(HEAVY)
        (words,) = [line for line in process.output.splitlines() if " CRITICAL " in line]
        return words


async def test_a_second_process_on_the_same_database_ends_with_words(start_process, second):
    async with start_process() as service:
        # One that would share the database is no better. Both wait for 10 s, so both wait at once.
        for words in await asyncio.gather(refused(second()), refused(second(**MANY))):
            assert "another process (turnwise-agentic-owner " in words
            assert " holds the database " in words
            assert "persistence.replicas: many" in words
        # The first one has not noticed.
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            assert (await hear_until(socket, "final"))[-1]["durable"] in {"spool", "db"}


async def test_a_second_process_on_the_same_spool_ends_with_words(start_process, second, tmp_path):
    async with start_process(persistence={"spool_dir": str(tmp_path / "shared")}):
        words = await refused(second(tmp_path / "shared"))
        assert f"another process uses the spool directory {tmp_path / 'shared'}" in words


async def test_after_a_kill_the_next_process_has_the_database_at_once(start_process):
    async with start_process() as service:
        service.process.kill()
        async with start_process() as next_service:
            assert await next_service.create_session()


async def test_a_claim_that_is_cut_off_is_taken_again_and_nobody_is_told(start_process, database):
    async with start_process() as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            for number in range(3):
                await until(lambda: len(query(database.dsn, OWNER)) == 1)
                ((pid,),) = query(database.dsn, OWNER)
                query(database.dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
                await say(socket, **ask(session_id, f"question {number}"))
                await hear_until(socket, "final")
        await until(lambda: query(database.dsn, "SELECT count(*) FROM session_history") == [(6,)])
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0


async def test_a_service_whose_database_another_process_took_gives_way_and_loses_nothing(start_process, database):
    async with start_process() as service:
        session_id = await service.create_session()
        with psycopg.connect(database.dsn, autocommit=True) as thief:
            ((pid,),) = query(database.dsn, OWNER)
            async with asyncio.TaskGroup() as group:
                # It stands in line, so that the lock is its own before the service can ask again.
                group.create_task(asyncio.to_thread(thief.execute, "SELECT pg_advisory_lock(%s)", (LOCK_KEY,)))
                await until_waiting(database.dsn, 1)
                query(database.dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
            async with service.native() as socket:
                await say(socket, **ask(session_id, "Do you still listen?"))
                final = (await hear_until(socket, "final"))[-1]
                assert final["durable"] == "spool"
            assert await service.ended() == 3
            assert query(database.dsn, "SELECT count(*) FROM session_history") == [(0,)]
        assert " CRITICAL agentic_backend.spool.owner another process" in service.process.output
        assert "drain 5/5: history flushed, 1 records left" in service.process.output
    async with start_process() as service:
        shown = [message["parts"][0]["text"] for message in await service.history(session_id)]
        assert shown == [message["parts"][0]["text"] for message in final["messages"]]
        assert shown[0] == "Do you still listen?"


async def all_at_once(service, session_id, exchange_ids, if_busy):
    """The terminal frames of asks that are sent together on one socket."""
    ends = {}
    async with service.native() as socket:
        for exchange_id in exchange_ids:
            await say(
                socket, **ask(session_id, f"This is {exchange_id}", client_exchange_id=exchange_id, if_busy=if_busy)
            )
        while len(ends) < len(exchange_ids):
            frame = await hear(socket)
            if frame["type"] in {"final", "error", "cancelled"}:
                assert frame["exchange_id"] not in ends
                ends[frame["exchange_id"]] = frame
    return ends


@pytest.mark.parametrize("if_busy", ["reject", "queue"])
async def test_fifty_asks_on_one_session_at_two_instances_run_one_by_one(start_process, database, if_busy):
    async with two_instances(start_process, COMPETED) as instances:
        session_id = await instances[0].create_session()
        finals = []
        for number in range(3):
            asks = [
                all_at_once(service, session_id, [f"{number}-{name}-{count}" for count in range(25)], if_busy)
                for name, service in zip("ab", instances, strict=True)
            ]
            ends = {exchange_id: end for heard in await asyncio.gather(*asks) for exchange_id, end in heard.items()}
            assert len(ends) == 50
            done = [exchange_id for exchange_id, end in ends.items() if end["type"] == "final"]
            assert {end["durable"] for end in ends.values() if end["type"] == "final"} == {"db"}
            refused = [end for end in ends.values() if end["type"] != "final"]
            assert {(end["type"], end["code"], end["retryable"]) for end in refused} <= {
                ("error", "session_busy", True)
            }
            assert len(done) >= 1
            finals += done
            history = [await service.history(session_id) for service in instances]
            assert history[0] == history[1]
            assert [message["rank"] for message in history[0]] == list(range(2 * len(finals)))
    rows = query(database.dsn, "SELECT rank, exchange_id, parts_json->0->>'text' FROM session_history ORDER BY rank")
    assert [rank for rank, _, _ in rows] == list(range(2 * len(finals)))
    assert [one[1] for one in rows[::2]] == [one[1] for one in rows[1::2]]
    assert sorted(exchange_id for _, exchange_id, _ in rows[::2]) == sorted(finals)
    assert [text for _, _, text in rows[::2]] == [f"This is {exchange_id}" for _, exchange_id, _ in rows[::2]]
    assert query(
        database.dsn, "SELECT next_rank FROM (SELECT (session_data->>'next_rank')::int AS next_rank FROM session) AS s"
    ) == [(len(rows),)]


async def test_a_conversation_goes_on_at_whichever_instance(start_process):
    async with two_instances(start_process, "mock") as instances:
        session_id = await instances[0].create_session()
        heard = []
        for number, question in enumerate(("My name is Ada.", "What is my name?", "What is my name?")):
            async with instances[number % 2].native() as socket:
                # At once: the other instance has let the session go before the final was told.
                await say(socket, **ask(session_id, question))
                heard.append((await hear_until(socket, "final"))[-1]["messages"])
    assert [[message["rank"] for message in messages] for messages in heard] == [[0, 1], [2, 3], [4, 5]]
    assert [messages[1]["parts"][0]["text"] for messages in heard[1:]] == ["Your name is Ada."] * 2
