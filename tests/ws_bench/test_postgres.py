"""What Postgres itself measured over the steady window."""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres import Database
from tests.ws_bench.lab import Exchange, Lab, answer, bench, lab

STATEMENT = "SELECT length(pg_sleep(0.002)::text) AS told_by_the_bench"


class Persisting:
    """A service that runs one statement a turn."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self.connection = connection

    async def __call__(self, service: Lab, exchange: Exchange) -> None:
        await self.connection.execute(STATEMENT)
        await answer(service, exchange)


async def run_against(dsn: str, out: Path) -> tuple[str, dict[str, Any]]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for _ in range(50):
            await connection.execute(STATEMENT)
        async with lab(Persisting(connection)) as service:
            done = await bench(
                "-url", service.url, "-clients=2", "-requests-per-client=40", "-ramp-duration=0s", "-no-live",
                "-postgres", dsn, "-json", str(out),
            )  # fmt: skip
    assert done.code == 0, done.stderr
    return done.stdout, result_without(dsn, out)


def result_without(dsn: str, out: Path) -> dict[str, Any]:
    """The result; its file must not hold the connection string."""
    text = out.read_text()
    assert dsn not in text
    result: dict[str, Any] = json.loads(text)
    return result


@pytest.mark.postgres
async def test_statements_are_counted_over_the_steady_window_alone(debian_postgres: str, tmp_path: Path) -> None:
    printed, result = await run_against(debian_postgres, tmp_path / "out.json")
    view = result["recording"]["postgres"]
    assert view["without"] == ""
    (seen,) = [one for one in view["statements"] if "told_by_the_bench" in one["query"]]
    # The fifty before the run, and what lay outside of the window, are not in it.
    assert result["steady"]["turns"] - 4 <= seen["calls"] <= 80
    assert seen["mean_ms"] >= 2
    assert seen["total_ms"] == pytest.approx(seen["mean_ms"] * seen["calls"], rel=0.01)
    assert "POSTGRES OVER THE STEADY WINDOW" in printed
    assert "told_by_the_bench" in printed


async def test_without_the_extension_a_canary_is_timed_and_said_so(database: Database, tmp_path: Path) -> None:
    printed, result = await run_against(database.dsn, tmp_path / "out.json")
    view = result["recording"]["postgres"]
    assert view["statements"] == []
    assert "pg_stat_statements" in view["without"]
    assert view["canary"]["count"] >= 1
    assert "instead a canary on a connection of its own" in printed
