"""What `final` waits for, and what it is told when the disk or Postgres fails."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agentic_backend.errors import StorageFull
from agentic_backend.persist import spool as spool_module
from agentic_backend.persist import spoolfile
from agentic_backend.persist.persistence import Persistence
from tests.agentic_backend.persist.conftest import Build
from tests.agentic_backend.persist.support import USER, new_session, stored_ranks, turn, turns, until
from tests.support.postgres import Database


class Stuck(sqlite3.Connection):
    """Its commits fail as an unplugged disk's do, while `stuck` says so."""

    stuck = False

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and Stuck.stuck:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


@pytest.fixture
async def on_a_bad_disk(build: Build, database: Database, monkeypatch: pytest.MonkeyPatch) -> Persistence:
    """Persistence that runs, on a disk that can be made to fail."""

    def connect(path: Path) -> sqlite3.Connection:
        spoolfile.connect(path).close()
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Stuck)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection

    monkeypatch.setattr(Stuck, "stuck", False)
    monkeypatch.setattr(spool_module.Spool.__init__, "__kwdefaults__", {"lock": None, "connect_to": connect})
    persistence = build(database.settings())
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


async def test_with_db_nothing_is_final_that_postgres_did_not_take(
    build: Build, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentic_backend.persist.turnlog._DATABASE_S", 0.05)
    held = build(database.settings(), persistence={"ack": "db"})
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    with pytest.raises(StorageFull):
        await held.log.append(turn(session, "x1"))
    # Nor is it told again as one that ended well, to who sends the ask once more.
    with pytest.raises(StorageFull):
        await held.store.exchange(session.id, USER, "x1")
    held.start()
    assert await held.flush(30) == 0
    assert len(stored_ranks(database.dsn, session)) == 2
    assert len(await held.store.exchange(session.id, USER, "x1")) == 2


async def test_what_the_spool_has_is_told_again_while_postgres_has_it_not(held: Persistence) -> None:
    session = await new_session(held)
    record = turn(session, "x1")
    assert await held.log.append(record) == "spool"
    assert await held.store.exchange(session.id, USER, "x1") == [message.json for message in record.messages]


async def test_where_the_disk_fails_postgres_is_as_good(on_a_bad_disk: Persistence, database: Database) -> None:
    on_a_bad_disk.start()
    session = await new_session(on_a_bad_disk)
    assert on_a_bad_disk.log.has_room()
    Stuck.stuck = True
    await failing(on_a_bad_disk)
    assert not on_a_bad_disk.log.has_room()
    record = turn(session, "x1")
    assert await on_a_bad_disk.log.append(record) == "db"
    assert len(stored_ranks(database.dsn, session)) == 2
    Stuck.stuck = False
    await until(on_a_bad_disk.log.has_room)
    assert await on_a_bad_disk.log.append(turn(record.session, "x2")) == "spool"


async def test_where_both_fail_nothing_is_final_and_the_turn_is_tried_on(
    on_a_bad_disk: Persistence, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await new_session(on_a_bad_disk)
    Stuck.stuck = True
    await failing(on_a_bad_disk)
    with monkeypatch.context() as short:
        short.setattr("agentic_backend.persist.turnlog._DATABASE_S", 0.05)
        with pytest.raises(StorageFull):
            await on_a_bad_disk.log.append(turn(session, "x1"))
    waiting = asyncio.ensure_future(on_a_bad_disk.log.append(turn(session, "x1")))
    await asyncio.sleep(0)
    Stuck.stuck = False
    assert await waiting == "spool"
    on_a_bad_disk.start()
    assert await on_a_bad_disk.flush(30) == 0
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1")]


async def test_a_disk_with_little_room_takes_no_new_turn(held: Persistence, monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.spool is not None
    held.spool.look_at_disk()
    assert held.log.has_room()
    monkeypatch.setattr(spool_module, "_FREE_SHARE", 1.1)
    monkeypatch.setattr(spool_module, "_FREE_BYTES", 2**62)
    held.spool.look_at_disk()
    assert not held.log.has_room()
