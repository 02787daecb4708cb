"""What is deleted for its age and what is left, beside turns and other pruners; the sizes; the background task."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from agentic_backend.events import iso_z
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import history_database, migrate
from agentic_backend.persist.persistence import Persistence
from agentic_backend.persist.retention import (
    TABLES,
    Clocks,
    ClocksDiffer,
    Pruner,
    PruneRules,
    Retention,
    RetentionRules,
)
from agentic_backend.spool.pending import Key
from backend_kit.aio import TaskRegistry
from backend_kit.db.database import Database
from backend_kit.db.pool import Pool
from backend_kit.kpi import Kpi
from tests.agentic_backend.records import (
    BEFORE_FLEETS,
    USER,
    new_session,
    observations,
    rows,
    settings_for,
    stored_ranks,
    total,
    turn,
    until,
)
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database as Where

NO_REST = PruneRules(pause_s=0.0)


@pytest.fixture
def metrics(kpi: Kpi) -> AgenticMetrics:
    return AgenticMetrics(kpi.registry, kpi)


@pytest.fixture
async def known(database: Where, metrics: AgenticMetrics) -> AsyncIterator[Database]:
    """The database as the service knows it once it has seen the schema."""
    made = history_database(settings_for(database.settings()).storage.postgres, metrics)
    await made.connect_until_ready(lambda _state: None)
    yield made
    await made.aclose()


@pytest.fixture
def main_pool(known: Database) -> Pool:
    return known.main


def add(database: Where, *session_ids: str, days: float, messages: int = 2) -> None:
    """Sessions that were last used so many days ago by the server's clock, whatever that of a service said, each with
    messages, an attachment and a feedback."""
    values = {"ids": list(session_ids), "user": USER, "days": days, "messages": messages}
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at, used_at)"
            " SELECT id, %(user)s, 'georges', json_build_object('next_rank', %(messages)s::int),"
            " now(), now() - %(days)s * interval '1 day' FROM unnest(%(ids)s::text[]) AS id",
            values,
        )
        connection.execute(
            "INSERT INTO session_history SELECT id, %(user)s, rank, now(), 'user', 'final', 'x' || rank, '[]', '{}'"
            " FROM unnest(%(ids)s::text[]) AS id, generate_series(1, %(messages)s) AS rank",
            values,
        )
        connection.execute(
            "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
            " SELECT 'a-' || id, id, %(user)s, 'a.txt', 1 FROM unnest(%(ids)s::text[]) AS id",
            values,
        )
        connection.execute(
            "INSERT INTO feedbacks (id, session_id, message_id, user_id, agent_name, rating)"
            " SELECT 'f-' || id, id, '0', %(user)s, 'georges', 5 FROM unnest(%(ids)s::text[]) AS id",
            values,
        )


def execute(database: Where, *statements: str) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def left(database: Where, table: str = "session") -> set[str]:
    return {session_id for (session_id,) in rows(database.dsn, f"SELECT DISTINCT session_id FROM {table}")}  # noqa: S608 - ours


def noting(told: list[Key]) -> Callable[[Key], Awaitable[None]]:
    async def forget(key: Key) -> None:
        told.append(key)

    return forget


async def test_old_sessions_go_with_all_that_hangs_on_them_and_young_ones_stay(
    database: Where, main_pool: Pool
) -> None:
    young = {f"young{number}" for number in range(5)}
    add(database, *(f"old{number}" for number in range(5)), days=31)
    add(database, *young, days=29)
    told: list[Key] = []
    assert await Pruner(main_pool, NO_REST, forget=noting(told)).prune(30) == 5
    assert {table: left(database, table) for table in TABLES} == dict.fromkeys(TABLES, young)
    assert sorted(told) == [(f"old{number}", USER) for number in range(5)]
    assert await Pruner(main_pool, NO_REST).prune(30) == 0


@pytest.mark.parametrize(
    ("rules", "statements"),
    [
        (PruneRules(sessions=3, pause_s=0.0), 4),
        (PruneRules(messages=4, pause_s=0.0), 5),
        (PruneRules(messages=1, pause_s=0.0), 10),
        (PruneRules(page=4, pause_s=0.0), 3),
        (PruneRules(page=5, pause_s=0.0), 2),
    ],
)
async def test_a_statement_deletes_a_bounded_part(
    database: Where, main_pool: Pool, kpi: Kpi, rules: PruneRules, statements: int
) -> None:
    add(database, *(f"s{number}" for number in range(10)), days=100)
    busy: list[int] = []

    async def forget(_key: Key) -> None:
        busy.append(main_pool.stats().in_use)

    pruner = Pruner(main_pool, rules, forget=forget)
    assert (await pruner.prune(30), pruner.pruned, left(database)) == (10, 10, set())
    assert observations(kpi, "app_db_statement_seconds", pool="main", op="prune") == statements
    assert busy == [0] * 10  # between two statements the pool has its connection back


async def test_a_session_that_somebody_writes_to_or_that_is_in_use_is_left_standing(
    database: Where, main_pool: Pool
) -> None:
    add(database, "free", "held", "pending", days=100)
    pruner = Pruner(main_pool, PruneRules(page=1, pause_s=0.0), in_use={("pending", USER)}.intersection)
    with psycopg.connect(database.dsn) as writer:
        # As a batch of turns holds it.
        writer.execute("SELECT FROM session WHERE session_id = 'held' FOR NO KEY UPDATE")
        assert await pruner.prune(30) == 1
    assert left(database) == {"held", "pending"}


async def test_a_session_that_is_used_while_others_are_deleted_stays(database: Where, main_pool: Pool) -> None:
    add(database, "a", "b", "c", days=100)

    async def forget(key: Key) -> None:
        if key[0] == "a":
            execute(database, "UPDATE session SET agent_id = 'rico' WHERE session_id = 'b'")

    assert await Pruner(main_pool, PruneRules(sessions=1, pause_s=0.0), forget=forget).prune(30) == 2
    assert left(database) == {"b"}


async def test_a_service_whose_clock_is_behind_loses_no_conversation_in_use(
    persistence: Persistence, database: Where
) -> None:
    a_day_ago = iso_z(datetime.now(UTC) - timedelta(hours=26))
    session = replace(await new_session(persistence), updated_at=a_day_ago)
    for number in range(28):
        record = turn(session, f"e{number}")
        session = replace(record.session, updated_at=a_day_ago)
        assert await persistence.log.append(replace(record, session=session)) == "spool"
    assert await persistence.flush(PATIENCE_S) == 0
    assert await Pruner(persistence.database.main, NO_REST).prune(1) == 0
    assert len(stored_ranks(database.dsn, session)) == 56
    # What it told its clients is what it tells them again.
    found = await persistence.store.get(session.id, USER)
    assert found is not None
    assert (found.updated_at, found.rested) == (a_day_ago, False)


@pytest.mark.parametrize("write", ["title", "turn", "touch", "by hand"])
async def test_each_write_is_a_use_by_the_clock_of_the_server(
    persistence: Persistence, database: Where, write: str
) -> None:
    session = await new_session(persistence)
    execute(database, "UPDATE session SET used_at = now() - interval '40 days'")
    found = await persistence.store.get(session.id, USER)
    assert found is not None
    assert found.rested
    match write:
        case "title":
            assert await persistence.store.change(session.id, USER, title="Another")
        case "turn":
            await persistence.log.append(turn(session, "e1"))
            assert await persistence.flush(PATIENCE_S) == 0
        case "touch":
            assert await persistence.store.touch(session.id, USER)
        case "by hand":
            execute(database, "UPDATE session SET agent_id = 'rico'")
    ((age_s,),) = rows(database.dsn, "SELECT extract(epoch FROM now() - used_at) FROM session")
    assert age_s < 3600


@pytest.mark.parametrize("ahead_s", [26 * 3600.0, -90.0])
async def test_while_the_clocks_differ_nothing_is_deleted_and_it_is_said_once(
    database: Where,
    known: Database,
    metrics: AgenticMetrics,
    kpi: Kpi,
    tasks: TaskRegistry,
    caplog: pytest.LogCaptureFixture,
    ahead_s: float,
) -> None:
    caplog.set_level("INFO")
    add(database, "old", days=8)
    wrong = [ahead_s]
    clocks = Clocks(lambda: time.time() + wrong[0])
    pruner = Pruner(known.main, NO_REST, clocks=clocks)
    for step in (pruner.prune, pruner.expired):
        with pytest.raises(ClocksDiffer):
            await step(7)
    rules = RetentionRules(7, first_s=0.0, every_s=0.0, measure_every_s=0.001)
    Retention(known, pruner, rules, metrics, clocks=clocks).start(tasks)
    await until(lambda: observations(kpi, "app_db_statement_seconds", pool="main", op="table_sizes") > 5)
    assert total(kpi, "app_clock_difference_seconds") == pytest.approx(ahead_s, abs=20)
    assert left(database) == {"old"}
    assert [record.levelname for record in caplog.records if "the clock of this host is" in record.message] == ["ERROR"]
    wrong[0] = 0.0
    await until(lambda: left(database) == set())
    await until(lambda: "agree again" in caplog.text)
    assert [record.levelname for record in caplog.records if "agree again" in record.message] == ["INFO"]
    assert tasks.failures == {}


async def test_a_clock_that_jumps_while_it_deletes_ends_it(database: Where, main_pool: Pool) -> None:
    add(database, "a", "b", "c", days=100)
    wrong = [0.0]

    async def forget(_key: Key) -> None:
        wrong[0] = -7200.0

    clocks = Clocks(lambda: time.time() + wrong[0])
    pruner = Pruner(main_pool, PruneRules(sessions=1, pause_s=0.0), forget=forget, clocks=clocks)
    with pytest.raises(ClocksDiffer, match=r"7[12]\d\d s behind"):
        await pruner.prune(30)
    assert (pruner.pruned, left(database)) == (1, {"b", "c"})


def test_what_was_there_before_is_as_old_as_its_service_said_but_never_of_the_future(database: Where) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(BEFORE_FLEETS)
        connection.execute("ALTER TABLE session DROP COLUMN used_at CASCADE")
        connection.execute("DROP FUNCTION note_session_use CASCADE")
        connection.execute("DROP TABLE api_key")
        connection.execute("UPDATE alembic_version SET version_num = '0006'")
        connection.execute(
            "INSERT INTO session SELECT id, 'ada', 'georges', '{}', now() + days * interval '1 day', 0"
            " FROM (VALUES ('past', -9), ('future', 9)) AS made(id, days)"
        )
    migrate(settings_for(database.settings()).storage.postgres)
    ages = rows(database.dsn, "SELECT session_id, round(extract(epoch FROM now() - used_at) / 86400) FROM session")
    assert sorted(ages) == [("future", 0), ("past", 9)]


async def test_two_pruners_delete_each_session_once(database: Where, known: Database) -> None:
    add(database, *(f"s{number:02}" for number in range(40)), days=100)
    told: list[Key] = []
    rules = PruneRules(sessions=3, pause_s=0.0)
    pruners = [Pruner(known.main, rules, forget=noting(told)) for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        for pruner in pruners:
            group.create_task(pruner.prune(30))
    assert sum(pruner.pruned for pruner in pruners) == 40
    assert sorted(told) == [(f"s{number:02}", USER) for number in range(40)]
    assert left(database) == set()


async def test_what_would_go_is_counted_and_stays(database: Where, main_pool: Pool) -> None:
    none = await Pruner(main_pool).expired(30)
    assert (none.sessions, none.messages, none.oldest) == (0, 0, "")
    add(database, "old", days=40, messages=4)
    add(database, "older", days=50, messages=6)
    add(database, "young", days=1)
    found = await Pruner(main_pool).expired(30)
    ((oldest,),) = rows(database.dsn, "SELECT min(used_at) FROM session")
    assert (found.sessions, found.messages, found.oldest) == (2, 10, oldest.isoformat())
    assert left(database) == {"old", "older", "young"}


async def test_what_was_deleted_before_a_failure_is_counted(
    database: Where, known: Database, metrics: AgenticMetrics, kpi: Kpi
) -> None:
    add(database, "a", "b", days=100)

    async def forget(_key: Key) -> None:
        execute(database, "ALTER TABLE session RENAME TO elsewhere")

    pruner = Pruner(known.main, PruneRules(sessions=1, pause_s=0.0), forget=forget)
    with pytest.raises(DBAPIError):
        await Retention(known, pruner, RetentionRules(30), metrics).prune()
    assert (pruner.pruned, total(kpi, "app_pruned_sessions_total")) == (1, 1)


async def test_the_sizes_of_the_tables_are_published(
    database: Where, known: Database, metrics: AgenticMetrics, kpi: Kpi
) -> None:
    retention = Retention(known, Pruner(known.main), RetentionRules(0), metrics)
    add(database, "a", "b", "c", days=1, messages=4)
    execute(database, "ANALYZE session", "ANALYZE session_history")
    await retention.measure()
    assert total(kpi, "app_history_rows", table="session") == 3
    assert total(kpi, "app_history_rows", table="session_history") == 12
    # Never analyzed: what the statistics counted, which may be behind, but is no -1.
    assert total(kpi, "app_history_rows", table="feedbacks") in range(4)
    for table in TABLES:
        ((size,),) = rows(database.dsn, "SELECT pg_total_relation_size(%s::regclass)", table)
        assert total(kpi, "app_history_bytes", table=table) == size > 0


async def test_the_background_task_prunes_and_measures(
    database: Where, known: Database, metrics: AgenticMetrics, kpi: Kpi, tasks: TaskRegistry
) -> None:
    add(database, "old", days=8)
    add(database, "young", days=6)
    gone = asyncio.Event()

    async def forget(_key: Key) -> None:
        gone.set()

    rules = RetentionRules(7, first_s=0.0, every_s=0.0, measure_every_s=0.01)
    Retention(known, Pruner(known.main, NO_REST, forget=forget), rules, metrics).start(tasks)
    for again in ("once", "twice"):
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
        gone.clear()
        assert left(database) == {"young"}
        if again == "once":
            add(database, "old", days=9)
    await until(lambda: total(kpi, "app_pruned_sessions_total") == 2)
    assert tasks.failures == {}


async def test_without_an_age_nothing_is_deleted_however_often_it_looks(
    database: Where, known: Database, metrics: AgenticMetrics, kpi: Kpi, tasks: TaskRegistry
) -> None:
    add(database, "old", days=10_000)
    rules = RetentionRules(0, first_s=0.0, every_s=0.0, measure_every_s=0.001)
    Retention(known, Pruner(known.main, NO_REST), rules, metrics).start(tasks)
    await until(lambda: observations(kpi, "app_db_statement_seconds", pool="main", op="table_sizes") > 3)
    assert observations(kpi, "app_db_statement_seconds", pool="main", op="expired_page") == 0
    assert left(database) == {"old"}


async def test_a_failing_database_is_told_and_tried_again(
    database: Where,
    known: Database,
    metrics: AgenticMetrics,
    tasks: TaskRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add(database, "old", days=8)
    execute(database, "ALTER TABLE session RENAME TO elsewhere")
    rules = RetentionRules(7, first_s=0.0, measure_every_s=0.01)
    Retention(known, Pruner(known.main, NO_REST), rules, metrics).start(tasks)
    await until(lambda: "retention failed: cause=statement sqlstate=42P01" in caplog.text)
    execute(database, "ALTER TABLE elsewhere RENAME TO session")
    await until(lambda: left(database) == set())
    assert tasks.failures == {}


def options(settings: dict[str, Any]) -> int:
    """How many days a configuration keeps."""
    return settings_for({"host": "h", "database": "d", "username": "u"}, history=settings).history.retention_days


@pytest.mark.parametrize(("days", "ok"), [(0, True), (36_500, True), (-1, False), (36_501, False), (1.5, False)])
def test_the_age_is_a_bounded_whole_number_of_days(days: float, ok: bool) -> None:
    if ok:
        assert options({"retention_days": days}) == days
    else:
        with pytest.raises(ValueError, match="retention_days"):
            options({"retention_days": days})


def test_without_the_key_everything_is_kept() -> None:
    assert options({}) == 0
