"""The browser that the tests of a file share."""

import psutil
import pytest

from tests.browser.conftest import Chromium

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]


async def test_a_browser_that_a_hung_test_took_with_it_is_replaced():
    others = psutil.Process().children(recursive=True)
    chromium = Chromium()
    try:
        await chromium.new_context()
        for process in psutil.Process().children(recursive=True):
            if process not in others:
                process.kill()
        page = await (await chromium.new_context()).new_page()
        assert await page.evaluate("6 * 7") == 42
    finally:
        await chromium.close()
