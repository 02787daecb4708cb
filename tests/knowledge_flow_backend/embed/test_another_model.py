"""An index remembers its model and the length of its vectors; others are refused at start, in searches, in writes."""

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from knowledge_flow_backend.errors import SchemaMismatch
from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow
from tests.support.mock_llm import MockModel
from tests.support.opensearch import OpenSearchIndex
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"name": "another"}, "another (384)"),
    "length": ({"settings": {"dimensions": 16}}, "mock (16)"),
}


async def upload(service: RunningKnowledgeFlow) -> list[tuple[str, str | None]]:
    """Upload one file; (status, code) of its last line."""
    form = aiohttp.FormData()
    form.add_field("files", io.BytesIO(b"# Pumps\n\nText."), filename="a.md", content_type="text/markdown")
    form.add_field("metadata_json", json.dumps({"tags": []}))
    async with service.http.post(f"{BASE}/upload-process-documents", data=form) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    return [(line["status"], line.get("code")) for line in lines if line["step"] == "finished"]


@pytest.mark.parametrize(("change", "given"), CHANGES.values(), ids=CHANGES)
async def test_it_is_refused_at_start_in_a_search_and_in_an_ingestion(
    start_knowledge_flow: StartKnowledgeFlow,
    corpus: Corpus,
    mock_llm: MockModel,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    given: str,
) -> None:
    await corpus.put("doc", "the spool")
    settings = {"base_url": mock_llm.base_url, "max_retries": 0, **change.get("settings", {})}
    model = {"provider": "openai", "name": "mock", **change, "settings": settings}
    async with start_knowledge_flow(ready=False, embedding_model=model) as service:
        async with asyncio.timeout(PATIENCE_S):
            while await _ready(service) != "schema_mismatch":  # noqa: ASYNC110 - what an operator's probe does
                await asyncio.sleep(0.02)
        for policy in ("hybrid", "semantic"):
            body = {"question": "the spool", "search_policy": policy}
            answer = await service.post("/vector/search", body, status=409)
            assert answer["detail"]["code"] == "schema_mismatch"
        assert await upload(service) == [("error", "schema_mismatch")]
    assert "holds vectors of mock (384 numbers)" in caplog.text
    assert given in caplog.text
    assert corpus.sql("SELECT embedding_model, dimension FROM index_info") == [("mock", 384)]
    assert corpus.sql("SELECT uid FROM documents WHERE status = 'ready'") == [("doc",)]


async def test_the_model_and_length_of_an_empty_index_are_those_that_come_first(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus, mock_llm: MockModel
) -> None:
    settings = {"base_url": mock_llm.base_url, "dimensions": 16}
    model = {"provider": "openai", "name": "another", "settings": settings}
    async with start_knowledge_flow(embedding_model=model) as service:
        assert await upload(service) == [("success", None)]
        assert len(await service.search("pumps")) == 1
    assert corpus.sql("SELECT embedding_model, dimension FROM index_info") == [("another", 16)]


async def test_an_endpoint_that_is_away_at_start_does_not_keep_words_from_being_searched(
    start_knowledge_flow: StartKnowledgeFlow, corpus: Corpus
) -> None:
    await corpus.put("doc", "the spool")
    model = {"provider": "openai", "name": "mock", "settings": {"base_url": "http://127.0.0.1:1/v1"}}
    async with start_knowledge_flow(embedding_model=model) as service:
        assert len(await service.search("the spool", search_policy="strict")) == 1
        assert await _ready(service) == "ready"


@pytest.mark.java
async def test_opensearch_refuses_them_as_well(database: Database, opensearch: OpenSearchIndex) -> None:
    async with Corpus.on_opensearch(database, opensearch) as corpus:
        await corpus.put("doc", "the spool")
        await corpus.follow()
        await corpus.index.check()
        await corpus.index.check(384)
        with pytest.raises(SchemaMismatch):
            await corpus.index.check(16)
    async with Corpus.on_opensearch(database, opensearch, model="another") as other:
        with pytest.raises(SchemaMismatch):
            await other.index.check()
        with pytest.raises(SchemaMismatch):
            await other.search("the spool", "semantic")
        with pytest.raises(SchemaMismatch):
            await other.put("next", "the pool")


async def _ready(service: RunningKnowledgeFlow) -> str:
    async with service.http.get(f"{BASE}/ready") as response:
        return str((await response.json())["status"])
