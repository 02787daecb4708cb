"""What a turn tells of itself: what it does now, where its time went, and what to do where it failed."""

import json
import re

import pytest
from playwright.async_api import expect

from tests.browser.test_chat_page import ask as ask_service
from tests.browser.test_chat_page import open_page as open_service
from tests.browser.test_page_behaviour import ask, hold_clock, open_page
from tests.browser.test_thinking import call, result

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<img src=x onerror=alert(1)> \u202egnirts " + "W" * 300
WORDS = ["waiting", "searching", "model", "tools", "us"]


async def test_the_state_line_says_what_happens_and_counts_for_the_eye_alone(page, fake):
    await hold_clock(page)
    async with page.expect_websocket() as opening:
        peer = await open_page(page, fake)
    socket = await opening.value
    told = await ask(page, fake, peer)

    async def hear(saying):
        async with socket.expect_event("framereceived"):
            await saying
        await page.clock.run_for(100)  # a moment to draw it

    await page.clock.run_for(100)
    doing, elapsed = page.locator(".doing"), page.locator(".elapsed")
    await expect(doing).to_have_text("Waiting for the service…")
    await expect(elapsed).to_have_text("0 s")
    await expect(elapsed).to_have_attribute("aria-hidden", "true")
    await hear(told.say("accepted"))
    await expect(doing).to_have_text("Thinking…")
    before = await doing.bounding_box()
    await page.clock.run_for(9_000)
    await expect(elapsed).to_have_text("9 s")
    assert await doing.bounding_box() == before
    await hear(told.say("message", message=call(told, 1, ("a", HOSTILE, "oat"), ("b", "slots", "Friday"))))
    await expect(doing).to_have_text(f"Calling {HOSTILE} and 1 more…")
    assert await page.locator("#log").evaluate("(log) => log.scrollWidth <= log.clientWidth")
    await hear(told.say("message", message=result(told, 2, "a", "1.89")))
    await expect(doing).to_have_text("Calling slots…")
    await hear(told.say("message", message=result(told, 3, "b", "9:00")))
    await expect(doing).to_have_text("Thinking…")
    await hear(told.delta("At nine.", rank=4))
    await expect(doing).to_have_text("Writing…")
    await hear(told.finish("At nine."))
    await expect(page.locator(".turn-state")).to_be_empty()
    assert await page.locator(".turn img").count() == 0


async def test_an_agent_that_looks_into_documents_says_so(page, fake):
    fields = [{"key": "rag.top_k", "type": "integer", "title": "Passages"}]
    fake.agents = [{**fake.agents[0], "tuning": {"role": "", "description": "", "fields": fields}}]
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await expect(page.locator(".doing")).to_have_text("Searching the documents…")
    await told.say("sources", sources=[{"uid": "d", "rank": 1, "title": "A", "content": "x", "score": 1}])
    await expect(page.locator(".doing")).to_have_text("Thinking…")


async def test_the_seconds_go_on_through_a_reload(page, start_service):
    async with start_service(model="mock;gap=100;tokens=600") as service:
        await open_service(page, service)
        await ask_service(page, "Hello")
        await expect(page.locator(".doing")).to_have_text("Writing…")
        elapsed = page.locator(".elapsed")
        await expect(elapsed).to_have_text(re.compile(r"^([3-9]|\d\d) s$"))
        before = int((await elapsed.inner_text()).split()[0])
        await page.reload()
        await expect(elapsed).to_have_text(re.compile(r"^\d+ s$"))
        assert int((await elapsed.inner_text()).split()[0]) >= before
        await expect(page.locator(".doing")).to_have_text("Writing…")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".turn-end")).to_contain_text("Stopped.")


async def test_a_long_result_is_laid_out_and_shown_in_part(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    rows = [{"name": HOSTILE, "n": n} for n in range(200)]
    await told.say("message", message=call(told, 1, ("a", "prices", "oat")))
    await told.say("message", message=result(told, 2, "a", json.dumps(rows)))
    step = page.locator(".step-call")
    await expect(step.locator(".icon-check")).to_have_count(1)
    await step.locator("summary").click()
    shown = step.locator("pre").last
    await expect(shown).to_contain_text('[\n  {\n    "name": "<img')
    assert len(await shown.inner_text()) < 2_000
    await step.get_by_role("button", name="Show all").press("Enter")
    await expect(shown).to_be_focused()
    await expect(shown).to_contain_text('"n": 199')
    await expect(step.get_by_role("button", name="Show all")).to_have_count(0)
    assert await page.locator("#log").evaluate("(log) => log.scrollWidth <= log.clientWidth")
    assert await page.locator(".turn img").count() == 0


async def test_five_words_sum_up_the_time_and_behind_them_stands_when(page, start_service):
    prices = [{"model": "mock;gap=20;tokens=8", "input_per_million": 1000, "output_per_million": 2000}]
    async with start_service(model="mock;gap=20;tokens=8", ai={"prices": prices, "currency": "EUR"}) as service:
        await open_service(page, service)
        for number in range(4):
            await ask_service(page, f"Question {number}")
            await expect(page.locator(".ledger")).to_have_count(number + 1)
        async with page.expect_response("**/agents/Georges/pace") as few:
            await page.locator(".ledger summary").last.press("Enter")
        assert await (await few.value).json() == {"turns": None, "median_ms": None}
        await expect(page.get_by_role("img", name="When each phase ran")).to_be_visible()
        await expect(page.locator(".key.median")).to_have_count(0)
        await ask_service(page, "Question 4")
        await expect(page.locator(".ledger")).to_have_count(5)
        await page.reload()
        await expect(page.locator(".ledger")).to_have_count(5)
        await ask_service(page, "Question 5")
        await expect(page.locator(".ledger")).to_have_count(6)
        ledger = page.locator(".ledger").last
        words = await ledger.locator(".word").all_inner_texts()
        assert [text.split()[0] for text in words] == WORDS
        assert all(text.split()[2] in {"ms", "s"} for text in words)
        facts = ledger.locator(".ledger-facts")
        await expect(facts).to_contain_text("tokens")
        await expect(facts).to_contain_text("cost €0.")
        await ledger.locator("summary").press("Enter")
        await expect(ledger.get_by_role("img", name="When each phase ran")).to_be_visible()
        assert await ledger.locator(".tick").count() >= 3
        await expect(ledger.locator(".plot .name")).to_contain_text(["llm_invoke"])
        await expect(ledger.locator(".mark.first")).to_have_count(1)
        await expect(ledger.locator(".key.first")).to_contain_text("seen in this browser after")
        await expect(ledger.locator(".key.median")).to_contain_text(
            "median of the 6 answers of Georges in the last day"
        )
        await expect(ledger.locator(".ledger-notes")).to_contain_text("Cost: €")
        await page.reload()
        await expect(page.locator(".ledger")).to_have_count(6)
        await page.locator(".ledger summary").last.click()
        # It was timed by the page that is gone.
        await expect(page.locator(".mark.first")).to_have_count(0)
        await expect(page.locator(".key.median")).to_contain_text("median of the 6 answers")


async def test_a_failure_says_once_what_happened_what_to_do_and_the_limit(page, start_service):
    async with start_service(limits={"max_message_chars": 40}) as service:
        await open_service(page, service)
        await ask_service(page, "w" * 41)
        error = page.get_by_role("alert").filter(has_text="too long")
        await expect(error).to_contain_text("At most 40 characters are allowed; this message has 41.")
        await expect(error).to_contain_text("Shorten it")
        assert (await error.inner_text()).count("too long") == 1
        await error.get_by_role("button", name="Edit").click()
        await expect(page.get_by_label("Your message")).to_have_value("w" * 41)


@pytest.mark.parametrize(
    ("code", "advice"),
    [("llm_unavailable", "choose another model"), ("storage_full", "Tell who runs"), ("kf_unavailable", "in a minute")],
)
async def test_a_failed_turn_says_what_to_do(page, fake, code, advice):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("error", code=code, message="Said by the service.", retryable=True, partial=False)
    error = page.locator(".error")
    await expect(error).to_contain_text(advice)
    await expect(error).not_to_contain_text("Said by the service.")
    await expect(error.get_by_role("button", name="Try again")).to_be_enabled()


async def test_a_question_outlives_a_restart_and_so_does_who_decided(page, start_service):
    agent = {"name": "Mary", "class_path": "tests.browser.review_agent"}
    async with start_service(ai={"agents": [agent]}) as service:
        await open_service(page, service)
        await ask_service(page, "Order milk")
        await expect(page.get_by_role("group", name="The agent asks you 2 questions")).to_be_visible()
        [session] = await service.get("/chatbot/sessions")
        await service.flush()
    async with start_service(ai={"agents": [agent]}) as service:
        await open_service(page, service, f"#/c/{session['id']}")
        card = page.get_by_role("group", name="The agent asks you 2 questions")
        mail = card.get_by_role("group", name="Allow send_mail?")
        await mail.get_by_role("radio", name="Edit").check()
        await mail.get_by_label("Arguments of send_mail, as JSON").fill('{"to": "brook", "litres": 8}')
        await card.get_by_role("group", name="In which language?").get_by_role("textbox").fill("Breton")
        await card.get_by_role("button", name="Send answers").click()
        await expect(page.locator(".item .markdown")).to_have_text("8 litres, in Breton.")
        await page.reload()
        await page.locator(".step-decision summary").click()
        await expect(page.locator(".step-decision .step-body")).to_contain_text("Decided by admin, ")
        await expect(page.locator(".step-decision code")).to_contain_text('"litres": 8')
