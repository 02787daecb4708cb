"""The program: one process or several on one port, restarted when one dies, ended together."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml

from tests.agentic_backend.records import until
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import BASE
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_block, free_port
from tests.support.postgres import Database
from tests.support.processes import ForkedModule, ModuleProcess

ENOUGH = 20
Configure = Callable[[int], tuple[dict[str, str], int, int]]


@pytest.fixture
def configure(tmp_path: Path, database: Database, mock_llm: MockModel) -> Configure:
    """A configuration file for so many workers: the environment that names it, the port, the first metrics port."""

    def made(workers: int) -> tuple[dict[str, str], int, int]:
        port, metrics = free_port(), free_block(workers)
        file = tmp_path / "configuration.yaml"
        model = {"provider": "openai", "name": "mock", "settings": {"base_url": mock_llm.base_url}}
        settings = {
            "app": {"port": port, "metrics_port": metrics, "workers": workers, "kpi_log_summary_interval_sec": 0},
            "security": {"user": {"enabled": False}},
            "embedding_model": model,
            "storage": {"postgres": database.settings()},
            "deadlines": {"search_s": 600, "drain_s": 5},
        }
        file.write_text(yaml.safe_dump(settings))
        return {"CONFIG_FILE": str(file)}, port, metrics

    return made


def _listeners(port: int) -> int:
    """How many sockets listen on a port; one of a killed process does until its last thread is gone."""
    tcp = psutil.net_connections("tcp")
    return sum(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in tcp)


async def ask(port: int) -> int:
    """A search on a connection of its own; the status."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as http,
        http.post(f"http://127.0.0.1:{port}{BASE}/vector/search", json={"question": "the spool"}) as response,
    ):
        return response.status


async def searches_of(metrics_port: int) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{metrics_port}/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith('app_kf_request_seconds_count{route="search",status="ok"}'):
                return float(line.split()[-1])
    return 0.0


@asynccontextmanager
async def program(environment: dict[str, str], **options: bool) -> AsyncIterator[ModuleProcess]:
    """The program, ended outside of the event loop."""
    with ForkedModule("knowledge_flow_backend", env=environment, **options) as process:  # type: ignore[arg-type]
        try:
            yield process
        finally:
            await process.until(process.stop)


async def until_all_ready(process: ModuleProcess, metrics_port: int, port: int, workers: int) -> None:
    """Wait until every worker listens and is ready."""
    for number in range(workers):
        await process.until(process.wait_for_http, f"http://127.0.0.1:{metrics_port + number}/metrics")
    await until(lambda: _listeners(port) == workers)  # the metrics answer first
    ready = 0
    while ready < ENOUGH:  # connections come to any of them: one that is not ready would show
        try:
            ready = ready + 1 if await ask(port) == 200 else 0
        except aiohttp.ClientOSError:  # the kernel resets one whose handshake another worker's first listening cuts
            ready = 0


async def test_one_process_serves_drains_and_ends(corpus: Corpus, configure: Configure) -> None:
    await corpus.put("doc", "the spool")
    environment, port, _ = configure(1)
    async with program(environment) as process:
        await process.until(process.wait_for_http, f"http://127.0.0.1:{port}{BASE}/ready")
        assert await ask(port) == 200
        process.send(signal.SIGTERM)
        assert await process.until(process.wait) == 0
        assert "drain 2/2" in process.output


async def test_several_workers_share_one_port_each_with_its_metrics(corpus: Corpus, configure: Configure) -> None:
    await corpus.put("doc", "the spool")
    environment, port, metrics = configure(2)
    async with program(environment) as process:
        await until_all_ready(process, metrics, port, 2)
        assert await asyncio.gather(*(ask(port) for _ in range(40))) == [200] * 40
        # By chance all of them could come to one worker, once in 2^60 times.
        assert min(await searches_of(metrics), await searches_of(metrics + 1)) > 0
        children = psutil.Process(process.pid).children()
        assert len(children) == 2
        process.send(signal.SIGTERM)
        assert await process.until(process.wait) == 0
        assert process.output.count("drain 2/2") == 2
    assert not [child for child in children if child.is_running()]


async def test_a_worker_that_dies_is_replaced_while_the_other_serves(corpus: Corpus, configure: Configure) -> None:
    environment, port, metrics = configure(2)
    async with program(environment) as process:
        await until_all_ready(process, metrics, port, 2)
        parent = psutil.Process(process.pid)
        victim = parent.children()[0]
        parent.suspend()  # the one that comes in its place listens too, and says 503 until it knows the schema
        victim.kill()
        await until(lambda: _listeners(port) == 1)
        # Connections go to whoever listens.
        assert await asyncio.gather(*(ask(port) for _ in range(10))) == [200] * 10
        parent.resume()
        await process.until(process.wait_for_line, r"worker \d ended by itself with code -9")
        await until_all_ready(process, metrics, port, 2)
        assert len(psutil.Process(process.pid).children()) == 2


async def test_workers_do_not_outlive_who_watches_over_them(configure: Configure) -> None:
    environment, port, metrics = configure(2)
    async with program(environment) as process:
        await until_all_ready(process, metrics, port, 2)
        children = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, children, PATIENCE_S)
        assert (len(gone), alive) == (2, [])


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_taken_port_ends_the_start_with_one_line(configure: Configure, workers: int) -> None:
    environment, port, _ = configure(workers)
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", port)
    async with taken, program(environment) as process:
        assert await process.until(process.wait) == 2
        assert f"cannot listen on 127.0.0.1:{port}" in process.output
        assert len(process.output.splitlines()) == 1


async def test_a_worker_that_is_refused_ends_all(configure: Configure) -> None:
    """A metrics port that is taken: starting again would not help."""
    environment, _, metrics = configure(2)
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", metrics + 1)
    async with taken, program(environment, traceback_allowed=True) as process:
        assert await process.until(process.wait) == 3
        assert f"cannot listen on 127.0.0.1:{metrics + 1}" in process.output
