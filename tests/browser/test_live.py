"""The Live view of the page, for operators, against the real service."""

import csv
import json
import re
from typing import Any

import pytest
from playwright.async_api import Page, Request, expect

from agentic_backend.verdict import Gauged
from backend_kit.kpi.culprit import Sighting
from tests.support.service import RunningService, StartService, hear_until, say

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

HOSTILE = "<img src=x onerror=alert(1)>\u202etxt.exe" + "W" * 60


async def a_turn(service: RunningService, agent: str = "Georges") -> dict[str, Any]:
    session_id = await service.create_session(agent_id=agent)
    async with service.native() as socket:
        await say(socket, type="ask", session_id=session_id, agent_id=agent, message="canary")
        return (await hear_until(socket, "final"))[-1]


def counted(service: RunningService, agent: str, model: str = "mock") -> None:
    """Enter a turn of an agent of any name, as if it had run."""
    windows = service.service.running.chat.views.windows
    windows.ended([], total_ms=1200.0, unattributed_ms=3.0, first_token_ms=200.0)
    windows.day.ended(agent, model, (1200.0, 200.0, 3.0), failed=True)
    windows.day.close(windows.close_slice(Gauged()), windows.day.latest)


def tile(page: Page, name: str) -> Any:
    return page.locator(".tiles > div").filter(has=page.get_by_text(name, exact=True)).locator("dd").first


async def test_it_shows_what_the_service_does_now(page: Page, service: RunningService) -> None:
    final = await a_turn(service)
    counted(service, "Rico")
    await page.goto(f"http://127.0.0.1:{service.port}/")
    await page.get_by_role("navigation", name="Places").get_by_role("link", name="Live").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Live")
    await expect(tile(page, "Turns")).to_have_text("2")
    await expect(tile(page, "Failed")).to_have_text("1")
    await expect(page.locator(".bound")).to_contain_text("Limits the service now: ")
    agents = page.get_by_role("region", name="By agent")
    await expect(agents.locator("tbody th")).to_have_text(["Georges", "Rico"])
    chart = page.locator(".chart").filter(has=page.get_by_role("heading", name="Turn", exact=True))
    await expect(chart.get_by_role("img")).to_have_attribute(
        "aria-label", re.compile(r"^Turn: .*p95 from \S+ m?s to \S+ m?s, last \S+ m?s")
    )
    await chart.locator("summary").click()
    table = chart.get_by_role("region", name="Values: Turn")
    await expect(table.locator("thead th")).to_have_text(["Time", "p50", "p95", "p99"])
    await expect(table.locator("tbody tr").first.locator("td").first).to_contain_text("s")
    await page.get_by_label("Exchange id").fill(final["exchange_id"])
    await page.keyboard.press("Enter")
    ledger = page.locator(".ledger")
    await expect(ledger.locator("tbody th").filter(has_text="llm_invoke")).to_be_visible()
    await expect(page.locator("#place")).not_to_contain_text("canary")
    await page.get_by_label("Exchange id").fill("another")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_text("No instance knows this turn")).to_be_visible()
    await expect(ledger).to_have_count(0)


async def test_a_chart_has_its_name_before_its_figures(page: Page, service: RunningService) -> None:
    await page.route("**/kpi/*", lambda _route: None)  # is never answered
    await page.goto(f"http://127.0.0.1:{service.port}/#/live")
    await expect(page.get_by_role("img", name="Turn", exact=True)).to_be_visible()


@pytest.mark.parametrize(("period", "window_s"), [("15 minutes", 900), ("24 hours", 86_400)])
async def test_longer_periods_are_asked_for(page: Page, service: RunningService, period: str, window_s: int) -> None:
    counted(service, "Rico")
    await page.goto(f"http://127.0.0.1:{service.port}/#/live")
    await expect(tile(page, "Turns")).not_to_be_empty()
    async with page.expect_request(lambda request: f"kpi/day?window_s={window_s}" in request.url):
        await page.get_by_label("Period").select_option(period)
    every = "60 s" if window_s > 3600 else "10 s"
    await expect(page.get_by_text(f"new figures every {every}")).to_be_visible()
    await expect(page.get_by_role("region", name="By agent").locator("tbody th").first).to_be_visible()


async def test_names_of_others_are_text_and_formulas_are_not(page: Page, start_service: StartService) -> None:
    async with start_service() as service:
        counted(service, HOSTILE, "=1+1")
        where = Sighting(HOSTILE, "Task", HOSTILE, HOSTILE, HOSTILE)
        service.service.running.chat.views.culprits.count(where, 203.0)
        await page.goto(f"http://127.0.0.1:{service.port}/#/live")
        await expect(page.get_by_role("region", name="By agent").locator("tbody th")).to_have_text([HOSTILE])
        stalls = page.get_by_role("region", name="What held the event loop")
        await stalls.locator("summary").filter(has_text="<img").click()
        await expect(stalls.locator("pre").filter(has_text="<img")).to_have_text(HOSTILE)
        assert await page.locator("#place img:not([role])").count() == 0
        for width in (1200, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert await page.locator("#place").evaluate("node => node.scrollWidth <= node.clientWidth")
        async with page.expect_download() as downloading:
            await page.get_by_role("button", name="Save as CSV").click()
        saved = (await (await downloading.value).path()).read_text("utf-8-sig")
        rows = list(csv.DictReader(saved.splitlines()))
        assert [row["name"] for row in rows if row["of"] in ("agent", "model")] == [HOSTILE, "'=1+1"]
        assert {row["of"] for row in rows} == {"period", "agent", "model", "step"}
        assert next(row for row in rows if row["of"] == "period")["turns"] == "1"


async def test_a_hidden_tab_and_a_paused_view_ask_for_nothing(page: Page, service: RunningService) -> None:
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/kpi/day" in request.url:
            asked.append(request.url)

    page.on("request", note)
    await page.clock.install()
    await page.goto(f"http://127.0.0.1:{service.port}/#/live")
    as_of = page.get_by_text("As of")
    await expect(as_of).to_contain_text("new figures every 10 s")
    async with page.expect_response(lambda response: "/kpi/stalls" in response.url):
        await page.clock.fast_forward(10_500)
    assert len(asked) == 2
    await page.get_by_role("button", name="Pause").click()
    await expect(as_of).to_contain_text("paused")
    await page.clock.fast_forward(60_000)
    assert len(asked) == 2
    async with page.expect_response(lambda response: "/kpi/stalls" in response.url):
        await page.get_by_role("button", name="Pause").click()
    await expect(as_of).to_contain_text("new figures every 10 s")
    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    await page.evaluate(hide % "true" + tell)
    await page.clock.fast_forward(60_000)
    assert len(asked) == 3
    async with page.expect_response(lambda response: "/kpi/stalls" in response.url):
        await page.evaluate(hide % "false" + tell)
    await page.evaluate("location.hash = '#/'")
    await expect(page.locator("#message")).to_be_visible()
    await page.clock.fast_forward(60_000)
    assert len(asked) == 4


async def test_who_is_no_operator_is_told_so(page: Page, service: RunningService) -> None:
    body = json.dumps({"detail": {"code": "forbidden", "message": "no"}})
    await page.route("**/kpi/*", lambda route: route.fulfill(status=403, body=body))
    await page.route("**/kpi/day?*", lambda route: route.fulfill(status=403, body=body))
    await page.goto(f"http://127.0.0.1:{service.port}/#/live")
    await expect(page.get_by_text("This view is for operators.")).to_be_visible()


async def test_it_says_that_figures_are_old(page: Page, service: RunningService) -> None:
    await page.clock.install()
    await page.goto(f"http://127.0.0.1:{service.port}/#/live")
    await expect(page.get_by_text("As of")).to_be_visible()
    body = json.dumps({"detail": {"code": "overloaded", "message": "no"}})
    await page.route("**/kpi/day?*", lambda route: route.fulfill(status=503, body=body))
    await page.clock.fast_forward(10_500)
    await expect(page.get_by_text("could not be read (overloaded)")).to_be_visible()
    await page.unroute("**/kpi/day?*")
    await page.clock.fast_forward(10_500)
    await expect(page.get_by_text("could not be read")).to_have_count(0)
