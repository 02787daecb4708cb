"""Settings on the page, against the real service: language, appearance, keys, and all that is somebody's."""

import json
import re

import pytest
from playwright.async_api import Page, expect

from tests.browser.test_conversations import talk
from tests.support.service import BASE, RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe" + "W" * 40


async def open_settings(page: Page, service: RunningService) -> None:
    await page.goto(f"http://127.0.0.1:{service.port}/#/settings")
    await expect(page.get_by_role("heading", name="My data")).to_be_visible()


async def background(page: Page) -> str:
    return str(await page.evaluate("getComputedStyle(document.body).backgroundColor"))


async def test_the_language_is_chosen_and_stays(page: Page, service: RunningService) -> None:
    await open_settings(page, service)
    await page.get_by_label("Language").select_option("fr")
    await expect(page.get_by_role("heading", name="Mes données")).to_be_visible()
    await expect(page.locator("html")).to_have_attribute("lang", "fr")
    await page.reload()
    await page.get_by_label("Langue").select_option("en")
    await expect(page.get_by_role("heading", name="My data")).to_be_visible()


async def test_light_or_dark_holds_against_the_system_and_before_the_first_paint(
    page: Page, service: RunningService
) -> None:
    await page.emulate_media(color_scheme="light")
    await open_settings(page, service)
    light = await background(page)
    await page.get_by_label("Appearance").select_option("dark")
    dark = await background(page)
    assert dark != light
    await page.route("**/web/app.js", lambda route: route.abort())  # all but the script in the head
    await page.reload()
    assert await background(page) == dark
    assert await page.evaluate(
        "[...document.querySelectorAll('meta[name=theme-color]')].map((one) => one.content)"
    ) == [
        "#16181b",
        "#16181b",
    ]
    await page.unroute("**/web/app.js")
    await page.reload()
    await page.get_by_label("Appearance").select_option("system")
    assert await background(page) == light
    await page.emulate_media(color_scheme="dark")
    assert await background(page) == dark


async def test_enter_does_what_was_chosen(page: Page, service: RunningService) -> None:
    await open_settings(page, service)
    await page.get_by_label("In the message box").select_option("breaks")
    await page.goto(f"http://127.0.0.1:{service.port}/#/")
    message = page.get_by_label("Your message")
    await expect(page.locator(".keys")).to_have_text("Enter starts a new line, Ctrl + Enter sends")
    await message.fill("one")
    await message.press("Enter")
    await expect(message).to_have_value("one\n")
    await message.press("Control+Enter")
    await expect(page.locator(".question")).to_have_text("one")


async def test_a_key_is_made_shown_once_and_revoked(page: Page, service: RunningService) -> None:
    await open_settings(page, service)
    await expect(page.get_by_text("You have no keys yet.")).to_be_visible()
    await page.get_by_role("button", name="New key").click()
    form = page.get_by_role("form", name="New key")
    await expect(form.get_by_label("Name", exact=True)).to_be_focused()
    await form.get_by_role("button", name="Make the key").click()
    await expect(form.get_by_role("alert")).to_have_text("Give it a name.")
    await form.get_by_label("Name", exact=True).fill(HOSTILE)
    for scope in ("Search documents", "Read your conversations and documents"):
        await form.get_by_label(scope).uncheck()
    await form.get_by_label("Agents it may ask").select_option("some")
    await form.get_by_role("button", name="Make the key").click()
    await expect(form.get_by_role("alert")).to_have_text("Choose at least one agent.")
    await form.get_by_label("Georges").check()
    await form.get_by_label("Valid for").select_option("7")
    await form.get_by_label("Requests a minute").fill("60")
    await form.get_by_role("button", name="Make the key").click()
    secret = page.get_by_role("textbox", name="The key")
    await expect(secret).to_have_value(re.compile("^tw_[a-z0-9]{12}_[A-Za-z0-9]{43}$"))
    key = await secret.input_value()
    (made,) = await service.get("/chatbot/keys")
    assert (made["name"], made["scopes"], made["agents"]) == (HOSTILE, ["ask"], ["Georges"])
    assert made["rate_per_min"] == 60
    async with service.http.get(f"{BASE}/agents", headers={"x-api-key": key, "Authorization": ""}) as response:
        assert [agent["id"] for agent in await response.json()] == ["Georges"]
    await page.get_by_role("button", name="Done").click()
    await expect(page.get_by_role("button", name="New key")).to_be_focused()
    assert key not in await page.content()
    await expect(page.locator(".key strong")).to_have_text(HOSTILE)
    assert await page.locator("#place img").count() == 0
    await page.get_by_role("button", name="Revoke", exact=False).click()
    await page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    await page.get_by_role("button", name="Revoke", exact=False).click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    await expect(page.locator(".key.ended .hint").first).to_contain_text("Revoked")
    await expect(page.locator(".key button")).to_have_count(0)
    async with service.http.get(f"{BASE}/agents", headers={"x-api-key": key, "Authorization": ""}) as response:
        assert response.status == 401


async def test_keys_that_are_off_are_not_offered(page: Page, start_service: StartService) -> None:
    async with start_service(security={"api_keys": {"enabled": False}}) as service:
        await open_settings(page, service)
        await expect(page.get_by_text("Keys cannot be made here.")).to_be_visible()
        await expect(page.get_by_role("button", name="New key")).to_be_hidden()


async def test_all_of_mine_is_saved_and_then_deleted(page: Page, service: RunningService) -> None:
    session_id = await talk(service, HOSTILE, "How long do lentils boil?")
    await service.flush()
    async with service.http.post(f"{BASE}/chatbot/keys", json={"name": "k"}) as response:
        assert response.status == 201
    await open_settings(page, service)
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Save a copy").click()
    download = await downloading.value
    assert download.suggested_filename == "my-data.json"
    saved = json.loads((await download.path()).read_text())
    assert [one["session"]["id"] for one in saved["sessions"]] == [session_id]
    assert "lentils" in json.dumps(saved["sessions"][0]["messages"])
    assert [one["name"] for one in saved["keys"]] == ["k"]
    await page.get_by_role("button", name="Delete everything").click()
    dialog = page.get_by_role("dialog")
    sure = dialog.get_by_role("button", name="Delete everything")
    await expect(sure).to_be_disabled()
    await dialog.get_by_label("to go on").fill("delet")
    await expect(sure).to_be_disabled()
    await dialog.get_by_label("to go on").fill("delete")
    await sure.click()
    await expect(page.get_by_text("Deleted: 1 conversation, 1 key.")).to_be_visible()
    await expect(page.locator(".session")).to_have_count(0)
    await expect(page.get_by_text("You have no keys yet.")).to_be_visible()
    assert await service.get("/chatbot/sessions") == []
    await page.reload()
    await expect(page.get_by_role("heading", name="My data")).to_be_visible()
    await expect(page.get_by_text("Deleted: 1")).to_have_count(0)
