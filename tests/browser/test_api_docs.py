"""The page that documents the interface, in a browser that fails the test on any error and any other address."""

import pytest
from playwright.async_api import expect

from tests.knowledge_flow_backend.service import start_on
from tests.support.people import SECURITY, token_of
from tests.support.service import BASE

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


async def test_the_interface_is_shown_and_can_be_tried(page, service):
    await page.goto(f"http://127.0.0.1:{service.port}/docs")
    await expect(page.get_by_role("heading", name="Turnwise agentic service")).to_be_visible()
    await expect(page).to_have_title("Turnwise agentic service")
    await expect(page.locator("#gate")).to_be_hidden()
    operation = page.locator(".opblock", has_text=f"{BASE}/agents").first
    await expect(operation).to_contain_text("Agents")
    await operation.locator(".opblock-summary-control").click()
    await expect(operation).to_contain_text("The agents that the caller may ask")
    await operation.get_by_role("button", name="Try it out").click()
    await operation.get_by_role("button", name="Execute").click()
    await expect(operation.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")


async def test_with_authentication_it_takes_a_token_and_keeps_it_nowhere(page, database, mock_llm):
    async with start_on(database, mock_llm.base_url)(security=SECURITY) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/docs")
        field = page.get_by_label("Access token")
        await expect(field).to_be_visible()
        await expect(page.get_by_text("Sign in on the chat page")).to_be_hidden()
        await field.fill("no token")
        await page.get_by_role("button", name="Show").click()
        await expect(page.get_by_role("alert")).to_have_text("The service does not accept this token.")
        await field.fill(token_of("ann"))
        await page.get_by_role("button", name="Show").click()
        await expect(page.get_by_role("heading", name="Turnwise knowledge flow")).to_be_visible()
        await expect(page.locator("#gate")).to_be_hidden()
        operation = page.locator(".opblock", has_text="/tags").first
        await operation.locator(".opblock-summary-control").click()
        await operation.get_by_role("button", name="Try it out").click()
        await operation.get_by_role("button", name="Execute").click()
        await expect(operation.locator(".live-responses-table tbody .response-col_status").first).to_contain_text("200")
        kept = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, location.href])")
        assert token_of("ann").split(".")[0] not in kept


async def test_a_page_of_the_same_service_that_is_signed_in_opens_it(page, context, start_service):
    async with start_service(security=SECURITY) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/docs")
        await expect(page.get_by_label("Access token")).to_be_visible()
        other = await context.new_page()
        # As the chat page does after its sign-in; test_login has the chat page itself.
        await other.goto(f"http://127.0.0.1:{service.port}/web/icon.svg")
        tell = "token => new BroadcastChannel('turnwise.sign-in').postMessage({ token })"
        await other.evaluate(tell, token_of("ann"))
        await expect(page.get_by_role("heading", name="Turnwise agentic service")).to_be_visible()
