"""The choice of a model on the page: only where there is one, kept with the conversation, sent with each question."""

import pytest
from playwright.async_api import expect

from tests.browser.test_chat_page import ask, open_page
from tests.browser.test_interrupted import DONE, STOPPED, exchange
from tests.browser.test_page_behaviour import open_page as open_fake

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

LARGE = "mock;tokens=3"
MODELS = {"chat_models": [{"id": "large", "title": "The large one", "name": LARGE}]}
AGENTS = [{"name": "Georges", "further_models": ["large"]}, {"name": "Ada"}]


async def test_a_chosen_model_answers_and_stays_with_the_conversation(page, start_service):
    async with start_service(ai={**MODELS, "agents": AGENTS}) as service:
        await open_page(page, service)
        model = page.get_by_label("Model")
        await expect(model).to_have_value("default")
        await model.select_option("The large one")
        async with page.expect_response(lambda response: response.request.method == "PUT"):
            await ask(page, "Hello")
        await expect(page.locator(".turn-meta").last).to_contain_text(LARGE)
        [session] = await service.get("/chatbot/sessions")
        assert session["preferences"] == {"model": "large"}

        await page.get_by_role("button", name="New conversation").click()
        await expect(model).to_have_value("default")
        await page.locator(".session a").click()
        await expect(model).to_have_value("large")
        await page.reload()
        await expect(model).to_have_value("large")
        await model.select_option("default")
        await ask(page, "And now?")
        await expect(page.locator(".ledger")).to_have_count(2)
        models = [turn["metadata"].get("model") for turn in await service.history(session["id"])]
        assert models == [None, LARGE, None, "mock"]
        await page.locator("#agent").select_option("Ada")
        await expect(model).to_be_hidden()


async def test_asking_again_says_why_it_waits_while_the_conversation_answers(page, fake):
    fake.add_session("s", "A talk", exchange(0, "one", "half", STOPPED))
    peer = await open_fake(page, fake, "#/c/s")
    await page.get_by_label("Your message").fill("two")
    await page.keyboard.press("Enter")
    told = await fake.told(peer)
    await told.begin(rank=2)
    await page.get_by_role("button", name="Ask again: one").click()
    await expect(page.get_by_text("This conversation is answering.")).to_be_visible()
    await told.finish("Second")
    await page.get_by_role("button", name="Ask again: one").click()
    assert (await fake.told(peer)).ask["message"] == "one"


async def test_a_conversation_that_is_quiet_asks_again_while_another_answers(page, fake):
    fake.add_session("s", "A talk", exchange(0, "one", "half", STOPPED))
    fake.add_session("t", "Another", exchange(0, "zero", "all", DONE))
    peer = await open_fake(page, fake, "#/c/t")
    await page.get_by_label("Your message").fill("two")
    await page.keyboard.press("Enter")
    told = await fake.told(peer)
    await told.begin(rank=2)
    await page.get_by_role("link", name="A talk").click()
    await page.get_by_role("button", name="Ask again: one").click()
    assert (await fake.told(peer)).ask["message"] == "one"
    await expect(page.locator(".question")).to_have_text(["one", "one"])


async def test_both_pickers_leave_room_for_the_send_button(page, fake):
    titles = ["A model with a rather long name", "Another model with a long name"]
    choices = [{"id": str(number), "title": title} for number, title in enumerate(titles)]
    fake.agents = [
        {**agent, "model_choices": choices} for agent in (*fake.agents, {"id": "Ada", "name": "Ada Lovelace"})
    ]
    await page.set_viewport_size({"width": 360, "height": 640})
    await open_fake(page, fake)
    await expect(page.get_by_label("Model")).to_be_visible()
    await expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)


async def test_a_model_that_is_described_says_so_where_it_is_chosen(page, fake):
    choices = [
        {"id": "quick", "title": "Quick"},
        {"id": "deep", "title": "Deep", "description": "Thinks before it speaks"},
    ]
    fake.agents = [{**fake.agents[0], "model_choices": choices}]
    await open_fake(page, fake)
    model = page.get_by_label("Model")
    await expect(model).to_have_attribute("title", "Model")
    await expect(model.locator("option").last).to_have_attribute("title", "Thinks before it speaks")
    await model.select_option("Deep")
    await expect(model).to_have_attribute("title", "Thinks before it speaks")
    await page.get_by_role("button", name="New conversation").click()
    await expect(model).to_have_value("deep")
