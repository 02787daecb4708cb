"""What Rico cites opens where it stands: real page, agentic service, knowledge flow, Postgres and embedder."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from agentic_backend.app import Parts
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, run_knowledge_flow, settings_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.service import RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
MANUAL = ROOT / "config" / "samples" / "turnwise-operations.pdf"
ON_TURNS = [README, MANUAL, *(ROOT / "docs" / f"{name}.md" for name in ("contract", "protocol", "search", "tour"))]
"""`tests/turnwise/test_starters.py` ingests all of ours, which takes minutes of CPU where a core has no VNNI."""
QUESTION = "How does Turnwise persist a turn?"
AGENTS = [
    {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
    {
        "name": "Rico",
        "class_path": "agentic_backend.agent.rag",
        "chat_options": {"libraries_selection": True, "documents_selection": True, "search_policy_selection": True},
    },
]


async def ingest(knowledge: RunningKnowledgeFlow, *files: Path) -> dict[str, str]:
    """Upload files and wait for their end; the uid of each document by its file's name."""
    form = aiohttp.FormData()
    for file in files:
        form.add_field("files", file.read_bytes(), filename=file.name, content_type="application/octet-stream")
    tag = await knowledge.post("/tags", {"name": "Turnwise", "type": "document"}, status=201)
    form.add_field("metadata_json", json.dumps({"tags": [tag["id"]]}))
    async with knowledge.http.post(f"{KNOWLEDGE_BASE}/upload-process-documents", data=form) as response:
        assert response.status == 200, await response.text()
        lines = (await response.text()).splitlines()
    browsed = await knowledge.post("/documents/browse", {"limit": 100})
    uids = {document["file_name"]: document["document_uid"] for document in browsed["documents"]}
    assert {file.name for file in files} <= set(uids), lines
    return uids


@pytest_asyncio.fixture(loop_scope="module")
async def knowledge(database: Database, mock_llm: MockModel) -> AsyncIterator[RunningKnowledgeFlow]:
    """Knowledge flow with its own embedder."""
    local = {"provider": "local", "name": "all-MiniLM-L6-v2", "settings": {}}
    async with run_knowledge_flow(settings_on(database, mock_llm.base_url, embedding_model=local)) as running:
        yield running


@pytest.fixture
def documents() -> list[Path]:
    """What the library holds; a test that searches among more says so."""
    return [README, MANUAL]


@pytest_asyncio.fixture(loop_scope="module")
async def library(
    knowledge: RunningKnowledgeFlow, start_service: StartService, documents: list[Path]
) -> AsyncIterator[tuple[RunningService, dict[str, str]]]:
    """The agentic service beside a knowledge flow that holds the documents, and their uids."""
    uids = await ingest(knowledge, *documents)
    ai: dict[str, Any] = {
        "knowledge_flow_url": f"http://127.0.0.1:{knowledge.port}{KNOWLEDGE_BASE}",
        "agents": AGENTS,
    }
    async with start_service(model="mock;gap=5", ai=ai, parts=Parts(knowledge_s=PATIENCE_S)) as service:
        yield service, uids


async def ask_rico(page: Page, service: RunningService, question: str = QUESTION) -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#connection")).to_have_text("Connected")
    await page.locator("#agent").select_option("Rico")
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(page.locator(".sources")).to_be_visible()


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


async def in_sight(node: Locator) -> bool:
    """Whether a node lies within the viewport and nothing covers its first line."""
    visible: bool = await node.evaluate(
        """(node) => {
          const box = node.getClientRects()[0];
          const hit = document.elementFromPoint(box.left + 2, box.top + box.height / 2);
          return box.top >= 0 && box.bottom <= innerHeight && (hit === node || node.contains(hit));
        }"""
    )
    return visible


@pytest.mark.parametrize("documents", [ON_TURNS], ids=["those on turns"])
async def test_citations_open_our_documents_at_the_cited_sentence(page, library, tmp_path):
    service, _ = library
    await ask_rico(page, service)
    answer = page.locator(".answer .markdown")
    markers = answer.locator("button.citation")
    assert await markers.count() >= 1
    assert "[1]" not in await answer.inner_text()
    entries = page.locator(".sources li button")
    numbers = [int(number) for number in await page.locator(".sources .number").all_text_contents()]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    await page.screenshot(path=tmp_path / "answer.png")

    reader = page.locator("#reader")
    for at in range(await markers.count()):
        marker = markers.nth(at)
        number = int(await marker.inner_text())
        await marker.click()
        mark = reader.locator("mark").first
        await expect(mark).to_be_visible()
        assert await in_sight(mark)
        title = await page.locator("#reader-title").inner_text()
        assert title in await entries.nth(numbers.index(number)).inner_text()
        marked = " ".join(await reader.locator("mark").all_text_contents())
        said = words(await answer.inner_text())
        assert len(words(marked) & said) >= 0.8 * len(words(marked))
        # What is marked is of the passage, not of elsewhere in the document.
        assert await reader.locator("mark").count() == await reader.locator(".cited mark").count()
        await page.screenshot(path=tmp_path / f"citation-{at}.png")
        await page.keyboard.press("Escape")
        await expect(reader).to_be_hidden()

    await page.reload()
    await expect(markers.first).to_be_visible()
    await entries.first.click()
    await expect(reader.locator(".cited").first).to_be_visible()
    assert await in_sight(reader.locator(".cited").first)


async def test_only_numbers_of_sources_become_markers_and_only_outside_code_and_links(page, fake):
    await page.goto(fake.url)
    peer = await fake.peer()
    await page.get_by_label("Your message").fill("Which?")
    await page.keyboard.press("Enter")
    told = await fake.told(peer)
    await told.begin()
    source = {"content": "x", "uid": "d1", "title": "<b>One</b>", "score": 0.5, "citation_url": "javascript:alert(1)"}
    web = {"content": "y", "uid": "d2", "title": "Two", "score": 0.25, "citation_url": "https://x.example/two"}
    await told.say("sources", sources=[source, web])
    text = "First [1]. Both [1, 2], none [0] [3] [9, 12] `[1]` [1](https://x.example/) [see [2]](https://y.example/) !"
    for at in range(0, len(text), 3):
        await told.delta(text[at : at + 3])
    await expect(page.locator(".markdown")).to_contain_text("!")
    markers = page.locator(".markdown button.citation")
    await expect(markers).to_have_count(3)
    streamed = await markers.all_text_contents()
    await told.finish(text)
    await expect(page.locator(".sources")).to_be_visible()
    assert streamed == await markers.all_text_contents() == ["1", "1", "2"]
    shown = await page.locator(".markdown").inner_text()
    for left in ("[0]", "[3]", "[9, 12]", "[1]", "see [2]"):
        assert left in shown
    assert await page.locator(".sources b").count() == 0
    assert await page.locator(".sources a").get_attribute("href") == "https://x.example/two"
    assert await page.locator(".sources li.cited").count() == 2


async def test_a_document_that_cannot_be_read_is_said_in_its_panel(page, library, knowledge):
    service, uids = library
    await page.goto(f"http://127.0.0.1:{service.port}/documents/unknown#chunk=none")
    await expect(page.locator("#reader-state")).to_contain_text("This document is not there")
    await page.goto(f"http://127.0.0.1:{service.port}/documents/{uids['README.md']}#chunk=none")
    await expect(page.locator("#reader-state")).to_contain_text("The document has changed since")
    await expect(page.locator("#reader-text h3").first).to_have_text("Turnwise")


async def test_the_address_of_a_citation_opens_the_page_at_the_passage(page, library, knowledge):
    service, uids = library
    uid = uids["turnwise-operations.pdf"]
    async with knowledge.http.get(f"{KNOWLEDGE_BASE}/documents/{uid}/chunks") as response:
        chunk = (await response.json())[-1]
    assert chunk["page"] > 1
    await page.goto(f"http://127.0.0.1:{service.port}/documents/{uid}#chunk={chunk['chunk_uid']}")
    reader = page.locator("#reader")
    await expect(reader.locator(".cited").first).to_be_visible()
    await expect(page.locator("#reader-place")).to_contain_text(f"page {chunk['page']}")
    assert await in_sight(reader.locator(".cited").first)
    await page.get_by_role("button", name="Close the document").click()
    await expect(reader).to_be_hidden()
    await expect(page).to_have_url(f"http://127.0.0.1:{service.port}/#/")
    await expect(page.get_by_text("What would you like to know?")).to_be_visible()
