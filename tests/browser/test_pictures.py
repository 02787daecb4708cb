"""Images in questions: attached, shown with them, seen by the model, kept over a reload; and what is refused."""

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from agentic_backend.app import Parts
from tests.browser.conftest import Chromium
from tests.browser.test_attachments import choose, open_page
from tests.browser.test_axe import Look, wrong_in
from tests.knowledge_flow_backend.service import BASE as KNOWLEDGE_BASE
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.pictures import encoded, halves
from tests.support.postgres import Database
from tests.support.service import RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

PATIENT = Parts(knowledge_s=PATIENCE_S)
HOSTILE = "<img src=x onerror=document.title=1>\u202egnp.png"
"""A name with markup and a mark that turns the direction of what follows."""
PASTE = """async ([selector, name, data]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const pasted = new DataTransfer();
  pasted.items.add(new File([bytes], name, { type: "image/png" }));
  const event = new ClipboardEvent("paste", { clipboardData: pasted, bubbles: true, cancelable: true });
  document.querySelector(selector).dispatchEvent(event);
}"""


def settings(port: int, mock_llm: MockModel) -> dict[str, Any]:
    """A model that sees images, and one that does not; Georges takes no other files."""
    model = {"name": "mock;ttft=0;gap=0", "vision": True, "settings": {"base_url": mock_llm.base_url}}
    return {
        "knowledge_flow_url": f"http://127.0.0.1:{port}{KNOWLEDGE_BASE}",
        "default_chat_model": model,
        "chat_models": [{"id": "blind", "title": "Blind", "name": "mock;ttft=0;gap=0"}],
        "agents": [
            {"name": "Georges", "class_path": "agentic_backend.agent.plain", "further_models": ["blind"]},
            {"name": "Rico", "class_path": "agentic_backend.agent.rag", "chat_options": {"attach_files": True}},
        ],
    }


@pytest_asyncio.fixture(loop_scope="module")
async def seeing(start_service: StartService, database: Database, mock_llm: MockModel) -> AsyncIterator[RunningService]:
    """The service, beside one that redraws images."""
    async with (
        start_on(database, mock_llm.base_url)() as knowledge,
        start_service(ai=settings(knowledge.port, mock_llm), parts=PATIENT) as service,
    ):
        yield service


async def paste(page: Page, name: str) -> None:
    await page.evaluate(PASTE, ["#message", name, base64.b64encode(encoded(halves((640, 480)), "PNG")).decode()])


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.get_by_label("Your message").press("Enter")


async def test_a_question_shows_its_images(page: Page, seeing: RunningService, tmp_path: Path) -> None:
    (tmp_path / "half.jpg").write_bytes(encoded(halves((640, 480)), "JPEG"))
    await open_page(page, seeing.port)
    rows = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    await choose(page, tmp_path / "half.jpg")
    await expect(rows.get_by_role("button", name="Image: half.jpg")).to_be_visible()
    await paste(page, HOSTILE)
    await expect(rows.get_by_role("button", name="Image: ")).to_have_count(2)
    await ask(page, "What is this?")
    await expect(page.locator(".answer .markdown")).to_contain_text("I was shown image/jpeg of")
    await expect(page.locator(".answer .markdown")).to_contain_text("and image/png of")
    shown = page.locator(".question-pictures").get_by_role("button")
    await expect(shown).to_have_count(2)
    name = HOSTILE.replace("\u202e", "")
    await expect(shown.nth(1)).to_have_accessible_name(f"Image: {name}")
    assert await page.title() != "1"

    async def width() -> int:
        await shown.first.scroll_into_view_if_needed()
        image = shown.first.locator("img")
        await expect(image).to_have_attribute("src", re.compile("^data:image/jpeg;base64,"))
        width: int = await image.evaluate("(image) => image.decode().then(() => image.width)")
        return width

    # A press makes it as large as it is, and another small again.
    small = await width()
    await shown.first.press("Enter")
    await expect(shown.first).to_have_attribute("aria-expanded", "true")
    assert await width() > 2 * small
    await shown.first.press("Enter")
    assert await width() == small

    # They belong to that question: the next one shows none, and the model still sees them.
    await ask(page, "And left of it?")
    await expect(page.locator(".answer .markdown").nth(1)).to_contain_text("I was shown image/jpeg of")
    await expect(shown).to_have_count(2)
    # What cannot be read is not said to be gone: another press tries again.
    await page.route("**/image", lambda route: route.abort())
    await page.reload()
    await expect(shown).to_have_count(2)
    await shown.first.scroll_into_view_if_needed()
    await expect(shown.first).to_have_accessible_name("half.jpg: try again")
    await page.unroute("**/image")
    await shown.first.press("Enter")
    assert await width() == small
    await page.get_by_role("button", name="Edit question").first.click()
    await page.get_by_label("Your question, edited").fill("What is that?")
    await page.get_by_label("Your question, edited").press("Enter")
    await expect(page.locator(".question")).to_have_text("What is that?")
    await expect(page.locator(".answer .markdown")).to_contain_text("I was shown image/jpeg of")
    await expect(shown).to_have_count(2)

    # Pasted images are called alike: each gets a name of its own. What is gone says so.
    for name in ("image.png", "image 2.png"):
        await paste(page, "image.png")
        await expect(rows.get_by_role("button", name=f"Image: {name}", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Remove half.jpg").click()
    await expect(rows).to_have_count(3)
    await page.reload()
    await shown.first.scroll_into_view_if_needed()
    await expect(shown.first).to_have_text("half.jpg (no longer there)")
    await expect(shown.first).to_be_disabled()


async def test_a_model_that_sees_none_says_so_before_a_call(page: Page, seeing: RunningService, tmp_path: Path) -> None:
    (tmp_path / "half.png").write_bytes(encoded(halves(), "PNG"))
    (tmp_path / "notes.md").write_text("# Notes\n")
    await open_page(page, seeing.port)
    await choose(page, tmp_path / "half.png", tmp_path / "notes.md")
    rows = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    await expect(rows.filter(has_text="notes.md").get_by_role("alert")).to_have_text("This agent takes images only")
    await page.get_by_role("button", name="Remove notes.md").click()
    await expect(rows.get_by_role("button", name="Image: half.png")).to_be_visible()
    await page.get_by_label("Model").select_option("blind")
    await expect(page.get_by_role("button", name="Attach files")).to_be_hidden()
    await ask(page, "What is this?")
    failed = page.locator(".turn").first
    await expect(failed).to_contain_text("This model does not see images")
    await expect(failed).to_contain_text("Choose another model or agent, or remove the image")
    await page.get_by_label("Model").select_option("default")
    await failed.get_by_role("button", name="Edit").click()
    await page.get_by_label("Your message").press("Enter")
    await expect(page.locator(".answer .markdown")).to_contain_text("I was shown image/png of")
    (session,) = await seeing.get("/chatbot/sessions")
    history = await seeing.get(f"/chatbot/session/{session['id']}/history")
    assert len(history) == 2, "of the first attempt nothing is kept"


@pytest.mark.node
async def test_nothing_is_wrong_with_images(chromium: Chromium, seeing: RunningService, tmp_path: Path) -> None:
    (tmp_path / "half.png").write_bytes(encoded(halves((640, 480)), "PNG"))

    async def walk(page: Page, look: Look, size: str) -> None:
        await open_page(page, seeing.port)
        await choose(page, tmp_path / "half.png")
        await expect(page.get_by_role("button", name="Image: half.png")).to_be_visible()
        await look("attached")
        await ask(page, "What is this?")
        await expect(page.locator(".answer .markdown")).to_contain_text("I was shown")
        await look("asked")
        shown = page.locator(".question-pictures").get_by_role("button")
        await shown.press("Enter")
        await look("large")

    assert await wrong_in(chromium, tmp_path, walk) == {}
