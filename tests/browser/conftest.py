"""A Chromium for the file, a page for the test, and the server that the test plays by hand.

All of it lives on one event loop a file, as the tests do (`pytest.mark.asyncio(loop_scope="module")`): a browser and
its driver cannot be used from another one.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Error, Page, Request, Route, async_playwright, expect

from tests.browser.fake_server import FakeServer, fake_server
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE, RunningService, StartService, start_service

__all__ = ["start_service"]

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


class Chromium:
    """A headless Chromium that keeps to itself, from the first profile that is asked for to the end of the file.

    Its driver takes as much CPU to start as it does itself. Where a test that hung took either with it, the next one
    has another.
    """

    def __init__(self, late_s: float = 0.0) -> None:
        self._late_s = late_s
        self._ending = AsyncExitStack()
        self._browser: Browser | None = None
        self._drivers: set[psutil.Process] = set()

    async def new_context(self, **options: Any) -> BrowserContext:
        """A profile of its own."""
        context = await self._new_context(**options)
        if self._late_s > 0:
            await context.route(f"**{BASE}/**", self._send_late)
        return context

    async def _send_late(self, route: Route) -> None:
        await asyncio.sleep(self._late_s)
        with contextlib.suppress(Error):  # the page that asked is gone
            await route.continue_()

    async def _new_context(self, **options: Any) -> BrowserContext:
        if self._browser is not None:
            try:
                return await self._browser.new_context(**options)
            except Error:
                await self.close()
        others = psutil.Process().children()
        playwright = await self._ending.enter_async_context(async_playwright())
        self._drivers |= set(psutil.Process().children()).difference(others)
        self._browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET, timeout=PATIENCE_MS)
        self._ending.push_async_callback(self._browser.close)
        return await self._browser.new_context(**options)

    async def close(self) -> None:
        """End the browser and its driver."""
        self._browser = None
        with contextlib.suppress(Error):
            await self._ending.aclose()
        # Where a test that hung took only the connection with it, both live on, and the loop would wait for them.
        for driver in self._drivers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [driver, *driver.children(recursive=True)]:
                    process.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(pytestconfig: pytest.Config) -> AsyncIterator[Chromium]:
    """One browser for the tests of a file."""
    made = Chromium(pytestconfig.getoption("late"))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def context(chromium: Chromium) -> AsyncIterator[BrowserContext]:
    """A profile of its own, wide enough for the list of conversations."""
    context = await chromium.new_context(viewport={"width": 1200, "height": 800}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="module")
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


@pytest_asyncio.fixture(loop_scope="module")
async def fake() -> AsyncIterator[FakeServer]:
    """The server played by the test."""
    async with fake_server() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def service(start_service: StartService) -> AsyncIterator[RunningService]:
    """A service with the defaults."""
    async with start_service() as running:
        yield running
