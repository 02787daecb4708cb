"""A search that reranks gives what a search and a rerank of its hits give, in one call."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from knowledge_flow_backend.rerank import Candidate, RerankService
from knowledge_flow_backend.search.router import RERANK_HEADER
from tests.knowledge_flow_backend.corpus import ADMIN, Corpus
from tests.knowledge_flow_backend.rerank.servers import KEY, rerank_server
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.ports import free_port

QUESTION = "how is a finished turn written to postgres by the spool?"
TEXTS = (
    "Postgres is a database.",
    "A finished turn is written to Postgres by the batcher, in spool order.",
    "The spool is a file beside the service.",
    "A turn begins with an ask and ends with its final.",
    "The page shows each turn as it is written.",
)
TOP_K, TOP_R = 6, 4
SCOPES: tuple[dict[str, Any], ...] = (
    {},
    {"session_id": "s1"},
    {"session_id": "s1", "include_corpus_scope": False},
    {"document_library_tags_ids": ["lib"]},
    {"document_uids": ["doc1", "doc3"]},
    {"document_library_tags_ids": ["unknown"]},
    {"include_corpus_scope": False},
)
OFF = {"provider": "none"}
LOCAL = {"provider": "local"}


def http(base_url: str) -> dict[str, Any]:
    return {"provider": "http", "name": "m", "settings": {"base_url": base_url, "shape": "jina", "api_key": KEY}}


async def fill(corpus: Corpus) -> None:
    corpus.add_library("lib", name="Docs")
    for number, text in enumerate(TEXTS):
        await corpus.put(f"doc{number}", text, tag_ids=("lib",) if number % 2 else ())
    await corpus.put("attached", "An attached note on a turn.", "And on the spool of a finished turn.", session_id="s1")
    await corpus.put("elsewhere", "A finished turn of another session.", session_id="s2")
    await corpus.follow()  # the words are counted: no score changes any more


async def asked(service: RunningKnowledgeFlow, path: str, body: dict[str, Any]) -> tuple[str | None, list[Any]]:
    """The header and the hits, without what says nothing and without the time of the search."""
    async with service.http.post(BASE + path, json=body) as response:
        assert response.status == 200, await response.text()
        hits = await response.json()
        said = [
            {key: value for key, value in hit.items() if value is not None and key != "retrieved_at"} for hit in hits
        ]
        return response.headers.get(RERANK_HEADER), said


async def compare(service: RunningKnowledgeFlow, wanted: str) -> None:
    """By every policy and in every scope, one call and two."""
    for policy in ("hybrid", "semantic", "strict"):
        for scope in SCOPES:
            search = {"question": QUESTION, "top_k": TOP_K, "search_policy": policy, **scope}
            header, retrieved = await asked(service, "/vector/search", search)
            assert header is None
            two_hops = await asked(
                service, "/vector/rerank", {"question": QUESTION, "documents": retrieved, "top_r": TOP_R}
            )
            one_hop = await asked(service, "/vector/search", {**search, "rerank": {"top_r": TOP_R}})
            assert one_hop == two_hops, (policy, scope)
            assert one_hop[0] == (wanted if retrieved else "done")
            assert len(one_hop[1]) == min(TOP_R, len(retrieved))


async def test_the_local_reranker_gives_the_same_hits(start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus) -> None:
    await fill(corpus)
    async with start_knowledge_flow(crossencoder_model=LOCAL) as service:
        await compare(service, "done")


async def test_a_rerank_server_gives_the_same_hits_and_is_sent_the_same_texts(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)
    async with (
        rerank_server("jina") as server,
        start_knowledge_flow(crossencoder_model=http(server.base_url)) as service,
    ):
        await compare(service, "done")
    assert server.asked[0::2] == server.asked[1::2]
    assert server.refused == []


async def test_switched_off_the_order_of_retrieval_is_the_answer(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)
    async with start_knowledge_flow(crossencoder_model=OFF) as service:
        await compare(service, "skipped")
        assert service.value("app_rerank_skipped_total", cause="off") > 0


async def test_down_the_order_of_retrieval_is_the_answer(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)
    async with start_knowledge_flow(crossencoder_model=http(f"http://127.0.0.1:{free_port()}")) as service:
        await compare(service, "skipped")
        assert service.value("app_rerank_skipped_total", cause="failed") > 0
        assert service.value("app_kf_request_seconds_count", route="search", status="error") == 0


async def test_late_the_order_of_retrieval_is_the_answer(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)

    async def never(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with rerank_server("jina") as server:
        server.fault = never
        model = http(server.base_url)
        async with start_knowledge_flow(crossencoder_model=model, deadlines={"rerank_s": 0.05}) as service:
            await compare(service, "skipped")
            assert service.value("app_rerank_skipped_total", cause="late") > 0
            assert service.value("app_kf_request_seconds_count", route="search", status="error") == 0


async def test_a_rerank_that_outlasts_what_the_search_has_left_is_late(corpus: Corpus) -> None:
    class Endless:
        async def score(self, *_asked: object) -> list[float]:
            await asyncio.Event().wait()
            raise AssertionError

    reranking = RerankService(Endless(), metrics=corpus.metrics, kpi=corpus.kpi)
    for left_s in (0.01, 0.0, -1.0):
        done = await reranking.rerank("q", [Candidate("a"), Candidate("b")], 1, ADMIN, within_s=left_s)
        assert (done.order, done.skipped) == (((0, None),), "late")


async def test_one_call_embeds_once_and_times_its_rerank(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await fill(corpus)
    async with start_knowledge_flow(crossencoder_model=LOCAL) as service:
        body = {"question": QUESTION, "rerank": {}}
        async with service.http.post(f"{BASE}/vector/search", json=body) as response:
            timing = response.headers["Server-Timing"]
            assert response.headers[RERANK_HEADER] == "done"
            assert len(await response.json()) == min(6, len(TEXTS))
        assert timing.count("embed_query;dur=") == 1
        assert timing.count("vector_rerank;dur=") == timing.count(", rerank;dur=") == 1
        assert service.value("app_kf_request_seconds_count", route="search", status="ok") == 1
        assert service.value("app_kf_request_seconds_count", route="rerank", status="ok") == 0
        # Nothing asks the index again for what the search has compared.
        assert service.value("app_db_statement_seconds_count", pool="main", op="similarities") == 0


@pytest.mark.parametrize("wish", [{"top_r": 0}, {"top_r": "3"}, {"top_r": True}, {"top_r": 1001}, True, [], "yes"])
async def test_a_rerank_that_cannot_be_meant_is_refused(service: RunningKnowledgeFlow, wish: Any) -> None:
    answer = await service.post("/vector/search", {"question": "q", "rerank": wish}, status=422)
    assert answer["detail"]["code"] == "bad_request"


async def test_null_asks_for_no_rerank(service: RunningKnowledgeFlow, corpus: Corpus) -> None:
    await fill(corpus)
    header, hits = await asked(service, "/vector/search", {"question": QUESTION, "rerank": None})
    assert header is None
    assert not any("retrieval_score" in hit for hit in hits)
