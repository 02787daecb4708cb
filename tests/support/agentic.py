"""The agentic service as it is run: `python -m agentic_backend` on a configuration file, with a client of it."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_block, free_port
from tests.support.postgres import Database
from tests.support.processes import ForkedModule, ModuleProcess
from tests.support.rest import rest_client
from tests.support.service import BASE, ServiceClient, configuration, free_spool, merge

_UNTIDY = re.compile(
    r"pool is closed|was destroyed but it is pending|never retrieved|never awaited|Unclosed |ResourceWarning"
)
"""What asyncio and the pools say of an end in which something was left behind."""

CLEAN = dict.fromkeys(("ENV_FILE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "FRED_POSTGRES_PASSWORD"), "")
"""Without the variables of whoever runs the tests that would reach into the service."""


@dataclass(slots=True, kw_only=True)
class ServiceProcess(ServiceClient):
    """A service in a process of its own. `metrics_port` answers where the configuration turns metrics on."""

    process: ModuleProcess
    metrics_port: int
    spool: Path

    async def line(self, pattern: str, timeout_s: float = PATIENCE_S) -> "re.Match[str]":
        """The first line of its log in which `pattern` is found."""
        return await self.process.until(self.process.wait_for_line, pattern, timeout_s)

    async def ended(self) -> int:
        """Its exit code, once it has ended. Fails where its last words tell of something left behind."""
        code = await self.process.until(self.process.wait)
        assert _UNTIDY.findall(self.process.output) == [], self.process.output
        return code

    async def answers(self, path: str) -> None:
        """Return once `path` answers 200."""
        url = f"http://127.0.0.1:{self.port}{BASE}{path}"
        await self.process.until(self.process.wait_for_http, url)

    async def ask_on_disk(self, exchange_id: str) -> None:
        """Return once its spool holds that the exchange was asked, which is a moment after its turn began."""
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(_holds_ask, self.spool, exchange_id):  # noqa: ASYNC110 - a file is asked
                await asyncio.sleep(0.02)

    async def metrics(self) -> str:
        """What /metrics says, which has a port of its own."""
        async with self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as response:
            assert response.status == 200
            return await response.text()


def _holds_ask(spool: Path, exchange_id: str) -> bool:
    query = "SELECT count(*) FROM record WHERE kind = 'ask' AND exchange_id = ?"
    for file in spool.glob("spool-*.sqlite"):
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            if connection.execute(query, (exchange_id,)).fetchone() != (0,):
                return True
    return False


StartProcess = Callable[..., AbstractAsyncContextManager[ServiceProcess]]


@asynccontextmanager
async def run_process(
    settings: dict[str, Any],
    place: Path,
    *,
    env: dict[str, str] | None = None,
    token: str = "local",
    path: str | None = "/ready",
    traceback_allowed: bool = False,
) -> AsyncIterator[ServiceProcess]:
    """A process on this configuration, on ports of its own, with its file and its spool in `place`.

    `env` is added to its environment, `token` is what the client sends over REST. The block begins once `path` answers
    200, at once without one. `traceback_allowed` is as for ModuleProcess.
    """
    port, metrics_port = free_port(), free_block(settings.get("app", {}).get("workers", 1))
    own = {"app": {"port": port, "metrics_port": metrics_port}}
    settings = merge(merge({"persistence": {"spool_dir": free_spool(place)}}, settings), own)
    file = place / f"{port}.yaml"
    file.write_text(yaml.safe_dump(settings))
    variables = {"CONFIG_FILE": str(file), **CLEAN, **(env or {})}
    headers = {"Authorization": f"Bearer {token}"}
    with ForkedModule("agentic_backend", env=variables, traceback_allowed=traceback_allowed) as process:
        try:
            async with rest_client(f"http://127.0.0.1:{port}", headers=headers) as http:
                service = ServiceProcess(
                    port=port,
                    http=http,
                    process=process,
                    metrics_port=metrics_port,
                    spool=Path(settings["persistence"]["spool_dir"]),
                )
                if path is not None:
                    await service.answers(path)
                yield service
        finally:
            await process.until(process.stop)  # its drain takes seconds, which leaving the context would block


@pytest.fixture
def start_process(database: Database, mock_llm: MockModel, tmp_path: Path) -> StartProcess:
    """Start a process on the test's database: `async with start_process("mock;gap=20", limits={…})`.

    Keyword arguments are sections of the configuration; the others are those of `run_process`.
    """

    def start(
        model: str = "mock",
        *,
        env: dict[str, str] | None = None,
        token: str = "local",
        path: str | None = "/ready",
        traceback_allowed: bool = False,
        **sections: Any,
    ) -> AbstractAsyncContextManager[ServiceProcess]:
        settings = merge(configuration(model, database, mock_llm), sections)
        return run_process(settings, tmp_path, env=env, token=token, path=path, traceback_allowed=traceback_allowed)

    return start
