"""docs/search.md says what a running knowledge flow says: its examples have the shapes of real answers."""

import json
from typing import Any

import aiohttp
import pytest

from knowledge_flow_backend.ingest.names import SUFFIXES
from knowledge_flow_backend.library.reasons import SENTENCES
from knowledge_flow_backend.library.router import build_router as library_router
from knowledge_flow_backend.search.wire import RerankRequest, SearchRequest
from tests.docs.pages import ROOT, blocks, table
from tests.knowledge_flow_backend.service import BASE, RunningKnowledgeFlow, StartKnowledgeFlow

PAGE = ROOT / "docs/search.md"
SHOWN = {block.name: json.loads(block.text) for block in blocks(PAGE, "example")}
TEXT = b"# Pumps\n\n## Cleaning\n\nRinse the filter once a week with warm water.\n"


def shape(value: Any) -> Any:
    """Keys and types of a value, without what differs from run to run."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


async def get(service: RunningKnowledgeFlow, path: str) -> Any:
    """The decoded body of a 200."""
    async with service.http.get(BASE + path) as response:
        assert response.status == 200, path
        return await response.json()


async def upload(service: RunningKnowledgeFlow, tag: str) -> list[dict[str, Any]]:
    """The lines of the page's upload."""
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("metadata_json", json.dumps({"tags": [tag], "source_tag": "mine"}))
    form.add_field("files", TEXT, filename="pumps/p1.md")
    form.add_field("files", b"\x00\x01", filename="p2.bin")
    async with service.http.post(f"{BASE}/upload-process-documents", data=form) as response:
        assert response.status == 200
        return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_the_examples_are_what_the_service_answers(start_knowledge_flow: StartKnowledgeFlow) -> None:
    async with start_knowledge_flow() as service:
        heard: dict[str, Any] = {}
        heard["tag"] = await service.post("/tags", {"name": "Manuals", "path": "products"}, status=201)
        async with service.http.put(f"{BASE}/tags/{heard['tag']['id']}/access", json=SHOWN["access"]) as response:
            heard["access"] = await response.json()
        heard["lines"] = await upload(service, heard["tag"]["id"])
        heard["hits"] = await service.post("/vector/search", SHOWN["search-request"])
        reranked = await service.post("/vector/rerank", SHOWN["rerank-request"])
        uid, chunk = heard["hits"][0]["uid"], heard["hits"][0]["viewer_fragment"].removeprefix("chunk=")
        attached = aiohttp.FormData({"session_id": "s1"})  # multipart, because there is a file in it
        attached.add_field("file", TEXT, filename="pumps.md")
        heard["attached"] = await service.post("/fast/ingest", None, data=attached)
        heard["document"] = await get(service, f"/documents/metadata/{uid}")
        heard["passage"] = await get(service, f"/documents/{uid}/chunks/{chunk}")
    assert {name: shape(SHOWN[name]) for name in heard} == {name: shape(value) for name, value in heard.items()}
    assert [(line["step"], line["status"]) for line in heard["lines"]] == [
        (line["step"], line["status"]) for line in SHOWN["lines"]
    ]
    assert heard["hits"][0]["content"] == SHOWN["hits"][0]["content"]
    (given,) = SHOWN["rerank-request"]["documents"]
    assert (reranked[0]["retrieval_score"], reranked[0]["retrieval_rank"]) == (given["score"], given["rank"])


@pytest.mark.parametrize("name", ["search-request", "rerank-request"])
def test_every_field_of_a_request_is_shown(name: str) -> None:
    model = {"search-request": SearchRequest, "rerank-request": RerankRequest}[name]
    model.model_validate(SHOWN[name])
    assert set(SHOWN[name]) == set(model.model_fields)


def test_the_reasons_are_those_of_the_code() -> None:
    said = {word.strip("`"): text for word, text in table(PAGE, "reason", "text")}
    assert said == {reason.value: text for reason, text in SENTENCES.items()}


def test_the_endings_are_those_that_are_read() -> None:
    rows = table(PAGE, "format", "endings", "sections from", "pages")
    said = {word.strip("`") for row in rows for word in row[1].split(", ")}
    assert said - {"none"} == SUFFIXES


def test_every_route_of_libraries_is_in_the_table() -> None:
    router = library_router(lambda: pytest.fail("no request is made"), lambda: None, "")
    routes = {
        (method, route.path)
        for route in router.routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    said = set()
    for cell, _ in table(PAGE, "route", "answer"):
        method, _, rest = cell.replace("`", "").partition(" ")
        said.add((method, rest.partition(" ")[0].partition("?")[0]))
    assert {(method, path.replace("{tag_id}", "{id}")) for method, path in routes} == said
