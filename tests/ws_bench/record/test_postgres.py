"""What Postgres itself measured over the steady window."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend_kit.kpi import StatementCounts
from tests.support.postgres import Database
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, scripted_service
from ws_bench.record.postgres import PostgresMonitor

RESET = "SELECT stats_reset FROM pg_stat_statements_info"
CANARY = "SELECT query FROM pg_stat_activity WHERE application_name = 'ws_bench' AND query = 'SELECT 1'"
STATEMENT = "SELECT length(pg_sleep(0.002)::text) AS told_by_the_bench"


class Persisting:
    """A service that runs one statement a turn, and answers none before the steady window has begun."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]", window: str) -> None:
        self.connection = connection
        self.window = window
        """A query whose answer changes when the window begins."""
        self.before: Any = None

    async def look(self) -> Any:
        return await (await self.connection.execute(self.window)).fetchone()

    async def remember(self) -> None:
        self.before = await self.look()

    async def __call__(self, service: ScriptedService, exchange: Exchange) -> None:
        while await self.look() == self.before:  # noqa: ASYNC110 - Postgres is asked
            await asyncio.sleep(0.01)
        await self.connection.execute(STATEMENT)
        await answer(service, exchange)


async def run_against(dsn: str, out: Path, window: str, *, reading: bool = False) -> tuple[str, dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for _ in range(50):
            await connection.execute(STATEMENT)
        persisting = Persisting(connection, window)
        async with scripted_service(persisting, creating=persisting.remember, metrics=lambda: "") as service:
            urls = service.metrics_url if reading else ""
            done = await bench(
                "-url", service.url, "-clients=2", "-requests-per-client=40", "-ramp-duration=0s", "-no-live",
                "-server-metrics", urls, "-postgres", dsn, "-json", str(out),
            )  # fmt: skip
    assert done.code == 0, done.stderr
    return done.stdout, result_without(dsn, out)


def result_without(dsn: str, out: Path) -> dict[str, Any]:
    """The result; its file must not hold the connection string."""
    text = out.read_text()
    assert dsn not in text
    result: dict[str, Any] = json.loads(text)
    return result


@pytest.mark.servers
@pytest.mark.postgres
async def test_statements_are_counted_over_the_steady_window_alone(debian_postgres: str, tmp_path: Path) -> None:
    printed, result = await run_against(debian_postgres, tmp_path / "out.json", RESET)
    view = result["recording"]["postgres"]
    assert view["without"] == ""
    (seen,) = [one for one in view["statements"] if "told_by_the_bench" in one["query"]]
    # The fifty before the run, and what lay outside of the window, are not in it.
    assert result["steady"]["turns"] - 4 <= seen["calls"] <= 80
    assert seen["mean_ms"] >= 2
    assert seen["total_ms"] == pytest.approx(seen["mean_ms"] * seen["calls"], rel=0.01)
    assert "POSTGRES OVER THE STEADY WINDOW" in printed
    assert "told_by_the_bench" in printed


@pytest.mark.postgres
async def test_what_was_counted_is_kept_though_the_end_was_cut_off(debian_postgres: str) -> None:
    async with PostgresMonitor(debian_postgres) as watch:
        await watch.begin_window()
        cut_off = asyncio.ensure_future(watch.end_window())
        await asyncio.sleep(0)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        await watch.end_window()
        assert watch.view is not None
        assert watch.view.without == ""


async def test_without_the_extension_a_canary_is_timed_and_said_so(database: Database, tmp_path: Path) -> None:
    printed, result = await run_against(database.dsn, tmp_path / "out.json", CANARY)
    view = result["recording"]["postgres"]
    assert view["statements"] == []
    assert "pg_stat_statements" in view["without"]
    assert "-server-metrics would tell" in view["without"]
    assert view["canary"]["count"] >= 1
    assert "instead a canary on a connection of its own" in printed


class Counting:
    """A service that counts its statements: some before the run, and two a turn."""

    def __init__(self) -> None:
        self.counts = StatementCounts()
        self.asked = 0
        for _ in range(50):
            self.counts.add("SELECT old", 1.0, rows=1)
            self.counts.add("SELECT a FROM t WHERE b = :b", 1.0, rows=1)

    def statements(self) -> list[Any]:
        self.asked += 1
        return list(self.counts.seen())

    async def __call__(self, service: ScriptedService, exchange: Exchange) -> None:
        while not self.asked:  # noqa: ASYNC110 - until the steady window has begun
            await asyncio.sleep(0.01)
        self.counts.add("SELECT a FROM t WHERE b = :b", 0.002, rows=3, waited_s=0.001)
        self.counts.add("COMMIT", 0.004, rows=0)
        await answer(service, exchange)


async def run_counted(dsn: str, out: Path, counting: Counting, *flags: str, **options: Any) -> tuple[str, Any]:
    async with scripted_service(counting, metrics=lambda: "", **options) as service:
        urls = f"-server-metrics={service.metrics_url},{service.metrics_url}"
        done = await bench(
            "-url", service.url, "-clients=2", "-requests-per-client=40", "-ramp-duration=0s", "-no-live", urls,
            "-postgres", dsn, "-json", str(out), *flags,
        )  # fmt: skip
    assert done.code == 0, done.stderr
    return done.stdout, result_without(dsn, out)


async def test_without_the_extension_the_services_own_counts_are_printed(database: Database, tmp_path: Path) -> None:
    counting = Counting()
    printed, result = await run_counted(database.dsn, tmp_path / "out.json", counting, statements=counting.statements)
    view = result["recording"]["postgres"]
    assert view["source"] == "the services' own counts"
    assert "pg_stat_statements" in view["without"]
    assert view["canary"] is None
    # Of the window alone, over both processes, the longest total first.
    commit, select = view["statements"]
    calls = commit["calls"]
    assert 2 * (result["steady"]["turns"] - 4) <= calls <= 160
    assert commit == {
        "query": "COMMIT", "calls": calls, "rows": 0, "max_ms": None, "wait_ms": 0.0,
        "total_ms": pytest.approx(4.0 * calls), "mean_ms": pytest.approx(4.0),
    }  # fmt: skip
    assert select == {
        "query": "SELECT a FROM t WHERE b = $1", "calls": calls, "rows": 3 * calls, "max_ms": None,
        "total_ms": pytest.approx(2.0 * calls), "mean_ms": pytest.approx(2.0), "wait_ms": pytest.approx(1.0 * calls),
    }  # fmt: skip
    assert "source: the services' own counts (pg_stat_statements cannot be used" in printed
    assert "SELECT a FROM t WHERE b = $1" in printed


async def test_a_service_that_does_not_count_is_named_and_a_canary_timed(database: Database, tmp_path: Path) -> None:
    printed, result = await run_against(database.dsn, tmp_path / "out.json", CANARY, reading=True)
    view = result["recording"]["postgres"]
    assert re.search(r"127\.0\.0\.1:\d+ does not count its statements \(404\)", view["without"])
    assert view["canary"]["count"] >= 1
    assert "instead a canary on a connection of its own" in printed


@pytest.mark.servers
@pytest.mark.postgres
async def test_a_run_that_is_over_before_its_window_says_so(debian_postgres: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(create_status=503) as service:
        done = await bench(
            "-url", service.url, "-clients=1", "-requests-per-client=1", "-no-live", "-postgres", debian_postgres,
            "-json", str(out),
        )  # fmt: skip
    view = result_without(debian_postgres, out)["recording"]["postgres"]
    assert view["statements"] == []
    assert "before the steady window could begin" in view["without"]
    assert view["without"] in done.stdout
