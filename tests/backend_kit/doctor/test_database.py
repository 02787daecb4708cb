"""What the figures of Postgres mean, and those of a real one."""

from dataclasses import replace

import psycopg
import pytest

from backend_kit.db.probe import NoConnection, ServerFacts, look_at_server, no_connection
from backend_kit.doctor.checks import Diagnosis, Health
from backend_kit.doctor.database import (
    Demand,
    connections_finding,
    look_at_postgres,
    schema_finding,
    server_finding,
)
from backend_kit.settings import Postgres
from tests.support.ports import free_port
from tests.support.postgres import Database

FACTS = ServerFacts(
    connect_ms=3.0,
    round_trip_ms=0.2,
    ahead_s=0.0,
    version=160_004,
    max_connections=100,
    reserved=3,
    role_limit=-1,
    database_limit=-1,
    others=7,
    revision="0012",
    works_from="0012",
    vector=True,
)
DEMAND = Demand(most=90, processes=2, revision="0012", apart_s=60.0, harm="nothing is deleted")


def test_a_server_is_told_with_its_version_and_its_ways() -> None:
    found = server_finding("db:5432", FACTS)
    assert found == Diagnosis("postgres", Health.OK, "16.4 at db:5432, 3.0 ms to connect, 0.20 ms a round trip")
    assert server_finding("db:5432", replace(FACTS, round_trip_ms=20.1)).state is Health.SLOW


@pytest.mark.parametrize(
    ("facts", "room"),
    [
        (FACTS, 90),
        (replace(FACTS, role_limit=40), 40),
        (replace(FACTS, database_limit=30, role_limit=40), 30),
        (replace(FACTS, role_limit=0), 0),
        (replace(FACTS, role_limit=1000), 90),
    ],
)
def test_the_least_limit_counts(facts: ServerFacts, room: int) -> None:
    assert facts.room == room
    at_most, above = (connections_finding("db:5432", facts, replace(DEMAND, most=most)) for most in (room, room + 1))
    assert (at_most.state, above.state) == (Health.OK, Health.WRONG)
    assert at_most.facts == {"server": "db:5432", "most": room, "room": room}
    assert "max_connections" in above.remedy
    assert "pool_size" in above.remedy


@pytest.mark.parametrize(
    ("revision", "works_from", "state", "said"),
    [
        ("0012", "0012", Health.OK, "revision 0012"),
        (None, None, Health.OK, "none yet"),
        ("0011", "0011", Health.OK, "the next start brings it to 0012"),
        ("0013", "0013", Health.WRONG, "this code knows up to 0012"),
        ("0013", None, Health.WRONG, "this code knows up to 0012"),
        ("0014", "0012", Health.OK, "this code knows up to 0012 and works with it (as all from 0012 on)"),
    ],
)
def test_a_schema_that_this_code_does_not_know_is_wrong_unless_it_says_otherwise(
    revision: str | None, works_from: str | None, state: Health, said: str
) -> None:
    found = schema_finding(replace(FACTS, revision=revision, works_from=works_from), DEMAND)
    assert found.state is state
    assert said in found.figure


def test_without_pgvector_there_is_no_index() -> None:
    without = replace(FACTS, vector=None)
    assert schema_finding(without, DEMAND).state is Health.OK
    assert schema_finding(without, replace(DEMAND, vector=True)).state is Health.WRONG


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('connection failed: FATAL:  password authentication failed for user "x"', NoConnection.REFUSED),
        ("fe_sendauth: no password supplied", NoConnection.REFUSED),
        ('FATAL:  database "x" does not exist', NoConnection.REFUSED),
        ("FATAL:  sorry, too many clients already", NoConnection.FULL),
        ("FATAL:  remaining connection slots are reserved for roles with SUPERUSER", NoConnection.FULL),
        ("session is read-only", NoConnection.READ_ONLY),
        ("FATAL:  the database system is starting up", NoConnection.AWAY),
        ("FATAL:  unsupported startup parameter: options", NoConnection.POOLED),
        ("permission denied for table schema_works_from", NoConnection.REFUSED),
        ("connection timeout expired", NoConnection.AWAY),
        ("Connection refused", NoConnection.AWAY),
    ],
)
def test_a_refusal_is_told_from_a_server_that_is_away(said: str, why: NoConnection) -> None:
    assert no_connection(psycopg.OperationalError(said)) is why


def settings_of(database: Database) -> Postgres:
    return Postgres(**database.settings())


async def test_a_real_server_says_what_is_needed(database: Database) -> None:
    facts = look_at_server(settings_of(database), "turnwise-test")
    assert facts.version // 10_000 >= 15
    assert facts.round_trip_ms > 0
    assert abs(facts.ahead_s) < 2
    assert facts.revision is not None
    assert facts.vector is True
    assert facts.room <= facts.max_connections - facts.reserved


async def test_a_fresh_database_has_no_revision_yet(empty_database: Database) -> None:
    assert look_at_server(settings_of(empty_database), "turnwise-test").revision is None
    assert look_at_server(settings_of(empty_database), "turnwise-test", "some-schema").revision is None


async def test_connections_of_ours_are_not_those_of_others(database: Database) -> None:
    settings = settings_of(database)
    others = look_at_server(settings, "turnwise-test").others
    with psycopg.connect(database.dsn, application_name="turnwise-agentic-main"), psycopg.connect(database.dsn):
        assert look_at_server(settings, "turnwise-test").others == others + 1


async def test_a_database_that_is_not_there_is_wrong_and_a_server_that_is_not_away(database: Database) -> None:
    (missing,) = look_at_postgres(settings_of(replace(database, database="none")), "turnwise-test", DEMAND)
    assert (missing.what, missing.state) == ("postgres", Health.WRONG)
    (away,) = look_at_postgres(settings_of(replace(database, port=free_port())), "turnwise-test", DEMAND)
    assert (away.what, away.state) == ("postgres", Health.AWAY)
    assert [one.what for one in look_at_postgres(settings_of(database), "turnwise-test", DEMAND)] == [
        "postgres",
        "connections",
        "schema",
        "clock of postgres",
    ]
