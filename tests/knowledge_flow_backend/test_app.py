"""The service as a whole: readiness, its end, two of them in one process, what stands on its metrics port."""

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from backend_kit.aio.vigil import DOWN_AFTER
from knowledge_flow_backend.errors import EmbeddingPreparing
from knowledge_flow_backend.settings import LOCAL_MODEL
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow, start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.weights import no_index


async def ready(service: RunningKnowledgeFlow) -> tuple[int, str]:
    async with service.http.get(f"{BASE}/ready") as response:
        return response.status, (await response.json())["status"]


async def test_a_service_that_is_ready_says_so(service: RunningKnowledgeFlow) -> None:
    assert await ready(service) == (200, "ready")
    async with service.http.get(f"{BASE}/healthz", headers={"X-Request-ID": "mine"}) as response:
        assert await response.json() == {"status": "ok"}
        assert response.headers["X-Request-ID"] == "mine"


async def test_what_a_service_cannot_do_without_is_named_while_it_is_down(service: RunningKnowledgeFlow) -> None:
    tasks = service.service.running.tasks
    essential = set(tasks.vigil._essential) - {"kpi-metrics"}
    assert essential == {"api-keys", "audit-log", "ingest-leases", "kpi-loop-monitor", "kpi-summary"}
    failed = asyncio.Event()

    async def fails() -> None:
        if tasks.failures["follower"] == DOWN_AFTER:
            failed.set()
            await asyncio.Event().wait()
        raise OSError(24, "Too many open files")

    tasks.spawn("follower", fails, restart=True, essential=True)
    async with asyncio.timeout(PATIENCE_S):
        await failed.wait()
    async with service.http.get(f"{BASE}/ready") as response:
        assert response.status == 503
        told = await response.json()
    assert (told["status"], told["dependencies"]["tasks"]) == ("task_down", "down: follower")


async def test_without_its_database_a_service_lives_and_waits(mock_llm: MockModel, database: Database) -> None:
    away = Database(database.host, free_port(), database.database, database.username)
    async with start_on(away, mock_llm.base_url)(ready=False) as service:
        assert await ready(service) == (503, "starting")
        for policy in ("hybrid", "strict", "semantic"):
            body = {"question": "anything", "search_policy": policy}
            answer = await service.post("/vector/search", body, status=503)
            assert answer["detail"]["code"] == "kf_unavailable"


async def test_while_its_model_is_fetched_the_service_says_so_and_searches_by_words(
    start_knowledge_flow: StartKnowledgeFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in no_index().items():
        monkeypatch.setenv(name, value)
    model = {"provider": "local", "name": LOCAL_MODEL, "settings": {}}
    async with start_knowledge_flow(ready=False, embedding_model=model, storage={"home": str(tmp_path)}) as service:
        await service.wait_state("fetching_model")
        assert await ready(service) == (503, "fetching_model")
        assert service.service.state()[2]["embedder"] == "fetching"
        body = {"question": "anything", "search_policy": "semantic"}
        async with service.http.post(f"{BASE}/vector/search", json=body) as answer:
            assert (answer.status, answer.headers["X-Cause"]) == (503, EmbeddingPreparing.cause)
        assert await service.search("anything", search_policy="strict") == []


async def test_an_index_of_another_model_is_refused_at_start_and_at_each_search(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus, caplog: pytest.LogCaptureFixture, mock_llm: MockModel
) -> None:
    await corpus.put("doc", "the spool")
    model = {"provider": "openai", "name": "other", "settings": {"base_url": mock_llm.base_url}}
    async with start_knowledge_flow(ready=False, embedding_model=model) as service:
        async with asyncio.timeout(PATIENCE_S):
            while await ready(service) != (503, "schema_mismatch"):  # noqa: ASYNC110 - what an operator's probe does
                await asyncio.sleep(0.02)
        answer = await service.post("/vector/search", {"question": "the spool"}, status=409)
        assert answer["detail"]["code"] == "schema_mismatch"
    (said,) = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "holds vectors of mock (384 numbers)" in said.getMessage()
    assert "storage.vector_store.index" in said.getMessage()


async def test_while_all_files_are_written_another_one_can_be_received(
    start_knowledge_flow: StartKnowledgeFlow,
) -> None:
    async with start_knowledge_flow(processing={"workers": 3}) as service, AsyncExitStack() as writers:
        state = service.service._state
        assert state is not None
        pool = state.database.writes
        for _ in range(4):  # one more than parsers
            await writers.enter_async_context(pool.connection())
        async with asyncio.timeout(PATIENCE_S), pool.connection() as receiving:
            assert await receiving.execute("test", text("SELECT 1")) == [(1,)]


async def test_two_services_live_in_one_process(start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus) -> None:
    await corpus.put("doc", "the spool")
    storage = {"postgres": {**_where(corpus)}, "vector_store": {"index": "another-index"}}
    async with start_knowledge_flow() as one, start_knowledge_flow(storage=storage) as other:
        assert len(await one.search("the spool")) == 1
        assert await other.search("the spool") == []
        assert one.value("app_kf_request_seconds_count", route="search", status="ok") == 1
        assert one.value("app_kf_search_empty_total") == 0
        assert other.value("app_kf_search_empty_total") == 1


async def test_the_metrics_port_shows_what_was_observed(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await corpus.put("doc", "the spool")
    port = free_port()
    async with start_knowledge_flow(app={"metrics_enabled": True, "metrics_port": port}) as service:
        hits = await service.search("the spool")
        await service.post("/vector/rerank", {"question": "the spool", "documents": hits})
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
            text = await response.text()
    for phase in ("vector_search", "vector_rerank", "embed_query", "lexical_query", "vector_query", "rerank"):
        assert f'app_phase_latency_seconds_count{{phase="{phase}",status="ok"}} 1.0' in text
    for line in (
        'app_kf_request_seconds_count{route="search",status="ok"} 1.0',
        'app_kf_request_seconds_count{route="rerank",status="ok"} 1.0',
        'app_db_statement_seconds_count{op="hybrid",pool="main"} 1.0',
        "app_rerank_queue_seconds_count 1.0",
        "app_event_loop_lag_seconds_count",
        "app_build_info{",
    ):
        assert line in text, line


async def test_a_service_that_drains_says_so_and_still_answers(service: RunningKnowledgeFlow) -> None:
    await service.service.drain()
    assert await ready(service) == (503, "draining")
    assert await service.search("a search that was on its way") == []


async def test_the_interface_is_described(service: RunningKnowledgeFlow) -> None:
    async with service.http.get("/openapi.json") as response:
        paths = (await response.json())["paths"]
    assert f"{BASE}/vector/search" in paths
    assert f"{BASE}/vector/rerank" in paths
    refusals = {"401", "403", "404", "409", "413", "422", "503"}
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert refusals <= operation["responses"].keys(), (method, path)


def _where(corpus: Corpus) -> dict[str, object]:
    settings = corpus.database._settings
    return {name: getattr(settings, name) for name in ("host", "port", "database", "username")}
