"""What the spool keeps of turns that the service may run again by itself, over one kill and the next."""

import shutil
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.errors import StorageFull
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.session.models import AskRecord, Rerun
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import SpoolLock
from backend_kit.kpi import Kpi
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, BadDisk, new_session, stored_ranks, turn
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

pytestmark = pytest.mark.servers

RERUN = Rerun("Georges", "default", {"search_policy": "strict"}, "fr", "r1", None)


async def left_ask(held: Persistence, exchange_id: str = "cut", **changes: Any) -> AskRecord:
    """A turn that has begun, on the disk with what came after it."""
    session = await new_session(held, title="Named")
    record = AskRecord(session, turn(session, exchange_id, "why?").messages[0], rerun=RERUN, **changes)
    held.log.begin(record)
    await held.log.append(turn(await new_session(held), "carries the ask to the disk"))
    return record


async def heir_of(dead: Persistence, build: Build, database: Database, place: Path) -> Persistence:
    """The next process, as a kill at this moment leaves the directory to it. It does not write to Postgres yet."""
    assert dead.spool is not None
    shutil.copytree(dead.spool.directory, place, ignore=shutil.ignore_patterns("*-shm", "lock"))
    dead.owner.close()
    own = Kpi(CollectorRegistry(), service="agentic")
    rules = PersistenceRules(spool_s=PATIENCE_S, close_s=0.0)
    heir = build(database.settings(), own_kpi=own, rules=rules, persistence={"spool_dir": str(place)})
    await heir.database.connect_until_ready(lambda _state: None)
    return heir


async def extras(persistence: Persistence, record: AskRecord) -> dict[str, Any]:
    """What marks the stored end of the exchange."""
    encoded = await persistence.store.exchange(record.session.id, USER, record.user_message.exchange_id)
    return loads(encoded[-1])["metadata"].get("extras", {}) if encoded else {}


async def test_an_ask_that_may_run_again_is_kept_for_it_and_ends_as_any(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    record = await left_ask(held)
    heir = await heir_of(held, build, database, tmp_path / "heir")
    assert heir.log.take_over() == (record,)
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, record.session) == []
    assert (await heir.log.begin_again(record)).rerun == replace(RERUN, restarts=1)
    heir.log.begin(record)  # as the turn does that runs: it is noted already
    await heir.log.append(turn(record.session, "cut", "why?", "because"))
    assert await heir.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, record.session) == [(0, "cut"), (1, "cut")]
    assert heir.spool is not None
    assert (heir.spool.records, heir.spool.dead_letters) == (0, 0)


async def test_one_that_kills_its_next_process_too_is_not_begun_a_third_time(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    record = await left_ask(held)
    heir = await heir_of(held, build, database, tmp_path / "heir")
    await heir.log.begin_again(record)
    last = await heir_of(heir, build, database, tmp_path / "last")
    assert last.log.take_over() == ()
    last.start()
    assert await last.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, record.session) == [(0, "cut"), (1, "cut")]
    assert await extras(last, record) == {"status": "interrupted", "interrupted_by": "restart"}


async def test_one_that_had_not_begun_again_when_the_next_process_died_is_kept_on(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    record = await left_ask(held)
    heir = await heir_of(held, build, database, tmp_path / "heir")
    last = await heir_of(heir, build, database, tmp_path / "last")
    assert last.log.take_over() == (record,)


async def test_what_is_given_up_is_stored_and_what_had_ended_is_dropped(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    given_up, dropped = await left_ask(held), await left_ask(held, "ended")
    heir = await heir_of(held, build, database, tmp_path / "heir")
    assert heir.log.take_over() == (given_up, dropped)
    heir.log.give_up(given_up.interrupted())
    heir.log.drop(dropped)
    heir.log.drop(dropped)
    await heir.log.append(turn(await new_session(heir), "carries the rest to the disk"))
    last = await heir_of(heir, build, database, tmp_path / "last")
    assert last.log.take_over() == ()
    last.start()
    assert await last.flush(PATIENCE_S) == 0
    assert await extras(last, given_up) == {"status": "interrupted", "interrupted_by": "restart"}
    assert stored_ranks(database.dsn, dropped.session) == []


async def test_one_that_a_person_had_let_continue_keeps_what_they_said(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    record = await left_ask(held, earlier=())
    heir = await heir_of(held, build, database, tmp_path / "heir")
    assert heir.log.take_over() == (record,)
    assert record.interrupted().messages[-1].metadata["extras"] == {"status": "interrupted"}


async def test_a_disk_that_does_not_take_the_count_lets_nothing_run(build: Build, database: Database) -> None:
    disk = BadDisk(sqlite3.OperationalError("disk I/O error"))
    rules = PersistenceRules(ack_s=0.05, spool_s=0.05, close_s=0.0)
    held = build(database.settings(), rules=rules, spool=partial(Spool, connect_to=disk.connect))
    await held.database.connect_until_ready(lambda _state: None)
    record = await left_ask(held)
    disk.broken = True
    with pytest.raises(StorageFull):
        await held.log.begin_again(record)
    held.log.give_up(record.interrupted())
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    assert await extras(held, record) == {"status": "interrupted", "interrupted_by": "restart"}
    disk.broken = False
    assert held.spool is not None
    assert held.spool.records == 0


async def test_a_sibling_writes_out_what_a_process_left_that_does_not_come_back(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    record = await left_ask(held)
    assert held.spool is not None
    left = tmp_path / "left"
    shutil.copytree(held.spool.directory, left, ignore=shutil.ignore_patterns("*-shm", "lock"))
    held.owner.close()
    own = Kpi(CollectorRegistry(), service="agentic")
    sibling = build(database.settings(), own_kpi=own, persistence={"spool_dir": str(tmp_path / "own")})
    assert not await sibling.write_out(SpoolLock(left))  # Postgres has not answered yet
    sibling.start()
    await sibling.database.wait_ready()
    assert await sibling.write_out(SpoolLock(left))
    assert stored_ranks(database.dsn, record.session) == [(0, "cut"), (1, "cut")]
    assert await extras(sibling, record) == {"status": "interrupted", "interrupted_by": "restart"}
    assert await sibling.write_out(SpoolLock(left))
    assert sibling.log.pending == 0
