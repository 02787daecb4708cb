"""The card of an agent that waits for the person: shown live and after a reload, answered once, followed on."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.fake_server import STAMP
from tests.browser.test_chat_page import ask as ask_service
from tests.browser.test_chat_page import open_page as open_service
from tests.browser.test_page_behaviour import ask, hold_clock, open_page

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


async def test_an_answer_without_a_connection_can_be_given_once_there_is_one(page, fake):
    fake.add_session("s", "A talk", stored(APPROVAL))
    await hold_clock(page)
    peer = await open_page(page, fake, "#/c/s")
    await peer.close(1012)
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    allow = page.get_by_role("button", name="Allow", exact=True)
    await allow.click()
    await expect(page.locator("#notice")).to_contain_text("The service does not answer")
    await page.clock.run_for(5_000)
    peer = await fake.peer()
    await expect(page.locator("#connection")).to_have_text("Connected")
    await page.clock.run_for(100)
    await allow.click()
    assert (await peer.heard("human_resume"))["payload"]["choice_id"] == "allow"


REVIEW = {
    "stage": "action_review",
    "title": "Allow send_mail?",
    "question": "Mails in your name.",
    "choices": [{"id": "approve", "label": "Approve"}, {"id": "reject", "label": "Reject", "default": True}],
    "free_text": False,
    "action_requests": [
        {
            "name": "send_mail",
            "args": {"to": "<b>brook</b>", "litres": 6},
            "description": "Mails in your name.\n\nTool: send_mail\nArgs: {'to': '<b>brook</b>', 'litres': 6}",
        }
    ],
    "review_configs": [{"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]}],
    "checkpoint_id": "c3",
}


def review(*requests, **allowed):
    """A question about these calls; each tool's decisions as a configuration."""
    configs = [{"action_name": name, "allowed_decisions": kinds} for name, kinds in allowed.items()]
    return {
        "title": "Allow?",
        "question": "",
        "action_requests": requests,
        "review_configs": configs,
        "checkpoint_id": "c",
    }


async def decided(peer, **payload):
    """The page's next frame, which is this answer."""
    heard = (await peer.heard("human_resume"))["payload"]
    assert heard == payload


async def test_a_call_is_approved_by_one_press(page, fake):
    fake.add_session("s", "A talk", stored(REVIEW))
    peer = await open_page(page, fake, "#/c/s")
    card = page.get_by_role("group", name="Allow send_mail?")
    await expect(card.get_by_text("Mails in your name.")).to_have_count(1)
    await expect(card.locator("pre")).to_have_text('{\n  "to": "<b>brook</b>",\n  "litres": 6\n}')
    await card.get_by_role("button", name="Approve").click()
    await decided(peer, decisions=[{"type": "approve"}], checkpoint_id="c3")
    await expect(page.get_by_label("Your message")).to_be_focused()


async def test_arguments_are_edited_as_json_and_what_is_wrong_with_them_is_said_in_place(page, fake):
    fake.add_session("s", "A talk", stored(REVIEW))
    peer = await open_page(page, fake, "#/c/s")
    card = page.get_by_role("group", name="Allow send_mail?")
    await card.get_by_role("radio", name="Approve").focus()
    await page.keyboard.press("ArrowRight")
    await expect(card.get_by_role("radio", name="Edit")).to_be_checked()
    await expect(card.locator("pre")).to_be_hidden()
    editor = card.get_by_label("Arguments of send_mail, as JSON")
    send = card.get_by_role("button", name="Approve with these changes")
    for text, words in (
        ("[1]", "The arguments must be a JSON object"),
        ('{"a": ', "This is not JSON"),
        ("7", "object"),
    ):
        await editor.fill(text)
        await expect(editor).to_have_attribute("aria-invalid", "true")
        await expect(card.get_by_role("alert").filter(visible=True)).to_contain_text(words)
        await send.click()
        await expect(editor).to_be_focused()
    await editor.fill('{"to": "alder", "litres": 12}')
    await expect(editor).not_to_have_attribute("aria-invalid", "true")
    await expect(editor).to_have_accessible_description("")
    await send.click()
    edited = {"name": "send_mail", "args": {"to": "alder", "litres": 12}}
    await decided(peer, decisions=[{"type": "edit", "edited_action": edited}], checkpoint_id="c3")


async def test_what_was_typed_is_kept_where_the_answer_was_not_taken(page, fake):
    fake.add_session("s", "A talk", stored(REVIEW))
    peer = await open_page(page, fake, "#/c/s")
    await page.get_by_role("radio", name="Reject").check()
    await page.get_by_label("Why not send_mail").fill("Ask Alder first")
    for _ in range(2):
        await page.get_by_role("button", name="Reject", exact=True).click()
        decision = {"type": "reject", "message": "Ask Alder first"}
        await decided(peer, decisions=[decision], checkpoint_id="c3")
        refused = {"code": "overloaded", "message": "The service is overloaded. Try again.", "retryable": True}
        await peer.say(type="error", session_id="s", exchange_id="e0", request_id="r", **refused)
    await expect(page.get_by_label("Why not send_mail")).to_have_value("Ask Alder first")


async def test_an_answer_that_the_agent_cannot_take_is_said_and_can_be_mended(page, fake):
    fake.add_session("s", "A talk", stored(REVIEW))
    peer = await open_page(page, fake, "#/c/s")
    approve = page.get_by_role("button", name="Approve")
    await approve.click()
    await decided(peer, decisions=[{"type": "approve"}], checkpoint_id="c3")
    refused = {"code": "bad_request", "message": "The request could not be read.", "retryable": False}
    fault = {"field": "decisions[0].type", "request_id": "r"}
    await peer.say(type="error", session_id="s", exchange_id="e0", **refused, **fault)
    await expect(page.locator("#notice")).to_have_text("The agent cannot take this answer (decisions[0].type)")
    await approve.click()
    await decided(peer, decisions=[{"type": "approve"}], checkpoint_id="c3")


async def test_only_what_is_allowed_is_offered(page, fake):
    first = {"name": "note", "arguments": {"text": "milk"}}
    second = {"name": "ask_person", "args": {}, "description": "What would you like?"}
    payload = review(first, {"name": "other", "args": {}}, second, note=["edit", "unheard_of"], ask_person=["respond"])
    fake.add_session("s", "A talk", stored(payload))
    peer = await open_page(page, fake, "#/c/s")
    note, other, person = (
        page.get_by_role("group", name=f"Call of {name}") for name in ("note", "other", "ask_person")
    )
    await expect(note.get_by_role("radio")).to_have_count(1)
    await expect(other.get_by_role("radio")).to_have_count(2)
    send = page.get_by_role("button", name="Send decisions")
    await send.click()
    await expect(page.get_by_role("alert").filter(has_text="Choose one of these.")).to_have_count(3)
    await expect(note.get_by_role("radio")).to_be_focused()
    await note.get_by_role("radio").check()
    await note.get_by_label("Arguments of note, as JSON").fill('{"text": "oat milk"}')
    await other.get_by_role("radio", name="Reject").check()
    await person.get_by_role("radio", name="Answer instead").check()
    await send.click()
    await expect(person.get_by_role("alert").filter(visible=True)).to_have_text("Write an answer.")
    await person.get_by_role("textbox").fill("Oats")
    await send.click()
    edit = {"type": "edit", "edited_action": {"name": "note", "arguments": {"text": "oat milk"}}}
    await decided(peer, decisions=[edit, {"type": "reject"}, {"type": "respond", "message": "Oats"}], checkpoint_id="c")


@pytest.mark.parametrize("calls", [[], "no list", [{"name": "note", "args": {}}]])
async def test_calls_that_the_page_can_offer_nothing_for_are_a_question_in_words(page, fake, calls):
    payload = {
        **review(*calls, note=["unheard_of"]),
        "action_requests": calls,
        "question": "What now?",
        "free_text": True,
    }
    fake.add_session("s", "A talk", stored(payload))
    peer = await open_page(page, fake, "#/c/s")
    await page.get_by_label("Your answer to the agent").fill("Nothing")
    await page.get_by_role("button", name="Answer").click()
    await decided(peer, text="Nothing", checkpoint_id="c")


async def test_a_value_that_an_agent_waits_with_is_shown_as_it_stands(page, fake):
    value = {
        "stage": "value",
        "title": "The agent waits for an answer",
        "question": '{\n  "x": 1\n}',
        "free_text": True,
    }
    fake.add_session("s", "A talk", stored({**value, "metadata": {"value": {"x": 1}}, "checkpoint_id": "c"}))
    await open_page(page, fake, "#/c/s")
    await expect(page.locator(".human pre")).to_have_text('{\n  "x": 1\n}')
    await expect(page.get_by_label("Your answer to the agent")).to_be_visible()


SEVERAL = {
    **WORDS,
    "checkpoint_id": "c4",
    "questions": [
        {"id": "q1", "question": "Which milk?", "free_text": True},
        {
            "id": "q2",
            "title": "Which shop?",
            "question": "Both are open.",
            "choices": [{"id": "a", "label": "Alder"}, {"id": "b", "label": "Brook", "default": True}],
            "free_text": True,
        },
        {
            "id": "q3",
            "title": "Pay?",
            "stage": "tool_approval",
            "metadata": {"arguments": {"euros": 12}},
            "choices": [{"id": "allow", "label": "Allow"}, {"id": "deny", "label": "Do not allow"}],
        },
        {"id": "q4", "title": "Mail?", **{key: REVIEW[key] for key in ("action_requests", "review_configs")}},
    ],
}


@pytest.mark.parametrize("width", [1200, 360])
async def test_several_questions_are_answered_at_once(page, fake, width):
    await page.set_viewport_size({"width": width, "height": 760})
    fake.add_session("s", "A talk", stored(SEVERAL))
    peer = await open_page(page, fake, "#/c/s")
    card = page.get_by_role("group", name="The agent asks you 4 questions")
    await expect(card.get_by_role("heading", name="The agent asks you 4 questions")).to_be_in_viewport()
    milk, shop, pay, mail = (card.get_by_role("group", name=name) for name in ("Which milk", "shop", "Pay", "Mail"))
    await expect(pay.locator("pre")).to_contain_text('"euros": 12')
    await expect(shop.get_by_role("radio", name="Brook")).to_be_checked()
    send = card.get_by_role("button", name="Send answers")
    await send.click()
    await expect(milk.get_by_role("textbox")).to_be_focused()
    await expect(card.get_by_role("alert").filter(visible=True)).to_have_text(
        ["Write an answer.", "Choose one of these.", "Choose one of these."]
    )
    await milk.get_by_role("textbox").fill("oat")
    await shop.get_by_role("radio", name="In other words").check()
    await shop.get_by_role("textbox").fill("The nearer one")
    await pay.get_by_role("radio", name="Allow", exact=True).check()
    await mail.get_by_role("radio", name="Approve").check()
    await expect(card.get_by_role("alert").filter(visible=True)).to_have_count(0)
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    assert await page.locator("#log").evaluate("(log) => log.scrollWidth <= log.clientWidth")
    await send.click()
    answers = {
        "q1": {"text": "oat"},
        "q2": {"text": "The nearer one"},
        "q3": {"choice_id": "allow"},
        "q4": {"decisions": [{"type": "approve"}]},
    }
    await decided(peer, answers=answers, checkpoint_id="c4")


def decision(rank, answer, said="", head=None):
    """What a person said in the middle of an exchange, as history has it."""
    metadata = {"extras": {"decision": {"by": "admin", "at": STAMP, "answer": answer}}}
    parts = [{"type": "text", "text": said}]
    shape = {"rank": rank, "timestamp": STAMP, "role": "user", "channel": "observation", "parts": parts}
    return {**(head or {"session_id": "s", "exchange_id": "e0"}), **shape, "metadata": metadata}


async def test_what_the_person_decided_is_a_line_of_the_turn(page, fake):
    peer = await open_page(page, fake)
    told = await ask(page, fake, peer, "Note milk")
    await told.begin()
    call = {"type": "tool_call", "call_id": "x", "name": "note", "args": {"text": "milk"}}
    await told.say("message", message={**told.message(1, "assistant", ""), "channel": "tool_call", "parts": [call]})
    await told.say("awaiting_human", payload=APPROVAL)
    await expect(page.locator(".call-state")).to_have_text("waits for you")
    await page.get_by_role("button", name="Allow", exact=True).click()
    await peer.heard("human_resume")
    await told.say("accepted")
    await told.say("message", message=decision(2, {"choice_id": "allow", "checkpoint_id": "c1"}, "Allow", told.head))
    await expect(page.locator(".step-decision")).to_contain_text("You approved: note")
    await expect(page.locator(".question")).to_have_text(["Note milk"])
    await expect(page.locator(".step-call .call-state")).to_have_text("running")


EDIT = {"type": "edit", "edited_action": {"name": "note", "args": {"text": "oat"}}}
MANY = [{"type": "approve"}, {"type": "approve"}, EDIT, {"type": "respond", "message": "x"}]


@pytest.mark.parametrize(
    ("answer", "said", "line", "blocks"),
    [
        ({"decisions": [{"type": "approve"}]}, "approve", "You approved: note", False),
        ({"decisions": [EDIT]}, "edit", "You approved with changes: note", True),
        ({"decisions": [{"type": "reject", "message": "No"}]}, "reject", "You rejected: note (“No”)", False),
        (
            {"decisions": MANY},
            "",
            "You approved 2 of them; approved with changes: note; answered in place of 1 of them",
            True,
        ),
        ({"choice_id": "deny"}, "Do not allow", "You rejected: note", False),
        ({"choice_id": "b"}, "Brook", "You answered: Brook", False),
        ({"text": "oat"}, "oat", "You answered: oat", False),
        ("oat", "", "You answered: oat", False),
        (
            {"answers": {"q1": {"text": "oat"}, "q2": {"choice_id": "b"}}},
            "oat\nBrook",
            "You answered 2 questions",
            True,
        ),
        ({"x": 1}, "", "You answered", False),
        (None, "", "You answered", False),
    ],
)
async def test_history_says_what_was_decided_by_whom_and_when(page, fake, answer, said, line, blocks):
    asked, called, _ = stored(APPROVAL)
    end = {**called, "rank": 3, "channel": "final", "parts": [{"type": "text", "text": "Done."}]}
    fake.add_session("s", "A talk", [asked, called, decision(2, answer, said), end])
    await open_page(page, fake, "#/c/s")
    shown = page.locator(".step-decision .step-title")
    await expect(shown).to_have_text(line)
    await expect(page.locator(".question")).to_have_count(1)
    await page.locator(".step-decision summary").click()
    await expect(page.locator(".step-decision .step-body")).to_contain_text("Decided by admin, Mar 1, 2026")
    await expect(page.locator(".step-decision pre")).to_have_count(int(blocks))


async def test_an_agent_that_asks_twice_at_once_goes_on_with_what_was_edited_and_said(page, start_service):
    agent = {"name": "Mary", "class_path": "tests.browser.review_agent"}
    async with start_service(ai={"agents": [agent]}, history={"keep_thoughts": True}) as service:
        await open_service(page, service)
        await ask_service(page, "Order milk")
        card = page.get_by_role("group", name="The agent asks you 2 questions")
        await expect(page.locator(".step-call")).to_contain_text("waits for you")
        await page.reload()
        mail = card.get_by_role("group", name="Allow send_mail?")
        await mail.get_by_role("radio", name="Edit").check()
        await mail.get_by_label("Arguments of send_mail, as JSON").fill('{"to": "brook", "litres": 8}')
        await card.get_by_role("group", name="In which language?").get_by_role("textbox").fill("Breton")
        await card.get_by_role("button", name="Send answers").click()
        await expect(page.locator(".item .markdown")).to_have_text("8 litres, in Breton.")
        lines = [
            re.compile("^Thought for"),
            "Tool: send_mailto: brook, litres: 6answered",
            re.compile("^You answered 2 questions"),
            re.compile("^Thought for"),
        ]
        for _ in range(2):
            await expect(page.locator(".step summary")).to_have_text(lines)
            await expect(page.locator(".question")).to_have_text(["Order milk"])
            await page.locator(".step-decision summary").click()
            await expect(page.locator(".step-decision code")).to_contain_text('"litres": 8')
            await page.reload()
