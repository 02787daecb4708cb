"""What a model says while it reasons, and what an agent tells of its progress: folded, timed, never in the way."""

import pytest
from playwright.async_api import expect

from tests.browser.fake_server import STAMP
from tests.browser.test_chat_page import ask as ask_service
from tests.browser.test_chat_page import open_page as open_service
from tests.browser.test_page_behaviour import ask, hold_clock, open_page

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HEAD = {"session_id": "s", "exchange_id": "e0", "timestamp": STAMP}


def message(rank, role, channel, text, **extras):
    """A ChatMessage of a stored exchange."""
    parts = [{"type": "text", "text": text}]
    return {**HEAD, "rank": rank, "role": role, "channel": channel, "parts": parts, "metadata": {"extras": extras}}


def call(told, rank, *calls):
    """A message with calls of tools, each its id, the tool and one argument."""
    parts = [{"type": "tool_call", "call_id": name, "name": tool, "args": {"q": value}} for name, tool, value in calls]
    return {**told.message(rank, "assistant", ""), "channel": "tool_call", "parts": parts}


def result(told, rank, name, content, **fields):
    """A message with what a tool answered."""
    part = {"type": "tool_result", "call_id": name, "content": content, "ok": True, "latency_ms": 12, **fields}
    return {**told.message(rank, "tool", ""), "channel": "tool_result", "parts": [part]}


async def test_reasoning_is_one_line_with_its_seconds_that_opens_and_follows(page, fake):
    await hold_clock(page)
    async with page.expect_websocket() as opening:
        peer = await open_page(page, fake)
    socket = await opening.value
    told = await ask(page, fake, peer)
    await told.begin()

    async def hear(saying):
        async with socket.expect_event("framereceived"):
            await saying
        await page.clock.run_for(100)  # a moment to draw it

    await hear(told.say("thought", text="First I look "))
    thinking = page.locator(".step-thinking")
    summary = thinking.locator("summary")
    await expect(summary).to_have_text("Thinking… 0 s")
    await expect(page.locator(".turn-state")).to_have_text("Thinking…0 s")
    await page.clock.run_for(3_000)
    await expect(summary).to_have_text("Thinking… 3 s")
    await hear(told.say("thought", text="at *both* lists.\n\n" + "Line.\n\n" * 60))
    region = thinking.get_by_role("group", name="Reasoning")
    await expect(region).to_be_hidden()
    await summary.press("Enter")
    await expect(region).to_contain_text("First I look at both lists.")
    await hear(told.say("thought", text="The last one."))
    await expect(region).to_contain_text("The last one.")
    assert await region.evaluate("(box) => box.scrollTop + box.clientHeight + 2 > box.scrollHeight")
    await page.clock.run_for(4_000)
    await hear(told.delta("Brook is cheaper."))
    await expect(summary).to_have_text("Thought for 7 s")
    await page.clock.run_for(4_000)
    await expect(summary).to_have_text("Thought for 7 s")
    await expect(thinking).to_have_attribute("open", "")
    question, answer = told.exchange("Brook is cheaper.", extras={"thinking_ms": 9_100})
    session = {"id": told.head["session_id"], "title": "", "updated_at": STAMP, "next_rank": 2}
    rest = {"session": session, "ledger": [], "unattributed_ms": 1, "durable": "none", "warnings": []}
    await hear(told.say("final", messages=[question, answer], **rest))
    await expect(summary).to_have_text("Thought for 9 s")
    await expect(region).to_contain_text("The last one.")
    await expect(page.locator(".item .markdown")).to_have_text("Brook is cheaper.")


async def test_reasoning_before_and_after_a_call_stands_where_it_was(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("thought", text="I need the list.")
    await told.say("message", message=call(told, 1, ("a", "prices", "oat")))
    await told.say("message", message=result(told, 2, "a", "1.89"))
    await told.say("thought", text="That is cheap.")
    await told.delta("1.89 a litre.", rank=3)
    await expect(page.locator(".item .markdown")).to_have_text("1.89 a litre.")
    steps = page.locator(".items > *")
    places = await steps.evaluate_all("(nodes) => nodes.map((node) => node.textContent.slice(0, 7))")
    assert places == ["Thought", "Tool: p", "Thought", "1.89 a "]
    await told.finish("1.89 a litre.")
    # The messages of this end do not hold the call; what was heard of the reasoning stays, in its order.
    await expect(page.locator(".step-thinking")).to_have_count(2)
    await page.locator(".step-thinking summary").last.click()
    await expect(page.get_by_role("group", name="Reasoning")).to_have_text("That is cheap.")


async def test_stored_reasoning_takes_the_place_of_what_was_heard(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("thought", text="I need the list.")
    await page.locator(".step-thinking summary").click()
    kept = {**told.message(1, "assistant", "I need the list."), "channel": "thought"}
    kept["metadata"] = {"extras": {"reasoning": True, "thinking_ms": 4_200}}
    await told.say("message", message=kept)
    await expect(page.locator(".step-thinking summary")).to_have_text("Thought for 4 s")
    await expect(page.get_by_role("group", name="Reasoning")).to_have_text("I need the list.")
    await told.delta("Here.", rank=2)
    await expect(page.locator(".item .markdown")).to_have_text("Here.")
    await expect(page.locator(".step")).to_have_count(1)


async def test_history_shows_stored_reasoning_folded_or_its_seconds_alone(page, fake):
    question = message(0, "user", "final", "Why?")
    answer = message(2, "assistant", "final", "Because.", thinking_ms=65_000, late_thoughts="Am I sure?")
    kept = message(1, "assistant", "thought", "Let me see.", reasoning=True, thinking_ms=60_000)
    fake.add_session("s", "With text", [question, kept, answer])
    other = {"session_id": "t", "exchange_id": "e1"}
    fake.add_session(
        "t", "Without", [{**question, **other}, {**answer, **other, "metadata": {"extras": {"thinking_ms": 700}}}]
    )
    await open_page(page, fake, "#/c/s")
    titles = page.locator(".step-thinking summary")
    await expect(titles).to_have_text(["Thought for 1 min 0 s", "Thought for 5 s"])
    await titles.first.click()
    await expect(page.get_by_role("group", name="Reasoning")).to_have_text("Let me see.")
    await page.get_by_role("link", name="Without").click()
    await expect(page.locator(".step")).to_have_text(["Thought for < 1 s"])
    await expect(page.locator(".step summary")).to_have_count(0)
    await expect(page.locator(".item .markdown")).to_have_text("Because.")


async def test_reasoning_that_a_reload_or_a_break_cut_goes_on(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("thought", text="One ")
    await expect(page.locator(".step-thinking summary")).to_contain_text("Thinking…")
    await page.reload()
    assert await told.resumed(await fake.peer()) == 3
    await told.say("thought", text="two.")
    await page.locator(".step-thinking summary").click()
    await expect(page.get_by_role("group", name="Reasoning")).to_have_text("One two.")
    await expect(page.locator(".step-thinking summary")).to_contain_text("Thinking…")
    await told.finish("Done.")
    await expect(page.locator(".step-thinking summary")).to_contain_text("Thought for")


async def test_what_an_agent_tells_of_its_progress_is_a_line_until_something_happens(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    state = page.locator(".doing")
    for data, shown in (
        ("Reading <b>files</b>", "Reading <b>files</b>"),
        ({"message": "2 of 3"}, "2 of 3"),
        ({"status": "3 of 3", "n": 1}, "3 of 3"),
        ({"text": "Sorting"}, "Sorting"),
    ):
        await told.say("custom", data=data)
        await expect(state).to_have_text(shown)
    for ignored in ({"n": 1}, 7, None, ["a"], {"message": {"deep": True}}):
        await told.say("custom", data=ignored)
    await told.say("custom", data="x" * 5_000)
    await expect(state).to_have_text("x" * 300)
    await told.delta("Sorted.")
    await expect(page.locator(".markdown")).to_have_text("Sorted.")
    await expect(state).to_have_text("Writing…")


async def test_each_call_stands_with_its_own_result(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("message", message=call(told, 1, ("a", "prices", "oat"), ("b", "prices", "soy")))
    await told.say("message", message=call(told, 2, ("c", "slots", "Friday")))
    states = page.locator(".call-state")
    await expect(states).to_have_text(["running", "running", "running"])
    await told.say("message", message=result(told, 3, "b", "2.05"))
    await told.say("message", message=result(told, 4, "c", "HTTP 503", ok=False, latency_ms=1_204))
    await expect(states).to_have_text(["running", "answered in 12.0 ms", "failed in 1.20 s"])
    await told.say("message", message=result(told, 5, "a", "1.89", ok=False, latency_ms=None))
    await told.say("message", message=result(told, 6, "unknown", "Whose?"))
    await expect(states).to_have_text(["was not called", "answered in 12.0 ms", "failed in 1.20 s"])
    titles = page.locator(".step summary")
    await expect(titles).to_have_count(4)
    await expect(titles.nth(1)).to_contain_text("Tool: prices")
    await expect(titles.nth(1)).to_contain_text("q: soy")
    await expect(titles.nth(3)).to_have_text("Tool answered in 12.0 ms")
    await titles.nth(1).click()
    await expect(page.locator(".step-call").nth(1).locator(".code code")).to_have_text(['{\n  "q": "soy"\n}', "2.05"])


@pytest.mark.parametrize("kept", [True, False])
async def test_a_model_that_reasons_is_heard_and_its_seconds_stay(page, start_service, kept):
    async with start_service(model="mock;think=40;gap=20;tokens=12", history={"keep_thoughts": kept}) as service:
        await open_service(page, service)
        await ask_service(page, "Hello")
        summary = page.locator(".step-thinking summary")
        await expect(summary).to_contain_text("Thinking…")
        await summary.click()
        region = page.get_by_role("group", name="Reasoning")
        await expect(region).not_to_be_empty()
        await expect(page.locator(".ledger")).to_have_count(1)
        await expect(summary).to_contain_text("Thought for")
        said, title = await region.inner_text(), await summary.inner_text()
        [session] = await service.get("/chatbot/sessions")
        answer = (await service.history(session["id"]))[-1]
        assert answer["metadata"]["extras"]["thinking_ms"] > 0
        await page.reload()
        await expect(page.locator(".ledger")).to_have_count(1)
        await expect(page.locator(".step-thinking summary" if kept else ".step-line")).to_have_text(title)
        await expect(page.locator(".step")).to_have_count(1)
        if kept:
            await summary.click()
            await expect(region).to_have_text(said, use_inner_text=True)
