"""docs/trust.md#C10: what a client of the service is told while its OpenSearch is red, busy or silent."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from tests.knowledge_flow_backend.corpus import SPOOL, Corpus
from tests.knowledge_flow_backend.engines.opensearch.faulty import Answer, FaultyOpenSearch, holds, says
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.opensearch import OpenSearchIndex
from tests.support.postgres import Database

pytestmark = pytest.mark.java

FAULTS: dict[str, tuple[Answer, int]] = {
    "red": (says(503), 2),
    "busy": (says(429), 2),
    "broken": (says(500), 1),
    "silent": (holds()[0], 1),
}
"""Each with the requests that one search may then cause."""


async def search(service: RunningKnowledgeFlow) -> aiohttp.ClientResponse:
    body = {"question": "spool", "search_policy": "strict"}
    async with service.http.post(f"{BASE}/vector/search", json=body) as response:
        await response.read()
        return response


def behind(faulty: FaultyOpenSearch, node: OpenSearchIndex) -> dict[str, dict[str, object]]:
    """The section `storage` of a service whose cluster is this one."""
    return {
        "opensearch": {"host": faulty.url, "secure": False},
        "vector_store": {"type": "opensearch", "index": node.name},
    }


async def test_a_cluster_in_trouble_is_503_with_advice_and_is_not_flooded(
    start_knowledge_flow: StartKnowledgeFlow, database: Database, opensearch: OpenSearchIndex
) -> None:
    async with Corpus.on_opensearch(database, opensearch) as corpus:
        await corpus.put("doc", SPOOL)
        await corpus.follow()
    async with (
        FaultyOpenSearch(opensearch.url) as faulty,
        start_knowledge_flow(storage=behind(faulty, opensearch), deadlines={"search_s": 9.0}) as service,
    ):
        for name, (faulty.answer, requests) in FAULTS.items():
            before = faulty.count("_search")
            answer = await search(service)
            detail = (await answer.json())["detail"]
            assert (answer.status, answer.headers["Retry-After"], detail["code"]) == (503, "1", "kf_unavailable"), name
            assert set(detail) == {"code", "message"}, name
            assert faulty.count("_search") - before == requests, name
        faulty.answer = None
        assert (await search(service)).status == 200


async def test_a_longer_deadline_is_the_clusters_too(
    start_knowledge_flow: StartKnowledgeFlow, database: Database, opensearch: OpenSearchIndex
) -> None:
    async def is_slow(request: web.Request) -> None:
        if request.path.endswith("_search"):
            await asyncio.sleep(4.0)  # more than the cluster has where nothing is configured

    async with Corpus.on_opensearch(database, opensearch) as corpus:
        await corpus.put("doc", SPOOL)
        await corpus.follow()
    async with FaultyOpenSearch(opensearch.url) as faulty:
        faulty.answer = is_slow
        async with start_knowledge_flow(storage=behind(faulty, opensearch)) as service:
            assert (await search(service)).status == 200
