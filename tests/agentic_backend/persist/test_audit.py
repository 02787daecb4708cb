"""The audit log itself: nothing in it is changed, what is old goes, what waits is written, and an export reads all."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import history_database
from backend_kit.aio import TaskRegistry
from backend_kit.auth import AuditAction, AuditEvent, Lately
from backend_kit.db.audit import AuditLog, AuditRules
from backend_kit.db.database import Database as BackendDatabase
from backend_kit.kpi import Kpi
from tests.agentic_backend.records import rows, settings_for, until
from tests.support.clock import Clock
from tests.support.postgres import Database

AT = "INSERT INTO audit_event SELECT gen_random_uuid(), now() - make_interval(days => %s), now(), 'signed_in', 'user',"
OLD = AT + " 'ann', 'done', '', 'ann', '', '', 'i' FROM generate_series(1, %s) RETURNING id"
COUNT = "SELECT count(*) FROM audit_event"


@dataclass(frozen=True, slots=True)
class Opened:
    """A log on the test's database."""

    log: AuditLog
    database: BackendDatabase
    registry: CollectorRegistry

    @property
    def lost(self) -> float | None:
        return self.registry.get_sample_value("app_audit_lost_total")


@asynccontextmanager
async def opened(database: Database, rules: AuditRules, *, ready: bool = True) -> AsyncIterator[Opened]:
    registry = CollectorRegistry()
    metrics = AgenticMetrics(registry, Kpi(registry, service="agentic"))
    where = history_database(settings_for(database.settings()).storage.postgres, metrics)
    log = AuditLog(where, rules, metrics, HistoryUnavailable)
    tasks = TaskRegistry()
    try:
        if ready:
            await where.connect_until_ready()
        log.start(tasks)
        yield Opened(log, where, registry)
    finally:
        await tasks.aclose()
        await log.aclose()
        await where.aclose()


def event(number: int = 0, **fields: str) -> AuditEvent:
    return AuditEvent(AuditAction.KEY_MADE, "key", f"key-{number}", actor="ann", **fields)


def count(database: Database) -> int:
    return int(rows(database.dsn, COUNT)[0][0])


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE audit_event SET actor = 'eve' RETURNING id",
        "DELETE FROM audit_event RETURNING id",
        "TRUNCATE audit_event",
        # As retention does, by hand: what is younger than a day stays.
        "WITH s AS (SELECT set_config('turnwise.prunes_audit', 'yes', false)) SELECT * FROM s; DELETE FROM audit_event",
        "INSERT INTO audit_event SELECT * FROM audit_event ON CONFLICT (id) DO UPDATE SET actor = 'eve' RETURNING id",
    ],
)
async def test_nothing_in_it_is_changed_or_deleted(database: Database, change: str) -> None:
    rows(database.dsn, OLD, 0, 3)
    before = rows(database.dsn, "SELECT * FROM audit_event ORDER BY id")
    with (
        psycopg.connect(database.dsn) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="only added"),
    ):
        connection.execute(change.encode())
    assert rows(database.dsn, "SELECT * FROM audit_event ORDER BY id") == before


async def test_retention_deletes_what_is_older_and_nothing_else(database: Database) -> None:
    for days, many in ((40, 12), (31, 3), (29, 4), (0, 5)):
        rows(database.dsn, OLD, days, many)
    async with opened(database, AuditRules(days=30, prune_at_once=5)) as one:
        await until(lambda: count(database) == 9)
        assert await one.log.prune() == 0


async def test_without_a_limit_of_days_nothing_is_deleted(database: Database) -> None:
    rows(database.dsn, OLD, 4000, 2)
    async with opened(database, AuditRules(days=0)) as one:
        one.log.note(event())
        await until(lambda: count(database) == 3)


async def test_what_was_noted_is_written_and_an_export_reads_it_in_order_in_bounded_pieces(database: Database) -> None:
    async with opened(database, AuditRules(linger_s=0.0)) as one:
        # The longest that an event can be, whose ids are cut.
        long = "\x01" * 1000
        for number in range(700):
            one.log.note(event(number, request_id=long, subject=f"user:{long}", key_id=long))
        await until(lambda: count(database) == 700)
        pieces = [piece async for piece in one.log.export()]
        assert len(pieces) > 1
        assert max(map(len, pieces)) <= 1024 * 1024
        told = [json.loads(line) for line in b"".join(pieces).splitlines()]
        assert [one["object_id"] for one in told] == [f"key-{number}" for number in range(700)]
        assert set(told[0]) == {
            *("id", "happened_at", "written_at", "action", "kind", "object_id", "outcome", "subject", "actor"),
            *("key_id", "request_id", "instance"),
        }
        assert len(told[0]["key_id"]) == len(told[0]["subject"]) == 256
        # Two exports that meet at a time have each event once.
        middle = datetime.fromisoformat(told[350]["written_at"])
        first = b"".join([piece async for piece in one.log.export(None, middle)])
        rest = b"".join([piece async for piece in one.log.export(middle, None)])
        assert first + rest == b"".join(pieces)
        assert len(first.splitlines()) == 350
        later = datetime.now(UTC) + timedelta(days=1)
        assert [piece async for piece in one.log.export(later)] == []


async def test_an_event_is_written_once_however_often_it_is_handed_over(database: Database) -> None:
    async with opened(database, AuditRules(linger_s=0.0)) as one:
        same = event()
        for _ in range(3):
            one.log.note(same)
            await until(lambda: count(database) == 1)
        one.log.note(event(1))
        await until(lambda: count(database) == 2)


async def test_what_does_not_fit_while_postgres_is_away_is_counted_and_the_rest_written_at_the_end(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(database, AuditRules(most=5), ready=False) as one:
        for number in range(8):
            one.log.note(event(number))
        assert one.lost == 3
        assert "ALARM an audit event is lost" in caplog.text
        with pytest.raises(HistoryUnavailable):
            await anext(one.log.export())
        await one.database.connect_until_ready()
    assert [name for (name,) in rows(database.dsn, "SELECT object_id FROM audit_event ORDER BY 1")] == [
        f"key-{number}" for number in range(5)
    ]


async def test_what_postgres_refuses_takes_no_other_event_with_it(database: Database) -> None:
    async with opened(database, AuditRules(linger_s=0.05)) as one:
        one.log.note(event(1))
        one.log.note(AuditEvent(AuditAction.KEY_MADE, "key", "bad", actor="ann", id="no uuid"))
        one.log.note(event(2))
        await until(lambda: count(database) == 2)
        assert one.lost == 1


def test_an_act_is_new_once_in_its_interval() -> None:
    clock = Clock()
    lately = Lately(60.0, clock=clock)
    assert [lately.is_new("a"), lately.is_new("a"), lately.is_new("b")] == [True, False, True]
    clock.now += 59.9
    assert not lately.is_new("a")
    clock.now += 0.2
    assert [lately.is_new("a"), lately.is_new("a")] == [True, False]
    for other in range(100_000):
        lately.is_new(other)
    assert lately.is_new("a")


def test_an_event_survives_its_json_and_holds_no_nul() -> None:
    told = event(1, subject="user:\0b")
    assert AuditEvent.of_json(told.json()).subject == "user:b"
    assert AuditEvent.of_json(event(2).json()).object_id == "key-2"
