"""What is found again of turns, deletes and changes after a kill."""

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.events import ChatMessage, iso_z
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.session.models import AskRecord, TurnRecord
from agentic_backend.spool.spool import Spool
from backend_kit.auth import AuditAction, AuditEvent
from backend_kit.kpi import Kpi
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import (
    USER,
    BadDisk,
    history_of,
    message_of,
    new_session,
    rows,
    stored_ranks,
    total,
    turn,
    turns,
)
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

Kill = Callable[[Persistence], str]


@pytest.fixture
def kill(tmp_path: Path) -> Kill:
    """The directory as a kill at this moment would leave it, where the next process finds it."""

    def take(persistence: Persistence) -> str:
        left = spool_as_it_is(persistence, tmp_path)
        persistence.owner.close()
        return left

    return take


def spool_as_it_is(persistence: Persistence, tmp_path: Path) -> str:
    """A copy of its directory."""
    assert persistence.spool is not None
    left = tmp_path / "left"
    shutil.copytree(persistence.spool.directory, left, ignore=shutil.ignore_patterns("*-shm", "lock"))
    return str(left)


async def held_briefly(build: Build, database: Database) -> Persistence:
    """`held`, where a delete or a change does not wait for its commit long."""
    persistence = build(database.settings(), rules=PersistenceRules(commit_s=0.05, spool_s=PATIENCE_S, close_s=0.0))
    await persistence.database.connect_until_ready(lambda _state: None)
    return persistence


async def successor(build: Build, database: Database, spool_dir: str) -> Persistence:
    own_kpi = Kpi(CollectorRegistry(), service="agentic")
    persistence = build(database.settings(), own_kpi=own_kpi, persistence={"spool_dir": spool_dir})
    await persistence.database.connect_until_ready(lambda _state: None)
    return persistence


async def test_acknowledged_turns_are_read_and_written_after_a_kill(
    held: Persistence, build: Build, database: Database, kill: Kill
) -> None:
    session = await new_session(held)
    for record in turns(session, 3):
        assert await held.log.append(record) == "spool"
    heir = await successor(build, database, kill(held))

    assert heir.dependencies()["postgres"]["pending_records"] == 3
    seen = await history_of(heir.store, session.id, USER)
    assert [loads(message)["rank"] for message in seen] == list(range(6))
    found = await heir.store.get(session.id, USER)
    assert found is not None
    assert (found.next_rank, found.version, found.title) == (6, 3, "A title")
    remembered = await heir.store.remembered(session.id, USER, 20)
    assert [one.text for one in remembered][-1] == "answer 2"
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, session) == [(n, f"x{n // 2 + 1}") for n in range(6)]


async def test_a_turn_that_was_written_but_not_taken_out_is_written_once(
    held: Persistence, build: Build, database: Database, tmp_path: Path
) -> None:
    session = await new_session(held)
    for record in turns(session, 2):
        await held.log.append(record)
    left = spool_as_it_is(held, tmp_path)
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    assert len(stored_ranks(database.dsn, session)) == 4
    await held.aclose()
    heir = await successor(build, database, left)
    assert len(heir.pending) == 2
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1"), (2, "x2"), (3, "x2")]
    assert heir.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


async def test_an_ask_without_its_turn_becomes_an_interrupted_turn(
    held: Persistence, build: Build, database: Database, kill: Kill
) -> None:
    session = await new_session(held, title="Named")
    done = turn(session, "done")
    held.log.begin(AskRecord(session, done.messages[0]))
    await held.log.append(done)
    cut = turn(done.session, "cut", "why?", "because")
    held.log.begin(AskRecord(done.session, cut.messages[0]))
    await held.log.append(turn(await new_session(held), "carries the ask to the disk"))
    heir = await successor(build, database, kill(held))
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, session) == [(0, "done"), (1, "done"), (2, "cut"), (3, "cut")]
    question, answer = map(loads, await heir.store.exchange(session.id, USER, "cut"))
    assert question["parts"] == [{"type": "text", "text": "why?"}]
    assert (answer["role"], answer["channel"], answer["parts"]) == (
        "assistant",
        "final",
        [{"type": "text", "text": ""}],
    )
    assert answer["metadata"]["extras"] == {"status": "interrupted", "interrupted_by": "restart"}
    after = await heir.store.get(session.id, USER)
    assert after is not None
    assert (after.next_rank, after.title) == (4, "Named")
    assert [one.text for one in await heir.store.remembered(session.id, USER, 20)] == ["question", "answer"]


@pytest.mark.parametrize("stored", [True, False], ids=["stored before", "in one batch"])
async def test_an_interrupted_exchange_that_ran_again_takes_its_own_place(
    held: Persistence, database: Database, stored: bool
) -> None:
    session = await new_session(held)
    again = turn(session, "cut", "why?", "a thought", "because")
    interrupted = AskRecord(session, again.messages[0]).interrupted()
    await held.log.append(interrupted)
    if stored:
        held.start()
        assert await held.flush(PATIENCE_S) == 0
    newer = turn(session.advanced(0, ""), "cut", "why?", "a thought", "because")
    await held.log.append(newer)
    seen = [loads(message) for message in await history_of(held.store, session.id, USER)]
    if not stored:
        held.start()
    assert await held.flush(PATIENCE_S) == 0
    # A late replay of what it was before changes nothing.
    await held.log.append(interrupted)
    assert await held.flush(PATIENCE_S) == 0

    assert [message["rank"] for message in seen] == [0, 1, 2]
    assert stored_ranks(database.dsn, session) == [(0, "cut"), (1, "cut"), (2, "cut")]
    texts = rows(database.dsn, "SELECT parts_json->0->>'text' FROM session_history ORDER BY rank")
    assert texts == [("why?",), ("a thought",), ("because",)]
    assert held.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


async def test_an_answer_is_never_overwritten_by_its_own_exchange(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    held.start()
    await held.log.append(turn(session, "x1", "q", "the answer that was seen"))
    await held.log.append(turn(session, "x1", "q", "another"))
    assert await held.flush(PATIENCE_S) == 0
    texts = rows(database.dsn, "SELECT parts_json->0->>'text' FROM session_history ORDER BY rank")
    assert texts == [("q",), ("the answer that was seen",)]
    await held.log.append(turn(session, "x1", "q", "late"))
    assert await held.flush(PATIENCE_S) == 0
    assert rows(database.dsn, "SELECT parts_json->0->>'text' FROM session_history ORDER BY rank") == texts


def stamped(record: TurnRecord, hours_ago: int) -> TurnRecord:
    """The record as a service would have made it whose clock was so many hours behind by then."""
    stamp = iso_z(datetime.now(UTC) - timedelta(hours=hours_ago))
    messages = tuple(ChatMessage.build(**{**loads(message.json), "timestamp": stamp}) for message in record.messages)
    return replace(record, messages=messages)


@pytest.mark.parametrize("apart", [True, False], ids=["in batches of their own", "in one batch"])
async def test_an_exchange_is_never_stored_twice(held: Persistence, database: Database, apart: bool) -> None:
    session = await new_session(held)
    first, other = turns(session, 2)
    twice = turn(other.session, first.exchange_id, "question 0", "the answer of a second run")
    if apart:
        held.start()
    for record in (first, other, twice):
        # The spool has it, so whoever asked is told; what no reader may see is kept for the operator.
        assert await held.log.append(record) == "spool"
        if apart:
            assert await held.flush(PATIENCE_S) == 0
    if not apart:
        held.start()
        assert await held.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1"), (2, "x2"), (3, "x2")]
    assert held.spool.dead_letters == 1


@pytest.mark.parametrize("clock", ["that is right", "that was set back"])
@pytest.mark.parametrize("apart", [True, False], ids=["in batches of their own", "in one batch"])
async def test_what_waits_for_a_person_is_overwritten_by_what_it_became(
    held: Persistence, database: Database, apart: bool, clock: str
) -> None:
    session = await new_session(held)

    def waiting(seq: int) -> dict[str, Any]:
        return {"extras": {"status": "awaiting_human", "awaiting": {"payload": {}, "seq": seq}}}

    first = turn(session, "e1", "note it", "", metadata=waiting(9))
    again = turn(session.advanced(0, ""), "e1", "note it", "", metadata=waiting(10))
    last = turn(session.advanced(0, "").advanced(0, ""), "e1", "note it", "kept", "noted")
    if clock == "that was set back":
        first, again, last = (stamped(record, place) for place, record in enumerate((first, again, last)))
    if apart:
        held.start()
    for record in (first, again, last):
        await held.log.append(record)
        if apart:
            assert await held.flush(PATIENCE_S) == 0
    if not apart:
        held.start()
        assert await held.flush(PATIENCE_S) == 0
    # A late replay of what it was before changes nothing.
    await held.log.append(again)
    assert await held.flush(PATIENCE_S) == 0
    texts = rows(database.dsn, "SELECT parts_json->0->>'text' FROM session_history ORDER BY rank")
    assert texts == [("note it",), ("kept",), ("noted",)]
    assert held.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


async def test_a_delete_that_postgres_has_not_waits_for_a_slow_disk(build: Build, database: Database) -> None:
    disk = BadDisk(sqlite3.OperationalError("disk I/O error"))
    rules = PersistenceRules(commit_s=0.05, spool_s=PATIENCE_S, close_s=0.0)
    held = build(database.settings(), rules=rules, spool=partial(Spool, connect_to=disk.connect))
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    disk.broken = True
    deleting = asyncio.create_task(held.store.delete(session.id, USER))
    await asyncio.sleep(0.3)
    assert not deleting.done()
    disk.broken = False
    assert await deleting


async def test_a_deleted_session_does_not_come_back(build: Build, database: Database, kill: Kill) -> None:
    held = await held_briefly(build, database)
    session, other = await new_session(held), await new_session(held)
    for record in turns(session, 2):
        await held.log.append(record)
    event = AuditEvent(AuditAction.SESSION_DELETED, "session", session.id, USER, request_id="r1")
    assert await held.store.delete(session.id, USER, event)
    await held.log.append(turn(other, "kept"))
    left = kill(held)
    heir = await successor(build, database, left)
    assert await heir.store.get(session.id, USER) is None
    assert await history_of(heir.store, session.id, USER) == []
    assert [one.id for one in await heir.store.list_for(USER)] == [other.id]
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0
    assert rows(database.dsn, "SELECT session_id FROM session") == [(other.id,)]
    assert rows(database.dsn, "SELECT DISTINCT session_id FROM session_history") == [(other.id,)]
    # Who deleted it is not lost, either: the event is part of what the spool has.
    told = rows(database.dsn, "SELECT id::text, action, object_id, actor, request_id, instance FROM audit_event")
    assert told == [(event.id, "session_deleted", session.id, USER, "r1", event.instance)]


async def test_changes_and_turns_do_not_undo_each_other(build: Build, database: Database, kill: Kill) -> None:
    held = await held_briefly(build, database)
    session = await new_session(held)
    first, second = turns(session, 2)
    await held.log.append(first)
    changed = await held.store.change(session.id, USER, title="Renamed", preferences={"tone": "dry"})
    assert changed is not None
    assert (changed.title, changed.preferences, changed.next_rank) == ("Renamed", {"tone": "dry"}, 2)
    await held.log.append(second)
    again = await held.store.change(session.id, USER, preferences={"tone": "kind"})
    assert again is not None
    heir = await successor(build, database, kill(held))
    for reader in (held, heir):
        found = await reader.store.get(session.id, USER)
        assert found is not None
        assert (found.title, found.preferences, found.next_rank) == ("Renamed", {"tone": "kind"}, 4)
    heir.start()
    assert await heir.flush(PATIENCE_S) == 0
    assert rows(
        database.dsn,
        "SELECT session_data->>'title', session_data->'preferences'->>'tone', session_data->>'next_rank' FROM session",
    ) == [("Renamed", "kind", "4")]
    stored = await heir.store.get(session.id, USER)
    assert stored is not None
    assert (stored.title, stored.preferences) == ("Renamed", {"tone": "kind"})


async def test_a_change_of_an_unknown_session_changes_nothing(persistence: Persistence) -> None:
    session = await new_session(persistence)
    assert await persistence.store.change("unknown", USER, title="x") is None
    assert await persistence.store.change(session.id, "mallory", title="x") is None
    same = await persistence.store.get(session.id, USER)
    assert same is not None
    assert same.title == ""


async def test_bodies_beyond_what_is_kept_in_memory_come_from_the_disk(build: Build, database: Database) -> None:
    held = build(database.settings(), rules=PersistenceRules(keep_bytes=1000))
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    for record in turns(session, 100):
        await held.log.append(record)
    assert held.pending._kept_bytes <= 2000
    seen = await history_of(held.store, session.id, USER)
    assert [loads(message)["rank"] for message in seen] == list(range(200))
    message = await message_of(held.store, session.id, USER, 100)
    assert message is not None
    assert loads(message)["exchange_id"] == "x51"
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    assert [rank for rank, _ in stored_ranks(database.dsn, session)] == list(range(200))
    assert held.pending._kept_bytes == held.pending.bytes == 0


async def test_a_record_that_the_disk_changed_is_set_aside_with_an_alarm(
    build: Build, kpi: Kpi, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    held = build(database.settings(), rules=PersistenceRules(keep_bytes=0))
    await held.database.connect_until_ready(lambda _state: None)
    session, other = await new_session(held), await new_session(held)
    await held.log.append(turn(session, "changed"))
    await held.log.append(turn(other, "whole"))
    assert held.spool is not None
    connection = held.spool._file._connection
    assert connection is not None
    connection.execute("UPDATE record SET body = CAST('{}' AS BLOB) WHERE exchange_id = 'changed'")
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    assert stored_ranks(database.dsn, other) == [(0, "whole"), (1, "whole")]
    assert stored_ranks(database.dsn, session) == []
    assert total(kpi, "app_persist_dead_letters_total") == 1
    assert "reason=unreadable" in caplog.text
