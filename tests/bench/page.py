"""What the chat page costs its browser: tasks that hold up its thread, and memory; figure, bound and verdict.

    make bench-page             ARGS=--short for 40 turns in place of 200

Hypothesis: with 5,000 conversations nothing that a person does while an answer streams at 50 tokens a second holds the
page up for longer than 50 ms, and 200 turns leave the page's memory where it was after 100, but for what they say.
Control: the same page after its first turns. A task that is not told is shorter than 50 ms: browsers tell of no other.
Command: `python -m tests.bench.page`; Chromium on the cores of the load, the service on its own.
"""

import argparse
import asyncio
import re
import sys
from typing import Any, Final

import psycopg
from playwright.async_api import Page, async_playwright, expect

from tests.bench.bench import Verdicts
from tests.bench.deployment import Deployment, Server, deployed
from tests.browser.conftest import CHROMIUM, QUIET
from tests.support.patience import PATIENCE_S

LONGEST_MS: Final = 50.0
CONVERSATIONS: Final = 5_000
GROWTH_KIB: Final = 64.0
"""Of the page's heap, for each turn more: what it says, its nodes, its ledger."""
_ROWS: Final = 200
_BEGUN: Final = re.compile(r"(\S+\s+){20}")
_PATIENCE_MS: Final = 1000 * PATIENCE_S
_TOLD: Final = """
window.tasks = [];
new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) window.tasks.push(duration);
}).observe({ type: "longtask", buffered: true });
"""
_HELD_UP: Final = """() => new Promise((resolve) => setTimeout(() => {
  const until = performance.now() + 150;
  while (performance.now() < until);
  resolve();
}))"""
_FILL: Final = """
INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)
SELECT 's' || n, 'admin', 'Georges', json_build_object('title', 'Conversation ' || n, 'next_rank', 2,
    'preferences', json_build_object()), now() - n * interval '1 hour'
FROM generate_series(1, %s) AS n
"""


async def longest(page: Page, act: Any, least_ms: float = 1_500.0) -> float:
    """The longest task of the page's thread, in ms, while something is done and for a while after; 0 below 50."""
    await page.evaluate("window.tasks.length = 0")
    await act
    await page.wait_for_timeout(least_ms)
    tasks: list[float] = await page.evaluate("window.tasks")
    return max(tasks, default=0.0)


async def scroll(page: Page) -> None:
    """Through the list, until as many rows were drawn as there are at most, and some pages further."""
    sessions = page.locator("#sidebar nav").first
    for _ in range(40):
        await sessions.evaluate("(node) => node.scrollTo(0, node.scrollHeight)")
        await page.wait_for_timeout(50)
    if await page.locator(".session").count() > _ROWS:
        raise RuntimeError("more rows than there may be")


async def search(page: Page) -> None:
    """As somebody types."""
    await page.locator("#search").press_sequentially("Conversation 49", delay=60)
    await page.wait_for_timeout(1_000)
    await page.locator("#search").fill("")


async def while_streaming(page: Page, verdicts: Verdicts) -> None:
    """What a person does while an answer is written. Raises RuntimeError where the page does not tell of long tasks."""
    if await longest(page, page.evaluate(_HELD_UP)) < LONGEST_MS:
        raise RuntimeError("a task of 150 ms was not told")
    await page.locator("#message").fill("Say a lot.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".markdown").first).to_contain_text(_BEGUN, timeout=_PATIENCE_MS)
    for what, act in (
        ("nothing but the answer", page.wait_for_timeout(3_000)),
        ("a draft is typed", page.locator("#message").press_sequentially("A question " * 8, delay=20)),
        ("the list is scrolled", scroll(page)),
        ("the list is searched", search(page)),
        ("the switcher is opened", page.keyboard.press("Control+k")),
    ):
        verdicts.hold(f"longest task: {what}", await longest(page, act), LONGEST_MS, "ms")
    if await page.locator('.turn[data-status="done"]').count():
        raise RuntimeError("the answer had ended before the measurements had")
    await page.keyboard.press("Escape")


async def heap_kib(page: Page) -> float:
    """The page's heap after a collection."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    used = await session.send("Runtime.getHeapUsage")
    await session.detach()
    return float(used["usedSize"]) / 1024


async def turns(page: Page, count: int, verdicts: Verdicts) -> None:
    """So many turns in one conversation; the heap in the middle and at the end."""
    found: list[float] = []
    for number in range(1, count + 1):
        await page.locator("#message").fill(f"Question {number}")
        await page.keyboard.press("Enter")
        await page.locator('.turn[data-status="done"]').nth(number - 1).wait_for()
        if number in (count // 2, count):
            found.append(await heap_kib(page))
    half, whole = found
    verdicts.tell(f"heap after {count // 2} turns", half / 1024, "MiB")
    verdicts.tell(f"heap after {count} turns", whole / 1024, "MiB")
    verdicts.hold("heap for each turn more", (whole - half) / (count - count // 2), GROWTH_KIB, "KiB")


async def measure(streaming: Server, quick: Server, count: int, verdicts: Verdicts) -> None:
    """Both, each on a page of its own."""
    with psycopg.connect(streaming.dsn) as connection:
        connection.execute(_FILL, (CONVERSATIONS,))
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        for server, act in ((streaming, while_streaming), (quick, None)):
            context = await browser.new_context(viewport={"width": 1200, "height": 800})
            context.set_default_timeout(_PATIENCE_MS)
            page = await context.new_page()
            await page.add_init_script(_TOLD)
            await page.goto(f"http://127.0.0.1:{server.target.port}/", wait_until="networkidle")
            if act is None:
                await turns(page, count, verdicts)
            else:
                await act(page, verdicts)
            await context.close()
        await browser.close()


def started(deployment: Deployment, name: str, model: str) -> Server:
    """A service with a spool of its own."""

    def change(config: dict[str, Any]) -> None:
        config["persistence"]["spool_dir"] = str(deployment.work / f"spool-{name}")

    return deployment.service(name, model, change=change)


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page")
    parser.add_argument("--short", action="store_true", help="40 turns in place of 200")
    options = parser.parse_args()
    verdicts = Verdicts()
    with deployed() as deployment:
        streaming = started(deployment, "streaming", "mock;ttft=100;gap=20;tokens=3000")
        quick = started(deployment, "quick", "mock;ttft=1;gap=0")
        asyncio.run(measure(streaming, quick, 40 if options.short else 200, verdicts))
    return int(verdicts.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
