"""Both services, really: an uploaded document is asked about, and the citation leads to the passage it came from."""

import json
from typing import Any

import aiohttp
import pytest

from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, start_on
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.service import RunningService, StartService, hear_until, say

SPOOL = """# Persistence

## The spool

A finished turn is appended to the local spool. The append takes about one millisecond.

## Postgres

The batcher writes turns to Postgres in groups, in the order of the spool.
"""
BEES = "# Bees\n\nBees make honey from nectar.\n\n## Wasps\n\nWasps hunt flies and make no honey.\n"


@pytest.fixture
def chunked() -> dict[str, Any]:
    """Chunks small enough that each section is one."""
    return {"processing": {"chunk_size_chars": 150, "chunk_overlap_chars": 0}}


def agents(port: int) -> dict[str, Any]:
    """The agentic service's side: Rico on that knowledge flow."""
    return {
        "ai": {
            "knowledge_flow_url": f"http://127.0.0.1:{port}{BASE}",
            "agents": [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}],
        }
    }


async def upload(knowledge: RunningKnowledgeFlow, name: str, text: str, *tags: str) -> str:
    """Ingest one file; its document uid."""
    form = aiohttp.FormData()
    form.add_field("files", text.encode(), filename=name, content_type="text/markdown")
    form.add_field("metadata_json", json.dumps({"tags": tags, "source_tag": "fred"}))
    async with knowledge.http.post(f"{BASE}/upload-process-documents", data=form) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    (uid,) = {line["document_uid"] for line in lines if line.get("document_uid")}
    return str(uid)


async def ask(service: RunningService, session_id: str, message: str, **context: Any) -> dict[str, Any]:
    async with service.native() as socket:
        frame = {"session_id": session_id, "agent_id": "Rico", "message": message, "runtime_context": context}
        await say(socket, type="ask", **frame)
        return (await hear_until(socket, "final"))[-1]


async def test_an_answer_cites_the_uploaded_passage_and_a_follow_up_finds_the_next(
    start_service: StartService, database: Database, mock_llm: MockModel, chunked: dict[str, Any]
) -> None:
    async with start_on(database, mock_llm.base_url)(**chunked) as knowledge:
        spool = await upload(knowledge, "spool.md", SPOOL)
        await upload(knowledge, "bees.md", BEES)
        async with start_service(**agents(knowledge.port)) as service:
            session_id = await service.create_session(agent_id="Rico")
            first = await ask(service, session_id, "Where is a finished turn appended?")
            second = await ask(service, session_id, "and how long does that take?")
    answer = first["messages"][-1]
    text, *links = answer["parts"]
    assert text["text"].startswith("A finished turn is appended to the local spool. [1]")
    assert links[0]["document_uid"] == spool
    assert links[0]["href"].startswith(f"/documents/{spool}#chunk=")
    best = answer["metadata"]["sources"][0]
    assert (best["title"], best["section"], best["rank"]) == ("Persistence", "The spool", 1)
    assert "retrieval_rank" in best
    assert first["warnings"] == second["warnings"] == []
    assert "rerank" not in answer["metadata"]["extras"]
    depths = {row["phase"]: row["depth"] for row in first["ledger"]}
    assert depths["kf_vector_rerank"] == depths["kf_vector_search"] + 1
    assert depths["kf_rerank"] == depths["kf_vector_rerank"] + 1
    assert second["messages"][-1]["metadata"]["sources"][0]["section"] == "The spool"


async def test_documents_and_scope_narrow_what_is_found(
    start_service: StartService, database: Database, mock_llm: MockModel, chunked: dict[str, Any]
) -> None:
    async with start_on(database, mock_llm.base_url)(**chunked) as knowledge:
        await upload(knowledge, "spool.md", SPOOL)
        bees = await upload(knowledge, "bees.md", BEES)
        async with start_service(**agents(knowledge.port)) as service:
            session_id = await service.create_session(agent_id="Rico")
            question = "Where is a finished turn appended?"
            narrowed = await ask(service, session_id, question, selected_document_uids=[bees])
            unknown = await ask(service, session_id, question, selected_document_libraries_ids=["no-such-library"])
            general = await ask(service, session_id, question, search_rag_scope="general_only")
    found = narrowed["messages"][-1]["metadata"]["sources"]
    assert {source["uid"] for source in found} == {bees}
    for final, phase in ((unknown, "answer_no_results"), (general, "answer_general_only")):
        assert "sources" not in final["messages"][-1]["metadata"]
        assert phase in {row["phase"] for row in final["ledger"]}


async def test_without_a_reranker_in_knowledge_flow_the_rerank_is_said_to_be_skipped(
    start_service: StartService, database: Database, mock_llm: MockModel, chunked: dict[str, Any]
) -> None:
    plain = {"crossencoder_model": {"provider": "none"}}
    async with start_on(database, mock_llm.base_url)(**chunked, **plain) as knowledge:
        await upload(knowledge, "spool.md", SPOOL)
        async with start_service(**agents(knowledge.port)) as service:
            session_id = await service.create_session(agent_id="Rico")
            final = await ask(service, session_id, "Where is a finished turn appended?")
    metadata = final["messages"][-1]["metadata"]
    assert metadata["extras"]["rerank"] == "skipped"
    assert metadata["sources"]
