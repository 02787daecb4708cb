"""Sessions that several instances share: who may run a turn, and what becomes of one that was too late."""

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import TextClause, text

from agentic_backend.errors import HistoryUnavailable, SessionBusy, SessionNotFound, StorageFull
from agentic_backend.persist.lease import SessionLease, SessionLeases, lease_s
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import Session, TurnRecord
from agentic_backend.spool.statements import WRITE_TURNS, JsonBytes
from backend_kit.kpi import Kpi
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import (
    USER,
    new_session,
    rows,
    settings_for,
    stored_ranks,
    total,
    turn,
    until_waiting,
)
from tests.support.postgres import Database

MANY = {"ack": "db", "replicas": "many"}
LEASES = "SELECT holder, fence, expires_at > now() FROM session_lease"
EXPIRE = "UPDATE session_lease SET expires_at = now() RETURNING 1"


def leases_of(instance: Persistence) -> SessionLeases:
    assert instance.leases is not None
    return instance.leases


async def acquire(instance: Persistence, session: Session) -> SessionLease:
    return await leases_of(instance).acquire(session.id, session.user_id)


def _locked() -> TextClause:
    return text("SELECT FROM session_lease FOR UPDATE")


def _taken_by(leases: SessionLeases) -> TextClause:
    return text(f"UPDATE session_lease SET fence = fence + 1, holder = '{leases.holder}'")  # noqa: S608 - ours


def under(lease: SessionLease, record: TurnRecord) -> TurnRecord:
    """The record as a turn makes it that runs under a lease."""
    return TurnRecord(record.session, record.exchange_id, record.messages, lease.fence)


@pytest.fixture
def kpis() -> list[Kpi]:
    """Of each instance."""
    return [Kpi(CollectorRegistry(), service="agentic") for _ in range(3)]


@pytest.fixture
async def instances(build: Build, database: Database, kpis: list[Kpi]) -> list[Persistence]:
    """Three instances on one database, whose batchers have not been started."""
    made = [build(database.settings(), persistence=MANY, own_kpi=kpi) for kpi in kpis]
    for instance in made:
        await instance.database.connect_until_ready(lambda _state: None)
    return made


def test_a_lease_outlasts_every_turn() -> None:
    settings = settings_for({"host": "h", "database": "d", "username": "u"}, deadlines={"turn_s": 7})
    assert lease_s(settings) > settings.limits.queue_deadline_s + 7


async def test_alone_there_are_no_leases(held: Persistence) -> None:
    assert held.leases is None


async def test_one_instance_has_a_session_until_it_releases_it(
    instances: list[Persistence], database: Database
) -> None:
    one, other, _ = instances
    session = await new_session(one)
    first = await acquire(one, session)
    assert first.fence == 1
    with pytest.raises(SessionBusy) as refusal:
        await acquire(other, session)
    assert refusal.value.retry_after_s

    await first.release()
    second = await acquire(other, session)
    assert second.fence == 2
    # What has been released once is not this one's to release any more.
    await first.release()
    assert rows(database.dsn, LEASES) == [(leases_of(other).holder, 2, True)]
    with pytest.raises(SessionBusy):
        await acquire(one, session)
    await second.release()
    assert (await acquire(one, session)).fence == 3


async def test_of_many_that_ask_at_once_one_gets_it(instances: list[Persistence], database: Database) -> None:
    session = await new_session(instances[0])
    for fence in range(1, 6):
        results = await asyncio.gather(*(acquire(one, session) for one in instances), return_exceptions=True)
        (lease,) = [result for result in results if isinstance(result, SessionLease)]
        assert [type(result) for result in results if result is not lease] == [SessionBusy, SessionBusy]
        ((_, stored, _),) = rows(database.dsn, LEASES)
        assert lease.fence == stored <= fence
        await lease.release()


async def test_its_holder_takes_it_again_at_once_with_the_same_fence(
    instances: list[Persistence], database: Database
) -> None:
    session = await new_session(instances[0])
    first = await acquire(instances[0], session)
    again = await acquire(instances[0], session)
    assert again.fence == first.fence
    assert rows(database.dsn, LEASES) == [(leases_of(instances[0]).holder, 1, True)]


async def test_an_expired_lease_is_had_by_another_with_a_higher_fence(
    instances: list[Persistence], database: Database
) -> None:
    one, other, _ = instances
    session = await new_session(one)
    hourly = SessionLeases(one.database, one.pending, length_s=3600.0)
    assert (await hourly.acquire(session.id, USER)).fence == 1
    with pytest.raises(SessionBusy):
        await acquire(other, session)
    rows(database.dsn, "UPDATE session_lease SET expires_at = expires_at - interval '1 hour' RETURNING 1")
    assert (await acquire(other, session)).fence == 2


@pytest.mark.parametrize("session_id", ["unknown", "a\x00b", "\ud800", "é"])
async def test_a_session_that_is_not_there_cannot_be_had(
    instances: list[Persistence], database: Database, session_id: str
) -> None:
    with pytest.raises(SessionNotFound):
        await leases_of(instances[0]).acquire(session_id, USER)
    assert rows(database.dsn, LEASES) == []


async def test_nobody_gets_the_session_of_another(instances: list[Persistence], database: Database) -> None:
    session = await new_session(instances[0])
    with pytest.raises(SessionNotFound):
        await leases_of(instances[0]).acquire(session.id, "eve")
    assert rows(database.dsn, LEASES) == []


async def test_a_lease_goes_with_its_session(instances: list[Persistence], database: Database) -> None:
    one, other, _ = instances
    session = await new_session(one)
    lease = await acquire(one, session)
    other.start()
    assert await other.store.delete(session.id, USER)
    assert rows(database.dsn, LEASES) == []
    await lease.release()
    with pytest.raises(SessionNotFound):
        await acquire(one, session)


async def test_what_is_written_under_a_lease_that_another_has_got_is_refused(
    instances: list[Persistence], kpis: list[Kpi], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, _ = instances
    session, bystander = await new_session(one), await new_session(one)
    late = await acquire(one, session)
    rows(database.dsn, EXPIRE)
    taken = await acquire(other, session)
    assert taken.fence == late.fence + 1

    # Both reach Postgres in one batch.
    appending = asyncio.gather(
        one.log.append(under(late, turn(session, "late"))),
        one.log.append(under(await acquire(one, bystander), turn(bystander, "good"))),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    one.start()
    refused, kept = await appending
    assert isinstance(refused, StorageFull)
    assert kept == "db"
    assert stored_ranks(database.dsn, session) == []
    assert stored_ranks(database.dsn, bystander) == [(0, "good"), (1, "good")]
    fresh = await other.store.get(session.id, USER)
    assert fresh is not None
    assert fresh.next_rank == fresh.version == 0
    assert total(kpis[0], "app_persist_failures_total", reason="fenced") == 1
    alarms = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(alarms) == 1
    assert alarms[0].startswith("ALARM record given up: reason=fenced")
    assert "exchange_id=late" in alarms[0]

    # And the one that has it now goes on as if nothing had been.
    other.start()
    assert await other.log.append(under(taken, turn(fresh, "new"))) == "db"
    assert stored_ranks(database.dsn, session) == [(0, "new"), (1, "new")]


async def test_turns_of_instances_in_turn_have_ranks_without_a_gap(
    instances: list[Persistence], database: Database
) -> None:
    session = await new_session(instances[0])
    for instance in instances:
        instance.start()
    for number in range(12):
        instance = instances[number % 3]
        lease = await acquire(instance, session)
        fresh = await instance.store.get(session.id, USER)
        assert fresh is not None
        assert await instance.log.append(under(lease, turn(fresh, f"x{number}"))) == "db"
        await lease.release()
        remembered = await instance.store.remembered(session.id, USER, 20)
        assert len(remembered) == 2 * (number + 1)
    assert stored_ranks(database.dsn, session) == [(rank, f"x{rank // 2}") for rank in range(24)]


async def test_nobody_gets_a_session_while_a_turn_of_it_is_being_committed(
    instances: list[Persistence], database: Database
) -> None:
    one, other, _ = instances
    session = await new_session(one)
    lease = await acquire(one, session)
    rows(database.dsn, EXPIRE)
    record = under(lease, turn(session, "x1"))
    async with one.database.writes.connection() as connection:
        records = {"records": JsonBytes(b"[" + record.encode() + b"]")}
        assert list(await connection.execute("write_turns", WRITE_TURNS, records)) == []
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(acquire(other, session))
            await until_waiting(database.dsn, 1)
            await connection.commit()
    assert taking.result().fence == 2
    fresh = await other.store.get(session.id, USER)
    assert fresh is not None
    assert fresh.next_rank == 2


async def test_a_turn_that_finds_its_lease_being_taken_waits_and_is_refused(
    instances: list[Persistence], database: Database
) -> None:
    one, other, _ = instances
    session = await new_session(one)
    lease = await acquire(one, session)
    record = under(lease, turn(session, "x1"))
    async with other.database.writes.connection() as taking, one.database.writes.connection() as writing:
        await taking.execute("taking", _taken_by(leases_of(other)))
        async with asyncio.TaskGroup() as group:
            records = {"records": JsonBytes(b"[" + record.encode() + b"]")}
            wrote = group.create_task(writing.execute("write_turns", WRITE_TURNS, records))
            await until_waiting(database.dsn, 1)
            await taking.commit()
        await writing.commit()
    assert [(row.verdict, row.ord) for row in wrote.result()] == [("fenced", 1)]
    assert stored_ranks(database.dsn, session) == []


async def test_a_lease_is_kept_while_its_turn_still_waits_for_postgres(
    instances: list[Persistence], database: Database
) -> None:
    one, other, _ = instances
    session = await new_session(one)
    lease = await acquire(one, session)
    appending = asyncio.gather(one.log.append(under(lease, turn(session, "x1"))))
    await asyncio.sleep(0)
    await lease.release()
    with pytest.raises(SessionBusy):
        await acquire(other, session)

    one.start()
    assert (await appending)[0] == "db"
    again = await acquire(one, session)
    assert again.fence == lease.fence
    await again.release()
    assert (await acquire(other, session)).fence == 2


async def test_who_is_cancelled_while_it_waits_holds_nothing(instances: list[Persistence], database: Database) -> None:
    one, other, _ = instances
    session = await new_session(one)
    await (await acquire(one, session)).release()
    async with other.database.writes.connection() as blocker:
        await blocker.execute("blocking", _locked())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(acquire(one, session))
            await until_waiting(database.dsn, 1)
            waiting.cancel()
            await until_waiting(database.dsn, 1)
            await blocker.commit()
    assert waiting.cancelled()
    assert (await acquire(other, session)).fence == 2


async def test_an_orderly_end_leaves_no_lease(instances: list[Persistence], database: Database) -> None:
    one, other, _ = instances
    sessions = [await new_session(one) for _ in range(3)]
    for session in sessions[:2]:
        await acquire(one, session)
    await acquire(other, sessions[2])
    await leases_of(one).aclose()
    assert sorted(row[1:] for row in rows(database.dsn, LEASES)) == [(1, False), (1, False), (1, True)]
    assert (await acquire(other, sessions[0])).fence == 2


async def test_a_connection_that_died_while_it_was_idle_costs_nothing(
    instances: list[Persistence], database: Database
) -> None:
    session = await new_session(instances[0])
    await acquire(instances[0], session)
    query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name ^@ %s"
    assert rows(database.dsn, query, "turnwise-agentic-main") != []
    assert (await acquire(instances[0], session)).fence == 1


async def test_before_postgres_has_answered_nothing_is_had_and_nothing_is_raised_by_a_release(
    build: Build, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    instance = build(database.settings(), persistence=MANY)
    with pytest.raises(HistoryUnavailable):
        await leases_of(instance).acquire("s1", USER)
    await leases_of(instance).release(("s1", USER))
    assert "leases could not be released" in caplog.text
