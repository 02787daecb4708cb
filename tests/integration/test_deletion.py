"""Deleting a session deletes all of it everywhere: in each table, the spool and the process, also over a restart."""

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from agentic_backend.app import Parts
from agentic_backend.chat.follow import Follow
from agentic_backend.session.registry import RegistryRules
from agentic_backend.wiring import make_retention
from tests.agentic_backend.records import until, until_waiting
from tests.support.clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, WAITS_FOR_THE_DISK, hear, hear_until, say

pytestmark = pytest.mark.one_instance("looks into the spool, the caches and the retention of one process")

FILL = {
    "session_attachments": "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
    " VALUES ('a1', %(id)s, 'admin', 'a.txt', 1)",
    "attachment_image": "INSERT INTO attachment_image SELECT 'a1', 1, 1, '\\x01'::bytea WHERE %(id)s <> ''",
    "feedbacks": "INSERT INTO feedbacks (id, session_id, message_id, user_id, agent_name, rating)"
    " VALUES ('f1', %(id)s, '1', 'admin', 'Georges', 5)",
    "share_link": "INSERT INTO share_link (id, digest, session_id, user_id, audience)"
    " VALUES ('l1', '\\x01', %(id)s, 'admin', 'signed_in')",
    "session_lease": "INSERT INTO session_lease VALUES (%(id)s, 'somebody', 1, now())",
}
"""A row of each table that no turn of this test fills."""


def ask(session_id, exchange_id, **more):
    head = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": "Hello"}
    return {**head, "client_exchange_id": exchange_id, **more}


async def say_and_hear(service, session_id, exchange_id):
    async with service.native() as socket:
        await say(socket, **ask(session_id, exchange_id))
        return (await hear_until(socket, "final"))[-1]


async def delete(service, session_id):
    async with service.http.delete(f"{BASE}/chatbot/session/{session_id}") as response:
        return response.status, await response.json()


async def status(service, session_id, of="/history"):
    async with service.http.get(f"{BASE}/chatbot/session/{session_id}{of}") as response:
        return response.status


def in_postgres(database, session_id):
    """Rows of the session in each table of the schema that has its id, or that of an attachment of it."""
    with psycopg.connect(database.dsn) as connection:
        tables = connection.execute(
            "SELECT table_name FROM information_schema.columns WHERE column_name = 'session_id'"
            " AND table_schema = current_schema()"
        ).fetchall()
        counts = {}
        for (table,) in tables:
            query = sql.SQL("SELECT count(*) FROM {} WHERE session_id = %s").format(sql.Identifier(table))
            ((counts[table],),) = connection.execute(query, (session_id,))
        # Its rows belong to those of `session_attachments`, of which the tests of this file have one.
        ((counts["attachment_image"],),) = connection.execute("SELECT count(*) FROM attachment_image")
    return counts


def in_spool(service, session_id):
    """Rows of the session in each table of the spool."""
    (file,) = Path(service.service.running.persistence.spool.directory).glob("spool-*.sqlite")
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    try:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: connection.execute(
                f"SELECT count(*) FROM {table} WHERE session_id = ?",  # noqa: S608 - names of the file's own tables
                (session_id,),
            ).fetchone()[0]
            for table in tables
        }
    finally:
        connection.close()


async def left(database, session_id):
    return await asyncio.to_thread(in_postgres, database, session_id)


def bury(service, session_id):
    """A dead letter of the session, as a record that Postgres refuses leaves it."""
    spool = service.service.running.persistence.spool
    spool.bury(spool.note("turn", (session_id, "admin"), "refused", b"{}"), "poison")


def fill(database, session_id):
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in FILL.values():
            connection.execute(statement.encode(), {"id": session_id})


async def spool_without(service, session_id):
    """Wait until the spool has nothing of the session: what is done is removed with its next commit."""
    await until(lambda: not any(in_spool(service, session_id).values()))
    assert len(in_spool(service, session_id)) == 2


async def nothing_left(service, database, session_id):
    counts = await left(database, session_id)
    assert set(counts) == {"session", "session_history", *FILL}
    assert set(counts.values()) == {0}
    assert [await status(service, session_id, of) for of in ("/history", "/preferences", "/message/0")] == [403] * 3
    assert session_id not in {session["id"] for session in await service.get("/chatbot/sessions")}
    key = (session_id, "admin")
    running = service.service.running
    assert key not in running.persistence.cache._entries
    assert ("admin", session_id) not in running.registry._slots
    await spool_without(service, session_id)


async def test_what_was_stored_is_gone_also_after_a_restart(start_service, database):
    async with start_service() as service:
        session_id, other = await service.create_session(), await service.create_session()
        for one in (session_id, other):
            await say_and_hear(service, one, f"{one}-e1")
        await service.flush()
        await asyncio.to_thread(fill, database, session_id)
        assert 0 not in (await left(database, session_id)).values()
        for one in (session_id, other):
            bury(service, one)
        assert await delete(service, session_id) == (200, True)
        await nothing_left(service, database, session_id)
        assert await delete(service, session_id) == await delete(service, "AAAAAAAAAAA")
        # The answer that this process still had is nobody's to find.
        async with service.native() as socket:
            await say(socket, type="resume", session_id=session_id, exchange_id=f"{session_id}-e1", after_seq=0)
            assert (await hear(socket))["type"] == "error"
            await say(socket, **ask(session_id, f"{session_id}-e1"))
            assert (await hear(socket))["code"] == "session_not_found"
        assert len(await service.history(other)) == 2
    async with start_service() as service:
        await nothing_left(service, database, session_id)
        assert len(await service.history(other)) == 2
        assert service.service.running.persistence.spool.dead_letters == 1


async def test_turns_that_are_still_on_their_way_go_too_and_do_not_come_back(start_service, database):
    async with start_service(parts=WAITS_FOR_THE_DISK) as service:
        session_id = await service.create_session()
        await say_and_hear(service, session_id, "e1")
        await service.flush()
        await asyncio.to_thread(fill, database, session_id)
        async with await psycopg.AsyncConnection.connect(database.dsn) as slow:
            await slow.execute("SELECT FROM session WHERE session_id = %s FOR UPDATE", (session_id,))
            for exchange_id in ("e2", "e3"):
                assert (await say_and_hear(service, session_id, exchange_id))["durable"] == "spool"
            assert service.service.running.persistence.pending.holds((session_id, "admin"))
            async with asyncio.TaskGroup() as group:
                deleting = group.create_task(delete(service, session_id))
                pending = service.service.running.persistence.pending
                await until(lambda: pending.deletion((session_id, "admin")) is not None)
                # Its readers do not wait for Postgres, and a new turn is refused.
                assert await status(service, session_id) == 403
                async with service.native() as socket:
                    await say(socket, **ask(session_id, "e4"))
                    assert (await hear(socket))["code"] == "session_not_found"
                assert not deleting.done()
                await slow.rollback()
        assert deleting.result() == (200, True)
        await service.flush()
        await nothing_left(service, database, session_id)
    async with start_service() as service:
        await nothing_left(service, database, session_id)


async def test_a_turn_that_runs_is_stopped_and_leaves_nothing(start_service, database):
    async with start_service("mock;tokens=9;stall=3") as service:
        session_id = await service.create_session()
        await asyncio.to_thread(fill, database, session_id)
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e1"))
            await hear_until(socket, "delta")
            assert await delete(service, session_id) == (200, True)
            assert (await hear_until(socket, "cancelled"))[-1]["exchange_id"] == "e1"
        assert service.turn("e1") is None
        await service.flush()
        await nothing_left(service, database, session_id)


def retention_of(service):
    """What deletes old sessions in this service, to be run now."""
    running = service.service.running
    return make_retention(
        service.service._settings, running.persistence, running.registry, running.hub, running.metrics
    )


def age(database, session_id):
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE session SET used_at = now() - interval '31 days' WHERE session_id = %s", [session_id]
        )


async def test_retention_deletes_as_much_and_leaves_the_young(start_service, database):
    clock = Clock()
    async with start_service(history={"retention_days": 30}, parts=Parts(clock=clock)) as service:
        old, young = await service.create_session(), await service.create_session()
        for session_id in (old, young):
            await say_and_hear(service, session_id, f"{session_id}-e1")
        await service.flush()
        await asyncio.to_thread(fill, database, old)
        await asyncio.to_thread(age, database, old)
        clock.now += 31 * 86_400.0  # the process has used both last so long ago; Postgres says it of one alone
        bury(service, old)
        await retention_of(service).prune()
        await nothing_left(service, database, old)
        assert service.turn(f"{old}-e1") is None
        assert len(await service.history(young)) == 2


def in_order(database):
    with psycopg.connect(database.dsn) as connection:
        return [row[0] for row in connection.execute("SELECT session_id FROM session ORDER BY session_id")]


async def test_retention_leaves_a_session_whose_turn_is_on_its_way(start_service, database):
    async with start_service(history={"retention_days": 30}) as service:
        for _ in range(2):
            await service.create_session()
        ahead, session_id = await asyncio.to_thread(in_order, database)
        persistence = service.service.running.persistence
        await asyncio.to_thread(age, database, session_id)
        async with await psycopg.AsyncConnection.connect(database.dsn) as slow:
            await slow.execute("SELECT FROM session WHERE session_id = %s FOR UPDATE", (ahead,))
            await say_and_hear(service, ahead, "e1")
            await until_waiting(database.dsn, 1)
            # Behind the other in the queue: nobody holds its row.
            await say_and_hear(service, session_id, "e2")
            await retention_of(service).prune()
            assert persistence.pending.holds((session_id, "admin"))
            await slow.rollback()
        await persistence.flush(PATIENCE_S)
        await retention_of(service).prune()
        assert [message["rank"] for message in await service.history(session_id)] == [0, 1]


@pytest.mark.parametrize("known_by", ["registry", "cache"])
async def test_retention_leaves_what_this_process_has_used_whatever_postgres_says(start_service, database, known_by):
    kept = RegistryRules(idle_sessions=1)
    async with start_service(history={"retention_days": 30}, parts=Parts(turns=kept)) as service:
        session_id = await service.create_session()
        await say_and_hear(service, session_id, "e1")
        await service.flush()
        await asyncio.to_thread(age, database, session_id)
        if known_by == "registry":
            service.service.running.persistence.cache.forget((session_id, "admin"))
        else:
            await service.create_session()  # the only one that the registry now has in mind
            assert not service.turns.knows(session_id, "admin", 30 * 86_400.0)
        await retention_of(service).prune()
        assert len(await service.history(session_id)) == 2


async def test_retention_leaves_a_session_that_a_socket_is_told_of(start_service, database):
    async with start_service() as service:
        session_id = await service.create_session()
        await say_and_hear(service, session_id, "e1")
    await asyncio.to_thread(age, database, session_id)
    async with start_service(history={"retention_days": 30}) as service:
        turn = service.turns.resume(session_id, "e1", "admin")
        hub = service.service.running.hub
        async with service.native() as socket:
            await say(socket, type="ping")
            await hear_until(socket, "pong")
            (open_socket,) = hub._sockets
            open_socket.outbox.follows.append(Follow(turn))
            assert hub.followed() == {(session_id, "admin")}
            await retention_of(service).prune()
            assert len(await service.history(session_id)) == 2
            open_socket.outbox.follows.clear()
            await retention_of(service).prune()
            assert await status(service, session_id) == 403


async def test_retention_leaves_a_session_that_is_used_again(start_service, database):
    async with start_service() as service:
        session_id = await service.create_session()
        await say_and_hear(service, session_id, "e1")
    await asyncio.to_thread(age, database, session_id)
    async with start_service("mock;tokens=9;stall=3", history={"retention_days": 30}) as service:
        async with service.native() as socket:
            await say(socket, **ask(session_id, "e2"))
            await hear_until(socket, "delta")
            await retention_of(service).prune()
            await say(socket, type="cancel", exchange_id="e2")
            await hear_until(socket, "cancelled")
        await service.flush()
        assert [message["rank"] for message in await service.history(session_id)] == [0, 1, 2, 3]
