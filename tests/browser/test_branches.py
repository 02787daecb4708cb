"""Editing a question, having an answer made again, and the way between the versions, against the real service."""

import pytest
from playwright.async_api import Locator, Page, expect

from tests.agentic_backend.llm.scripted import scripted
from tests.support.service import StartService
from tests.support.tool_model import says

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


async def ask(page: Page, question: str) -> None:
    turns = page.locator(".turn")
    before = await turns.count()
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await expect(turns).to_have_count(before + 1)
    await ended(page)


async def ended(page: Page) -> None:
    await expect(page.locator(".turn").last).to_have_attribute("data-status", "done")


async def line(page: Page) -> list[tuple[str, str]]:
    """What is on the screen: question and answer of each turn, once each has one."""
    await expect(page.locator(".turn .markdown")).to_have_count(await page.locator(".turn .question").count())
    texts = [await page.locator(name).all_text_contents() for name in (".turn .question", ".turn .markdown")]
    return [(question, answer.strip()) for question, answer in zip(*texts, strict=True)]


def turn(page: Page, number: int) -> Locator:
    return page.locator(".turn").nth(number)


async def edit(page: Page, number: int, text: str) -> None:
    await turn(page, number).get_by_role("button", name="Edit question").click()
    field = page.get_by_label("Your question, edited")
    await field.fill(text)
    await field.press("Enter")
    await expect(turn(page, number).locator(".question")).to_have_text(text)
    await ended(page)


async def test_versions_of_questions_and_answers(page: Page, start_service: StartService) -> None:
    async with scripted(*map(says, "abcdefgh")) as model:
        on_it = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        async with start_service(ai=on_it) as service:
            await page.goto(f"http://127.0.0.1:{service.port}/")
            await ask(page, "one")
            await ask(page, "two")
            assert await line(page) == [("one", "a"), ("two", "b")]
            await expect(page.locator(".versions")).to_have_count(0)

            await edit(page, 1, "two, edited")
            assert await line(page) == [("one", "a"), ("two, edited", "c")]
            await expect(turn(page, 1).locator(".version")).to_have_text("2 of 2")

            await turn(page, 0).get_by_role("button", name="Another answer").click()
            await expect(page.locator(".turn")).to_have_count(1)
            await ended(page)
            assert await line(page) == [("one", "d")]
            await expect(turn(page, 0).locator(".version")).to_have_text("2 of 2")

            # By the keyboard alone: back to the first answer, with what came after it last.
            back = turn(page, 0).get_by_role("button", name="Earlier version")
            await back.focus()
            await page.keyboard.press("Enter")
            assert await line(page) == [("one", "a"), ("two, edited", "c")]
            await expect(turn(page, 0).get_by_role("button", name="Later version")).to_be_focused()
            await turn(page, 1).get_by_role("button", name="Earlier version").click()
            assert await line(page) == [("one", "a"), ("two", "b")]

            # A question goes on from what is on the screen, which is not the newest line.
            await ask(page, "three")
            assert await line(page) == [("one", "a"), ("two", "b"), ("three", "e")]
            told = [one["content"] for one in model.requests[-1].body["messages"] if one["role"] != "system"]
            assert told == ["one", "a", "two", "b", "three"]

            await page.reload()
            await expect(page.locator(".turn")).to_have_count(3)
            assert await line(page) == [("one", "a"), ("two", "b"), ("three", "e")]
            await turn(page, 0).get_by_role("button", name="Later version").click()
            assert await line(page) == [("one", "d")]
            # An answer that is not on the newest line is made again, too, and is the newest line then.
            await turn(page, 0).get_by_role("button", name="Another answer").click()
            await ended(page)
            await expect(turn(page, 0).locator(".version")).to_have_text("3 of 3")
            assert await line(page) == [("one", "f")]


async def test_another_tab_follows_an_answer_that_is_made_again(page: Page, start_service: StartService) -> None:
    async with scripted(*map(says, "abcd")) as model:
        on_it = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        async with start_service(ai=on_it) as service:
            await page.goto(f"http://127.0.0.1:{service.port}/")
            await ask(page, "one")
            await ask(page, "two")
            other = await page.context.new_page()
            await other.goto(page.url)
            await expect(other.locator(".turn")).to_have_count(2)
            await turn(page, 0).get_by_role("button", name="Another answer").click()
            await expect(other.locator(".turn .version")).to_have_text("2 of 2")
            await ended(other)
            assert await line(other) == await line(page) == [("one", "c")]


async def test_an_edit_that_is_given_up_changes_nothing(page: Page, start_service: StartService) -> None:
    async with start_service() as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await ask(page, "one <b>bold</b>")
        button = turn(page, 0).get_by_role("button", name="Edit question")
        await button.click()
        field = page.get_by_label("Your question, edited")
        await expect(field).to_have_value("one <b>bold</b>")
        await field.fill(" ")
        await expect(page.get_by_role("button", name="Ask", exact=True)).to_be_disabled()
        await field.press("Escape")
        await expect(button).to_be_focused()
        await expect(turn(page, 0).locator(".question")).to_have_text("one <b>bold</b>")
        assert len(await service.get("/chatbot/sessions")) == 1


async def test_an_edit_that_is_refused_can_be_tried_again_in_its_place(page: Page, start_service: StartService) -> None:
    async with start_service(limits={"max_message_chars": 30}) as service:
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await ask(page, "short")
        await turn(page, 0).get_by_role("button", name="Edit question").click()
        await page.get_by_label("Your question, edited").fill("much longer than it may be, by far")
        await page.get_by_role("button", name="Ask", exact=True).click()
        await expect(page.get_by_role("alert").filter(has_text="too long")).to_be_visible()
        await turn(page, 0).get_by_role("button", name="Earlier version").click()
        await expect(turn(page, 0).locator(".question")).to_have_text("short")
