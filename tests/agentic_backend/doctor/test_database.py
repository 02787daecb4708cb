"""Postgres as the agentic service asks it: its pools counted, its fleet, a pooler before it."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import psycopg
import pytest

from agentic_backend.doctor.database import database_checks, most_connections, most_descriptors
from agentic_backend.doctor.instances import instances_check
from agentic_backend.settings import AgenticSettings
from backend_kit.doctor.checks import Diagnosis, Health, examine
from tests.agentic_backend.records import settings_for
from tests.support.agentic import StartProcess, start_process
from tests.support.fleet import two_instances
from tests.support.pgbouncer import pooled
from tests.support.ports import free_port
from tests.support.postgres import Database

__all__ = ["start_process"]

WHERE = {"host": "127.0.0.1", "port": 1, "database": "x", "username": "x", "pool_size": 20, "max_overflow": 10}
MANY = {"replicas": "many"}


async def found(settings: AgenticSettings) -> dict[str, Diagnosis]:
    return {one.what: one for one in await examine(database_checks(settings), 30.0)}


def on(database: Database, **sections: Any) -> AgenticSettings:
    return settings_for(database.settings(), **sections)


def test_every_pool_of_a_process_counts() -> None:
    # 30 for requests, 2 for the batcher, 8 for graphs, the claim, 2 for keys.
    assert most_connections(settings_for(WHERE)) == 43
    assert most_connections(settings_for(WHERE, persistence=MANY)) == 44
    elsewhere = {"user": {"enabled": False}, "api_keys": {"postgres": WHERE}}
    assert most_connections(settings_for(WHERE, security=elsewhere)) == 41


def test_descriptors_are_for_sockets_and_for_turns() -> None:
    beside = most_connections(settings_for(WHERE)) + 200
    limits = {"max_sockets": 3000, "max_turns": 500}
    assert most_descriptors(settings_for(WHERE, limits=limits)) == 6000 + beside
    assert most_descriptors(settings_for(WHERE, limits=limits, connections={"max_open": 3500})) == 4000 + beside


async def test_a_database_of_its_own_is_ok(database: Database) -> None:
    rows = await found(on(database))
    assert {one.state for one in rows.values()} == {Health.OK}
    assert list(rows) == ["postgres", "connections", "schema", "clock of postgres", "pooler"]
    assert rows["connections"].facts["most"] == most_connections(on(database))


async def test_more_connections_than_there_are_is_wrong(database: Database) -> None:
    rows = await found(settings_for({**database.settings(), "pool_size": 100_000}))
    assert rows["connections"].state is Health.WRONG


@pytest.mark.parametrize(("works_from", "state"), [("0012", Health.OK), ("9999", Health.WRONG)])
async def test_a_newer_schema_is_wrong_unless_this_program_works_with_it(
    database: Database, works_from: str, state: Health
) -> None:
    with psycopg.connect(database.dsn) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE schema_works_from SET revision = %s", (works_from,))
    assert (await found(on(database)))["schema"].state is state


async def test_where_postgres_is_away_one_row_says_so(database: Database) -> None:
    settings = on(replace(database, port=free_port()), persistence=MANY)
    assert [(what, one.state) for what, one in (await found(settings)).items()] == [("postgres", Health.AWAY)]
    assert await examine([instances_check(settings)], 30.0) == []


@pytest.mark.pgbouncer
@pytest.mark.parametrize(("mode", "state"), [("transaction", Health.WRONG), ("session", Health.OK)])
async def test_a_pooler_by_transaction_is_wrong(database: Database, mode: str, state: Health) -> None:
    with pooled(database, mode) as through:
        assert (await found(on(through)))["pooler"].state is state


@pytest.mark.pgbouncer
async def test_a_pooler_that_refuses_our_options_says_what_to_do(database: Database) -> None:
    with pooled(database, "session", ignore_startup_parameters="extra_float_digits") as through:
        rows = await found(on(through))
    assert (rows["postgres"].state, rows["pooler"].state) == (Health.WRONG, Health.WRONG)
    assert "ignore_startup_parameters" in rows["postgres"].remedy


@pytest.mark.servers
async def test_instances_of_a_fleet_are_reached(start_process: StartProcess, database: Database) -> None:
    settings = on(database, persistence=MANY)
    async with two_instances(start_process):
        state, versions, clock = await examine([instances_check(settings)], 30.0)
        assert (state.state, state.figure) == (Health.OK, "2 alive")
        installed = version("turnwise")
        assert versions.figure == f"{installed} at 2, {installed} is installed here"
        assert clock.state is Health.OK
        most = (await found(settings))["connections"].facts["most"]
        assert most == 2 * most_connections(settings)


@pytest.mark.servers
async def test_an_instance_that_was_killed_is_not_reached_until_it_is_dead(
    start_process: StartProcess, database: Database
) -> None:
    async with two_instances(start_process) as (_, other):
        await other.process.until(other.process.kill)
        state, *_ = await examine([instances_check(on(database, persistence=MANY))], 30.0)
    assert (state.state, state.figure) == (Health.AWAY, f"2 alive, not reached from here: 127.0.0.1:{other.port}")
