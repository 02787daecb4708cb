"""The whole service on OpenSearch: ready once that answers, and refused in words where its index misfits."""

from typing import Any

import aiohttp
import pytest

from tests.knowledge_flow_backend.corpus import SPOOL, Corpus
from tests.knowledge_flow_backend.engines.opensearch.faulty import FaultyOpenSearch
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.opensearch import OpenSearchIndex
from tests.support.postgres import Database

pytestmark = pytest.mark.java


def storage(database: Database, node: OpenSearchIndex, url: str | None = None) -> dict[str, Any]:
    return {
        "postgres": database.settings(),
        "vector_store": {"type": "opensearch", "index": node.name},
        "opensearch": {"host": url or node.url, "secure": False},
    }


async def readiness(service: RunningKnowledgeFlow) -> tuple[int, Any]:
    async with service.http.get(BASE + "/ready") as response:
        return response.status, await response.json()


async def test_documents_are_ingested_found_and_deleted(
    start_knowledge_flow: StartKnowledgeFlow, opensearch: OpenSearchIndex, database: Database
) -> None:
    async with start_knowledge_flow(storage=storage(database, opensearch)) as service:
        status, body = await readiness(service)
        assert (status, body["dependencies"]["opensearch"]) == (200, "ready")
        form = aiohttp.FormData()
        form.add_field("files", SPOOL.encode(), filename="spool.md")
        async with service.http.post(BASE + "/upload-process-documents", data=form) as response:
            assert '"status":"success"' in await response.text()
        for policy in ("hybrid", "strict", "semantic"):
            (hit,) = await service.search("the spool", search_policy=policy)
            assert SPOOL in hit["content"]
        # One request for strict and one for semantic, both for hybrid.
        assert service.value("app_phase_latency_seconds_count", phase="os_query", status="ok") == 4
        async with service.http.get(f"{BASE}/documents/{hit['uid']}/chunks") as response:
            assert len(await response.json()) == 1
        async with service.http.delete(f"{BASE}/documents/{hit['uid']}") as response:
            assert response.status == 204
        assert await service.search("the spool") == []


async def test_a_cluster_that_is_away_at_start_is_waited_for(
    start_knowledge_flow: StartKnowledgeFlow, opensearch: OpenSearchIndex, database: Database
) -> None:
    async with Corpus.on_opensearch(database, opensearch) as corpus:
        await corpus.put("doc", SPOOL)
    async with FaultyOpenSearch(opensearch.url) as faulty:
        faulty.refuse = True
        places = storage(database, opensearch, faulty.url)
        async with start_knowledge_flow(storage=places, ready=False) as service:
            await faulty.asked(3)
            status, body = await readiness(service)
            assert (status, body["dependencies"]["opensearch"]) == (503, "connecting")
            async with service.http.post(BASE + "/vector/search", json={"question": "spool"}) as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "1")
                assert (await response.json())["detail"]["code"] == "kf_unavailable"
            faulty.refuse = False
            await service.wait_state("ready")
            assert len(await service.search("spool")) == 1


async def test_an_index_of_another_engine_keeps_the_service_from_being_ready(
    start_knowledge_flow: StartKnowledgeFlow,
    opensearch: OpenSearchIndex,
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Corpus.on(database, index=opensearch.name) as corpus:
        await corpus.put("doc", SPOOL)
    async with start_knowledge_flow(storage=storage(database, opensearch), ready=False) as service:
        await service.wait_state("schema_mismatch")
        status, body = await readiness(service)
        assert (status, body["dependencies"]["opensearch"]) == (503, "refused")
    assert "was written with storage.vector_store.type: pgvector, the configuration says opensearch" in caplog.text
