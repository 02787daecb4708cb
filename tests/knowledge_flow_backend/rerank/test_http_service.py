"""The whole service with a rerank server behind it: what a client sees, what leaves the service, and many at once."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from knowledge_flow_backend.search.router import RERANK_HEADER
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.rerank.servers import KEY, rerank_server
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.mock_llm import MockModel

QUESTION = "who writes the spool"
CLIENTS = 20


def reranker(base_url: str, shape: str, **settings: Any) -> dict[str, Any]:
    chosen = {"base_url": base_url, "shape": shape, "api_key": KEY, **settings}
    return {"provider": "http", "name": "some-model", "settings": chosen}


async def rerank(service: RunningKnowledgeFlow, hits: list[Any], **headers: str) -> tuple[str, list[Any]]:
    """The header of a rerank and its hits."""
    body = json.dumps({"question": QUESTION, "documents": hits, "top_r": 3}).encode()
    headers = {"Content-Type": "application/json", **headers}
    async with service.http.post(f"{BASE}/vector/rerank", data=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return response.headers[RERANK_HEADER], await response.json()


def uids(hits: list[Any]) -> list[str]:
    return [hit["uid"] for hit in hits]


async def fill(corpus: Corpus) -> None:
    await corpus.put("best", "the batcher writes the spool")
    await corpus.put("other", "the spool is a file")
    await corpus.put("third", "a pool is no spool at all")


async def test_hits_come_back_scored_and_the_callers_token_stays_here(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)
    async with (
        rerank_server("cohere") as server,
        start_knowledge_flow(crossencoder_model=reranker(server.base_url, "cohere")) as service,
    ):
        hits = await service.search(QUESTION)
        done, ranked = await rerank(service, hits[::-1], Authorization="Bearer token-canary", Cookie="a=cookie-canary")
    assert done == "done"
    assert ranked[0]["uid"] == "best"
    assert [hit["rank"] for hit in ranked] == [1, 2, 3]
    assert all("retrieval_score" in hit for hit in ranked)
    assert server.refused == []
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    sent = json.dumps([server.headers, server.asked])
    assert "canary" not in sent.replace(KEY, "")
    # The texts and the question, and nothing of whose they are.
    assert set(server.asked[0]) == {"model", "query", "documents", "top_n"}


@pytest.mark.parametrize("shape", ["vllm", "tei"])
async def test_the_mock_reranks(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus, mock_llm: MockModel, shape: str
) -> None:
    await fill(corpus)
    root = mock_llm.base_url.removesuffix("/v1")
    async with start_knowledge_flow(crossencoder_model=reranker(root, shape)) as service:
        done, ranked = await rerank(service, (await service.search(QUESTION))[::-1])
    assert (done, ranked[0]["uid"]) == ("done", "best")


async def test_twenty_at_once_on_a_silent_server_get_their_hits_and_hold_nobody(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    """The suite fails where the loop is held; searches go on while every rerank waits."""
    await fill(corpus)
    arrived, release = asyncio.Semaphore(0), asyncio.Event()

    async def hold(_request: web.Request) -> web.Response:
        arrived.release()
        await release.wait()
        return web.Response()

    async def one(service: RunningKnowledgeFlow) -> tuple[str, list[str], list[str]]:
        hits = await service.search(QUESTION)
        done, ranked = await rerank(service, hits)
        return done, uids(ranked), uids(hits)

    async with rerank_server("jina") as server:
        server.fault = hold
        model = reranker(server.base_url, "jina", max_retries=5)
        async with start_knowledge_flow(crossencoder_model=model, deadlines={"rerank_s": 2.0}) as service:
            asked = [asyncio.ensure_future(one(service)) for _ in range(CLIENTS)]
            await arrived.acquire()
            for _ in range(CLIENTS):
                assert len(await service.search(QUESTION)) == 3
            for task in asked:
                done, ranked, hits = await task
                assert (done, ranked) == ("skipped", hits)
            # All of them late, or refused at once after five had been.
            causes = [service.value("app_rerank_skipped_total", cause=cause) for cause in ("late", "failed")]
            assert sum(causes) == CLIENTS
            assert causes[0] >= 5
            assert service.value("app_kf_request_seconds_count", route="rerank", status="ok") == CLIENTS
            release.set()
