"""Finding, saving and rating conversations on the page, against the real service."""

import json

import pytest
from playwright.async_api import Page, expect

from tests.support.held_model import held_model
from tests.support.service import RunningService, hear_until, say

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


async def talk(service: RunningService, title: str | None, question: str) -> str:
    session_id = await service.create_session(title)
    async with service.native() as socket:
        ask = {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": question}
        await say(socket, **ask, client_exchange_id=f"{session_id}-e1")
        await hear_until(socket, "final")
    return session_id


async def titles(page: Page) -> list[str]:
    return await page.locator(".session-title").all_text_contents()


async def test_the_list_is_searched_by_title_and_text(page: Page, service: RunningService) -> None:
    await talk(service, "Holidays", "Where is it warm?")
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator(".session-title")).to_have_text(["Cooking", "Holidays"])
    search = page.get_by_label("Search your conversations")
    await search.fill("lentils")
    await expect(page.locator(".session-title")).to_have_text(["Cooking"])
    await page.locator(".session a").click()
    await expect(page.locator(".question")).to_have_text("How long do lentils boil?")
    assert page.url.endswith(f"#/c/{session_id}")
    await search.fill("holi")
    await expect(page.locator(".session-title")).to_have_text(["Holidays"])
    await search.fill("nothing of the kind")
    await expect(page.locator("#nothing-found")).to_be_visible()
    assert await titles(page) == []
    await search.fill("")
    await expect(page.locator(".session-title")).to_have_text(["Cooking", "Holidays"])
    await expect(page.locator("#nothing-found")).to_be_hidden()


async def test_a_conversation_is_saved_as_a_file(page: Page, service: RunningService) -> None:
    session_id = await talk(service, "Été", "How long do lentils boil?")
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await expect(page.locator("#exports")).to_be_hidden()
    await page.locator(".session a").click()
    saved = {}
    for name, label in (("md", "Save as Markdown"), ("json", "Save as JSON")):
        async with page.expect_download() as downloading:
            await page.get_by_label(label).click()
        download = await downloading.value
        assert download.suggested_filename == f"conversation-Été.{name}"
        saved[name] = (await download.path()).read_text()
    assert saved["md"].startswith("# Été\n")
    assert "How long do lentils boil?" in saved["md"]
    assert json.loads(saved["json"])["session"]["id"] == session_id


async def test_an_answer_is_rated_and_the_rating_taken_back(page: Page, service: RunningService) -> None:
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await page.goto(f"http://127.0.0.1:{service.port}/#/c/{session_id}")
    good, bad = page.get_by_label("Good answer"), page.get_by_label("Bad answer")
    await good.click()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await expect(good).to_be_focused()
    (given,) = await service.get("/chatbot/feedback")
    assert (given["messageId"], given["rating"], given["agentName"]) == ("1", 5, "Georges")
    await page.reload()
    await expect(good).to_have_attribute("aria-pressed", "true")
    await bad.click()
    await expect(bad).to_have_attribute("aria-pressed", "true")
    await expect(good).to_have_attribute("aria-pressed", "false")
    assert [one["rating"] for one in await service.get("/chatbot/feedback")] == [1]
    await bad.click()
    await expect(bad).to_have_attribute("aria-pressed", "false")
    assert await service.get("/chatbot/feedback") == []


async def test_a_title_that_comes_late_is_shown(page: Page, start_service) -> None:  # type: ignore[no-untyped-def]
    async with held_model() as model, start_service(ai={"default_language_model": model.named}) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await page.get_by_label("Your message").fill("Lentils?")
        await page.keyboard.press("Enter")
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("Lentils?")
        model.go.set()
        await expect(heading).not_to_have_text("Lentils?")
        assert await titles(page) == [await heading.text_content()]
