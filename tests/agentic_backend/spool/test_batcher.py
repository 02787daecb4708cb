import asyncio
import logging

import psycopg
import pytest

from agentic_backend.errors import StorageFull
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import AskRecord, TurnRecord
from agentic_backend.spool.batcher import BatchRules
from backend_kit.kpi import Kpi
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import (
    USER,
    history_of,
    new_session,
    observations,
    rows,
    stored_ranks,
    total,
    turn,
    turns,
    until,
    until_waiting,
    with_bytes,
)
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database


async def append_all(persistence: Persistence, records: list[TurnRecord]) -> None:
    for record in records:
        assert await persistence.log.append(record) == "spool"


async def test_a_turn_becomes_rows_with_real_json(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    record = turn(session, "x1", "wie spät?", "quarter past €")
    persistence.log.begin(AskRecord(session, record.messages[0]))
    await persistence.log.append(record)
    assert await persistence.flush(PATIENCE_S) == 0

    found = rows(
        database.dsn,
        "SELECT jsonb_typeof(parts_json), jsonb_typeof(metadata_json), user_id, role, channel, exchange_id,"
        " parts_json->0->>'text', metadata_json->>'model' FROM session_history ORDER BY rank",
    )
    assert found == [
        ("array", "object", USER, "user", "final", "x1", "wie spät?", "mock"),
        ("array", "object", USER, "assistant", "final", "x1", "quarter past €", "mock"),
    ]
    assert rows(database.dsn, "SELECT session_data->>'title', session_data->>'next_rank', version FROM session") == [
        ("A title", "2", 1)
    ]


async def test_several_turns_of_a_session_fit_one_transaction(held: Persistence, database: Database, kpi: Kpi) -> None:
    session = await new_session(held)
    records = turns(session, 5)
    await append_all(held, records)
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    assert observations(kpi, "app_persist_batch_records") == 1
    assert stored_ranks(database.dsn, session) == [(n, f"x{n // 2 + 1}") for n in range(10)]
    assert rows(database.dsn, "SELECT session_data->>'next_rank', version FROM session") == [("10", 5)]
    assert observations(kpi, "app_persist_batch_records") == 1
    assert observations(kpi, "app_persist_lag_seconds") == 5
    assert observations(kpi, "app_phase_latency_seconds", phase="persist_tx", status="ok") == 1
    assert total(kpi, "app_persist_turns_total") == 5
    assert observations(kpi, "app_db_statement_seconds", pool="batch", op="commit") == 1


async def test_a_long_queue_goes_in_order_in_transactions_of_at_most_64(
    held: Persistence, database: Database, kpi: Kpi
) -> None:
    sessions = [await new_session(held) for _ in range(3)]
    made = [turns(session, 50) for session in sessions]
    await append_all(held, [record for group in zip(*made, strict=True) for record in group])
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    assert observations(kpi, "app_persist_batch_records") == 3
    assert total(kpi, "app_persist_batch_records_sum") == 150
    for session in sessions:
        assert [rank for rank, _ in stored_ranks(database.dsn, session)] == list(range(100))


async def test_a_batch_is_bounded_in_bytes(build: Build, database: Database, kpi: Kpi) -> None:
    persistence = build(database.settings())
    await persistence.database.connect_until_ready(lambda _state: None)
    session = await new_session(persistence)
    big = "x" * (3 * 1024 * 1024)
    first = turn(session, "x1", "q", big)
    await append_all(persistence, [first, turn(first.session, "x2", "q", big)])
    persistence.start()
    assert await persistence.flush(PATIENCE_S) == 0

    assert observations(kpi, "app_persist_batch_records") == 2
    assert len(stored_ranks(database.dsn, session)) == 4


async def test_the_same_record_twice_is_stored_once(held: Persistence, database: Database, kpi: Kpi) -> None:
    session = await new_session(held)
    record = turn(session, "x1")
    await append_all(held, [record, record])
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    await held.log.append(record)
    assert await held.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1")]
    assert total(kpi, "app_rank_conflicts_total") == 0


async def test_an_older_turn_that_comes_late_does_not_take_the_session_back(
    persistence: Persistence, database: Database
) -> None:
    session = await new_session(persistence)
    older, newer = turns(session, 2)
    await persistence.log.append(newer)
    assert await persistence.flush(PATIENCE_S) == 0
    await persistence.log.append(older)
    assert await persistence.flush(PATIENCE_S) == 0

    assert rows(database.dsn, "SELECT version, session_data->>'next_rank' FROM session") == [(2, "4")]
    assert len(stored_ranks(database.dsn, session)) == 4


async def test_a_turn_does_not_overwrite_preferences(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    rows(
        database.dsn,
        'UPDATE session SET session_data = (session_data::jsonb || \'{"preferences": {"tone": "dry"}}\')::json'
        " RETURNING 1",
    )
    await persistence.log.append(turn(session, "x1"))
    while_pending = await persistence.store.get(session.id, USER)
    assert await persistence.flush(PATIENCE_S) == 0
    stored = await persistence.store.get(session.id, USER)

    assert while_pending is not None
    assert stored is not None
    assert while_pending == stored
    assert stored.preferences == {"tone": "dry"}
    assert (stored.title, stored.next_rank, stored.version) == ("A title", 2, 1)


@pytest.mark.parametrize(
    "poison",
    [rb'"\u0000"', rb'"\ud800"', b"NaN", b"1e999999", b"[1,", b'{"a":\xff}'],
    ids=["nul", "lone surrogate", "nan", "huge number", "not json", "not utf-8"],
)
async def test_data_that_postgres_refuses_is_dropped_alone(
    held: Persistence, database: Database, kpi: Kpi, poison: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    session, other = await new_session(held), await new_session(held)
    held.cache.forget((session.id, USER))  # it would read the bytes, which no encoder of ours would write
    bad = with_bytes(turn(session, "bad"), b'"ratio":1.5', b'"ratio":' + poison)
    after = turn(bad.session, "after")
    await append_all(held, [turn(other, "good"), bad, after])
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, other) == [(0, "good"), (1, "good")]
    assert stored_ranks(database.dsn, session) == [(2, "after"), (3, "after")]
    assert total(kpi, "app_persist_dead_letters_total") == 1
    assert held.dependencies()["spool"] == {"status": "up", "dead_letters": 1}
    (alarm,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "exchange_id=bad" in alarm.getMessage()
    assert "answer" not in alarm.getMessage()


async def test_a_poison_row_among_a_thousand_turns(held: Persistence, database: Database, kpi: Kpi) -> None:
    session = await new_session(held)
    records = turns(session, 1000)
    records[437] = with_bytes(records[437], b'"ratio":1.5', rb'"ratio":"\u0000"')
    await append_all(held, records)
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    ranks = [rank for rank, _ in stored_ranks(database.dsn, session)]
    assert ranks == [rank for rank in range(2000) if rank not in (874, 875)]
    assert total(kpi, "app_persist_dead_letters_total") == 1


async def test_a_row_that_lacks_a_column_is_dropped_alone(held: Persistence, database: Database, kpi: Kpi) -> None:
    session = await new_session(held)
    first, second = turns(session, 2)
    await append_all(held, [with_bytes(first, b'"role":', b'"rule":'), second])
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, session) == [(2, "x2"), (3, "x2")]
    assert total(kpi, "app_persist_dead_letters_total") == 1


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "against a stored one"])
async def test_a_rank_of_another_exchange_is_never_overwritten(
    held: Persistence, database: Database, kpi: Kpi, together: bool, caplog: pytest.LogCaptureFixture
) -> None:
    session = await new_session(held)
    mine, theirs = turn(session, "mine"), turn(session, "theirs", "a", "b", "c")
    if together:
        await append_all(held, [mine, theirs])
        held.start()
    else:
        held.start()
        await append_all(held, [mine])
        assert await held.flush(PATIENCE_S) == 0
        await append_all(held, [theirs])
    assert await held.flush(PATIENCE_S) == 0

    # Not one row of it: rank 2 was free, but half a turn is no turn.
    assert stored_ranks(database.dsn, session) == [(0, "mine"), (1, "mine")]
    assert total(kpi, "app_rank_conflicts_total") == total(kpi, "app_persist_dead_letters_total") == 1
    assert "ALARM record given up: reason=rank_conflict" in caplog.text
    assert rows(database.dsn, "SELECT session_data->>'next_rank' FROM session") == [("2",)]


async def test_a_rank_taken_by_another_writer_meanwhile_is_a_conflict_too(
    persistence: Persistence, database: Database, kpi: Kpi
) -> None:
    session = await new_session(persistence)
    with psycopg.connect(database.dsn) as other:
        other.execute(
            "INSERT INTO session_history VALUES (%s, %s, 1, now(), 'assistant', 'final', 'theirs', '[]', '{}')",
            (session.id, USER),
        )
        await persistence.log.append(turn(session, "mine"))
        await until_waiting(database.dsn, 1)  # the batch has its snapshot and waits for this transaction
    assert await persistence.flush(PATIENCE_S) == 0

    assert stored_ranks(database.dsn, session) == [(1, "theirs")]
    assert total(kpi, "app_rank_conflicts_total") == 1
    assert total(kpi, "app_persist_retries_total", cause="concurrent") == 1


async def test_a_deleted_session_is_not_resurrected(held: Persistence, database: Database, kpi: Kpi) -> None:
    session, other = await new_session(held), await new_session(held)
    first, second, third = turns(session, 3)
    await append_all(held, [first])
    delete = asyncio.ensure_future(held.store.delete(session.id, USER))
    await asyncio.sleep(0)
    await append_all(held, [second, turn(other, "kept")])
    held.start()
    assert await delete is True
    assert await held.flush(PATIENCE_S) == 0
    await append_all(held, [third])
    assert await held.flush(PATIENCE_S) == 0

    assert rows(database.dsn, "SELECT session_id FROM session") == [(other.id,)]
    assert stored_ranks(database.dsn, session) == []
    assert stored_ranks(database.dsn, other) == [(0, "kept"), (1, "kept")]
    # Nobody knows any more why the session of the third is missing: it is kept for a person.
    assert total(kpi, "app_persist_dead_letters_total") == 1


async def test_a_turn_behind_the_delete_of_its_session_is_left_out(
    held: Persistence, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    session = await new_session(held)
    first, second = turns(session, 2)
    with psycopg.connect(database.dsn, autocommit=True) as other:
        other.execute("DELETE FROM session")
        await append_all(held, [first, second])
        delete = asyncio.ensure_future(held.store.delete(session.id, USER))
        await asyncio.sleep(0)
    held.start()
    assert await delete is False
    assert caplog.text.count("turn of a deleted session left out") == 2
    assert held.spool is not None
    assert held.spool.dead_letters == 0


async def test_delete_takes_everything_that_hangs_on_the_session(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    await persistence.log.append(turn(session, "x1"))
    assert await persistence.flush(PATIENCE_S) == 0
    rows(
        database.dsn,
        "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
        " VALUES ('a', %s, %s, 'file', 1) RETURNING 1",
        session.id,
        USER,
    )
    rows(
        database.dsn,
        "INSERT INTO feedbacks (id, session_id, message_id, user_id, agent_name, rating)"
        " VALUES ('f', %s, 'm', %s, 'georges', 5) RETURNING 1",
        session.id,
        USER,
    )

    assert await persistence.store.delete(session.id, USER)
    for table in ("session", "session_history", "session_attachments", "feedbacks"):
        assert rows(database.dsn, f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608 - the names above


async def test_nobody_deletes_the_session_of_another(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    await held.log.append(turn(session, "x1"))
    attempt = asyncio.ensure_future(held.store.delete(session.id, "mallory"))
    await asyncio.sleep(0)
    # Nor is it hidden while the attempt waits.
    assert await held.store.get(session.id, USER) is not None
    held.start()

    assert await attempt is False
    assert await held.flush(PATIENCE_S) == 0
    assert len(stored_ranks(database.dsn, session)) == 2


async def test_deletes_of_one_session_are_answered_together(held: Persistence) -> None:
    session = await new_session(held)
    both = [asyncio.ensure_future(held.store.delete(session.id, USER)) for _ in range(2)]
    await asyncio.sleep(0)
    assert len(held.pending) == 1
    held.start()

    assert await asyncio.gather(*both) == [True, True]
    assert await held.store.delete(session.id, USER) is False


async def test_the_queue_refuses_new_turns_but_not_those_that_run(build: Build, database: Database) -> None:
    persistence = build(database.settings(), persistence={"max_records": 10}, limits={"max_turns": 4})
    await persistence.database.connect_until_ready(lambda _state: None)
    session = await new_session(persistence)
    made = turns(session, 10)
    await append_all(persistence, made[:5])
    assert persistence.log.has_room()
    await append_all(persistence, made[5:6])
    assert not persistence.log.has_room()
    await append_all(persistence, made[6:])
    assert len(persistence.pending) == 10
    with pytest.raises(StorageFull):
        await persistence.store.delete(session.id, USER)

    persistence.start()
    assert await persistence.flush(PATIENCE_S) == 0
    assert persistence.log.has_room()


async def test_the_queue_is_bounded_in_bytes(build: Build, database: Database) -> None:
    held = build(database.settings(), persistence={"max_bytes_mb": 1})
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    assert held.log.has_room()
    await held.log.append(turn(session, "x1", "q", "x" * (1 << 20)))
    assert not held.log.has_room()


def test_a_reserve_as_large_as_the_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="reserve_records"):
        BatchRules(queue_max_records=10, reserve_records=10)


async def test_closing_writes_what_is_pending_without_a_task(build: Build, database: Database) -> None:
    held = build(database.settings())
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    await append_all(held, turns(session, 100))
    await held.aclose()

    assert len(stored_ranks(database.dsn, session)) == 200


async def test_closing_a_running_batcher_loses_nothing(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    await append_all(persistence, turns(session, 300))
    report = await persistence.batcher.aclose(30)

    assert report.left == 0
    assert len(stored_ranks(database.dsn, session)) == 600


@pytest.mark.parametrize(("ack", "lost"), [("none", 3), ("spool", 0)])
async def test_what_a_drain_leaves_is_said_and_counted_where_it_is_lost(
    build: Build, database: Database, kpi: Kpi, caplog: pytest.LogCaptureFixture, ack: str, lost: int
) -> None:
    held = build(database.settings(), persistence={"ack": ack})
    await held.database.connect_until_ready(lambda _state: None)
    session = await new_session(held)
    for record in turns(session, 3):
        assert await held.log.append(record) == ack
    caplog.set_level(logging.INFO)
    report = await held.batcher.aclose(0)

    assert (report.flushed, report.left) == (0, 3)
    assert total(kpi, "app_persist_failures_total", reason="shutdown") == lost
    assert "0 records written" in caplog.text
    assert ("3 left in the spool" in caplog.text) == (ack == "spool")


async def test_history_is_readable_while_a_batch_is_refused(held: Persistence, database: Database) -> None:
    """A statement that does not fit the schema is an operator's matter: nothing is dropped, it is tried again."""
    session = await new_session(held)
    with psycopg.connect(database.dsn, autocommit=True) as operator:
        operator.execute("ALTER TABLE session_history RENAME COLUMN role TO part")
        await held.log.append(turn(session, "x1"))
        held.start()
        await until(lambda: held.batcher.blocked_by is not None)
        assert held.batcher.blocked_by == "statement"
        assert held.dependencies()["postgres"] == {"status": "down", "pending_records": 1}
        assert held.schema_known
        assert len(await history_of(held.store, session.id, USER)) == 2
        operator.execute("ALTER TABLE session_history RENAME COLUMN part TO role")
    assert (await held.batcher.flush(PATIENCE_S)).left == 0

    assert len(stored_ranks(database.dsn, session)) == 2
    assert held.dependencies()["postgres"] == {"status": "up", "pending_records": 0}
