"""Knowledge flow: one case for each key of config/knowledge_flow/configuration_bench.yaml."""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import psycopg
import pytest
import yaml
from aiohttp import web

from backend_kit.kpi.core import LEGACY_GAUGES
from tests.agentic_backend.records import until
from tests.backend_kit.client.server import serving
from tests.knowledge_flow_backend.conftest import corpus, start_knowledge_flow
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import BASE, StartKnowledgeFlow, settings_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.processes import ForkedModule
from tests.switches.cases import keys_of, lines, missing, seen_in, sees

__all__ = ["corpus", "start_knowledge_flow"]

pytestmark = pytest.mark.servers

FILE: Final = "config/knowledge_flow/configuration_bench.yaml"
PROGRAM: Final = "tests/knowledge_flow_backend/test_app_process.py"
SERVICE: Final = "tests/knowledge_flow_backend/test_app.py"
ELSEWHERE: Final = {
    "app.metrics_port": f"{SERVICE}::test_the_metrics_port_shows_what_was_observed",
    "app.workers": f"{PROGRAM}::test_several_workers_share_one_port_each_with_its_metrics",
    "security.user.enabled": "tests/knowledge_flow_backend/test_issuer.py::test_tokens_of_its_client_count",
    "embedding_model.provider": f"{SERVICE}::test_while_its_model_is_fetched_the_service_says_so_and_searches_by_words",
    "crossencoder_model.provider": "tests/knowledge_flow_backend/search/test_rerank_of_search.py"
    "::test_switched_off_the_order_of_retrieval_is_the_answer",
    "storage.postgres.host": f"{SERVICE}::test_without_its_database_a_service_lives_and_waits",
    "storage.postgres.port": f"{SERVICE}::test_without_its_database_a_service_lives_and_waits",
    "storage.postgres.database": f"{SERVICE}::test_two_services_live_in_one_process",
    "storage.vector_store.type": "tests/knowledge_flow_backend/engines/opensearch/test_service.py"
    "::test_documents_are_ingested_found_and_deleted",
    "storage.vector_store.index": f"{SERVICE}::test_two_services_live_in_one_process",
}
"""Keys whose effect tests of their subject see, and where."""


def test_every_key_has_a_case_and_no_case_is_of_none() -> None:
    seen = [*seen_in(sys.modules[__name__]), *ELSEWHERE]
    assert sorted(seen) == sorted(keys_of(FILE))
    assert missing(ELSEWHERE) == []


@sees("app.address", "app.port")
async def test_the_service_is_where_the_configuration_says(
    database: Database, mock_llm: MockModel, tmp_path: Path
) -> None:
    port = free_port()
    app = {"address": "127.0.0.2", "port": port, "metrics_port": free_port()}
    settings = settings_on(database, mock_llm.base_url, app={**app, "metrics_enabled": False})
    file = tmp_path / "configuration.yaml"
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True)))
    with ForkedModule("knowledge_flow_backend", env={"CONFIG_FILE": str(file)}) as process:
        try:
            await process.until(process.wait_for_http, f"http://127.0.0.2:{port}{BASE}/healthz")
            async with aiohttp.ClientSession() as http:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await http.get(f"http://127.0.0.1:{port}{BASE}/healthz")
        finally:
            await process.until(process.stop)


@sees("app.log_level", "app.kpi_process_metrics_interval_sec")
async def test_the_process_is_measured_as_often_as_configured(
    start_knowledge_flow: StartKnowledgeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    app = {
        "log_level": "error",
        "metrics_enabled": False,
        "kpi_log_summary_interval_sec": 3600,
        "kpi_process_metrics_interval_sec": 0.05,
    }
    said = ""

    def three_process_lines() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said, "cpu_pct=")) >= 3

    async with start_knowledge_flow(app=app) as service:
        await service.search("anything")
        await until(three_process_lines)
        assert lines(said, "timer") == []
    said += capsys.readouterr().err
    assert lines(said, "timer")
    assert all(" WARNING turnwise.kpi " in line for line in lines(said, ""))


@sees("app.kpi_log_summary_interval_sec", "app.kpi_log_summary_top_n", "metrics.legacy_ms_names")
async def test_summaries_come_as_often_and_are_as_long_as_configured(
    start_knowledge_flow: StartKnowledgeFlow, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    app = {
        "metrics_enabled": True,
        "metrics_port": port,
        "kpi_log_summary_interval_sec": 0.1,
        "kpi_log_summary_top_n": 1,
        "kpi_process_metrics_interval_sec": 0,
    }
    said = ""

    def three_summaries() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said, "gauge event_loop_lag_ms ")) >= 3

    async with start_knowledge_flow(app=app, metrics={"legacy_ms_names": True}) as service:
        await service.search("anything")
        await until(three_summaries)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
            assert "app_phase_latency_ms" in await response.text()
    assert lines(said, "cpu_pct=") == []
    of_one = said.split("gauge event_loop_lag_ms ")[1]
    others = [line for line in lines(of_one, "gauge") if line.split()[6] not in LEGACY_GAUGES]
    assert len(others) <= 1


@sees("embedding_model.name", "embedding_model.settings.base_url", "embedding_model.settings.max_retries")
@pytest.mark.parametrize("retries", [0, 2])
async def test_the_embedding_model_is_called_as_configured(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus, retries: int
) -> None:
    await corpus.put("doc", "the spool")  # an empty index has nothing to compare a question with
    asked: list[dict[str, Any]] = []

    async def refuse(request: web.Request) -> web.Response:
        assert request.path == "/other/v9/embeddings"
        asked.append(await request.json())
        return web.Response(status=503)

    async with serving(refuse) as url:
        settings = {"base_url": f"{url}other/v9", "max_retries": retries}
        model = {"provider": "openai", "name": "mock", "settings": settings}
        async with start_knowledge_flow(ready=False, embedding_model=model) as service:
            async with asyncio.timeout(PATIENCE_S):
                while service.service.state()[1] == "starting":  # noqa: ASYNC110 - readiness tells nobody
                    await asyncio.sleep(0.01)
            body = {"question": "anything", "search_policy": "semantic"}
            async with service.http.post(f"{BASE}/vector/search", json=body) as response:
                assert response.status == 503
            of_this = [one for one in asked if one["input"] == ["anything"]]
    assert len(of_this) == retries + 1
    assert {one["model"] for one in asked} == {"mock"}


@sees("storage.postgres.username")
async def test_the_service_is_known_to_postgres_by_its_role(
    start_knowledge_flow: StartKnowledgeFlow, database: Database
) -> None:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'turnwise_searches'"
    postgres = {**database.settings(), "username": "turnwise_searches"}
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        await connection.execute("CREATE ROLE turnwise_searches LOGIN SUPERUSER")
        try:
            async with start_knowledge_flow(storage={"postgres": postgres}) as service:
                await service.search("anything")
                found = await (await connection.execute(query)).fetchone()
                assert found is not None
                assert found[0] > 0
        finally:
            await connection.execute("DROP ROLE turnwise_searches")


@sees("storage.postgres.pool_size", "storage.postgres.max_overflow", "storage.postgres.pool_timeout")
async def test_who_finds_no_free_connection_waits_so_long(
    start_knowledge_flow: StartKnowledgeFlow, database: Database
) -> None:
    small = {"pool_size": 1, "max_overflow": 1, "pool_timeout": 0.2}
    async with start_knowledge_flow(storage={"postgres": {**database.settings(), **small}}) as service:
        state = service.service._state
        assert state is not None
        async with state.database.main.connection():
            assert await service.search("anything", search_policy="strict") == []
            async with state.database.main.connection():
                body = {"question": "anything else", "search_policy": "strict"}
                answer = await service.post("/vector/search", body, status=503)
        assert answer["detail"]["code"] == "kf_unavailable"
