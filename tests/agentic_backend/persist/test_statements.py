"""What a service counts of its statements, against what was executed and what Postgres counted itself."""

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from agentic_backend.metrics import AgenticMetrics
from backend_kit.db.libpq import connect_args
from backend_kit.db.pool import DriverStatement, Pool, PoolRules
from backend_kit.kpi import Kpi, KpiOptions, KpiRuntime
from backend_kit.kpi.statements import StatementSeen
from backend_kit.settings import Postgres
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

KEEP = text(
    "INSERT INTO kept (id, said) SELECT n, :said FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS n"
)
READ = text("SELECT id, said FROM kept WHERE id <= :most AND said <> 'nobody' ORDER BY id")
CHANGE = text("UPDATE kept SET said = :said WHERE id = 3")
FIND = DriverStatement("SELECT id FROM kept WHERE id = ANY(:ids) AND said = :said")
COPY = "COPY kept (id, said) FROM STDIN"


@asynccontextmanager
async def pool_on(where: Mapping[str, Any], kpi: Kpi, *, autocommit: bool) -> AsyncIterator[Pool]:
    settings = Postgres.model_validate(where)
    rules = PoolRules(2, 0, PATIENCE_S, 600, pre_ping=False, autocommit=autocommit)
    pool = Pool("main", settings, rules, AgenticMetrics(kpi.registry, kpi), connect_args=connect_args("test", 600))
    try:
        yield pool
    finally:
        await pool.aclose()


async def run_all(pool: Pool, *, commits: bool) -> None:
    async with pool.connection() as connection:
        await connection.execute("keep", KEEP, {"said": "secret", "first": 1, "last": 7})
        for _ in range(4):
            await connection.execute("read", READ, {"most": 5})
        await connection.execute("change", CHANGE, {"said": "else"})
        await connection.copy("copy", COPY, b"8\tcopied\n9\tcopied\n")
        if commits:
            await connection.commit()
    for _ in range(3):
        async with pool.connection() as connection:
            await connection.fetch("find", FIND, {"ids": [1, 2, 3, 99], "said": "secret"})


def by_query(seen: list[StatementSeen]) -> dict[str, StatementSeen]:
    return {one["query"]: one for one in seen}


@pytest.mark.parametrize("autocommit", [False, True])
async def test_counts_are_what_was_executed(database: Database, kpi: Kpi, autocommit: bool) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as own:
        own.execute("CREATE TABLE kept (id int, said text)")
    async with pool_on(database.settings(), kpi, autocommit=autocommit) as pool:
        await run_all(pool, commits=not autocommit)
    seen = by_query(kpi.statements.seen())
    assert {query: (one["calls"], one["rows"]) for query, one in seen.items()} == {
        "INSERT INTO kept (id, said) SELECT n, $1 FROM generate_series(CAST($2 AS int), CAST($3 AS int)) AS n": (1, 7),
        "SELECT id, said FROM kept WHERE id <= $1 AND said <> $2 ORDER BY id": (4, 20),
        "UPDATE kept SET said = $1 WHERE id = $2": (1, 1),
        "COPY kept (id, said) FROM STDIN": (1, 2),
        "SELECT id FROM kept WHERE id = ANY($1) AND said = $2": (3, 6),
        **({} if autocommit else {"COMMIT": (1, 0)}),
    }
    stats = pool.stats()
    assert sum(one["calls"] for one in seen.values()) == stats.statements
    assert sum(one["total_ms"] for one in seen.values()) == pytest.approx(stats.statement_s * 1e3)
    # The wait for a connection is that of the first statement on it.
    assert sum(one["wait_ms"] for one in seen.values()) == pytest.approx(stats.waited_s * 1e3)
    waited = {query for query, one in seen.items() if one["wait_ms"] > 0}
    assert {query.split()[0] for query in waited} == {"INSERT", "SELECT"}
    assert len(waited) == 2


async def test_a_statement_that_fails_is_counted_without_rows(database: Database, kpi: Kpi) -> None:
    async with pool_on(database.settings(), kpi, autocommit=True) as pool:
        with pytest.raises(DBAPIError):
            async with pool.connection() as connection:
                await connection.execute("broken", text("SELECT 1 / :zero"), {"zero": 0})
    (seen,) = kpi.statements.seen()
    assert (seen["query"], seen["calls"], seen["rows"]) == ("SELECT $2 / $1", 1, 0)


@pytest.mark.servers
@pytest.mark.postgres
async def test_counts_are_those_of_postgres_itself(debian_postgres: str, kpi: Kpi) -> None:
    parts = urlsplit(debian_postgres)
    where = {"host": parts.hostname, "port": parts.port, "username": parts.username, "database": parts.path[1:]}
    with psycopg.connect(debian_postgres, autocommit=True) as own:
        own.execute("CREATE TABLE kept (id int, said text)")
        async with pool_on(where, kpi, autocommit=True) as pool:
            await run_all(pool, commits=False)
        there = own.execute("SELECT query, calls, rows, total_exec_time FROM pg_stat_statements").fetchall()
    counted = {re.sub(r"\s+", " ", query): (calls, rows, ms) for query, calls, rows, ms in there}
    seen = by_query(kpi.statements.seen())
    assert len(seen) == 5
    for query, one in seen.items():
        calls, rows, ms = counted[query]
        assert (one["calls"], one["rows"]) == (calls, rows)
        assert one["total_ms"] > ms


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - our own server on loopback
        text: str = answer.read().decode()
        return text


@pytest.mark.servers
async def test_the_metrics_endpoint_tells_them_without_a_value(database: Database, kpi: Kpi) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as own:
        own.execute("CREATE TABLE kept (id int, said text)")
    runtime = KpiRuntime(kpi, KpiOptions(summary_interval_s=0.0)).start()
    try:
        async with pool_on(database.settings(), kpi, autocommit=True) as pool:
            await run_all(pool, commits=False)
        url = f"http://127.0.0.1:{runtime.metrics_port}/statements"
        body = await asyncio.to_thread(read, url)
    finally:
        runtime.close()
    told = json.loads(body)
    assert told["unit"] == "ms"
    assert told["statements"] == kpi.statements.seen()
    assert "secret" not in body
    assert "nobody" not in body
