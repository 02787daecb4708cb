"""A person's visit to the real service: real page, real turns, real Postgres, the shipped mock model."""

import aiohttp
import pytest
from playwright.async_api import Page, expect

from tests.support.service import RunningService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


async def open_page(page: Page, service: RunningService, path: str = "") -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/{path}")
    await expect(page.locator("#connection")).to_have_text("Connected")


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")


async def test_a_turn_streams_is_titled_timed_kept_and_deleted(page, start_service):
    agents = [{"name": "Georges", "starters": ["What is Turnwise?"]}]
    async with start_service(model="mock;gap=60", ai={"agents": agents}) as service:
        await open_page(page, service)
        await expect(page.get_by_text("What would you like to know?")).to_be_visible()
        await page.get_by_role("button", name="What is Turnwise?").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_visible()
        await expect(page.locator(".markdown")).to_contain_text("Turnwise")
        await expect(page.locator(".ledger-facts")).to_contain_text("first token")
        await expect(page.get_by_role("heading", level=1)).to_have_text("What is Turnwise?")
        await expect(page.locator(".session-title")).to_have_text("What is Turnwise?")
        await page.locator(".ledger summary").click()
        phases = await page.locator(".ledger tbody th").all_text_contents()
        assert {"history_restore", "stream_agent_response", "llm_invoke"} <= set(phases)
        answer = await page.locator(".markdown").inner_text()

        await page.reload()
        await expect(page.locator(".markdown")).to_have_text(answer, use_inner_text=True)
        await expect(page.locator(".ledger-words")).to_contain_text("model")
        await expect(page.locator(".question")).to_have_text("What is Turnwise?")

        await ask(page, "And what did I ask before?")
        await expect(page.locator(".ledger")).to_have_count(2)
        await page.get_by_role("button", name="Options of What is Turnwise?").click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(page.locator(".session")).to_have_count(0)
        async with page.expect_response(lambda response: response.request.method == "DELETE"):
            await page.locator("#undo").get_by_role("button", name="Close").click()
        assert await service.get("/chatbot/sessions") == []


async def test_stop_ends_the_turn_and_its_part_is_in_the_history(page, start_service):
    async with start_service(model="mock;gap=50;tokens=2000") as service:
        await open_page(page, service)
        await ask(page, "A long one")
        await expect(page.locator(".markdown p")).not_to_be_empty()
        await page.get_by_role("button", name="Stop").hover()
        await page.mouse.down()
        # A finger is slower than the model: more of the answer comes before the button is let go.
        for _ in range(4):
            await expect(page.locator(".markdown")).not_to_have_text(await page.locator(".markdown").inner_text())
        await page.mouse.up()
        await expect(page.locator(".turn-end")).to_contain_text("Stopped.")
        [session] = await service.get("/chatbot/sessions")
        answer = (await service.history(session["id"]))[-1]
        assert answer["metadata"]["finish_reason"] == "cancelled"
        # The last words may be drawn after the word "Stopped.".
        await expect(page.locator(".markdown")).to_have_text(answer["parts"][0]["text"].strip())
        await page.reload()
        await expect(page.locator(".turn-end")).to_contain_text("Stopped.")


async def test_a_model_that_breaks_off_is_said_and_the_question_can_be_asked_again(page, start_service):
    async with start_service(model="mock;truncate=3;tokens=20") as service:
        await open_page(page, service)
        await ask(page, "Hello")
        error = page.locator(".error")
        await expect(error).to_contain_text("The model's answer broke off")
        await expect(page.get_by_role("button", name="Try again")).to_be_enabled()
        part = await page.locator(".markdown").inner_text()
        assert part.strip() != ""
        await page.reload()
        await expect(page.locator(".error")).to_contain_text("The model's answer broke off")
        await expect(page.locator(".markdown")).to_have_text(part, use_inner_text=True)


async def test_a_turn_goes_on_through_a_reload(page, start_service):
    async with start_service(model="mock;gap=40;tokens=60") as service:
        await open_page(page, service)
        await ask(page, "Hello")
        await expect(page.locator(".markdown p")).not_to_be_empty()
        await page.reload()
        await expect(page.locator(".ledger")).to_have_count(1)
        [session] = await service.get("/chatbot/sessions")
        question, answer = await service.history(session["id"])
        assert (question["role"], answer["role"]) == ("user", "assistant")
        await expect(page.locator(".markdown")).to_contain_text(answer["parts"][0]["text"].split()[-1])
        await expect(page.locator(".turn")).to_have_count(1)


async def test_the_page_and_its_modules_come_with_a_policy_that_allows_no_other_place(service):
    async with aiohttp.ClientSession(f"http://127.0.0.1:{service.port}") as http:
        for path in ("/", "/web/app.js", "/web/style.css"):
            async with http.get(path) as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "script-src 'self'" in policy
                assert "unsafe" not in policy
