"""Postgres goes away and comes back: nothing is lost while the process lives, and the log stays readable."""

import asyncio
import logging
import shutil
import time
from collections.abc import Iterator

import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.persist.persistence import PersistenceRules
from agentic_backend.session.models import HistoryWindow
from backend_kit.db.database import DatabaseState
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, new_session, rows, stored_ranks, turn, turns
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from turnwise.postgres import EmbeddedPostgres


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, prepared but not started. Durable, as it is going to be killed."""
    directory = public_directory("turnwise-outage-pg-")
    postgres = EmbeddedPostgres(directory, free_port())
    postgres.prepare()
    yield postgres
    postgres.stop()
    shutil.rmtree(directory)


def where(own_postgres: EmbeddedPostgres) -> dict[str, str | int]:
    return {
        "host": own_postgres.host,
        "port": own_postgres.port,
        "database": own_postgres.database,
        "username": "postgres",
        "connect_timeout": 600,
    }


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_an_outage_in_mid_stream_loses_nothing(
    own_postgres: EmbeddedPostgres, build: Build, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(own_postgres.start)
    persistence = build(where(own_postgres))
    await persistence.database.connect_until_ready(lambda _state: None)
    persistence.start()
    sessions = [await new_session(persistence) for _ in range(20)]
    made = [turns(session, 30) for session in sessions]
    begun = time.perf_counter()
    for number, records in enumerate(zip(*made, strict=True)):
        for record in records:
            await persistence.log.append(record)
        if number == 10:
            await asyncio.to_thread(own_postgres.stop if how == "stop" else own_postgres.kill)
        if number == 20:
            # Readers of a pending session are served; of others, told at once that history is not available.
            with pytest.raises(HistoryUnavailable):
                await persistence.store.list_for(USER)
            newest = await history_of(persistence.store, sessions[0].id, USER, HistoryWindow(2))
            assert [loads(message)["rank"] for message in newest] == [40, 41]
            known = await persistence.store.get(sessions[0].id, USER)
            assert known is not None
            assert known.next_rank == 42
            assert persistence.dependencies()["postgres"]["status"] == "down"
            await asyncio.to_thread(own_postgres.start)
        await asyncio.sleep(0.005)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0
    elapsed_s = time.perf_counter() - begun

    for session in sessions:
        assert stored_ranks(own_postgres.dsn, session) == [(rank, f"x{rank // 2 + 1}") for rank in range(60)]
    assert persistence.dependencies()["spool"] == {"status": "up", "dead_letters": 0}
    assert "batch not written" in caplog.text
    assert len(await persistence.store.list_for(USER)) == 20
    assert persistence.dependencies()["postgres"] == {"status": "up", "pending_records": 0}
    said = [(r.name, r.getMessage().split("sqlstate")[0]) for r in caplog.records if r.levelno >= logging.WARNING]
    causes = {text for _, text in said}
    assert len(said) <= len(causes) * (2 + elapsed_s), said
    assert {name.removeprefix("agentic_backend.") for name, _ in said} <= {
        "spool.batcher",
        "spool.owner",
        "persist.database",
    }


async def test_the_service_starts_before_postgres(
    own_postgres: EmbeddedPostgres, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    states: asyncio.Queue[DatabaseState] = asyncio.Queue()
    persistence = build(where(own_postgres), on_state=states.put_nowait)
    persistence.start()
    assert await asyncio.wait_for(states.get(), PATIENCE_S) == DatabaseState("connecting", "unclaimed")
    assert not persistence.schema_known
    with pytest.raises(HistoryUnavailable):
        await persistence.store.list_for(USER)

    await asyncio.to_thread(own_postgres.start)
    async with asyncio.timeout(PATIENCE_S):
        while (await states.get()).status != "ready":
            pass
    session = await new_session(persistence)
    await persistence.log.append(turn(session, "x1"))
    assert await persistence.flush(PATIENCE_S) == 0
    assert len(stored_ranks(own_postgres.dsn, session)) == 2
    assert f"Postgres at 127.0.0.1:{own_postgres.port} is not ready: sqlstate=None; trying on" in caplog.text


async def test_closing_without_postgres_ends_at_the_deadline(own_postgres: EmbeddedPostgres, build: Build) -> None:
    await asyncio.to_thread(own_postgres.start)
    persistence = build(where(own_postgres), persistence={"ack": "none"})
    await persistence.database.connect_until_ready(lambda _state: None)
    session = await new_session(persistence)
    await asyncio.to_thread(own_postgres.stop)
    persistence.start()
    for record in turns(session, 3):
        await persistence.log.append(record)
    assert await persistence.flush(0.2) == 3
    report = await persistence.batcher.aclose(0.2)
    assert (report.flushed, report.left) == (0, 3)

    await asyncio.to_thread(own_postgres.start)
    await persistence.aclose()
    assert len(stored_ranks(own_postgres.dsn, session)) == 6


@pytest.mark.parametrize("ack", ["none", "spool"])
async def test_a_delete_during_an_outage_is_done_afterwards(
    own_postgres: EmbeddedPostgres, build: Build, ack: str
) -> None:
    await asyncio.to_thread(own_postgres.start)
    rules = PersistenceRules(commit_s=0.1, spool_s=PATIENCE_S)
    persistence = build(where(own_postgres), rules=rules, persistence={"ack": ack})
    await persistence.database.connect_until_ready(lambda _state: None)
    persistence.start()
    session = await new_session(persistence)
    await asyncio.to_thread(own_postgres.stop)
    if ack == "spool":
        assert await persistence.store.delete(session.id, USER)
    else:
        with pytest.raises(HistoryUnavailable):
            await persistence.store.delete(session.id, USER)
    assert await persistence.store.get(session.id, USER) is None
    await asyncio.to_thread(own_postgres.start)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0
    assert rows(own_postgres.dsn, "SELECT count(*) FROM session") == [(0,)]
