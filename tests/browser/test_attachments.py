"""A person gives Rico a file, asks about it, opens the cited passage, and takes the file away again."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from agentic_backend.app import Parts
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import start_on
from tests.support.patience import PATIENCE_S

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

        await page.reload()
        await expect(attached).to_have_text("pumps.md")
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
        alert = page.get_by_role("alert")
        await choose(page, files["tool.exe"], files["pumps.md"])
        await expect(page.get_by_role("button", name="Remove pumps.md")).to_be_visible()
        await expect(alert).to_contain_text(
            "This file could not be read tool.exe: Files of this type are not supported."
        )
        await choose(page, files["large.txt"])
        await expect(alert).to_contain_text("This file is too large large.txt: At most 1 MB can be attached.")
        await choose(page, files["pumps.md"])
        await expect(alert).to_contain_text("A file of this name is attached already")
        assert len(await service.get("/chatbot/sessions")) == 1
