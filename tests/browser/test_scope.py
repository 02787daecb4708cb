"""Choosing where a conversation searches, and who is asked, against the real services."""

import json
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, expect

from agentic_backend.app import Parts
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.service import BASE, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

PATIENT = Parts(knowledge_s=PATIENCE_S)
OPTIONS = dict.fromkeys(
    (
        *("search_policy_selection", "libraries_selection", "documents_selection"),
        *("search_rag_scoping", "include_corpus_in_search"),
    ),
    True,
)
HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"


def settings(port: int) -> dict[str, Any]:
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {
            "name": "Rico",
            "class_path": "agentic_backend.agent.rag",
            "chat_options": OPTIONS,
            "starters": ["How often is the filter rinsed?"],
            "tuning": {"role": "Librarian", "description": "Answers from documents."},
        },
    ]
    return {"knowledge_flow_url": f"http://127.0.0.1:{port}{KNOWLEDGE_BASE}", "agents": agents}


async def library(knowledge: RunningKnowledgeFlow, name: str, file: str, text: str) -> None:
    """A library with one document."""
    made = await knowledge.post("/tags", {"name": name, "type": "document"}, status=201)
    form = aiohttp.FormData()
    form.add_field("files", text.encode(), filename=file, content_type="application/octet-stream")
    form.add_field("metadata_json", json.dumps({"tags": [made["id"]]}))
    async with knowledge.http.post(f"{KNOWLEDGE_BASE}/upload-process-documents", data=form) as response:
        assert (await response.text()).count('"finished"') == 1


async def ask(page: Page, question: str) -> set[str]:
    """The titles of the sources that a question is answered from."""
    turns = page.locator(".turn")
    before = await turns.count()
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(turns).to_have_count(before + 1)
    await expect(turns.last).to_have_attribute("data-status", "done")
    return set(await turns.last.locator(".sources .source-title").all_text_contents())


async def test_a_conversation_searches_where_its_chips_say(
    page: Page, start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(ai=settings(knowledge.port), parts=PATIENT) as service,
    ):
        await library(knowledge, "Pumps", "pumps.md", "# Pumps\n\nRinse the filter of the pump once a week.\n")
        await library(knowledge, HOSTILE, "ovens.md", "# Ovens\n\nRinse the filter of the oven once a year.\n")
        await page.goto(f"http://127.0.0.1:{service.port}/")
        where = page.get_by_role("button", name="Where to search")
        rico = page.get_by_role("button", name="Rico Librarian")
        await expect(where).to_be_hidden()
        await rico.click()
        await expect(rico).to_have_attribute("aria-pressed", "true")
        await expect(rico).to_be_focused()
        await expect(page.locator("#agent")).to_have_value("Rico")
        await expect(page.get_by_role("button", name="How often is the filter rinsed?")).to_be_visible()
        question = "How often is the filter rinsed?"

        # Chosen before there is a conversation, by the keyboard alone.
        await where.focus()
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="Where to search")
        libraries = dialog.get_by_role("group", name="Libraries")
        await expect(libraries.get_by_role("checkbox")).to_have_count(2)
        await libraries.get_by_label(HOSTILE).focus()
        await page.keyboard.press("Space")
        await page.keyboard.press("Escape")
        await expect(where).to_be_focused()
        chips = page.get_by_role("list", name="Where to search").get_by_role("listitem")
        await expect(chips).to_have_text(f"Library: {HOSTILE}")
        async with page.expect_response("**/preferences"):
            assert await ask(page, question) == {"Ovens"}
        await page.reload()
        await expect(chips).to_have_text(f"Library: {HOSTILE}")
        await page.get_by_role("button", name=f"Remove: Library: {HOSTILE}").click()
        await expect(chips).to_have_count(0)
        await expect(page.get_by_label("Your message")).to_be_focused()
        assert await ask(page, question) == {"Pumps", "Ovens"}

        await where.click()
        documents = dialog.get_by_role("group", name="Documents")
        await documents.get_by_label("Find a document").fill("pump")
        await expect(documents.get_by_role("checkbox")).to_have_count(1)
        await documents.get_by_label("Pumps").check()
        await dialog.get_by_label("Find passages").select_option(label="Exact words")
        await dialog.get_by_role("button", name="Done").click()
        await expect(chips).to_have_text(["Document: Pumps", "Exact words"])
        assert await ask(page, "filter") == {"Pumps"}
        assert await ask(page, "sieve") == set()

        await where.click()
        await dialog.get_by_label("Find passages").select_option(label="As the agent does")
        await dialog.get_by_label("Answer").select_option(label="Without documents")
        await dialog.get_by_role("button", name="Done").click()
        await expect(chips).to_have_text(["Document: Pumps", "Without documents"])
        assert await ask(page, question) == set()
        await page.get_by_role("button", name="Remove: Without documents").click()
        await where.click()
        await dialog.get_by_label("Search libraries").uncheck()
        await dialog.get_by_role("button", name="Done").click()
        await expect(chips).to_have_text(["Document: Pumps", "Without libraries"])
        assert await ask(page, question) == set()


async def test_what_is_kept_of_a_scope_may_be_anything(page: Page, start_service: StartService) -> None:
    agents = settings(1)["agents"]
    async with start_service(ai={"agents": agents}) as service:
        session_id = await service.create_session(agent_id="Rico")
        scope = {"libraries": [{"id": 1}, "x", {"id": "l", "name": HOSTILE}], "documents": 3, "policy": "no", "rag": []}
        path = f"{BASE}/chatbot/session/{session_id}/preferences"
        async with service.http.put(path, json={"preferences": {"scope": scope}}) as response:
            assert response.status == 200
        await page.goto(f"http://127.0.0.1:{service.port}/#/c/{session_id}")
        chips = page.get_by_role("list", name="Where to search").get_by_role("listitem")
        await expect(chips).to_have_text(f"Library: {HOSTILE}")
