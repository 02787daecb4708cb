"""What `final` waits for, and what it is told when the disk or Postgres fails."""

import asyncio
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.errors import StorageFull
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.spool.spool import DiskUsage, Spool
from agentic_backend.spool.turnlog import PersistentTurnLog
from backend_kit.kpi import Kpi
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, BadDisk, new_session, stored_ranks, turn, turns, until
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database


@pytest.fixture
def bad_disk() -> BadDisk:
    return BadDisk(sqlite3.OperationalError("disk I/O error"))


@pytest.fixture
async def on_a_bad_disk(build: Build, database: Database, bad_disk: BadDisk) -> Persistence:
    """Persistence that runs, on a disk that can be made to fail."""
    rules = PersistenceRules(ack_s=PATIENCE_S, spool_s=PATIENCE_S)
    persistence = build(database.settings(), rules=rules, spool=partial(Spool, connect_to=bad_disk.connect))
    await persistence.database.connect_until_ready(lambda _state: None)
    return persistence


async def failing(persistence: Persistence) -> None:
    """Return once the spool has noticed."""
    assert persistence.spool is not None
    spool = persistence.spool
    spool.note("ask", ("nobody", "nobody"), "x", b"{}")
    await until(lambda: not spool.usable)


async def test_with_db_a_turn_is_in_postgres_before_it_is_final(build: Build, database: Database) -> None:
    persistence = build(database.settings(), persistence={"ack": "db"})
    await persistence.database.connect_until_ready(lambda _state: None)
    persistence.start()
    session = await new_session(persistence)
    for number, record in enumerate(turns(session, 3)):
        assert await persistence.log.append(record) == "db"
        assert len(stored_ranks(database.dsn, session)) == 2 * number + 2
    assert persistence.spool is None


async def test_with_db_nothing_is_final_that_postgres_did_not_take(build: Build, database: Database) -> None:
    held = build(database.settings(), rules=PersistenceRules(ack_s=0.05), persistence={"ack": "db"})
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    with pytest.raises(StorageFull):
        await held.log.append(turn(session, "x1"))
    # Nor is it told again as one that ended well, to who sends the ask once more.
    with pytest.raises(StorageFull):
        await held.store.exchange(session.id, USER, "x1")
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    assert len(stored_ranks(database.dsn, session)) == 2
    assert len(await held.store.exchange(session.id, USER, "x1")) == 2


async def test_what_the_spool_has_is_told_again_while_postgres_has_it_not(held: Persistence) -> None:
    session = await new_session(held)
    record = turn(session, "x1")
    assert await held.log.append(record) == "spool"
    assert await held.store.exchange(session.id, USER, "x1") == [message.json for message in record.messages]


async def test_where_the_disk_fails_postgres_is_as_good(
    on_a_bad_disk: Persistence, bad_disk: BadDisk, database: Database
) -> None:
    on_a_bad_disk.start()
    session = await new_session(on_a_bad_disk)
    assert on_a_bad_disk.log.has_room()
    bad_disk.broken = True
    await failing(on_a_bad_disk)
    assert not on_a_bad_disk.log.has_room()
    record = turn(session, "x1")
    assert await on_a_bad_disk.log.append(record) == "db"
    assert len(stored_ranks(database.dsn, session)) == 2
    bad_disk.broken = False
    await until(on_a_bad_disk.log.has_room)
    assert await on_a_bad_disk.log.append(turn(record.session, "x2")) == "spool"


async def test_where_both_fail_nothing_is_final_and_the_turn_is_tried_on(
    on_a_bad_disk: Persistence, bad_disk: BadDisk, database: Database, kpi: Kpi
) -> None:
    session = await new_session(on_a_bad_disk)
    bad_disk.broken = True
    await failing(on_a_bad_disk)
    on = on_a_bad_disk
    metrics = AgenticMetrics(CollectorRegistry(), kpi)
    impatient = PersistentTurnLog("spool", on.batcher, on.pending, on.spool, on.cache, metrics, database_s=0.05)
    with pytest.raises(StorageFull):
        await impatient.append(turn(session, "x1"))
    waiting = asyncio.ensure_future(on_a_bad_disk.log.append(turn(session, "x1")))
    await asyncio.sleep(0)
    bad_disk.broken = False
    assert await waiting == "spool"
    on_a_bad_disk.start()
    assert await on_a_bad_disk.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1")]


async def test_a_disk_with_little_room_takes_no_new_turn(build: Build, database: Database) -> None:
    free = [1 << 40]

    def usage(directory: Path) -> DiskUsage:
        return SimpleNamespace(total=shutil.disk_usage(directory).total, free=free[0])

    persistence = build(database.settings(), spool=partial(Spool, disk_usage=usage))
    assert persistence.spool is not None
    persistence.spool.look_at_disk()
    assert persistence.log.has_room()
    free[0] = 1 << 20
    persistence.spool.look_at_disk()
    assert not persistence.log.has_room()
