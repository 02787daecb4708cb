"""LangGraph's tables: linked to the sessions, taken over from an earlier release, on a bounded pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from prometheus_client import CollectorRegistry

from agentic_backend.agent.hosted.state_writes import CheckpointPart, WritesPart
from agentic_backend.errors import NotKept, TurnFailed
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.checkpoints import PostgresGraphState
from agentic_backend.persist.graph_pool import TABLES, GraphPool
from agentic_backend.persist.persistence import Persistence
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from backend_kit.wire import Code
from tests.agentic_backend.records import USER, new_session, rows
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database

LINKS = """
SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE contype = 'f' AND starts_with(conrelid::regclass::text, 'checkpoint') ORDER BY conrelid::regclass::text
"""
NEW = [(table, f"{table}_of_its_session") for table in sorted(TABLES)]


@asynccontextmanager
async def graph_pool(
    database: Database, size: int = 4, operation_s: float = PATIENCE_S, **changes: Any
) -> AsyncIterator[GraphPool]:
    """A pool on the database."""
    settings = Postgres.model_validate({**database.settings(), "pool_timeout": PATIENCE_S, **changes})
    registry = CollectorRegistry()  # that of the process has the pools of its own
    pool = GraphPool(
        settings, AgenticMetrics(registry, Kpi(registry, service="agentic")), size, operation_s=operation_s
    )
    try:
        yield pool
    finally:
        await pool.aclose()


async def put(state: PostgresGraphState, thread: str) -> None:
    """Store a state of a thread, with a write."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"messages": [thread]}
    checkpoint["channel_versions"] = {"messages": "1.0"}
    stored: Any = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
    await state.write(
        [
            CheckpointPart(config, checkpoint, {}, {"messages": "1.0"}),
            WritesPart(stored, [("messages", ["more"])], "a task", ""),
        ]
    )


def counts(database: Database, session_id: str) -> list[int]:
    """Rows of a session by table."""
    return [
        rows(database.dsn, f"SELECT count(*) FROM {table} WHERE session_id = '{session_id}'")[0][0]  # noqa: S608 - ours
        for table in TABLES
    ]


async def test_an_operation_on_a_connection_that_became_half_open_ends_and_the_next_one_is_well(
    persistence: Persistence, database: Database
) -> None:
    proxy = FaultProxy(database.port)
    await proxy.accept()
    session = await new_session(persistence)
    async with graph_pool(database, size=1, operation_s=5.0, port=proxy.port) as pool:
        state = PostgresGraphState(pool)
        await put(state, session.id)
        await proxy.command("strand")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(NotKept):
                await put(state, session.id + "/lost")
            await put(state, session.id + "/kept")
    proxy.close()


async def test_states_go_with_their_session_and_only_with_it(persistence: Persistence, database: Database) -> None:
    gone, kept = await new_session(persistence), await new_session(persistence)
    async with graph_pool(database) as pool:
        state = PostgresGraphState(pool)
        for session in (gone, kept):
            for line in ("/Tools/a", "/Other%2Fname/b", ""):
                await put(state, session.id + line)
        assert rows(database.dsn, LINKS) == NEW
        assert counts(database, gone.id) == counts(database, kept.id) == [3, 3, 3]
        assert await persistence.store.delete(gone.id, USER)
        assert await persistence.flush(PATIENCE_S) == 0
        assert counts(database, gone.id) == [0, 0, 0]
        assert counts(database, kept.id) == [3, 3, 3]


async def test_a_state_of_no_session_is_not_stored(held: Persistence, database: Database) -> None:
    async with graph_pool(database) as pool:
        with pytest.raises(NotKept):
            await put(PostgresGraphState(pool), "nowhere/Tools/a")


async def test_a_value_that_postgres_cannot_hold_is_no_outage(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    async with graph_pool(database) as pool:
        state = PostgresGraphState(pool)
        with pytest.raises(TurnFailed, match="cannot be stored") as caught:
            async with state.store() as store:
                await store.aput(("user", "a"), "k", {"text": "a\0b"})
        assert caught.value.code is Code.INTERNAL
        async with state.store() as store:
            await store.aput(("user", "a"), "k", {"text": "ab"})
        await put(state, f"{session.id}/Tools/a")


async def test_tables_of_an_earlier_release_are_taken_over_with_what_is_in_them(
    held: Persistence, database: Database
) -> None:
    """There a `thread_id` was a session's id, and referred to it by itself."""
    session = await new_session(held)
    async with graph_pool(database) as pool:
        await put(PostgresGraphState(pool), session.id)
    with psycopg.connect(database.dsn) as connection:
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} DROP COLUMN session_id CASCADE")
            connection.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {table}_of_session"
                " FOREIGN KEY (thread_id) REFERENCES session (session_id) ON DELETE CASCADE"
            )
    assert rows(database.dsn, LINKS) == [(table, f"{table}_of_session") for table in sorted(TABLES)]
    async with graph_pool(database) as one, graph_pool(database) as other:
        # Two instances start at once; both find the tables as they are to be.
        threads = [f"{session.id}/Tools/{name}" for name in "ab"]
        states = map(PostgresGraphState, (one, other))
        await asyncio.gather(*(put(state, thread) for state, thread in zip(states, threads, strict=True)))
    assert rows(database.dsn, LINKS) == NEW
    assert counts(database, session.id) == [3, 3, 3]


async def test_many_at_once_share_few_connections(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    async with graph_pool(database, size=2) as pool:
        state = PostgresGraphState(pool)
        await asyncio.gather(*(put(state, f"{session.id}/Tools/{number}") for number in range(30)))
        open_now = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'turnwise-agentic-graphs'"
        assert rows(database.dsn, open_now + " AND datname = current_database()")[0][0] <= 2
    assert counts(database, session.id) == [30, 30, 30]


async def test_without_postgres_a_state_is_not_kept_and_later_it_is(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    async with graph_pool(database, port=free_port(), pool_timeout=0.2) as pool:
        state = PostgresGraphState(pool)
        with pytest.raises(NotKept):
            async with state.saver():
                pass
        with pytest.raises(NotKept):
            async with state.store():
                pass
    async with graph_pool(database) as pool:
        await put(PostgresGraphState(pool), f"{session.id}/Tools/a")


async def test_who_waits_for_others_is_not_told_of_an_outage(held: Persistence, database: Database) -> None:
    async with graph_pool(database, size=1, pool_timeout=0.2) as pool:

        async def reads() -> object:
            async with PostgresGraphState(pool).saver() as saver:
                return await saver.aget_tuple({"configurable": {"thread_id": "none"}})

        async with pool.connection() as busy:
            waits = asyncio.ensure_future(reads())
            await busy.execute("SELECT pg_sleep(0.5)")  # longer than the pool itself lets anybody wait
        assert await waits is None


async def test_connections_that_the_server_has_ended_are_not_used(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    async with graph_pool(database) as pool:
        state = PostgresGraphState(pool)
        await asyncio.gather(*(put(state, f"{session.id}/Tools/{number}") for number in range(4)))
        ours = (
            "FROM pg_stat_activity WHERE application_name = 'turnwise-agentic-graphs' AND datname = current_database()"
        )
        rows(database.dsn, f"SELECT pg_terminate_backend(pid) {ours}")
        while rows(database.dsn, f"SELECT pid {ours}"):  # noqa: ASYNC110, RUF100 - a table is asked
            await asyncio.sleep(0.01)
        for number in range(4, 8):
            await put(state, f"{session.id}/Tools/{number}")
    assert counts(database, session.id) == [8, 8, 8]
