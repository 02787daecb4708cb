"""The page as axe-core sees it, in each state, in both themes, on a desktop and on a phone: nothing is wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from playwright.async_api import Page, expect

from tests.browser.axe import violations
from tests.browser.conftest import PATIENCE_MS, Chromium
from tests.browser.fake_server import FakeServer
from tests.browser.test_human import APPROVAL, WORDS, stored
from tests.browser.test_sources import ask_rico, documents, knowledge, library

__all__ = ["documents", "knowledge", "library"]

pytestmark = [pytest.mark.chromium, pytest.mark.node, pytest.mark.asyncio(loop_scope="module")]

THEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
SIZES: dict[str, Any] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
LOOKS = [(theme, size) for theme in THEMES for size in SIZES]
CALLS = {
    "title": "May I?",
    "action_requests": [{"name": "note", "args": {"text": "milk"}, "description": "Writes a note."}],
    "review_configs": [{"action_name": "note", "allowed_decisions": ["approve", "edit", "reject", "respond"]}],
    "checkpoint_id": "c3",
}
SEVERAL = {
    "questions": [
        {"id": "a", "title": "Size?", "choices": APPROVAL["choices"], "free_text": True},
        {"id": "b", **CALLS},
    ],
    "checkpoint_id": "c4",
}


@asynccontextmanager
async def looked_at(chromium: Chromium, theme: Literal["light", "dark"], size: str) -> AsyncIterator[Page]:
    """A page that axe can be put into."""
    options = {**SIZES[size], "color_scheme": theme, "reduced_motion": "reduce", "bypass_csp": True}
    context = await chromium.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        yield await context.new_page()
    finally:
        await context.close()


async def test_nothing_is_wrong_with_a_conversation_and_the_documents_that_it_cites(chromium, library, tmp_path):
    service, _ = library
    found: dict[str, list[str]] = {}
    for theme, size in LOOKS:
        async with looked_at(chromium, theme, size) as page:

            async def look(state: str, page: Page = page, name: str = f"{theme}-{size}") -> None:
                await page.screenshot(path=tmp_path / f"{name}-{state}.png")
                found[f"{name} {state}"] = await violations(page)

            await page.goto(f"http://127.0.0.1:{service.port}/")
            await expect(page.get_by_text("What would you like to know?")).to_be_visible()
            await look("welcome")
            await ask_rico(page, service)
            await look("sources")
            await page.locator(".sources-more summary").click()
            await look("unfolded")
            await page.locator("button.citation").first.click()
            await expect(page.locator("#reader mark").first).to_be_visible()
            await look("reader")
            await page.keyboard.press("Escape")
            if size == "phone":
                await page.get_by_role("button", name="Conversations").click()
                await expect(page.locator("#sidebar")).to_be_visible()
                await look("drawer")
    assert {state: wrong for state, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "payload", [APPROVAL, WORDS, CALLS, SEVERAL], ids=["choices", "words", "a call", "several questions"]
)
async def test_nothing_is_wrong_with_what_an_agent_asks(chromium, fake: FakeServer, payload, tmp_path):
    found: dict[str, list[str]] = {}
    fake.add_session("s", "A talk", stored(payload))
    for theme, size in LOOKS:
        async with looked_at(chromium, theme, size) as page:
            await page.goto(f"{fake.url}#/c/s")
            await fake.peer()
            await expect(page.locator(".human")).to_be_visible()
            await page.screenshot(path=tmp_path / f"{theme}-{size}.png")
            found[f"{theme} {size}"] = await violations(page)
    assert {state: wrong for state, wrong in found.items() if wrong} == {}


async def answered(page: Page, question: str) -> None:
    """Asks, and waits for the whole answer."""
    before = await page.locator(".turn").count()
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn")).to_have_count(before + 1)
    await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")


PLACES = {
    "libraries": "Your libraries",
    "usage": "In total",
    "live": "What limits the service",
    "feedback": "What people say of answers",
    "settings": "My data",
}


async def test_nothing_is_wrong_with_the_views_beside_conversations_and_with_their_dialogs(chromium, library, tmp_path):
    service, _ = library
    found: dict[str, list[str]] = {}
    for theme, size in LOOKS:
        async with looked_at(chromium, theme, size) as page:

            async def look(state: str, page: Page = page, name: str = f"{theme}-{size}") -> None:
                await page.screenshot(path=tmp_path / f"{name}-{state}.png")
                found[f"{name} {state}"] = await violations(page)

            url = f"http://127.0.0.1:{service.port}/"
            await page.goto(url)
            await expect(page.locator("#connection")).to_have_text("Connected")
            # Two answers with all that stands under them open, so that nothing of the one has the name of the other.
            await answered(page, "one")
            await answered(page, "two")
            for number in range(2):
                await page.locator(".ledger summary").nth(number).click()
            await look("turns")
            await page.get_by_role("button", name="Another answer").last.click()
            await expect(page.locator(".version")).to_have_text("2 of 2")
            await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")
            await page.get_by_role("button", name="Bad answer").last.click()
            await page.get_by_role("button", name="Edit question").last.click()
            await look("versions, a rating and an edit")
            await page.keyboard.press("Escape")
            await page.locator("#share").click()
            await expect(page.get_by_role("dialog")).to_be_visible()
            await look("share")
            await page.keyboard.press("Escape")
            await page.keyboard.press("Control+k")
            await expect(page.locator("#switcher")).to_be_visible()
            await look("switcher")
            await page.keyboard.press("Escape")
            await page.goto(f"{url}#/")
            await page.locator("#agent").select_option("Rico")
            await page.locator("#scope").click()
            await expect(page.get_by_role("dialog").get_by_role("checkbox").nth(2)).to_be_visible()
            await look("scope")
            await page.keyboard.press("Escape")
            for place, words in PLACES.items():
                await page.goto(f"{url}#/{place}")
                await expect(page.locator("#place")).to_contain_text(words)
                await look(place)
            await page.get_by_role("button", name="New key").click()
            await look("a new key")
            await page.goto(f"{url}#/libraries")
            await page.get_by_role("link", name="Turnwise").click()
            await page.get_by_role("searchbox", name="Question").fill("What is a badge?")
            await page.keyboard.press("Enter")
            await expect(page.locator(".hits > li").first).to_be_visible()
            await page.locator(".why summary").first.click()
            await look("a library")
    assert {state: wrong for state, wrong in found.items() if wrong} == {}
