import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from psycopg import errors
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import batch_pool
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import HistoryWindow
from backend_kit.db.faults import Cause, cause_of
from backend_kit.db.libpq import connect_args
from backend_kit.db.pool import Pool, PoolRules, database_url
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import (
    USER,
    history_of,
    message_of,
    new_session,
    observations,
    rows,
    turns,
    until,
)
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

ONE = text("SELECT 1 AS one")
POSTGRES = Postgres(host="db", database="d", username="u", pool_size=3, max_overflow=4, pool_recycle=60)


def test_the_pool_of_requests_is_sized_as_configured() -> None:
    assert PoolRules.for_requests(POSTGRES) == PoolRules(3, 4, 2.0, 60, pre_ping=False, autocommit=True)


def test_a_password_does_not_show_in_the_address() -> None:
    url = database_url(POSTGRES.model_validate({**POSTGRES.model_dump(), "password": "s3cret"}))
    assert url.password == "s3cret"
    assert "s3cret" not in str(url)


async def test_waits_statements_and_commits_are_timed_apart(held: Persistence, kpi: Kpi) -> None:
    async with held.database.writes.connection() as connection:
        assert [row.one for row in await connection.execute("one", ONE)] == [1]
        await connection.commit()

    assert observations(kpi, "app_db_pool_wait_seconds", pool="batch") == 1
    assert observations(kpi, "app_db_statement_seconds", pool="batch", op="one") == 1
    assert observations(kpi, "app_db_statement_seconds", pool="batch", op="commit") == 1
    assert (kpi.gauges["persist_pool_wait_ms"].value or 0.0) > 0
    assert (kpi.gauges["persist_sql_ms"].value or 0.0) > 0


async def test_a_statement_that_fails_is_timed_and_its_connection_comes_back(held: Persistence, kpi: Kpi) -> None:
    with pytest.raises(DBAPIError) as caught:
        async with held.database.writes.connection() as connection:
            await connection.execute("broken", text("SELECT 1 / :zero"), {"zero": 0})

    assert cause_of(caught.value) is Cause.POISON
    assert "0" not in str(caught.value).split("[SQL")[1].split("]")[1]  # parameters are hidden
    assert observations(kpi, "app_db_statement_seconds", pool="batch", op="broken") == 1
    assert held.database.writes.stats().in_use == 0


async def test_a_statement_whose_answer_does_not_come_is_given_up(database: Database, kpi: Kpi) -> None:
    settings = Postgres.model_validate(database.settings())
    rules, args = PoolRules.for_requests(settings), connect_args("test", 600, 600_000)
    pool = Pool("main", settings, rules, AgenticMetrics(kpi.registry, kpi), connect_args=args, answer_s=0.01)
    with pytest.raises(errors.QueryCanceled) as caught:
        async with pool.connection() as connection:
            await connection.execute("sleep", text("SELECT pg_sleep(600)"))
    assert cause_of(caught.value) is Cause.TIMEOUT
    assert pool.stats().in_use == 0
    # Given up on the server too.
    sleeping = "SELECT pid FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
    await until(lambda: not rows(database.dsn, sleeping))
    await pool.aclose()


@asynccontextmanager
async def distant(database: Database, kpi: Kpi, *, autocommit: bool) -> AsyncIterator[tuple[FaultProxy, Pool]]:
    """A pool that reaches Postgres through a proxy, which answers for connections of which nothing gets through: no
    keepalive notices that."""
    proxy = FaultProxy(database.port)
    await proxy.accept()
    settings = Postgres.model_validate({**database.settings(), "port": proxy.port})
    rules = replace(PoolRules.for_requests(settings), autocommit=autocommit)
    metrics, args = AgenticMetrics(kpi.registry, kpi), connect_args("test", 600)
    pool = Pool("main", settings, rules, metrics, connect_args=args, answer_s=0.5)
    try:
        yield proxy, pool
    finally:
        await pool.aclose()
        proxy.close()


@pytest.mark.parametrize(("which", "autocommit"), [("up", False), ("down", True)])
async def test_connections_that_became_half_open_cost_one_statement_its_answer(
    database: Database, kpi: Kpi, which: str, autocommit: bool
) -> None:
    async with distant(database, kpi, autocommit=autocommit) as (proxy, pool):
        async with pool.connection() as one, pool.connection() as other:
            await one.execute("one", ONE)
            await other.execute("one", ONE)
        await proxy.command(f"strand {which}")
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(errors.QueryCanceled):
                async with pool.connection() as connection:
                    await connection.execute("one", ONE)
            for _ in range(2):
                async with pool.connection() as one, pool.connection() as other:
                    assert [row.one for row in await one.execute("one", ONE)] == [1]
                    assert [row.one for row in await other.execute("one", ONE)] == [1]


async def test_a_commit_whose_answer_does_not_come_is_given_up(database: Database, kpi: Kpi) -> None:
    async with distant(database, kpi, autocommit=False) as (proxy, pool), asyncio.timeout(PATIENCE_S):
        async with pool.connection() as connection:
            await connection.execute("one", ONE)
            await proxy.command("strand down")
            with pytest.raises(errors.QueryCanceled):
                await connection.commit()
        assert pool.stats().in_use == 0


async def test_a_service_out_of_reach_holds_no_row_for_long(held: Persistence, database: Database, kpi: Kpi) -> None:
    """As a host that loses its power in the middle of a transaction: no FIN tells the server, and no RST."""
    proxy = FaultProxy(database.port)
    await proxy.accept()
    session = await new_session(held)
    lock = f"SELECT session_id FROM session WHERE session_id = '{session.id}' FOR UPDATE"  # noqa: S608 - our own id
    own = Kpi(CollectorRegistry(), service="agentic")
    settings = Postgres.model_validate({**database.settings(), "port": proxy.port})
    pool = batch_pool(settings, AgenticMetrics(own.registry, own))
    async with pool.connection() as connection:
        assert len(await connection.execute("lock", text(lock))) == 1
        await proxy.command("hold up")
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.to_thread(rows, database.dsn, lock) == [(session.id,)]
        await proxy.command("normal")
        with pytest.raises(DBAPIError) as caught:
            await connection.commit()
    assert cause_of(caught.value) in (Cause.TIMEOUT, Cause.CONNECTION)
    await pool.aclose()
    proxy.close()


async def test_connections_say_who_they_are_and_have_deadlines(held: Persistence) -> None:
    query = text(
        "SELECT current_setting('application_name') AS name, current_setting('statement_timeout') AS deadline,"
        " current_setting('synchronous_commit') AS durable,"
        " current_setting('idle_in_transaction_session_timeout') AS silence,"
        " current_setting('tcp_user_timeout') AS unacknowledged, current_setting('tcp_keepalives_idle') AS idle"
    )
    seen = []
    for pool in (held.database.main, held.database.writes):
        async with pool.connection() as connection:
            seen += [tuple(row) for row in await connection.execute("settings", query)]
    given = ("5s", "on", "5s", "6000", "3")
    assert seen == [("turnwise-agentic-main", *given), ("turnwise-agentic-batch", *given)]


async def test_a_pool_without_a_free_connection_answers_history_unavailable(
    build: Build, database: Database, kpi: Kpi
) -> None:
    where = {**database.settings(), "pool_size": 1, "max_overflow": 1, "pool_timeout": 0.1}
    persistence = build(where)
    await persistence.database.connect_until_ready(lambda _state: None)
    session = await new_session(persistence)
    waits = observations(kpi, "app_db_pool_wait_seconds", pool="main")
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(persistence.database.main.connection())
        stats = persistence.database.main.stats()
        assert (stats.size, stats.in_use, stats.idle, stats.overflow) == (1, 2, 0, 1)
        for read in (
            persistence.store.get(session.id, USER),
            history_of(persistence.store, session.id, USER),
            persistence.store.list_for(USER),
            persistence.store.create(session),
            message_of(persistence.store, session.id, USER, 0),
        ):
            with pytest.raises(HistoryUnavailable):
                await read
        # Turns go on: the batcher's connections are its own.
        persistence.start()
        for record in turns(session, 3):
            await persistence.log.append(record)
        assert await persistence.flush(PATIENCE_S) == 0

    # The waits that failed were timed too.
    assert observations(kpi, "app_db_pool_wait_seconds", pool="main") == waits + 7
    assert len(await persistence.store.list_for(USER)) == 1


async def test_a_cancelled_wait_is_timed_and_leaves_the_pool_whole(build: Build, database: Database, kpi: Kpi) -> None:
    persistence = build({**database.settings(), "pool_size": 1, "max_overflow": 0, "pool_timeout": 30})
    await persistence.database.connect_until_ready(lambda _state: None)
    async with persistence.database.main.connection():
        waiting = asyncio.ensure_future(persistence.store.list_for(USER))
        while persistence.database.main.stats().waiting == 0:  # noqa: ASYNC110 - one turn of the loop or two
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert observations(kpi, "app_db_pool_wait_seconds", pool="main") == 2
    assert await persistence.store.list_for(USER) == []
    assert persistence.database.main.stats().waiting == 0


async def test_a_burst_of_new_sessions_leaves_connections_to_readers_and_loses_none(
    build: Build, database: Database
) -> None:
    persistence = build({**database.settings(), "pool_size": 2, "max_overflow": 1, "pool_timeout": 1})
    await persistence.database.connect_until_ready(lambda _state: None)
    known = await new_session(persistence)
    with psycopg.connect(database.dsn) as other:
        other.execute("LOCK TABLE session IN SHARE ROW EXCLUSIVE MODE")
        burst = [asyncio.ensure_future(new_session(persistence)) for _ in range(12)]
        async with asyncio.timeout(PATIENCE_S):
            while persistence.database.main.stats().in_use < 2:  # noqa: ASYNC110 - until connections are open
                await asyncio.sleep(0.01)
        for _ in range(5):
            assert await persistence.store.get(known.id, USER) is not None
        other.rollback()
        assert len({session.id for session in await asyncio.gather(*burst)}) == 12


async def test_nothing_is_compiled_after_warm_up(persistence: Persistence) -> None:
    async def everything() -> None:
        session = await new_session(persistence)
        for record in turns(session, 2):
            await persistence.log.append(record)
        assert await persistence.flush(PATIENCE_S) == 0
        persistence.cache.forget((session.id, USER))
        await persistence.store.remembered(session.id, USER, 5)
        await history_of(persistence.store, session.id, USER)
        await history_of(persistence.store, session.id, USER, HistoryWindow(1, 1))
        await message_of(persistence.store, session.id, USER, 1)
        await persistence.store.get(session.id, USER)
        await persistence.store.list_for(USER)
        await persistence.store.delete(session.id, USER)

    def compiled() -> tuple[int, int]:
        return persistence.database.main.stats().compiled, persistence.database.writes.stats().compiled

    await everything()
    warm = compiled()
    assert warm == (7, 2)
    for _ in range(10):
        await everything()
    assert compiled() == warm


async def test_what_is_compiled_each_time_would_show(held: Persistence) -> None:
    before = held.database.main.stats().compiled
    async with held.database.main.connection() as connection:
        for number in range(5):
            await connection.execute("odd", text(f"SELECT {number}"))
    assert held.database.main.stats().compiled == before + 5


async def test_opened_connections_are_counted(held: Persistence, database: Database) -> None:
    for _ in range(5):
        await held.store.list_for(USER)
    assert held.database.main.stats().opened == 1
    rows(
        database.dsn,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'turnwise-agentic-main'"
        " AND datname = current_database()",
    )
    # The dead connection is noticed, and the read is tried once more on a new one.
    assert await held.store.list_for(USER) == []
    assert held.database.main.stats().opened == 2
    assert held.database.trouble is None


def wrapped(error: Exception) -> DBAPIError:
    return DBAPIError("SELECT 1", {}, error)


@pytest.mark.parametrize(
    ("sqlstate", "cause"),
    [
        ("22P05", Cause.POISON),
        ("23505", Cause.POISON),
        ("54000", Cause.POISON),
        ("57P01", Cause.SHUTDOWN),
        ("57P03", Cause.SHUTDOWN),
        ("57014", Cause.TIMEOUT),
        ("55P03", Cause.TIMEOUT),
        ("40001", Cause.SERIALIZATION),
        ("40P01", Cause.DEADLOCK),
        ("08006", Cause.CONNECTION),
        ("28P01", Cause.CONNECTION),
        ("3D000", Cause.CONNECTION),
        ("53300", Cause.RESOURCES),
        ("25006", Cause.READ_ONLY),
        ("25P03", Cause.TIMEOUT),
        ("42P01", Cause.STATEMENT),
        ("3F000", Cause.STATEMENT),
        ("XX000", Cause.OTHER),
    ],
)
def test_the_cause_of_an_error_follows_its_sqlstate(sqlstate: str, cause: Cause) -> None:
    assert cause_of(wrapped(errors.lookup(sqlstate)())) is cause


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (errors.DataError(), Cause.POISON),
        (errors.OperationalError(), Cause.CONNECTION),
        (errors.InterfaceError(), Cause.CONNECTION),
        (errors.ProgrammingError(), Cause.STATEMENT),
        (errors.NotSupportedError(), Cause.OTHER),
        (ValueError(), Cause.OTHER),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_cause_of_an_error_of_the_driver_follows_its_type(error: Exception, cause: Cause) -> None:
    # The classes of errors.lookup carry their own sqlstate; the bare ones of DB-API have none.
    assert cause_of(wrapped(error)) is cause


def test_no_free_connection_is_a_cause_of_its_own() -> None:
    assert cause_of(PoolTimeout()) is Cause.POOL


def test_several_hosts_are_named_in_one_key() -> None:
    assert Postgres(host="pg-a, pg-b ,pg-c", database="d", username="u").host == "pg-a,pg-b,pg-c"
    for host in ("", " ", "pg-a,,pg-b", "pg-a,"):
        with pytest.raises(ValidationError, match="must be a host, or several separated by commas"):
            Postgres(host=host, database="d", username="u")
