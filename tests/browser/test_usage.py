"""The Usage view of the page: tokens, cost and answers, against the real service."""

import asyncio
import csv
import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from playwright.async_api import Page, expect
from psycopg.types.json import Jsonb

from tests.browser.conftest import Chromium
from tests.browser.test_live import HOSTILE, a_turn, tile
from tests.support.postgres import Database
from tests.support.service import RunningService, StartService

pytestmark = [pytest.mark.chromium, pytest.mark.asyncio(loop_scope="module")]

PRICE = {"model": "mock", "input_per_million": 1e6, "output_per_million": 2e6}


def answered(database: Database, user: str, agent: str, model: str) -> None:
    """Store an answer of anybody's, now."""
    metadata = {"agent_id": agent, "model": model, "extras": {"usage": {"input_tokens": 5, "output_tokens": 7}}}
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)"
            " VALUES ('hostile', %s, 'Georges', '{}', now())",
            (user,),
        )
        connection.execute(
            "INSERT INTO session_history VALUES ('hostile', %s, 0, %s, 'assistant', 'final', 'e', '[]', %s)",
            (user, datetime.now(UTC), Jsonb(metadata)),
        )


def rows(page: Page, region: str) -> Any:
    return page.get_by_role("region", name=region).locator("tbody th")


async def test_it_sums_the_answers_that_were_given(page: Page, start_service: StartService) -> None:
    async with start_service(ai={"prices": [PRICE], "currency": "EUR"}) as service:
        finals = [await a_turn(service), await a_turn(service)]
        await service.flush()
        used = [final["messages"][-1]["metadata"]["extras"]["usage"] for final in finals]
        cost = sum(one["cost"] for one in used)
        await page.goto(f"http://127.0.0.1:{service.port}/")
        await page.get_by_role("navigation", name="Places").get_by_role("link", name="Usage").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Usage")
        await expect(tile(page, "Answers")).to_have_text("2")
        await expect(tile(page, "Tokens in")).to_have_text(str(sum(one["input_tokens"] for one in used)))
        await expect(tile(page, "Cost")).to_have_text(f"€{cost:,.2f}")
        await expect(rows(page, "By agent")).to_have_text(["Georges"])
        await expect(rows(page, "By model")).to_have_text(["mock"])
        chart = page.locator(".chart").filter(has=page.get_by_role("heading", name="Answers"))
        await expect(chart.get_by_role("img")).to_have_attribute("aria-label", "Answers: Answers from 0 to 2, last 2")
        await chart.locator("summary").click()
        days = chart.get_by_role("region", name="Values: Answers")
        await expect(days.locator("tbody tr")).to_have_count(30)
        await expect(days.locator("tbody td").first).to_have_text("2")
        async with page.expect_download() as downloading:
            await page.get_by_role("button", name="Save as CSV").click()
        saved = (await (await downloading.value).path()).read_text("utf-8-sig")
    told = {(row["by"], row["name"]): row for row in csv.DictReader(saved.splitlines())}
    assert float(told["agent", "Georges"]["cost_EUR"]) == float(told["total", ""]["cost_EUR"]) == cost
    assert told["day", datetime.now(UTC).date().isoformat()]["answers"] == "2"


async def test_operators_see_everybody_s_and_names_are_text(
    page: Page, service: RunningService, database: Database
) -> None:
    await asyncio.to_thread(answered, database, HOSTILE, HOSTILE, "=1+1" + HOSTILE)
    await page.goto(f"http://127.0.0.1:{service.port}/#/usage")
    await expect(tile(page, "Answers")).to_have_text("0")
    await expect(page.get_by_text("No answer in this time.").first).to_be_visible()
    await expect(page.get_by_text("Costs are shown once a model has a price")).to_be_visible()
    await page.get_by_label("Whose").select_option("Everybody's")
    await expect(tile(page, "Tokens out")).to_have_text("7")
    for region in ("By person", "By agent"):
        await expect(rows(page, region)).to_have_text([HOSTILE])
    await expect(rows(page, "By model")).to_have_text(["=1+1" + HOSTILE])
    assert await page.locator("#place img:not([role])").count() == 0
    await page.set_viewport_size({"width": 320, "height": 700})
    assert await page.locator("#place").evaluate("node => node.scrollWidth <= node.clientWidth")
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Save as CSV").click()
    saved = (await (await downloading.value).path()).read_text("utf-8-sig")
    assert [row["name"] for row in csv.DictReader(saved.splitlines()) if row["by"] == "model"] == ["'=1+1" + HOSTILE]


async def test_who_is_no_operator_is_offered_their_own(page: Page, service: RunningService) -> None:
    await page.route("**/config/permissions", lambda route: route.fulfill(body=json.dumps(["sessions:read"])))
    await page.goto(f"http://127.0.0.1:{service.port}/#/usage")
    await expect(tile(page, "Answers")).to_have_text("0")
    await expect(page.get_by_label("Whose")).to_be_hidden()
    await expect(page.get_by_role("link", name="Live")).to_have_count(0)


async def test_days_are_of_the_person_s_zone(chromium: Chromium, service: RunningService) -> None:
    context = await chromium.new_context(timezone_id="Asia/Tokyo")
    page = await context.new_page()
    async with page.expect_request(lambda request: "/metrics/chatbot/usage" in request.url) as asking:
        await page.goto(f"http://127.0.0.1:{service.port}/#/usage")
    assert "zone=Asia%2FTokyo" in (await asking.value).url
    await expect(page.get_by_text("days of Asia/Tokyo")).to_be_visible()
    async with page.expect_request(lambda request: "/metrics/chatbot/usage" in request.url):
        await page.get_by_label("Period").select_option("7 days")
    refused = json.dumps({"detail": {"code": "bad_request", "message": "", "field": "zone"}})
    await page.route("**/usage?*zone=Asia*", lambda route: route.fulfill(status=422, body=refused))
    await page.reload()
    await expect(page.get_by_text("days of UTC")).to_be_visible()
    await page.route("**/usage?*", lambda route: route.fulfill(status=503, body="{}"))
    await page.reload()
    await expect(page.get_by_text("could not be read")).to_be_visible()
    await page.unroute("**/usage?*")
    await page.get_by_role("button", name="Try again").click()
    await expect(tile(page, "Answers")).to_have_text("0")
    await context.close()
