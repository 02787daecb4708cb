"""A person gives Rico a file, asks about it, opens the cited passage, and takes the file away again."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from agentic_backend.app import Parts
from knowledge_flow_backend.ingest.names import SUFFIXES
from tests.checks.source import ROOT
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.service import StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

PATIENT = Parts(knowledge_s=PATIENCE_S)

PUMPS = "# Pumps\n\n## Cleaning\n\nRinse the filter once a week with warm water.\n"


def settings(port: int, **ai: Any) -> dict[str, Any]:
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Rico", "class_path": "agentic_backend.agent.rag", "chat_options": {"attach_files": True}},
    ]
    return {"knowledge_flow_url": f"http://127.0.0.1:{port}{KNOWLEDGE_BASE}", "agents": agents, **ai}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files to choose from, by name."""
    contents = {"pumps.md": PUMPS.encode(), "tool.exe": b"MZ", "large.txt": b"x" * (1024 * 1024 + 1)}
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    return {name: tmp_path / name for name in contents}


async def open_page(page: Page, port: int) -> None:
    await page.goto(f"http://127.0.0.1:{port}/")
    await expect(page.locator("#connection")).to_have_text("Connected")


async def choose(page: Page, *chosen: Path) -> None:
    async with page.expect_file_chooser() as choosing:
        await page.get_by_role("button", name="Attach files").click()
    await (await choosing.value).set_files(list(chosen))


async def test_a_file_is_attached_cited_kept_over_a_reload_and_removed(page, start_service, database, mock_llm, files):
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(ai=settings(knowledge.port), parts=PATIENT) as service,
    ):
        await open_page(page, service.port)
        # Georges reads no files.
        await expect(page.get_by_role("button", name="Attach files")).to_be_hidden()
        await page.get_by_label("Agent").select_option("Rico")
        await page.get_by_label("Your message").fill("How often is the filter rinsed?")
        await choose(page, files["pumps.md"])
        attached = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await expect(page.get_by_role("button", name="Remove pumps.md")).to_be_visible()
        await expect(attached).to_have_count(1)
        await page.get_by_label("Your message").press("Enter")
        await expect(page.locator(".answer .markdown")).to_contain_text("Rinse the filter once a week")
        await expect(page.locator(".sources")).to_contain_text("Pumps")
        await page.locator(".answer .markdown button.citation").first.click()
        await expect(page.locator("#reader mark").first).to_contain_text("Rinse the filter once a week")
        await page.keyboard.press("Escape")

        # It is shown with the question that it came before.
        with_question = page.get_by_role("list", name="Files that came with this question").get_by_role("listitem")
        await expect(with_question).to_have_text("pumps.md")

        await page.reload()
        await expect(attached).to_have_text(f"pumps.md{len(PUMPS)} bytes")
        await expect(with_question).to_have_text("pumps.md")
        await page.get_by_role("button", name="Remove pumps.md").click()
        await expect(attached).to_have_count(0)
        await expect(page.get_by_label("Your message")).to_be_focused()
        (session,) = await service.get("/chatbot/sessions")
        assert session["attachments"] == []
        await page.get_by_role("button", name="New conversation").first.click()
        await expect(attached).to_have_count(0)


async def test_what_cannot_be_attached_is_said_by_its_name(page, start_service, database, mock_llm, files):
    limits = {"max_attached_file_size_mb": 1}
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(ai=settings(knowledge.port, **limits), parts=PATIENT) as service,
    ):
        await open_page(page, service.port)
        await page.get_by_label("Agent").select_option("Rico")
        rows = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        tool, large, again = (rows.filter(has_text=name) for name in ("tool.exe", "large.txt", "attached already"))
        await choose(page, files["tool.exe"], files["pumps.md"])
        await expect(rows.filter(has_text="pumps.md")).not_to_have_attribute("aria-busy", "true")
        await expect(tool.get_by_role("alert")).to_have_text(
            "This file could not be read: Files of this type are not supported."
        )
        await choose(page, files["large.txt"])
        await expect(large.get_by_role("alert")).to_have_text("This file is too large: At most 1 MB can be attached.")
        await choose(page, files["pumps.md"])
        await expect(again.get_by_role("alert")).to_contain_text("A file of this name is attached already")
        await expect(rows).to_have_count(4)
        await page.get_by_role("button", name="Remove tool.exe").click()
        await expect(tool).to_have_count(0)
        await expect(page.get_by_label("Your message")).to_be_focused()
        assert len(await service.get("/chatbot/sessions")) == 1


DROP = """([selector, type, files]) => {
  const data = new DataTransfer();
  for (const [name, text] of files) data.items.add(new File([text], name));
  const made = type === "paste" ? new ClipboardEvent(type, { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(selector).dispatchEvent(made);
  return made.defaultPrevented;
}"""


async def test_files_are_dropped_and_pasted_and_the_question_waits_for_them(
    page: Page, start_service: StartService, database: Database, mock_llm: MockModel
) -> None:
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(ai=settings(knowledge.port), parts=PATIENT) as service,
    ):
        asked = asyncio.Event()

        async def create_session(route: Route) -> None:
            await asked.wait()
            await route.continue_()

        await page.route("**/chatbot/session", create_session)
        await open_page(page, service.port)
        hint = page.locator("#drop-hint")
        name = "<img src=x onerror=document.title=1>.md"
        await page.evaluate(DROP, ["#log", "dragenter", [["a.md", PUMPS]]])
        await expect(hint).to_have_text("This agent takes no files")
        # Where no files are taken, the browser still must not open them in the place of the page.
        assert await page.evaluate(DROP, ["#log", "drop", [["a.md", PUMPS]]])
        await expect(hint).to_be_hidden()
        await page.get_by_label("Agent").select_option("Rico")
        await page.evaluate(DROP, ["#log", "dragenter", [["a.md", PUMPS]]])
        await expect(hint).to_have_text("Drop files to attach them")
        await page.evaluate(DROP, ["#log", "drop", [["a.md", PUMPS], ["b.txt", "Bees sleep at night."]]])
        assert await page.evaluate(DROP, ["#message", "paste", [[name, "Third."]]])
        assert not await page.evaluate(DROP, ["#message", "paste", []])
        await page.get_by_label("Your message").fill("How often is the filter rinsed?")
        # The files belong to a conversation that is being created.
        await page.keyboard.press("Enter")
        asked.set()
        await expect(page.locator(".answer .markdown")).to_contain_text("Rinse the filter once a week")
        rows = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        await expect(rows).to_have_count(3)
        assert sorted(await rows.locator(".attachment-name").all_text_contents()) == [name, "a.md", "b.txt"]
        with_question = page.get_by_role("list", name="Files that came with this question").get_by_role("listitem")
        await expect(with_question).to_have_count(3)
        assert sorted(await with_question.all_text_contents()) == [name, "a.md", "b.txt"]


async def test_the_chooser_offers_what_is_read() -> None:
    script = (ROOT / "agentic_backend/web/attachments.js").read_text()
    (listed,) = re.findall(r"export const ENDINGS = \[(.*?)\];", script, re.DOTALL)
    assert set(re.findall(r'"(\w+)"', listed)) == SUFFIXES
