"""Statements past SQLAlchemy on a pool of SQLAlchemy's: their parameters, and connections that are lost or given up."""

import asyncio

import psycopg
import pytest

from backend_kit.db.pool import DriverStatement
from tests.knowledge_flow_backend.corpus import Corpus
from tests.support.patience import PATIENCE_S

ONE = DriverStatement("SELECT 1")
SLEEP = DriverStatement("SELECT pg_sleep(600)")
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SELECT pg_sleep(600)'"


async def fetch(corpus: Corpus, statement: DriverStatement, **parameters: object) -> list[tuple[object, ...]]:
    async with corpus.database.main.connection() as connection:
        return list(await connection.fetch("one", statement, parameters))


async def test_a_parameter_has_its_place_however_often_it_is_named(corpus: Corpus) -> None:
    statement = DriverStatement("SELECT CAST(:one AS int), :two::text, CAST(:one AS int) + 1, '%', CAST(:none AS text)")
    assert await fetch(corpus, statement, two="a", one=1, none=None, further="left out") == [(1, "a", 2, "%", None)]
    with pytest.raises(KeyError):
        await fetch(corpus, statement, one=1)


async def test_a_statement_that_fails_is_counted_and_its_connection_comes_back(corpus: Corpus) -> None:
    await fetch(corpus, ONE)
    with pytest.raises(psycopg.errors.DivisionByZero):
        await fetch(corpus, DriverStatement("SELECT 1 / 0"))
    assert await fetch(corpus, ONE) == [(1,)]
    stats = corpus.database.main.stats()
    assert (stats.in_use, stats.opened, stats.statements) == (0, 1, 3)


async def test_a_statement_that_is_given_up_leaves_no_connection_in_the_middle_of_it(corpus: Corpus) -> None:
    asked = asyncio.create_task(fetch(corpus, SLEEP))
    async with asyncio.timeout(PATIENCE_S):
        while corpus.sql(f"{SLEEPING} AND state = 'active'") == [(0,)]:  # noqa: ASYNC110 - Postgres tells nobody
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await fetch(corpus, ONE) == [(1,)]
        while corpus.sql(f"{SLEEPING} AND state = 'active'") != [(0,)]:  # noqa: ASYNC110 - Postgres tells nobody
            await asyncio.sleep(0.01)
    assert corpus.database.main.stats().in_use == 0
