"""The browser that the tests of a file share."""

import asyncio
import contextlib

import psutil
import pytest

from tests.browser.conftest import Chromium

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("taken", ["processes", "connection"])
async def test_a_browser_that_a_hung_test_took_with_it_is_replaced_and_ended(taken):
    others, tasks = psutil.Process().children(recursive=True), asyncio.all_tasks()
    chromium = Chromium()
    try:
        await chromium.new_context()
        first = set(psutil.Process().children(recursive=True)).difference(others)
        if taken == "processes":
            for process in first:
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended with one that was killed before
                    process.kill()
        else:
            for task in asyncio.all_tasks() - tasks:
                task.cancel()
        page = await (await chromium.new_context()).new_page()
        assert await page.evaluate("6 * 7") == 42
        await asyncio.to_thread(psutil.wait_procs, first)
    finally:
        await chromium.close()
    await asyncio.to_thread(psutil.wait_procs, set(psutil.Process().children(recursive=True)).difference(others))
