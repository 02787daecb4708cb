"""The fake model as a reranker, in the shapes that rerank servers have."""

from typing import Any

import pytest

from tests.ws_bench.fakes.conftest import Model, StartModel

pytestmark = pytest.mark.servers

DOCUMENTS = ["the pump leaks", "who writes the spool", "the spool is written by the batcher"]
ASK = {"model": "mock", "query": "who writes the spool", "documents": DOCUMENTS}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_come_back_best_first(model: Model, path: str) -> None:
    status, body = await model.post(path, ASK)
    assert status == 200
    assert [entry["index"] for entry in body["results"]] == [1, 2, 0]
    assert body["results"][0]["relevance_score"] == pytest.approx(1.0, abs=1e-6)
    assert "document" not in body["results"][0]
    assert (await model.stats())["requests"]["reranks"] == 1


async def test_what_is_asked_for_is_given(model: Model) -> None:
    asked = {**ASK, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 1, "return_documents": True}
    _, body = await model.post("/v1/rerank", asked)
    (entry,) = body["results"]
    assert entry["document"] == {"text": DOCUMENTS[1]}


async def test_texts_are_answered_with_a_bare_list(model: Model) -> None:
    asked = {"query": ASK["query"], "texts": DOCUMENTS, "truncate": True, "return_text": True}
    status, body = await model.post("/rerank", asked)
    assert status == 200
    assert [entry["index"] for entry in body] == [1, 2, 0]
    assert [entry["text"] for entry in body] == [DOCUMENTS[1], DOCUMENTS[2], DOCUMENTS[0]]
    assert set(body[0]) == {"index", "score", "text"}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"query": "q"},
        {"query": "q", "documents": ["x"]},
        {"query": 1, "model": "m", "documents": ["x"]},
        {"query": "q", "model": "m", "documents": []},
        {"query": "q", "model": "m", "documents": [1]},
        {"query": "q", "model": "m", "documents": ["x"], "top_n": "all"},
        {"query": "q", "texts": ["x"] * 33},
    ],
)
async def test_bad_rerank_requests_are_a_400(model: Model, body: Any) -> None:
    status, answer = await model.post("/v1/rerank", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert (await model.stats())["requests"]["refused"] == 1


async def test_reranks_may_be_slow(start_model: StartModel) -> None:
    model = await start_model("--rerank-latency", "20ms")
    status, body = await model.post("/v1/rerank", ASK)
    assert (status, len(body["results"])) == (200, 3)
