"""A service whose host has the wrong time: libfaketime under the process, and Postgres beside it with the right one."""

from pathlib import Path

import psycopg
import pytest

from tests.integration.test_deletion import say_and_hear
from tests.support.agentic import start_process
from tests.support.processes import ForkedModule

__all__ = ["start_process"]

TURNS = 28


def host_with(offset: str) -> dict[str, str]:
    """The environment of a process whose wall clock is wrong by `offset`, and no other clock."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


async def prune(tmp_path: Path, env: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code and the output of the command, with the configuration of the service that runs."""
    (config,) = tmp_path.glob("*.yaml")  # noqa: ASYNC240 - a test's own directory
    variables = {"CONFIG_FILE": str(config), "ENV_FILE": "", **(env or {})}
    with ForkedModule("agentic_backend.prune", "--older-than", "1", env=variables) as process:
        return await process.until(process.wait), process.output


@pytest.mark.faketime
async def test_a_conversation_in_use_outlives_a_service_clock_that_is_a_day_behind(start_process, database, tmp_path):
    async with start_process("mock;tokens=1", env=host_with("-26h")) as service:
        session_id = await service.create_session()
        for number in range(TURNS):
            await say_and_hear(service, session_id, f"e{number}")
        async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
            found = None
            while found != (2 * TURNS,):
                found = await (await connection.execute("SELECT count(*) FROM session_history")).fetchone()
        assert await prune(tmp_path) == (0, "deleted 0 sessions unused for 1 days\n")
        assert len(await service.history(session_id)) == 2 * TURNS


@pytest.mark.faketime
@pytest.mark.parametrize("offset", ["-26h", "+26h"])
async def test_a_host_with_the_wrong_time_deletes_nothing_and_says_why(start_process, database, tmp_path, offset):
    async with start_process("mock;tokens=1") as service:
        session_id = await service.create_session()
        async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
            await connection.execute("UPDATE session SET used_at = now() - interval '9 days'")
        code, said = await prune(tmp_path, host_with(offset))
        way = "ahead of" if offset.startswith("+") else "behind"
        assert code == 3
        assert f"s {way} that of Postgres; set the one that is wrong first" in said
        assert await service.history(session_id) == []
        assert await prune(tmp_path) == (0, "deleted 1 sessions unused for 1 days\n")
