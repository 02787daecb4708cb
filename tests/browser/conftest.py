"""A Chromium for the module, a page for the test, and the server that the test plays by hand."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, async_playwright, expect

from tests.browser.fake_server import FakeServer, fake_server
from tests.support.patience import PATIENCE_S
from tests.support.service import service, start_service

__all__ = ["service", "start_service"]

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 1000 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium that keeps to itself."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE_MS)
        yield chromium
        await chromium.close()


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A profile of its own, wide enough for the list of conversations."""
    context = await browser.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    yield context
    await context.close()


@pytest.fixture
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """A page that fails its test on any error in the console and on any request to another place."""
    page = await context.new_page()
    problems: list[str] = []
    elsewhere: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:")):
            elsewhere.append(request.url)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("request", note)
    yield page
    assert elsewhere == []
    # A refused request or socket is an outcome that tests provoke; the browser reports each as an error of its own.
    assert [text for text in problems if "Failed to load resource" not in text and "WebSocket" not in text] == []


@pytest.fixture
async def fake() -> AsyncIterator[FakeServer]:
    """The server played by the test."""
    async with fake_server() as server:
        yield server
