"""The card of an agent that waits for the person: shown live and after a reload, answered once, followed on."""

import pytest
from playwright.async_api import expect

from tests.browser.fake_server import STAMP
from tests.browser.test_page_behaviour import ask, open_page

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

APPROVAL = {
    "stage": "tool_approval",
    "title": "Allow note?",
    "question": "Sammy wants to call note of notes.",
    "choices": [{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Do not allow", "default": True}],
    "free_text": False,
    "metadata": {"arguments": {"text": "<b>milk</b>"}},
    "checkpoint_id": "c1",
}
WORDS = {"question": "Which milk?", "free_text": True, "checkpoint_id": "c2"}


def stored(payload, number=0, seq=5):
    """An exchange that waits, as history has it."""
    head = {"session_id": "s", "exchange_id": f"e{number}", "timestamp": STAMP}
    metadata = {
        "agent_id": "Sammy",
        "finish_reason": "other",
        "extras": {"status": "awaiting_human", "awaiting": {"payload": payload, "seq": seq}},
    }
    call = {"type": "tool_call", "call_id": "x", "name": "note", "args": {}}
    parts = [
        ("user", "final", [{"type": "text", "text": "Note milk"}], {}),
        ("assistant", "tool_call", [call], {}),
        ("assistant", "final", [{"type": "text", "text": ""}], metadata),
    ]
    return [
        {**head, "rank": 3 * number + place, "role": role, "channel": channel, "parts": said, "metadata": more}
        for place, (role, channel, said, more) in enumerate(parts)
    ]


async def test_a_card_asks_and_the_answer_lets_the_turn_go_on(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer)
    await told.begin()
    await told.delta("I will note it.")
    await told.say("awaiting_human", payload=APPROVAL)
    card = page.get_by_role("group", name="Allow note?")
    await expect(card).to_contain_text("Sammy wants to call note of notes.")
    await expect(card).to_contain_text("<b>milk</b>")
    await expect(page.get_by_label("Send")).to_be_visible()
    await card.get_by_role("button", name="Allow", exact=True).click()
    heard = await peer.heard("human_resume")
    assert heard == {
        "type": "human_resume",
        **told.head,
        "agent_id": "Georges",
        "payload": {"choice_id": "allow", "checkpoint_id": "c1"},
    }
    await expect(card).to_have_count(0)
    await told.say("accepted")
    await told.delta("I noted milk.", rank=3)
    await told.finish("I noted milk.")
    await expect(page.locator(".markdown")).to_have_text("I noted milk.")
    await expect(page.locator(".turn")).to_have_count(1)


async def test_a_card_is_there_after_a_reload_and_takes_words(page, fake):
    fake.add_session("s", "A talk", stored(WORDS))
    peer = await open_page(page, fake, "#/c/s")
    card = page.get_by_role("group", name="The agent asks you")
    await expect(card).to_contain_text("Which milk?")
    await card.get_by_label("Your answer to the agent").fill("oat")
    await card.get_by_role("button", name="Answer").click()
    heard = await peer.heard("human_resume")
    assert heard["payload"] == {"text": "oat", "checkpoint_id": "c2"}
    assert (heard["exchange_id"], heard["agent_id"]) == ("e0", "Sammy")
    head = {"session_id": "s", "exchange_id": "e0"}
    await peer.say(type="accepted", **head, seq=6)
    await peer.say(type="delta", **head, seq=7, rank=2, channel="final", text="Oat milk noted.")
    await expect(page.locator(".markdown")).to_have_text("Oat milk noted.")
    await expect(card).to_have_count(0)


async def test_who_asks_something_else_lets_the_card_be(page, fake):
    fake.add_session("s", "A talk", stored(APPROVAL))
    peer = await open_page(page, fake, "#/c/s")
    card = page.get_by_role("group", name="Allow note?")
    await expect(card).to_be_visible()
    await page.get_by_label("Your message").fill("Never mind")
    await page.get_by_label("Your message").press("Enter")
    told = await fake.told(peer)
    await expect(card).to_have_count(0)
    await expect(page.locator(".turn").first).to_contain_text("You went on without answering the agent.")
    await told.begin(rank=3)


async def test_an_older_question_in_history_cannot_be_answered(page, fake):
    fake.add_session("s", "A talk", [*stored(APPROVAL), *stored(WORDS, 1)])
    await open_page(page, fake, "#/c/s")
    await expect(page.locator(".human")).to_have_count(1)
    await expect(page.locator(".turn").first).to_contain_text("You went on without answering the agent.")


async def test_a_refused_answer_can_be_given_again(page, fake):
    fake.add_session("s", "A talk", stored(APPROVAL))
    peer = await open_page(page, fake, "#/c/s")
    await page.get_by_role("button", name="Do not allow").click()
    heard = await peer.heard("human_resume")
    refused = {"code": "overloaded", "message": "The service is overloaded. Try again.", "retryable": True}
    await peer.say(type="error", session_id="s", exchange_id="e0", request_id="r", **refused)
    await expect(page.locator("#notice")).to_contain_text("The service is busy")
    await page.get_by_role("button", name="Do not allow").click()
    assert await peer.heard("human_resume") == heard


async def test_an_answer_that_another_tab_gave_is_followed(page, fake):
    fake.add_session("s", "A talk", stored(APPROVAL))
    peer = await open_page(page, fake, "#/c/s")
    await page.get_by_role("button", name="Allow", exact=True).click()
    await peer.heard("human_resume")
    refused = {"code": "not_awaiting", "message": "No answer is awaited here.", "retryable": False}
    head = {"session_id": "s", "exchange_id": "e0"}
    await peer.say(type="error", **head, request_id="r", **refused)
    assert (await peer.heard("resume"))["after_seq"] == 4
    await peer.say(type="awaiting_human", **head, seq=5, payload=APPROVAL)
    await peer.say(type="accepted", **head, seq=6)
    await peer.say(type="delta", **head, seq=7, rank=2, channel="final", text="Noted over there.")
    await expect(page.locator(".markdown")).to_have_text("Noted over there.")
    await expect(page.locator(".human")).to_have_count(0)
