"""Sharing a conversation on the page, against the real service: its owner's dialog, and what readers see."""

from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.agentic_backend.records import turn
from tests.browser.conftest import Chromium
from tests.browser.test_conversations import talk
from tests.browser.test_markdown import HOSTILE
from tests.support.people import SECURITY, headers_of
from tests.support.service import BASE, RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

NOWHERE = "This link leads nowhere: it was revoked, has ended, or never was one."
LONG = "Donaudampfschifffahrt" * 40
SOURCE = {
    "uid": "d1",
    "title": f"<b>Bold</b> \u202egpj.exe {LONG}",
    "content": f"<img src=x onerror=\"document.title='taken'\"> \u202eabc {LONG}",
    "score": 0.9,
    "file_name": "<script>1</script>.md",
    "section": "<i>s</i>",
    "tag_names": ["All"],
    "citation_url": "/documents/d1#chunk=c1",
}


async def hostile_session(service: RunningService) -> str:
    """A session whose title, question, answer and sources are markup."""
    persistence = service.instances[0].running.persistence
    session_id = await service.create_session("<script>document.title='taken'</script> \u202etitle " + LONG[:100])
    session = await persistence.store.get(session_id, "admin")
    assert session is not None
    metadata: dict[str, Any] = {"agent_id": "Georges", "sources": [SOURCE]}
    said = "\n\n".join([f"A claim [1]. {LONG}", *HOSTILE]).replace("\0", "")
    await persistence.log.append(
        turn(session, "x0", "<img src=x onerror=alert(1)> \u202e?" + LONG, said, metadata=metadata)
    )
    return session_id


async def made_link(service: RunningService, session_id: str) -> str:
    async with service.http.post(f"{BASE}/chatbot/session/{session_id}/share") as response:
        assert response.status == 201
        token = (await response.json())["token"]
    return f"http://127.0.0.1:{service.port}/#/s/{token}"


async def test_a_conversation_is_shared_read_elsewhere_and_revoked(
    page: Page, chromium: Chromium, service: RunningService
) -> None:
    session_id = await talk(service, "Cooking", "How long do lentils boil?")
    await page.goto(f"http://127.0.0.1:{service.port}/#/c/{session_id}")
    await page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share this conversation")
    await expect(dialog).to_contain_text("There is no link to it.")
    await expect(dialog.get_by_label("Who can open it")).to_have_count(0)  # the configuration lets nobody in unsigned
    await dialog.get_by_label("Ends").select_option("7")
    await dialog.get_by_role("button", name="Make a link").click()
    field = dialog.get_by_label("New link")
    await expect(field).to_be_focused()
    address = await field.input_value()
    assert "/#/s/" in address
    await expect(dialog.locator("li")).to_contain_text("until")

    elsewhere = await chromium.new_context(reduced_motion="reduce")
    reader = await elsewhere.new_page()
    await reader.goto(address)
    await expect(reader.get_by_role("heading", level=2)).to_have_text("Cooking")
    await expect(reader.get_by_role("heading", level=1)).to_have_text("Shared conversation")
    await expect(reader.locator("#place .question")).to_have_text("How long do lentils boil?")
    await expect(reader.locator("#place .answer")).not_to_be_empty()
    names = await reader.locator("#place button:visible").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert set(names) == {"Copy answer"}  # nothing that acts
    await expect(reader.locator("#message")).to_be_hidden()
    # Only its address leads there.
    await expect(reader.locator("#places").get_by_role("link", name="Shared conversation")).to_have_count(0)

    await dialog.get_by_role("button", name="Revoke the link").click()
    await expect(dialog.get_by_role("status")).to_have_text("The link is revoked. It leads nowhere now.")
    await expect(dialog).to_contain_text("There is no link to it.")
    await expect(dialog.get_by_label("New link")).to_have_count(0)
    await expect(dialog.get_by_role("heading", level=2)).to_be_focused()
    await reader.reload()
    await expect(reader.locator("#place")).to_have_text(NOWHERE)
    await reader.goto(address[:-43] + "nonsense")
    await expect(reader.locator("#place")).to_have_text(NOWHERE)
    await elsewhere.close()
    await page.keyboard.press("Escape")
    await expect(page.locator("#share-dialog")).to_have_count(0)
    await expect(page.get_by_role("button", name="Share")).to_be_focused()


async def test_a_link_for_anybody_is_read_without_signing_in(page: Page, start_service: StartService) -> None:
    async with start_service(security={**SECURITY, "public_links": True}) as service:
        ann = headers_of("ann")
        async with service.http.post(f"{BASE}/chatbot/session", json={"title": "Open"}, headers=ann) as response:
            session_id = (await response.json())["id"]
        path = f"{BASE}/chatbot/session/{session_id}/share"
        async with service.http.post(path, json={"audience": "anybody", "later_turns": True}, headers=ann) as response:
            made = await response.json()
        address = f"http://127.0.0.1:{service.port}/#/s/public/{made['token']}"
        await page.goto(address)
        await expect(page.get_by_role("heading", level=2)).to_have_text("Open")
        await expect(page.locator("#sidebar")).to_be_hidden()
        # Without it the conversation has all of the room.
        assert await page.locator("#main").evaluate("node => node.clientWidth === innerWidth")
        async with service.http.delete(f"{path}/{made['id']}", headers=ann) as response:
            assert response.status == 204
        await page.reload()
        await expect(page.locator("#place")).to_have_text(NOWHERE)


async def test_what_is_shared_is_inert_text(page: Page, service: RunningService) -> None:
    address = await made_link(service, await hostile_session(service))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await page.set_viewport_size({"width": 320, "height": 700})
    await page.goto(address)
    await expect(page.locator("#place .answer")).to_contain_text("document.title='taken'")
    await expect(page.locator("#place h2")).to_contain_text("<script>")
    assert await page.locator("#place").locator("img, iframe, script, style, b, base, meta").count() == 0
    assert await page.evaluate("document.documentElement.scrollWidth <= 320")
    assert await page.evaluate(
        "document.querySelector('#place').scrollWidth <= document.querySelector('#place').clientWidth"
    )
    await page.locator("#place .citation").first.click()
    passage = page.locator("dialog.passage")
    await expect(passage).to_contain_text("<img src=x")
    assert await passage.locator("img, b, script, i").count() == 0
    assert await passage.evaluate("node => node.scrollWidth <= node.clientWidth")
    await passage.get_by_role("button", name="Close").click()
    await expect(page.locator("#place .citation").first).to_be_focused()
    assert await page.title() == "Shared conversation · Turnwise"
    own = (f"http://127.0.0.1:{service.port}/web/", f"http://127.0.0.1:{service.port}{BASE}/")
    assert [url for url in requests if not url.startswith(own) and url != address.partition("#")[0]] == []


async def test_a_long_one_is_read_from_its_end(page: Page, service: RunningService) -> None:
    persistence = service.instances[0].running.persistence
    session = await persistence.store.get(await service.create_session("Long"), "admin")
    assert session is not None
    session_id = session.id
    for number in range(130):
        record = turn(session, f"x{number}", f"Question {number}?", f"Answer {number}.")
        await persistence.log.append(record)
        session = record.session
    await page.goto(await made_link(service, session_id))
    await expect(page.locator("#place .turn")).to_have_count(100)
    earlier = page.get_by_role("button", name="Show earlier messages")
    await earlier.click()
    await expect(page.locator("#place .turn")).to_have_count(130)
    await expect(page.locator("#place .question").first).to_have_text("Question 0?")
    await expect(earlier).to_be_hidden()
