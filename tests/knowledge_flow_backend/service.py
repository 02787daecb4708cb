"""Knowledge flow in the test's own process: its real app on a real port, real Postgres, the shipped mock model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from backend_kit.http import ServeSettings, listen
from knowledge_flow_backend.app import KnowledgeFlowService
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.rest import rest_client
from tests.support.silent_server import silent_server

BASE = "/knowledge-flow/v1"


@dataclass(slots=True)
class RunningKnowledgeFlow:
    """A started service and a client of it."""

    service: KnowledgeFlowService
    port: int
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, *, status: int = 200, **options: Any) -> Any:
        """POST JSON below the base path; the decoded body of the expected answer."""
        async with self.http.post(BASE + path, json=body, **options) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def search(self, question: str, **fields: Any) -> list[dict[str, Any]]:
        """The hits of a question."""
        hits: list[dict[str, Any]] = await self.post("/vector/search", {"question": question, **fields})
        return hits

    async def wait_state(self, word: str) -> None:
        """Wait until the service says this of its readiness."""
        async with asyncio.timeout(PATIENCE_S):
            while self.service.state()[1] != word:  # noqa: ASYNC110 - readiness tells nobody
                await asyncio.sleep(0.01)

    def value(self, metric: str, **labels: str) -> float:
        """A metric of the service."""
        return self.service._registry.get_sample_value(metric, labels) or 0.0


StartKnowledgeFlow = Callable[..., AbstractAsyncContextManager[RunningKnowledgeFlow]]


def settings_on(database: Database, base_url: str, **changes: dict[str, Any]) -> KnowledgeFlowSettings:
    """The least that the service needs; `changes` are laid over the sections."""
    sections: dict[str, dict[str, Any]] = {
        "app": {"metrics_enabled": False, "kpi_log_summary_interval_sec": 0},
        "security": {"user": {"enabled": False}},
        "embedding_model": {"provider": "openai", "name": "mock", "settings": {"base_url": base_url, "max_retries": 0}},
        "crossencoder_model": {"provider": "local"},
        "storage": {"postgres": {**database.settings(), "pool_timeout": 600}},
        # A search and a rerank are as slow as the machine: their deadlines are for the tests that set them.
        "deadlines": {"search_s": 600, "rerank_s": 600, "drain_s": 5},
    }
    for name, keys in changes.items():
        sections[name] = {**sections.get(name, {}), **keys}
    return KnowledgeFlowSettings.model_validate(sections)


@asynccontextmanager
async def run_knowledge_flow(
    settings: KnowledgeFlowSettings, *, ready: bool = True
) -> AsyncIterator[RunningKnowledgeFlow]:
    """Serve until the block ends, then drain and close. `ready`: wait until it is."""
    # Its routes take long to make on a busy machine: that is not what the detector of blocked loops looks for.
    service = await asyncio.to_thread(KnowledgeFlowService, settings)
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    server = silent_server(service.app, service.drain, ServeSettings(loop="none"))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[sock]))
        try:
            async with rest_client(f"http://127.0.0.1:{port}") as http:
                await _wait(http, serving, "/ready" if ready else "/healthz")
                yield RunningKnowledgeFlow(service, port, http)
        finally:
            # Before the group cancels it: a server that is cancelled never ends its lifespan.
            server.stop()
            await asyncio.wait([serving], timeout=PATIENCE_S)


def start_on(database: Database, base_url: str) -> StartKnowledgeFlow:
    """A starter of services on a database; it takes sections of settings as keywords, and `ready`."""

    def start(*, ready: bool = True, **changes: dict[str, Any]) -> AbstractAsyncContextManager[RunningKnowledgeFlow]:
        return run_knowledge_flow(settings_on(database, base_url, **changes), ready=ready)

    return start


async def _wait(http: aiohttp.ClientSession, serving: "asyncio.Task[None]", path: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not serving.done():
            async with http.get(BASE + path) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
