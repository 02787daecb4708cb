"""Whether a connection has a session of its own: directly, and through PgBouncer in each of its modes."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

from agentic_backend.spool.claim import DatabaseTaken, attempt, claim_at_start
from agentic_backend.spool.connection import Connection
from agentic_backend.spool.pooler import EXIT_POOLED, PoolerUnusable, require_session
from backend_kit.settings import Postgres
from tests.agentic_backend.records import rows, until
from tests.agentic_backend.spool.test_owner import Owners, owners
from tests.support.patience import PATIENCE_S
from tests.support.pgbouncer import pooled
from tests.support.ports import free_port
from tests.support.postgres import Database
from turnwise.postgres import EmbeddedPostgres

__all__ = ["owners"]

LOCKS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"


def settings_of(database: Database) -> Postgres:
    return Postgres.model_validate(database.settings())


def connect(database: Database) -> Connection:
    return psycopg.connect(database.dsn, autocommit=True)


@pytest.fixture
def pair(database: Database) -> Iterator[tuple[Connection, Connection]]:
    """Two connections to the test's database."""
    with closing(connect(database)) as one, closing(connect(database)) as other:
        yield one, other


def words_for(database: Database) -> str:
    """Why a claim is refused, at once and by either kind."""
    said = set()
    for shared in (False, True):
        with pytest.raises(PoolerUnusable) as refusal:
            claim_at_start(settings_of(database), shared=shared)
        said.add(str(refusal.value))
    (words,) = said
    assert "\n" not in words
    return words


def test_a_session_is_never_refused_however_late_it_hears(
    database: Database, pair: tuple[Connection, Connection]
) -> None:
    one, other = pair
    for _ in range(200):
        require_session(settings_of(database), one, other, idle_s=0.0)
    assert one.execute("SELECT pg_listening_channels()").fetchall() == []
    assert list(one.notifies(timeout=0)) == []


def test_a_session_that_somebody_else_gets_is_no_session(
    database: Database, pair: tuple[Connection, Connection]
) -> None:
    one, _ = pair
    with pytest.raises(PoolerUnusable, match=f"at 127.0.0.1:{database.port} pools by transaction: connect to Postgres"):
        require_session(settings_of(database), one, one)


def test_a_session_that_hears_nothing_is_no_session(
    database: Database, postgres: EmbeddedPostgres, pair: tuple[Connection, Connection]
) -> None:
    one, _ = pair
    # Notifications stay within their database.
    with closing(psycopg.connect(postgres.dsn, autocommit=True)) as stranger, pytest.raises(PoolerUnusable):
        require_session(settings_of(database), one, stranger, idle_s=0.0)
    assert one.execute("SELECT pg_listening_channels()").fetchall() == []


def test_a_session_that_postgres_ends_meanwhile_is_no_matter_of_a_pooler(
    database: Database, pair: tuple[Connection, Connection]
) -> None:
    one, other = pair
    for ended in (other, one):
        rows(database.dsn, "SELECT pg_terminate_backend(%s, 5000)", ended.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            require_session(settings_of(database), one, other)


@pytest.mark.pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize(
    "sessions",
    [{"default_pool_size": 1}, {"default_pool_size": 20}, {"default_pool_size": 20, "server_round_robin": 1}],
    ids=["one", "last in first out", "in turn"],
)
def test_a_pooler_by_transaction_is_refused_and_keeps_no_lock(
    database: Database, mode: str, sessions: dict[str, int]
) -> None:
    with pooled(database, mode, **sessions) as through:
        for idle in range(min(3, sessions["default_pool_size"])):
            _busy(through, idle + 1)
            assert words_for(through) == (
                f"a pooler at 127.0.0.1:{through.port} pools by transaction: connect to Postgres directly, or let it "
                "pool by session (PgBouncer: pool_mode = session)"
            )
            assert rows(database.dsn, LOCKS) == []


def _busy(through: Database, count: int) -> None:
    """Have the pooler open as many sessions, and keep them for whoever comes."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connect(through))) for _ in range(count)]
        for connection in connections:
            connection.pgconn.send_query(b"SELECT pg_sleep(0.1)")
        for connection in connections:
            while connection.pgconn.get_result() is not None:
                pass


@pytest.mark.pgbouncer
async def test_a_pooler_by_session_serves_a_claim_until_its_end(database: Database) -> None:
    with pooled(database, "session") as through:
        settings = settings_of(through)
        for _ in range(3):
            with closing(attempt(settings, shared=False)):
                assert len(rows(database.dsn, LOCKS)) == 1
                with pytest.raises(DatabaseTaken):
                    attempt(settings_of(database), shared=True)
            await until(lambda: rows(database.dsn, LOCKS) == [])
        with closing(attempt(settings, shared=True)), closing(attempt(settings, shared=True)):
            assert len(rows(database.dsn, LOCKS)) == 2


@pytest.mark.pgbouncer
def test_a_pooler_by_session_without_a_second_one_is_not_refused_but_away(database: Database) -> None:
    with pooled(database, "session", default_pool_size=1) as through:
        pair = closing(connect(through)), closing(connect(through))
        with pair[0] as one, pair[1] as other, pytest.raises(psycopg.errors.TooManyConnections):
            require_session(settings_of(through), one, other, answer_s=0.5)


@pytest.mark.pgbouncer
def test_a_pooler_that_refuses_our_options_is_named_with_what_to_do(database: Database) -> None:
    with pooled(database, "session", ignore_startup_parameters="extra_float_digits") as through:
        assert words_for(through) == (
            f"the pooler at 127.0.0.1:{through.port} refuses our connections (unsupported startup parameter: options): "
            "connect to Postgres directly, or let it pool by session and ignore that parameter "
            "(PgBouncer: pool_mode = session, ignore_startup_parameters = options)"
        )


@pytest.mark.pgbouncer
async def test_a_pooler_that_comes_later_ends_the_service_once(
    database: Database, owners: Owners, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    owner = owners.owner(settings_of(database).model_copy(update={"port": port}))
    await until(lambda: "is not ready" in caplog.text)
    with pooled(database, "transaction", port=port):
        async with asyncio.timeout(PATIENCE_S):
            await owners.ended.wait()
        assert owners.told == [(owner, EXIT_POOLED)]
        assert not owner.held
        critical = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
        assert len(critical) == 1
        assert f"a pooler at 127.0.0.1:{port} pools by transaction" in critical[0]
    # Who then comes there by session may still have what is pending.
    with pooled(database, "session", port=port):
        async with asyncio.timeout(PATIENCE_S):
            await owner.wait_held()
    assert owners.told == [(owner, EXIT_POOLED)]
