"""The report as a page: complete in itself, and shown by a real browser without a network."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from tests.browser.conftest import CHROMIUM, QUIET
from tests.ws_bench.recordings import closed_run
from ws_bench.__main__ import main
from ws_bench.record.recording import Recording, ServerView
from ws_bench.record.selfcheck import GeneratorSeries, floats
from ws_bench.record.summary import build_report
from ws_bench.report.html import html_report
from ws_bench.report.report import result_json
from ws_bench.report.svg import Axis, Series, line_chart, stacked_chart

CHARTS = [
    "Latency over time", "Latency by percentile", "First token over time", "Turns in flight and turns a second",
    "Server phases, mean of a turn (own time)", "Loop lag and pool wait",
]  # fmt: skip


def full_run() -> Recording:
    """A recording with everything that a chart can show."""
    run = closed_run(
        4, turns=40, argv=("-native", "-message", "<script>alert('x')</script>", "-threshold", "turn_p95<4s")
    )
    run.turns = [
        type(turn)(
            client=turn.client, asked=turn.asked, ended=turn.ended, first_token_ms=turn.first_token_ms,
            phases={"llm_invoke": turn.latency_ms * 0.8, "spool_ack": 2.0},
            own_ms={"llm_invoke": turn.latency_ms * 0.8, "spool_ack": 2.0},
            top_phases=("llm_invoke", "spool_ack"), server_ms=turn.latency_ms * 0.9, frames=turn.frames,
        )
        for turn in run.turns
    ]  # fmt: skip
    at = [n * 0.05 for n in range(100)]
    run.series = [GeneratorSeries(at=floats(at), lag_ms=floats([0.2] * 100), in_flight=floats([20.0] * 100))]
    run.server = ServerView(
        begin=0.0, end=4.0, turns=800, builds=[{"git_sha": "<b>", "config_hash": "cafe"}], ended={}, phases={},
        timers={},
        statements={}, cpu=[0.5], busy=0.5, stalls=0, lost=0, pool_exhausted=False, verdict={"bound_by": "llm_floor"},
        series={"at": [1.0, 2.0, 3.0], "lag_p95": [1.0, None, 2.0], "pool_wait_p95": [0.1, 0.2, 0.1],
                "sql_p95": [3.0, 3.0, 4.0], "turns": [1.0, 2.0, 3.0]}, failures=[],
    )  # fmt: skip
    run.environment = {"argv": ["-agent", "Rico"], "git_dirty": True, "cores": 1, "cgroup": {"cpu.max": None}}
    return run


def test_a_page_has_every_chart_and_fetches_nothing() -> None:
    page = html_report(build_report(full_run()))
    assert [name for name in CHARTS if f"<figcaption>{name}</figcaption>" not in page] == []
    assert page.count("<svg") == len(CHARTS)
    assert re.findall(r"(?:src|href|url\()\s*=?", page) == []
    assert "<script" not in page
    assert "&lt;b&gt;" in page
    assert "Gate turn_p95&lt;4s" in page
    assert "<td>Frames a turn (p50/p95/max)</td><td>19/28/29</td>" in page
    assert "nan" not in page.lower().replace("finance", "")


def test_a_run_in_which_nothing_succeeded_has_a_page_too() -> None:
    run = closed_run(1)
    run.turns = []
    page = html_report(build_report(run))
    assert "FAILED" in page
    assert "<svg" not in page


def test_charts_scale_to_round_numbers_and_leave_out_what_has_no_points() -> None:
    chart = line_chart([Series("a", [(0, 1), (10, 870)], 0), Series("b", [], 1)], Axis("s"), Axis("ms"))
    assert ">1,000<" in chart
    assert "<polyline" in chart
    assert ">b<" not in chart
    assert line_chart([Series("a", [], 0)], Axis("s"), Axis("ms")) == ""


def test_stacked_areas_stand_on_one_another() -> None:
    lower, upper = Series("a", [(0, 10), (1, 10)], 0), Series("b", [(0, 5), (1, 15)], 1)
    chart = stacked_chart([lower, upper], Axis("s"), Axis("ms"))
    first, second = re.findall(r'<polygon[^>]*points="([^"]*)"', chart)
    assert first.split()[:2] == second.split()[3:1:-1]


def test_the_report_command_writes_the_page_of_a_result(tmp_path: Path) -> None:
    result, page = tmp_path / "r.json", tmp_path / "r.html"
    result.write_text(json.dumps(result_json(build_report(full_run()))))
    assert main(["report", str(result), "-html", str(page), "-md", str(tmp_path / "r.md")]) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "| client: latency |" in (tmp_path / "r.md").read_text()


@pytest.mark.chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_browser_shows_it_without_a_network(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(await asyncio.to_thread(html_report, build_report(full_run())))
    asked: list[str] = []
    said: list[str] = []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        context = await chromium.new_context(offline=True, color_scheme=scheme, viewport={"width": 1280, "height": 900})  # type: ignore[arg-type]
        page = await context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        await page.goto(path.as_uri())
        boxes = [await figure.bounding_box() for figure in await page.query_selector_all("svg")]
        overflow = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        picture = await page.screenshot(full_page=True)
        await chromium.close()
    assert (asked, said, overflow) == ([path.as_uri()], [], 0)
    assert len(boxes) == len(CHARTS)
    assert all(box and box["width"] > 400 and box["height"] > 100 for box in boxes)
    assert len(picture) > 50_000
