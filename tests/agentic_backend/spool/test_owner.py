"""One process a database, on real servers that restart and on connections that are cut."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentic_backend.persist.database import LOCK_KEY as MIGRATION_KEY
from agentic_backend.spool.claim import EXIT_TAKEN, LOCK_KEY, DatabaseTaken, attempt, claim_at_start
from agentic_backend.spool.connection import Connection
from agentic_backend.spool.owner import Owner
from backend_kit.aio import TaskRegistry
from backend_kit.settings import Postgres
from tests.agentic_backend.records import rows, until
from tests.chaos.proxy import FaultProxy
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database, public_directory
from turnwise.postgres import EmbeddedPostgres

HOLDERS = "SELECT mode, application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
CUT = "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def settings(database: Database) -> Postgres:
    return Postgres.model_validate(database.settings())


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, not yet started."""
    directory = public_directory("turnwise-test-owner-")
    made = EmbeddedPostgres(directory, free_port(), durable=False)
    yield made
    made.stop()
    shutil.rmtree(directory)


class Owners:
    """Owners that run, and which of them gave up, with which exit code."""

    def __init__(self) -> None:
        self.tasks = TaskRegistry()
        self.all: list[Owner] = []
        self.told: list[tuple[Owner, int]] = []
        self.ended = asyncio.Event()

    def owner(
        self,
        settings: Postgres,
        *,
        shared: bool = False,
        wait_s: float = 10.0,
        claim: Connection | None = None,
        run: bool = True,
        **more: float,
    ) -> Owner:
        def give_up(exit_code: int) -> None:
            self.told.append((made, exit_code))
            self.ended.set()

        made = Owner(settings, shared=shared, give_up=give_up, claim=claim, wait_s=wait_s, **more)
        self.all.append(made)
        if run:
            self.tasks.spawn("owner", made.hold_claim, restart=True)
        return made


@pytest.fixture
async def owners() -> AsyncIterator[Owners]:
    made = Owners()
    yield made
    await made.tasks.aclose()
    for owner in made.all:
        owner.close()
    assert made.tasks.failures == {}


def is_held(owner: Owner) -> bool:
    return owner.held


async def within(seconds: float, owner: Owner) -> None:
    async with asyncio.timeout(seconds):
        await owner.wait_held()


def test_the_lock_is_not_that_of_migrations() -> None:
    assert LOCK_KEY != MIGRATION_KEY
    assert 0 < LOCK_KEY < 2**63


def test_a_second_claim_waits_then_names_the_holder_and_what_to_do(settings: Postgres) -> None:
    first = claim_at_start(settings, shared=False)
    assert first is not None
    with pytest.raises(DatabaseTaken) as refusal:
        claim_at_start(settings, shared=False, wait_s=0.3)
    words = str(refusal.value)
    assert words.startswith("another process (turnwise-agentic-owner ")
    assert f"holds the database {settings.database} at 127.0.0.1:{settings.port}: end it first" in words
    assert "persistence.replicas: many" in words
    assert "\n" not in words

    first.close()
    second = claim_at_start(settings, shared=False)
    assert second is not None
    second.close()


def test_databases_of_one_server_have_owners_of_their_own(settings: Postgres, postgres: EmbeddedPostgres) -> None:
    other = settings.model_copy(update={"database": postgres.database})
    with attempt(settings, shared=False), attempt(other, shared=False):
        pass


def test_many_share_a_database_among_themselves_but_not_with_a_sole_owner(settings: Postgres) -> None:
    with attempt(settings, shared=True), attempt(settings, shared=True), pytest.raises(DatabaseTaken):
        attempt(settings, shared=False)
    # The server takes a moment to see that those before have left.
    sole = claim_at_start(settings, shared=False)
    assert sole is not None
    with sole, pytest.raises(DatabaseTaken):
        attempt(settings, shared=True)


async def test_a_claim_whose_server_does_not_answer_is_made_anew(
    owners: Owners, settings: Postgres, database: Database
) -> None:
    """A proxy answers for the connection: no keepalive tells that its server is out of reach."""
    proxy = FaultProxy(database.port)
    await proxy.accept()
    owner = owners.owner(settings.model_copy(update={"port": proxy.port}), shared=True, answer_s=0.5)
    await within(PATIENCE_S, owner)
    await proxy.command("strand down")
    owner.doubt()
    await within(PATIENCE_S, owner)
    proxy.close()


async def test_a_refused_claim_leaves_no_connection(settings: Postgres, database: Database) -> None:
    with attempt(settings, shared=False):
        for _ in range(3):
            with pytest.raises(DatabaseTaken):
                attempt(settings, shared=False)
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name ^@ 'turnwise-agentic-owner '"
        await until(lambda: rows(database.dsn, query) == [(1,)])


def test_without_postgres_the_claim_is_left_for_later(settings: Postgres) -> None:
    nowhere = settings.model_copy(update={"port": free_port()})
    assert claim_at_start(nowhere, shared=False) is None


async def test_a_claim_of_the_start_is_kept_and_given_up_at_the_end(
    settings: Postgres, database: Database, owners: Owners
) -> None:
    owner = owners.owner(settings, claim=attempt(settings, shared=False), run=False)
    assert owner.held
    owners.tasks.spawn("owner", owner.hold_claim)
    await within(PATIENCE_S, owner)
    ((mode, name),) = rows(database.dsn, HOLDERS)
    assert mode == "ExclusiveLock"
    assert name.startswith("turnwise-agentic-owner ")

    await owners.tasks.aclose()
    owner.close()
    assert not is_held(owner)
    await until(lambda: rows(database.dsn, HOLDERS) == [])


async def test_a_claim_whose_connection_is_cut_is_noticed_at_once_and_taken_again(
    settings: Postgres, database: Database, owners: Owners, caplog: pytest.LogCaptureFixture
) -> None:
    owner = owners.owner(settings)
    await within(PATIENCE_S, owner)
    for _ in range(3):
        # The stop is on the wire when this returns, and nothing of the owner has run since.
        assert rows(database.dsn, CUT) == [(True,)]
        assert not owner.held
        await within(PATIENCE_S, owner)
        assert len(rows(database.dsn, HOLDERS)) == 1
    assert "the claim on the database is lost" in caplog.text
    assert owners.told == []


async def test_what_the_server_says_in_passing_is_not_a_loss(
    settings: Postgres, database: Database, owners: Owners
) -> None:
    claim = attempt(settings, shared=False)
    claim.execute("LISTEN rumour")
    owner = owners.owner(settings, claim=claim)
    await within(PATIENCE_S, owner)
    asked = "SELECT pid, query_start FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
    await until(lambda: "SHOW transaction_read_only" in str(rows(database.dsn, asked.replace("query_start", "query"))))
    ((pid, before),) = rows(database.dsn, asked)

    rows(database.dsn, "SELECT pg_notify('rumour', 'of no matter')")
    await until(lambda: bool(rows(database.dsn, asked)[0][1] > before))
    await within(PATIENCE_S, owner)
    assert rows(database.dsn, asked)[0][0] == pid


@pytest.mark.servers
async def test_a_service_that_starts_before_postgres_claims_at_the_first_contact(
    own_postgres: EmbeddedPostgres, owners: Owners
) -> None:
    settings = Postgres(
        host=own_postgres.host, port=own_postgres.port, database=own_postgres.database, username="postgres"
    )
    owner = owners.owner(settings)
    with pytest.raises(TimeoutError):
        await within(0.1, owner)
    await asyncio.to_thread(own_postgres.start)
    await within(PATIENCE_S, owner)
    # And over a restart, without being told to end: nobody else was there.
    await asyncio.to_thread(own_postgres.stop)
    await until(lambda: not owner.held)
    await asyncio.to_thread(own_postgres.start)
    await within(PATIENCE_S, owner)
    assert owners.told == []


async def test_a_claim_that_another_process_took_meanwhile_ends_the_service(
    settings: Postgres, database: Database, owners: Owners, caplog: pytest.LogCaptureFixture
) -> None:
    owner = owners.owner(settings, wait_s=0.5)
    await within(PATIENCE_S, owner)
    assert rows(database.dsn, CUT) == [(True,)]
    with attempt(settings, shared=False):
        async with asyncio.timeout(PATIENCE_S):
            await owners.ended.wait()
        assert not owner.held
        assert owners.told == [(owner, EXIT_TAKEN)]
        critical = [record.getMessage() for record in caplog.records if record.levelno == logging.CRITICAL]
        assert len(critical) == 1
        assert critical[0].startswith("another process (turnwise-agentic-owner ")
    # What is pending may still be written where the other one goes.
    await within(PATIENCE_S, owner)
    assert owners.told == [(owner, EXIT_TAKEN)]


async def test_a_holder_that_leaves_in_time_ends_nobody(settings: Postgres, owners: Owners) -> None:
    with attempt(settings, shared=False):
        owner = owners.owner(settings)
        with pytest.raises(TimeoutError):
            await within(0.6, owner)
    await within(PATIENCE_S, owner)
    assert owners.told == []


async def test_a_claim_that_comes_after_the_close_is_given_back(
    settings: Postgres, database: Database, owners: Owners
) -> None:
    # With one thread, what is put into it later runs later.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    owner = owners.owner(settings, run=False)
    task = owners.tasks.spawn("owner", owner.hold_claim)
    await asyncio.sleep(0)  # it is in its thread now, which no cancellation ends
    task.cancel()
    owner.close()
    await asyncio.wait([task])
    await asyncio.to_thread(lambda: None)
    assert not is_held(owner)
    await until(lambda: rows(database.dsn, HOLDERS) == [])
