"""Feedback with a reason on the page, and what those who run the service see of it, against the real service."""

import csv
import io

import pytest
from playwright.async_api import expect

from tests.browser.test_conversations import talk
from tests.support.service import BASE

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = '=HYPERLINK("x") <img src=x onerror=alert(1)> \u202egnirts\n\n' + "W" * 300


async def test_a_rating_has_a_reason_and_a_comment(page, service):
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await page.goto(f"http://127.0.0.1:{service.port}/#/c/{session_id}")
    bad = page.get_by_label("Bad answer")
    await bad.click()
    form = page.get_by_role("form", name="What is wrong with this answer?")
    await expect(form.get_by_role("radio")).to_have_count(5)
    await expect(bad).to_have_attribute("aria-pressed", "true")
    await expect(form).to_be_visible()
    await form.get_by_role("radio", name="Wrong sources").check()
    await form.get_by_label("Comment").fill("x" * 1200)
    assert len(await form.get_by_label("Comment").input_value()) == 1000
    await form.get_by_label("Comment").fill("They are of last year.")
    await form.get_by_role("button", name="Send").press("Enter")
    await expect(page.get_by_role("status").filter(has_text="Thank you.")).to_be_visible()
    await expect(form).to_have_count(0)
    await expect(bad).to_be_focused()
    (given,) = await service.get("/chatbot/feedback")
    assert (given["rating"], given["reason"], given["comment"]) == (1, "wrong_sources", "They are of last year.")
    await page.reload()
    await page.get_by_role("button", name="Change what you said").click()
    await expect(form.get_by_role("radio", name="Wrong sources")).to_be_checked()
    await expect(form.get_by_label("Comment")).to_have_value("They are of last year.")
    await page.keyboard.press("Escape")
    await expect(form).to_have_count(0)
    await expect(bad).to_be_focused()
    await page.get_by_label("Good answer").click()
    await expect(page.get_by_role("form", name="What is good about this answer?")).to_be_visible()
    await expect(bad).to_have_attribute("aria-pressed", "false")
    (given,) = await service.get("/chatbot/feedback")
    assert (given["rating"], given["reason"], given["comment"]) == (5, None, None)


@pytest.mark.parametrize("width", [1200, 320])
async def test_operators_read_it_filter_it_and_save_it(page, service, width):
    await page.set_viewport_size({"width": width, "height": 760})
    for title, rating, reason, comment in (("One", 1, "not_true", HOSTILE), ("Two", 5, None, None)):
        session_id = await talk(service, title, "Why?")
        sent = {"rating": rating, "reason": reason, "comment": comment, "messageId": "1", "sessionId": session_id}
        async with service.http.post(f"{BASE}/chatbot/feedback", json={**sent, "agentName": "Georges"}) as response:
            assert response.status == 204
        exchange = f"{session_id}-e1"
    await service.flush()
    await page.goto(f"http://127.0.0.1:{service.port}/#/feedback")
    await expect(page.get_by_role("heading", level=2)).to_have_text("What people say of answers")
    cards = page.get_by_role("list", name="Ratings").get_by_role("listitem")
    await expect(cards).to_have_count(2)
    await expect(cards.first).to_contain_text("Good answer")
    await expect(cards.first.locator("code")).to_have_text(exchange)
    await expect(cards.last).to_contain_text("Not true")
    await expect(cards.last.locator(".said")).to_have_text(HOSTILE, use_inner_text=True)
    assert await page.locator("#place img").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    assert await page.locator("#place").evaluate("(place) => place.scrollWidth <= place.clientWidth")
    await page.get_by_role("combobox", name="Rating").select_option("Bad answer")
    await expect(cards).to_have_count(1)
    await expect(page.get_by_role("status").filter(has_text="1 rating shown")).to_be_visible()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Save as CSV").click()
    download = await downloading.value
    assert download.suggested_filename == "feedback.csv"
    saved = (await download.path()).read_bytes().decode("utf-8-sig")
    head, row = csv.reader(io.StringIO(saved, newline=""))
    assert head == ["createdAt", "agentName", "rating", "reason", "comment", "exchangeId"]
    assert row[1:5] == ["Georges", "1", "not_true", "'" + HOSTILE]
    await page.locator("#place").get_by_role("combobox", name="Agent").select_option("Georges")
    await expect(cards).to_have_count(1)


async def test_more_than_a_page_comes_on_demand(page, fake):
    one = {"rating": 3, "reason": "of_tomorrow", "comment": None, "exchangeId": None, "agentName": "Georges"}
    every = [{**one, "id": str(number), "createdAt": "2026-03-01T10:00:00Z"} for number in range(51)]

    async def answer(route):
        query = dict(part.split("=") for part in route.request.url.split("?")[1].split("&"))
        start = int(query["offset"])
        await route.fulfill(json=every[start : start + int(query["limit"])])

    await page.route("**/kpi/feedback?*", answer)
    await page.goto(f"{fake.url}#/feedback")
    cards = page.get_by_role("list", name="Ratings").get_by_role("listitem")
    await expect(cards).to_have_count(50)
    await expect(cards.first).to_contain_text("Rated 3 of 5")
    await expect(cards.first).to_contain_text("of_tomorrow")
    await page.get_by_role("button", name="Show more").press("Enter")
    await expect(cards).to_have_count(51)
    await expect(cards.last).to_be_focused()
    await expect(page.get_by_role("button", name="Show more")).to_be_hidden()


async def test_what_cannot_be_read_is_not_said_to_be_missing(page, fake):
    refused = True
    asked = 0

    async def answer(route):
        nonlocal asked
        asked += 1
        if refused:
            body = {"detail": {"code": "overloaded", "message": "no"}}
            await route.fulfill(status=503, json=body)
        else:
            await route.fulfill(json=[])

    await page.route("**/kpi/feedback?*", answer)
    await page.goto(f"{fake.url}#/feedback")
    notice = page.locator("#notice")
    await expect(notice).to_be_visible()
    await expect(page.locator("#place").get_by_role("status")).to_be_empty()
    await expect(page.get_by_text("Nobody has rated an answer yet.")).to_have_count(0)
    refused = False
    await notice.get_by_role("button", name="Try again").click()
    await expect(page.get_by_text("Nobody has rated an answer yet.")).to_be_visible()
    assert asked == 2
