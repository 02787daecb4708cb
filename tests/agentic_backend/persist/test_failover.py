"""Postgres fails over to its standby, on two real servers: what leaves the spool, and who finds the new primary."""

import asyncio
import logging
import math
from typing import Any, LiteralString

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import MIGRATIONS, history_database, migrate
from agentic_backend.persist.graph_pool import GraphPool
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.persist.replication import Replication
from agentic_backend.spool.claim import attempt
from backend_kit.db.api_keys import key_pool
from backend_kit.db.faults import DatabaseFault
from backend_kit.db.schema import newest_revision
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from knowledge_flow_backend.index.database import IndexDatabase
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import new_session, rows, stored_ranks, total, turns, until
from tests.support.clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.replicas import Replicated, Server

pytestmark = pytest.mark.postgres

WAITING: LiteralString = (
    "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE '%batch'"
)
CLAIM: LiteralString = """SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE locktype = 'advisory' AND application_name LIKE 'turnwise-agentic-owner%'"""
SERVER = text("SELECT host(inet_server_addr()) AS host")


def where(replicated: Replicated) -> dict[str, Any]:
    return {**replicated.database.settings(), "connect_timeout": 2, "pool_timeout": 2}


async def until_it_waits(primary: Server, *, but: int = 0) -> int:
    """The process of the primary that waits for the standby with the batcher's commit; another one than `but`."""
    found: list[int] = []

    def waits() -> bool:
        found[:] = [pid for (pid,) in primary.execute(WAITING) if pid != but]
        return bool(found)

    await until(waits)
    return found[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def running(build: Build, replicated: Replicated) -> Persistence:
    own_kpi = Kpi(CollectorRegistry(), service="agentic")
    persistence = build(where(replicated), rules=PersistenceRules(spool_s=PATIENCE_S, close_s=0.0), own_kpi=own_kpi)
    persistence.start()
    async with asyncio.timeout(PATIENCE_S):
        await persistence.database.wait_ready()
    return persistence


async def test_no_record_leaves_the_spool_before_its_commit_is_on_the_synchronous_standby(
    build: Build, replicated: Replicated
) -> None:
    await asyncio.to_thread(replicated.synchronous, on=True)
    persistence = await running(build, replicated)
    assert persistence.spool is not None
    kept, deleted = [await new_session(persistence) for _ in range(2)]
    await asyncio.to_thread(replicated.standby.receive, on=False)

    for record in turns(kept, 5):
        assert await persistence.log.append(record) == "spool"
    cut_off = await until_it_waits(replicated.primary)
    assert persistence.spool.records == 5
    # Its end commits the turns on the primary, and on it alone.
    rows(replicated.primary.dsn(), "SELECT pg_terminate_backend(%s)", cut_off)
    await until_it_waits(replicated.primary, but=cut_off)
    assert len(stored_ranks(replicated.primary.dsn(), kept)) == 10
    assert persistence.spool.records == 5

    # Seen before: afterwards they come from the spool, which may be quicker than a look.
    assert stored_ranks(replicated.standby.dsn(), kept) == []
    await asyncio.to_thread(replicated.fail_over, lagging=True)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0
    assert len(stored_ranks(replicated.primary.dsn(), kept)) == 10
    assert await persistence.store.delete(*_key(deleted))
    assert persistence.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


async def test_a_delete_that_only_the_primary_has_stays_in_the_spool(build: Build, replicated: Replicated) -> None:
    await asyncio.to_thread(replicated.synchronous, on=True)
    persistence = await running(build, replicated)
    assert persistence.spool is not None
    session = await new_session(persistence)
    await asyncio.to_thread(replicated.standby.receive, on=False)

    committed, _ = persistence.batcher.delete(_key(session))
    cut_off = await until_it_waits(replicated.primary)
    rows(replicated.primary.dsn(), "SELECT pg_terminate_backend(%s)", cut_off)
    await until_it_waits(replicated.primary, but=cut_off)
    assert rows(replicated.primary.dsn(), "SELECT session_id FROM session") == []
    assert not committed.done()
    assert persistence.spool.records == 1

    await asyncio.to_thread(replicated.fail_over, lagging=True)
    async with asyncio.timeout(PATIENCE_S):
        assert await committed
    assert rows(replicated.primary.dsn(), "SELECT session_id FROM session") == []


def _key(session: Any) -> tuple[str, str]:
    return session.id, session.user_id


@pytest.fixture(params=["primary first", "standby first"])
def both(request: pytest.FixtureRequest, replicated: Replicated) -> Postgres:
    """Settings with both hosts."""
    hosts = [replicated.primary.host, replicated.standby.host]
    ordered = hosts if request.param == "primary first" else hosts[::-1]
    return Postgres.model_validate({**where(replicated), "host": ", ".join(ordered)})


async def test_every_connection_finds_the_primary_among_the_hosts(
    both: Postgres, replicated: Replicated, kpi: Kpi
) -> None:
    primary, metrics = replicated.primary.host, AgenticMetrics(kpi.registry, kpi)
    claim = await asyncio.to_thread(attempt, both, shared=False)
    assert claim.info.host == primary
    claim.close()
    assert await asyncio.to_thread(migrate, both) == newest_revision(MIGRATIONS.scripts)
    graphs = GraphPool(both, metrics, 1)
    async with graphs.connection() as connection:
        assert connection.info.host == primary
    await graphs.aclose()
    index = IndexDatabase(both, "passages", metrics)
    history = history_database(both, metrics)
    keys = key_pool(both, metrics)
    for pool in (index.main, index.writes, history.main, history.writes, keys):
        async with pool.connection() as connection:
            assert [row.host for row in await connection.execute("server", SERVER)] == [primary]
        await pool.aclose()


async def test_a_primary_that_takes_no_writes_any_more_is_left(
    build: Build, replicated: Replicated, caplog: pytest.LogCaptureFixture
) -> None:
    persistence = await running(build, replicated)
    session = await new_session(persistence)
    records = turns(session, 2)
    await persistence.log.append(records[0])
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0

    # An orderly change: the old one is made read-only, and goes on answering.
    def change() -> None:
        replicated.primary.execute("ALTER SYSTEM SET default_transaction_read_only = on", database="postgres")
        replicated.primary.execute("SELECT pg_reload_conf()", database="postgres")
        replicated.caught_up()

    await asyncio.to_thread(change)
    await persistence.log.append(records[1])
    await until(lambda: persistence.batcher.blocked_by is not None)
    await asyncio.to_thread(replicated.standby.execute, "ALTER SYSTEM RESET ALL", database="postgres")
    await asyncio.to_thread(replicated.standby.promote)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0

    assert len(stored_ranks(replicated.standby.dsn(), session)) == 4
    assert len(stored_ranks(replicated.primary.dsn(), session)) == 2
    assert "cause=read_only sqlstate=25006" in caplog.text
    assert replicated.standby.execute(CLAIM) == [(1,)]
    assert replicated.primary.execute(CLAIM) == [(0,)]
    assert persistence.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


async def until_looked(watch: Replication, kpi: Kpi, records: float) -> None:
    """Look until so many records may be missing on the standby: the server may write to its log at any time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await watch.look()
            if total(kpi, "app_postgres_unreplicated_records") == records:
                return
            await asyncio.sleep(0.02)


async def test_what_the_standby_lacks_is_published_as_the_bound(
    build: Build, replicated: Replicated, kpi: Kpi, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentic_backend.persist.replication")
    persistence = await running(build, replicated)
    metrics = AgenticMetrics(kpi.registry, kpi)
    watch = Replication(persistence.database, lambda: persistence.batcher.written, metrics, clock=clock)
    session = await new_session(persistence)
    records = turns(session, 7)
    for record in records[:3]:
        await persistence.log.append(record)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0
    await until_looked(watch, kpi, 0)
    assert total(kpi, "app_postgres_synchronous") == 0
    assert total(kpi, "app_postgres_standbys") == 1
    assert "a failover loses what the standby has not received: app_postgres_unreplicated_records" in caplog.text

    await asyncio.to_thread(replicated.standby.receive, on=False)
    for record in records[3:]:
        await persistence.log.append(record)
    assert (await persistence.batcher.flush(PATIENCE_S)).left == 0
    spool = persistence.spool
    assert spool is not None
    await until(lambda: spool.records == 0)
    clock.now += 7
    assert await watch.look()
    assert total(kpi, "app_postgres_unreplicated_records") == 4
    assert total(kpi, "app_postgres_standby_lag_seconds") == 7

    await asyncio.to_thread(replicated.fail_over, lagging=True)
    with pytest.raises(DatabaseFault):  # the connection that it has is to the dead one
        await watch.look()
    assert not await watch.look()
    assert (
        "failed over (timeline 00000001, now 00000002): up to 4 records of the last 7 s may be missing" in caplog.text
    )
    assert len(stored_ranks(replicated.primary.dsn(), session)) == 6
    assert math.isnan(total(kpi, "app_postgres_unreplicated_records"))  # nobody follows the new primary
    assert total(kpi, "app_postgres_standbys") == 0


async def test_with_a_synchronous_standby_the_bound_is_nothing(
    build: Build, replicated: Replicated, kpi: Kpi, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentic_backend.persist.replication")
    await asyncio.to_thread(replicated.synchronous, on=True)
    persistence = await running(build, replicated)
    watch = Replication(persistence.database, lambda: persistence.batcher.written, AgenticMetrics(kpi.registry, kpi))
    assert not await watch.look()
    assert total(kpi, "app_postgres_synchronous") == 1
    assert total(kpi, "app_postgres_unreplicated_records") == 0
    assert "each commit waits for a standby" in caplog.text


async def test_a_role_that_may_not_see_the_standby_is_told_so(
    replicated: Replicated, kpi: Kpi, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(replicated.primary.execute, "CREATE ROLE plain LOGIN")
    metrics = AgenticMetrics(kpi.registry, kpi)
    database = history_database(Postgres.model_validate({**where(replicated), "username": "plain"}), metrics)
    watch = Replication(database, lambda: 0, metrics)
    assert not await watch.look()
    assert total(kpi, "app_postgres_standbys") == 1
    assert math.isnan(total(kpi, "app_postgres_unreplicated_records"))
    assert "only a member of pg_monitor may see" in caplog.text
    await database.aclose()
