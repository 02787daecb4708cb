"""What the page does when the server refuses, fails, drops the connection or answers late."""

import asyncio

import pytest
from playwright.async_api import Page, Route, expect
from starlette.responses import JSONResponse

from tests.browser.fake_server import FakeServer, Peer, Told

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

LEDGER = [
    {"phase": "history_restore", "depth": 0, "start_ms": 0.2, "ms": 1.3},
    {"phase": "stream_agent_response", "depth": 0, "start_ms": 1.6, "ms": 812.0},
    {"phase": "llm_invoke", "depth": 1, "start_ms": 2.0, "ms": 810.5},
    {"phase": "spool_ack", "depth": 0, "start_ms": 814.0, "ms": 0.6},
]


async def open_page(page: Page, fake: FakeServer, path: str = "") -> Peer:
    """The page, loaded and connected."""
    await page.goto(fake.url + path)
    peer = await fake.peer()
    await expect(page.locator("#connection")).to_have_text("Connected")
    return peer


async def hold_clock(page: Page) -> None:
    """The time of what the page loads from here on stands still, but for what the test lets pass."""
    await page.clock.install(time="2030-01-01T00:00:00Z")
    await page.clock.pause_at("2030-01-01T01:00:00Z")


async def ask(page: Page, fake: FakeServer, peer: Peer, text: str = "Why?") -> Told:
    """Type a question and send it with Enter; the server's side of the turn."""
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")
    return await fake.told(peer)


async def test_an_answer_streams_and_its_phases_stand_under_it(page, fake):
    peer = await open_page(page, fake)
    assert peer.subprotocols == ["turnwise.v1", "bearer.local"]
    told = await ask(page, fake, peer, "Why *so*?")
    assert told.ask == {
        "type": "ask",
        "session_id": "session-000",
        "message": "Why *so*?",
        "agent_id": "Georges",
        "client_exchange_id": told.ask["client_exchange_id"],
        "if_busy": "reject",
    }
    await told.begin()
    await told.delta("First **bo")
    await expect(page.locator(".markdown")).to_have_text("First **bo")
    await expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    await told.delta("ld** part")
    await expect(page.locator(".markdown strong")).to_have_text("bold")
    await told.finish("First **bold** part, and the end.", LEDGER, warnings=["answered_without_documents"])
    await expect(page.locator(".markdown")).to_have_text("First bold part, and the end.")
    await expect(page.locator(".question")).to_have_text("Why *so*?")
    await expect(page.locator(".note.warning")).to_contain_text("without your documents")
    await expect(page.locator(".answer")).not_to_have_attribute("aria-busy", "true")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Why *so*?")
    await expect(page.locator(".ledger-facts")).to_contain_text("first token")
    await page.locator(".ledger summary").click()
    phases = await page.locator(".ledger tbody th").all_text_contents()
    assert phases == ["history_restore", "stream_agent_response", "llm_invoke", "spool_ack"]
    foot = page.locator(".ledger tfoot")
    await expect(foot).to_contain_text("unattributed1.50 ms")
    await expect(foot).to_contain_text("Total on the server815 ms")
    await expect(foot).to_contain_text("First token, in this browser")


async def test_stop_sends_cancel_and_keeps_what_was_written(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("Half of it")
    await page.get_by_role("button", name="Stop").click()
    assert await peer.heard("cancel") == {"type": "cancel", "exchange_id": told.head["exchange_id"]}
    await expect(page.locator(".doing")).to_have_text("Stopping…")
    await told.say("cancelled", messages=told.exchange("Half of it", finish_reason="cancelled"))
    await expect(page.locator(".turn-end")).to_contain_text("Stopped.")
    await expect(page.locator(".markdown")).to_have_text("Half of it")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_cancel_that_comes_too_late_finds_the_answer_in_the_history(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await page.get_by_role("button", name="Stop").click()
    await peer.heard("cancel")
    fake.stored["session-000"] = told.exchange("All of it")
    await peer.say(type="error", code="exchange_not_found", message="Exchange not found.", retryable=False)
    await expect(page.locator(".markdown")).to_have_text("All of it")


async def test_a_failed_answer_keeps_its_part_and_can_be_tried_again(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("The part before")
    await told.say(
        "error", code="llm_timeout", message="The model did not answer in time.", retryable=True, partial=True
    )
    error = page.locator(".error")
    await expect(error).to_contain_text("The model took too long")
    await expect(error).to_contain_text("choose another model")
    await expect(page.locator(".markdown")).to_have_text("The part before")
    await page.get_by_role("button", name="Try again").click()
    again = await fake.told(peer)
    assert again.ask["message"] == told.ask["message"]
    assert again.ask["client_exchange_id"] != told.ask["client_exchange_id"]
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    await again.begin()
    await again.finish("Now it is whole")
    await expect(page.locator(".question")).to_have_count(2)
    await expect(page.locator(".markdown").last).to_have_text("Now it is whole")


async def test_a_refused_ask_waits_as_long_as_the_server_says_and_is_replaced_by_the_next(page, fake):
    await hold_clock(page)
    async with page.expect_websocket() as opening:
        peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    async with (await opening.value).expect_event("framereceived"):
        await told.refuse(
            "overloaded", message="The service is overloaded. Try again.", retryable=True, retry_after_ms=3000
        )
    await page.clock.run_for(100)  # a moment to draw it
    await expect(page.get_by_role("button", name="Try again in 3 s")).to_be_disabled()
    await page.clock.run_for(3500)
    await page.clock.resume()
    await page.get_by_role("button", name="Try again").click()
    again = await fake.told(peer)
    await again.begin()
    await again.finish("Answered")
    await expect(page.locator(".question")).to_have_count(1)
    await expect(page.locator(".error")).to_have_count(0)


async def test_a_refusal_that_names_no_exchange_belongs_to_the_waiting_ask_which_can_be_edited(page, fake):
    peer = await open_page(page, fake)
    await ask(page, fake, peer, "far too long")
    await peer.say(type="error", code="message_too_long", message="The message is too long.", retryable=False)
    await expect(page.locator(".error")).to_contain_text("That message is too long")
    await expect(page.get_by_role("button", name="Try again")).to_have_count(0)
    await page.get_by_role("button", name="Edit").click()
    await expect(page.get_by_label("Your message")).to_have_value("far too long")
    await expect(page.locator(".turn")).to_have_count(0)


async def test_a_broken_connection_is_mended_and_the_turn_goes_on_or_is_told_anew(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("One ")
    await told.delta("two ")
    await expect(page.locator(".markdown")).to_have_text("One two")
    await peer.close(1012)
    peer = await fake.peer()
    assert await told.resumed(peer) == 4
    await told.delta("three ")
    await expect(page.locator(".markdown")).to_have_text("One two three")
    await peer.close(1012)
    assert await told.resumed(await fake.peer()) == 5
    told.seq = 0  # as from history
    await told.begin()
    await told.delta("Uno due ")
    await expect(page.locator(".markdown")).to_have_text("Uno due")
    await told.finish("Uno due tre")
    await expect(page.locator(".markdown")).to_have_text("Uno due tre")
    await expect(page.locator(".turn")).to_have_count(1)


@pytest.mark.parametrize("broken", [True, False], ids=["after a break", "on a living connection"])
async def test_what_a_turn_had_shown_that_runs_again_is_replaced(page, fake, broken):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.say("thought", text="I reason.")
    call = {"type": "tool_call", "call_id": "c", "name": "search", "args": {"q": "one"}}
    await told.say("message", message={**told.message(1, "assistant", ""), "channel": "tool_call", "parts": [call]})
    await told.say("sources", sources=[{"uid": "d", "title": "Old", "content": "x", "score": 1, "rank": 1}])
    await told.delta("Half of", rank=2)
    await expect(page.locator(".answer > .items")).to_contain_text("Half of")
    if broken:
        await peer.close(1012)
        assert await told.resumed(await fake.peer()) == told.seq
    told.seq = 1_000_000
    await told.say("restarted")
    await expect(page.locator(".answer > .items")).to_be_empty()
    await told.begin()
    other = {**call, "args": {"q": "two"}}
    await told.say("message", message={**told.message(1, "assistant", ""), "channel": "tool_call", "parts": [other]})
    await told.delta("Other", rank=2)
    await expect(page.locator(".markdown")).to_have_text("Other")
    await expect(page.locator(".call-preview")).to_have_text("q: two")
    await expect(page.locator(".step-thinking")).to_have_count(0)
    if not broken:
        # The tab sends what it knows, and what it hears then has the numbers of this run.
        await page.reload()
        assert await told.resumed(await fake.peer()) == told.seq
    await told.delta(" one.", rank=2)
    await expect(page.locator(".markdown")).to_have_text("Other one.")
    await told.finish("Other one.")
    await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
    await expect(page.locator(".answer .markdown")).to_have_text("Other one.")
    await expect(page.locator(".turn")).to_have_count(1)
    await expect(page.get_by_text("Old")).to_have_count(0)


async def test_an_answer_that_was_finished_during_the_break_comes_from_the_history(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("One ")
    extras = {"ledger": LEDGER}
    fake.stored["session-000"] = told.exchange("One two", model="mock", latency_ms=820, extras=extras)
    await peer.close(1012)
    await told.forgotten(await fake.peer())
    await expect(page.locator(".markdown")).to_have_text("One two")
    await expect(page.locator(".ledger-facts")).to_contain_text("820 ms")


async def test_an_ask_made_without_a_connection_is_sent_once_there_is_one(page, fake):
    await hold_clock(page)
    fake.add_session("old", "Old one")
    peer = await open_page(page, fake, "#/c/old")
    await peer.close(1012)
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    await page.get_by_label("Your message").fill("Are you there?")
    await page.keyboard.press("Enter")
    await page.clock.run_for(3_000)
    told = await fake.told(await fake.peer())
    assert told.ask["message"] == "Are you there?"


async def test_a_turn_survives_a_reload_with_its_text_and_goes_on(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("Before the reload")
    await expect(page.locator(".markdown")).to_have_text("Before the reload")
    fake.stored["session-000"] = told.exchange("")[:1]
    await page.reload()
    assert await told.resumed(await fake.peer()) == 3
    await expect(page.locator(".markdown")).to_have_text("Before the reload")
    await expect(page.locator(".turn")).to_contain_text("Resuming the answer…")
    await told.delta(" and after")
    await expect(page.locator(".markdown")).to_have_text("Before the reload and after")
    await expect(page.locator(".turn")).not_to_contain_text("Resuming the answer…")
    await told.finish("Before the reload and after")
    await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
    await expect(page.locator(".question")).to_have_count(1)
    assert await page.evaluate("sessionStorage.getItem('turnwise.pending')") == "[]"


async def test_a_session_busy_with_the_very_turn_is_asked_again_until_the_answer_is_there(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await peer.close(1012)
    peer = await fake.peer()
    await told.forgotten(peer)
    again = await fake.told(peer)
    fake.stored["session-000"] = told.exchange("Found later")
    await again.refuse("session_busy", message="The session is answering.", retryable=True)
    await expect(page.locator(".markdown")).to_have_text("Found later")


async def test_a_history_that_asks_for_patience_is_not_looked_at_again_before(page, fake):
    await page.clock.install()
    looked: list[str] = []
    page.on("request", lambda request: looked.append(request.url) if "/history" in request.url else None)
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await peer.close(1012)
    detail = {"code": "history_unavailable", "message": "History is unavailable. Try again."}
    fake.broken = JSONResponse({"detail": detail}, 503, headers={"Retry-After": "3600"})
    peer = await fake.peer()
    async with page.expect_response(lambda answer: "/history" in answer.url and answer.status == 503):
        await told.forgotten(peer)
    for _ in range(3):
        # A request that comes back: what the page does about the answer before it is done.
        assert await page.evaluate("fetch('/web/format.js').then((answer) => answer.status)") == 200
        await page.clock.run_for(4_000)
    assert len(looked) == 1
    await expect(page.locator(".turn")).to_have_attribute("data-status", "running")


async def test_a_replaced_page_does_not_fight_for_its_place(page, fake):
    await hold_clock(page)
    peer = await open_page(page, fake)
    await peer.close(4409)
    await expect(page.locator("#connection")).to_have_text("Open elsewhere")
    await page.clock.run_for(60_000)
    assert fake.peers.empty()
    await page.get_by_role("button", name="Use it here").click()
    await fake.peer()
    await expect(page.locator("#connection")).to_have_text("Connected")
    await expect(page.locator("#connection-banner")).to_be_hidden()
    assert fake.peers.empty()


async def test_refused_credentials_are_said_and_not_retried(page, fake):
    peer = await open_page(page, fake)
    await peer.close(4401)
    await expect(page.locator("#connection-banner")).to_contain_text("refused your credentials")


async def test_a_silent_connection_is_asked_for_a_sign_and_given_up(page, fake):
    await hold_clock(page)
    async with page.expect_websocket() as opening:
        peer = await open_page(page, fake)
    await page.clock.run_for(21_500)
    await peer.heard("ping")
    async with (await opening.value).expect_event("framereceived"):
        await peer.say(type="pong")
    await expect(page.locator("#connection")).to_have_text("Connected")
    await page.clock.run_for(21_500)
    await peer.heard("ping")
    await page.clock.run_for(11_000)
    await peer.gone.wait()
    await page.clock.run_for(3_000)
    await fake.peer()


async def test_history_is_read_in_windows_and_grows_upwards(page, fake):
    messages = []
    for number in range(130):
        head = {
            "session_id": "long",
            "exchange_id": f"e{number}",
            "timestamp": "2026-01-01T00:00:00Z",
            "channel": "final",
        }
        for role, offset in (("user", 0), ("assistant", 1)):
            text = [{"type": "text", "text": f"{role} {number}"}]
            messages.append({**head, "rank": 2 * number + offset, "role": role, "parts": text, "metadata": {}})
    fake.add_session("long", "A long one", messages)
    await open_page(page, fake, "#/c/long")
    await expect(page.locator(".turn")).to_have_count(50)
    await expect(page.locator(".question").last).to_have_text("user 129")
    await page.get_by_role("button", name="Show earlier messages").click()
    await expect(page.locator(".turn")).to_have_count(100)
    await page.get_by_role("button", name="Show earlier messages").click()
    await expect(page.locator(".turn")).to_have_count(130)
    await expect(page.locator(".question").first).to_have_text("user 0")
    await expect(page.get_by_role("button", name="Show earlier messages")).to_be_hidden()
    assert [url.partition("?")[2] for url in fake.requests] == [
        f"limit=100&offset={offset}&branches=1" for offset in (0, 100, 200)
    ]


async def test_stored_failures_and_stops_look_as_they_did(page, fake):
    def stored(number, role, texts, **metadata):
        parts = [{"type": "text", "text": text} for text in texts]
        head = {"session_id": "s", "exchange_id": f"e{number // 2}", "timestamp": "2026-01-01T00:00:00Z"}
        return {**head, "rank": number, "role": role, "channel": "final", "parts": parts, "metadata": metadata}

    failed = {"finish_reason": "other", "extras": {"error": "llm_timeout"}}
    fake.add_session(
        "s",
        "Mixed",
        [
            stored(0, "user", ["one"]),
            stored(1, "assistant", ["some of it", "The model did not answer in time."], **failed),
            stored(2, "user", ["two"]),
            stored(3, "assistant", [""], finish_reason="cancelled"),
            stored(4, "user", ["three"]),
        ],
    )
    await open_page(page, fake, "#/c/s")
    turns = page.locator(".turn")
    await expect(turns.nth(0).locator(".markdown")).to_have_text("some of it")
    await expect(turns.nth(0).locator(".error")).to_contain_text("The model took too long")
    await expect(turns.nth(1)).to_contain_text("Stopped.")
    await expect(turns.nth(2)).to_contain_text("This question has no stored answer.")


async def test_deleting_can_be_undone(page, fake):
    fake.add_session("one", "Keep me")
    fake.add_session("two", "Drop me")
    await open_page(page, fake, "#/c/two")
    for undone in (True, False):
        await page.get_by_role("button", name="Options of Drop me").click()
        await page.get_by_role("menuitem", name="Delete").click()
        await expect(page.locator(".session")).to_have_count(1)
        await expect(page.locator("#welcome")).to_be_visible()
        assert fake.deleted == []
        if undone:
            await page.get_by_role("button", name="Undo").click()
            await expect(page.locator(".session")).to_have_count(2)
    async with page.expect_response(lambda response: response.request.method == "DELETE"):
        await page.locator("#undo").get_by_role("button", name="Close").click()
    await expect(page.locator("#undo")).to_be_hidden()
    assert fake.deleted == ["two"]


async def test_a_delete_that_fails_brings_the_conversation_back(page, fake):
    fake.add_session("one", "Stay")
    await open_page(page, fake)
    await page.route("**/chatbot/session/one", lambda route: route.fulfill(status=503, json={}))
    await page.get_by_role("button", name="Options of Stay").click()
    await page.get_by_role("menuitem", name="Delete").click()
    await expect(page.locator(".session")).to_have_count(0)
    await page.locator("#undo").get_by_role("button", name="Close").click()
    await expect(page.locator(".session")).to_have_count(1)
    await expect(page.get_by_role("alert")).to_be_visible()


async def test_a_service_that_does_not_answer_keeps_the_text_in_the_box(page, fake):
    await open_page(page, fake)
    detail = {"code": "history_unavailable", "message": "History is unavailable. Try again."}
    fake.broken = JSONResponse({"detail": detail}, 503)
    await page.get_by_label("Your message").fill("A question")
    await page.keyboard.press("Enter")
    await expect(page.locator("#notice")).to_contain_text("History is unavailable. Try again.")
    await expect(page.get_by_label("Your message")).to_have_value("A question")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()


async def test_an_unknown_conversation_is_said(page, fake):
    await open_page(page, fake, "#/c/nothing")
    await expect(page.locator("#notice")).to_contain_text("This conversation no longer exists")
    await expect(page.locator("#loading")).to_be_hidden()


async def test_two_conversations_answer_at_once_and_do_not_mix(page, fake):
    peer = await open_page(page, fake)
    first = await ask(page, fake, peer, "First?")
    await first.begin()
    await page.get_by_role("button", name="New conversation", exact=True).click()
    second = await ask(page, fake, peer, "Second?")
    await second.begin()
    await first.delta("for the first")
    await second.delta("for the second")
    await expect(page.locator(".markdown")).to_have_text("for the second")
    await expect(page.locator(".session.busy")).to_have_count(2)
    await first.finish("for the first")
    await page.locator(".session a").filter(has_text="First?").click()
    await expect(page.locator(".markdown")).to_have_text("for the first")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await second.finish("for the second")


async def test_shift_enter_writes_a_new_line_and_an_empty_message_is_not_sent(page, fake):
    peer = await open_page(page, fake)
    await page.get_by_label("Your message").press("Enter")
    await page.get_by_label("Your message").fill("one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("two")
    await page.keyboard.press("Enter")
    assert (await fake.told(peer)).ask["message"] == "one\ntwo"


async def test_the_agent_picker_is_there_only_where_there_is_a_choice(page, fake):
    rico = {"id": "Rico", "name": "Rico", "enabled": True, "tuning": {"role": "Librarian", "description": ""}}
    off = {"id": "Off", "name": "Off", "enabled": False, "tuning": {}}
    await open_page(page, fake)
    await expect(page.get_by_label("Agent")).to_be_hidden()
    fake.agents = [*fake.agents, rico, off]
    await page.reload()
    peer = await fake.peer()
    await expect(page.locator("#agent option")).to_have_text(["Georges", "Rico"])
    await page.get_by_label("Agent").select_option("Rico")
    assert (await ask(page, fake, peer)).ask["agent_id"] == "Rico"


async def test_steps_of_an_agent_are_folded_and_text_that_became_a_thought_moves_there(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("Let me look.")
    await expect(page.locator(".markdown")).to_have_text("Let me look.")
    thought = {**told.message(1, "assistant", "Let me look."), "channel": "thought"}
    await told.say("message", message=thought)
    await expect(page.locator(".markdown")).to_have_count(0)
    for rank, name, ended in ((2, "a", {"ok": True, "latency_ms": 12}), (4, "b", {"ok": False})):
        call = {"type": "tool_call", "call_id": name, "name": "search", "args": {"q": "<b>x</b>"}}
        result = {"type": "tool_result", "call_id": name, "content": "", "latency_ms": None, **ended}
        asked = {**told.message(rank, "assistant", ""), "channel": "tool_call", "parts": [call]}
        answered = {**told.message(rank + 1, "tool", ""), "channel": "tool_result", "parts": [result]}
        await told.say("message", message=asked)
        await told.say("message", message=answered)
    await told.delta("Found.", rank=6)
    call_line = "Tool: searchq: <b>x</b>"
    steps = ["Thought", f"{call_line}answered in 12.0 ms", f"{call_line}was not called"]
    await expect(page.locator(".step summary")).to_have_text(steps)
    await expect(page.locator(".markdown")).to_have_text("Found.")
    assert await page.locator("b").count() == 0


async def test_whoever_scrolls_up_stays_there_while_text_comes(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("\n\n".join(f"Line {n}." for n in range(100)))
    log = page.locator("#log")
    await expect(page.locator(".markdown")).to_contain_text("Line 99.")
    at_end = "(log) => log.scrollTop > 0 && log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    await page.wait_for_function(f"() => ({at_end})(document.querySelector('#log'))")
    # What understands Markdown may come between the scroll and its event.
    grown = "log.querySelector('.markdown').dispatchEvent(new CustomEvent('grown', { bubbles: true }))"
    assert await log.evaluate(f"(log) => {{ log.scrollTop = 0; {grown}; return log.scrollTop; }}") == 0
    await told.delta("\n\nThe last.")
    await expect(page.locator(".markdown")).to_contain_text("The last.")
    assert await log.evaluate("(log) => log.scrollTop") == 0
    await page.get_by_role("button", name="To the latest message").click()
    await told.delta("\n\nAnd one more.")
    await expect(page.locator(".markdown")).to_contain_text("And one more.")
    assert await log.evaluate(at_end)


async def test_at_400_px_the_conversations_are_a_drawer_and_nothing_is_wider_than_the_screen(page, fake):
    await page.set_viewport_size({"width": 400, "height": 800})
    fake.add_session("one", "A conversation with quite a long title that does not fit into the drawer")
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer, "w" * 300)
    await told.begin()
    table = "| " + " | ".join(f"column {n}" for n in range(12)) + " |\n|" + "---|" * 12 + "\n"
    await told.finish(f"{'x' * 500}\n\n```\n{'y' * 500}\n```\n\n{table}", LEDGER)
    await page.locator(".ledger summary").click()
    assert await page.evaluate("document.documentElement.scrollWidth") == 400
    assert await page.evaluate("document.getElementById('log').scrollWidth <= 400")
    await expect(page.locator("#sidebar")).to_be_hidden()
    await page.get_by_role("button", name="Conversations").click()
    await page.get_by_role("link", name="A conversation").click()
    await expect(page.locator("#sidebar")).to_be_hidden()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("A conversation")


@pytest.mark.parametrize("late", ["config/frontend_settings", "history"])
async def test_conversations_that_are_opened_early_stay_open(page: Page, fake: FakeServer, late: str) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(route: Route) -> None:
        asked.set()
        await go.wait()
        await route.continue_()

    await page.set_viewport_size({"width": 400, "height": 800})
    fake.add_session("one", "A conversation")
    await page.route(f"**/{late}*", answer)
    await page.goto(f"{fake.url}#/c/one")
    await asked.wait()
    await page.get_by_role("button", name="Conversations").click()
    await expect(page.locator("#sidebar")).to_be_visible()
    go.set()
    await fake.peer()
    await expect(page.locator("#loading")).to_be_hidden()
    await page.get_by_role("link", name="Settings").click()
    await expect(page.locator("#sidebar")).to_be_hidden()


async def test_the_list_is_reached_and_left_with_the_keyboard(page, fake):
    await page.set_viewport_size({"width": 400, "height": 800})
    fake.add_session("one", "Only one")
    await open_page(page, fake)
    await page.get_by_role("button", name="Conversations").press("Enter")
    await expect(page.get_by_role("button", name="New conversation", exact=True)).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Conversations")).to_be_focused()
    await expect(page.locator("#sidebar")).to_be_hidden()


async def test_what_is_suggested_is_the_chosen_agents(page, fake):
    ada = {"id": "Ada", "name": "Ada", "starters": ["Rhyme on <b>bee</b>", "Draw a bee"]}
    fake.agents = [*fake.agents, ada, {"id": "Bob", "name": "Bob", "starters": []}]
    peer = await open_page(page, fake)
    suggestions = page.locator("#suggestions button")
    agent = page.locator("#agent")
    await expect(agent).to_have_value("Georges")
    await expect(suggestions).to_have_count(0)
    await agent.select_option("Bob")
    await expect(suggestions).to_have_count(0)
    await agent.select_option("Ada")
    await expect(suggestions).to_have_text(ada["starters"])
    await suggestions.first.click()
    told = await fake.told(peer)
    assert (told.ask["agent_id"], told.ask["message"]) == ("Ada", "Rhyme on <b>bee</b>")


@pytest.mark.parametrize("late", ["agents", "config/frontend_settings"])
async def test_a_question_that_comes_before_the_page_is_ready_is_asked_once_it_is(page, fake, late):
    arrive = asyncio.Event()

    async def wait(route):
        await arrive.wait()
        await route.continue_()

    await page.route(f"**/{late}", wait)
    async with page.expect_request(f"**/{late}"):
        await page.goto(fake.url)
    await page.get_by_label("Your message").fill("Who is there?")
    await page.keyboard.press("Enter")
    arrive.set()
    told = await fake.told(await fake.peer())
    await told.begin()
    await told.finish("I am.")
    await expect(page.locator(".markdown")).to_have_text("I am.")
    await expect(page.get_by_text("There is no agent to ask")).to_have_count(0)


async def test_what_is_typed_before_the_page_is_ready_stays_in_its_box(page, fake):
    arrive = asyncio.Event()

    async def wait(route):
        await arrive.wait()
        await route.continue_()

    fake.add_session("session-7", "Rivers")
    await page.route("**/config/frontend_settings", wait)
    await page.goto(f"{fake.url}#/c/session-7")
    box = page.get_by_label("Your message")
    await box.fill("And lakes?")
    arrive.set()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Rivers")
    await expect(box).to_have_value("And lakes?")
    await page.get_by_role("button", name="New conversation").click()
    await expect(box).to_have_value("")
