"""The page on a real service, interrupted in every way that a day brings: the transcript is the one that is stored."""

import asyncio
import re
import signal
from pathlib import Path

import pytest
import yaml
from playwright.async_api import expect

from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from tests.support.service import configuration, merge

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

BEGINNING = "It goes into waiting for what others do, which is most of all that there is to wait for: "
"""What an answer has said when the test interrupts it."""
SOME_TEXT = re.compile(r".{60}", re.DOTALL)


def url(service):
    return f"http://127.0.0.1:{service.port}/"


async def ask(page, question="Where does the time go?"):
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")


async def said_some(page):
    await expect(page.locator(".markdown")).to_have_text(SOME_TEXT)


async def transcript(page):
    """The whole of what the page shows of its finished turn."""
    await expect(page.locator(".turn")).to_have_attribute("data-status", "done")
    return (
        await page.locator(".question").all_inner_texts(),
        await page.locator(".markdown").all_inner_texts(),
        await page.locator(".turn").count(),
    )


async def as_stored(page, service):
    """What a page shows that hears of the conversation from history alone; it holds what is stored."""
    session_id = page.url.rpartition("/")[2]
    history = await service.history(session_id)
    assert [message["role"] for message in history] == ["user", "assistant"]
    fresh = await page.context.browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    try:
        stranger = await fresh.new_page()
        await stranger.goto(f"{url(service)}#/c/{session_id}")
        shown = await transcript(stranger)
    finally:
        await fresh.close()
    assert " ".join(shown[1][0].split()) == " ".join(history[1]["parts"][0]["text"].split())
    return shown


async def test_a_reload_in_mid_answer_goes_on_with_it(page, start_service):
    async with held_model(BEGINNING) as model, start_service(ai=model.ai) as service:
        await page.goto(url(service))
        await ask(page)
        await said_some(page)
        before = await page.locator(".markdown").inner_text()
        await page.reload()
        await expect(page.locator(".markdown")).to_contain_text(before)
        await expect(page.locator(".turn")).to_have_attribute("data-status", "running")
        model.go.set()
        assert await transcript(page) == await as_stored(page, service)
        assert service.turns.running == 0


async def test_offline_while_the_answer_ends(page, context, start_service):
    async with held_model(BEGINNING) as model, start_service(ai=model.ai) as service:
        await page.goto(url(service))
        await ask(page)
        await said_some(page)
        await context.set_offline(True)
        await expect(page.locator("#connection")).to_have_text("Reconnecting…")
        await expect(page.locator(".turn")).to_contain_text("Waiting for the connection…")
        await expect(page.locator("#connection-text")).to_contain_text("The connection is down.")
        model.go.set()
        async with asyncio.timeout(PATIENCE_S):
            while service.turns.running:  # noqa: ASYNC110 - whose turn it is only the page knows
                await asyncio.sleep(0.02)
        assert await page.locator(".turn").get_attribute("data-status") == "running"
        await context.set_offline(False)
        assert await transcript(page) == await as_stored(page, service)
        await expect(page.locator("#connection")).to_have_text("Connected")


async def test_two_tabs_follow_one_answer_and_a_third_that_comes_late(page, context, start_service):
    async with held_model(BEGINNING) as model, start_service(ai=model.ai) as service:
        await page.goto(url(service))
        await ask(page)
        await said_some(page)
        second = await context.new_page()
        await second.goto(page.url)
        await said_some(second)
        await expect(second.locator(".turn")).to_have_attribute("data-status", "running")
        model.go.set()
        shown = await transcript(page)
        assert await transcript(second) == shown == await as_stored(page, service)
        model.go.clear()
        await ask(second, "And again?")  # the tab that was told tells in its turn
        await expect(page.locator(".question")).to_have_text(["Where does the time go?", "And again?"])
        await page.get_by_role("button", name="Stop").click()
        for tab in (page, second):
            await expect(tab.locator(".turn").last).to_have_attribute("data-status", "cancelled")


async def test_a_restart_of_the_service_lets_the_answer_end_and_the_next_one_has_it(
    page, database, mock_llm, tmp_path: Path
):
    port = free_port()
    file = tmp_path / "service.yaml"

    def service(model, **sections):
        places = {"app": {"port": port}, "persistence": {"spool_dir": str(tmp_path / "spool")}}
        settings = merge(configuration(model, database, mock_llm), places)
        file.write_text(yaml.safe_dump(merge(settings, sections)))
        return ForkedModule("agentic_backend", env={"CONFIG_FILE": str(file), "ENV_FILE": ""})

    async def ready(process):
        await process.until(process.wait_for_http, f"http://127.0.0.1:{port}/agentic/v1/ready")

    async with held_model(BEGINNING) as model:
        with service("held", ai=model.ai, deadlines={"drain_s": 600}) as process:
            await ready(process)
            await page.goto(f"http://127.0.0.1:{port}/")
            await ask(page)
            await said_some(page)
            process.send(signal.SIGTERM)
            await process.until(process.wait_for_line, "drain 2/5")
            model.go.set()
            assert await process.until(process.wait) == 0
    shown = await transcript(page)
    await expect(page.locator("#connection")).to_have_text("Reconnecting…")
    with service("mock;status=500") as process:
        await ready(process)
        await expect(page.locator("#connection")).to_have_text("Connected")
        assert await transcript(page) == shown
        await page.reload()
        assert await transcript(page) == shown
        await process.until(process.stop)
