"""`ws_bench run` against the real service in both protocols: what is released together works together."""

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic_backend.spool.statements import WRITE_TURNS
from backend_kit.kpi.statements import normalized
from tests.support.agentic import StartProcess
from tests.support.postgres import Database
from tests.support.service import StartService
from tests.ws_bench.scripted import bench
from ws_bench.record.results import percentile

AGREE = 0.02
"""How far two views of the same turns may be apart."""
PERCENTILES = ("p50", "p95", "p99")
FIGURES = list(itertools.product(("turn", "first token"), PERCENTILES))
CLIENTS = 12


@pytest.mark.parametrize("native", ["true", "false"])
async def test_every_turn_succeeds(start_service: StartService, tmp_path: Path, native: str) -> None:
    out = tmp_path / "out.json"
    async with start_service(model="mock;tokens=20;gap=5") as running:
        done = await bench(
            f"-native={native}", "-url", running.ws_url, "-clients=5", "-requests-per-client=4", "-ramp-duration=0",
            "-json", str(out),
        )  # fmt: skip
        assert await running.get("/chatbot/sessions") == []
    assert done.code == 0, done.stdout
    result = json.loads(out.read_text())
    assert result["counts"] == {"total": 20, "success": 20, "errors": 0, "not_sent": 0}
    assert result["first_token_ms"]["count"] == 20
    assert (result["gap_ms"] is not None) is (native == "true")
    assert result["sessions"] == {"created": 5, "deleted": 5, "delete_failed": 0}


async def test_a_model_that_refuses_makes_a_failed_run(start_service: StartService, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with start_service(model="mock;status=400") as running:
        done = await bench(
            "-url", running.ws_url, "-clients=1", "-requests-per-client=2", "-ramp-duration=0", "-json", str(out)
        )
    assert done.code == 3
    assert sum(json.loads(out.read_text())["errors_by_class"].values()) == 2


async def test_prompts_are_asked_in_order_and_over_again(start_service: StartService, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one?\ntwo?\n")
    async with start_service() as running:
        session_id = await running.create_session()
        done = await bench(
            "-url", running.ws_url, "-clients=1", "-requests-per-client=3", "-ramp-duration=0",
            "-session", session_id, "-prompts", str(prompts),
        )  # fmt: skip
        asked = [m["parts"][0]["text"] for m in await running.history(session_id) if m["role"] == "user"]
    assert done.code == 0, done.stdout
    assert asked == ["one?", "two?", "one?"]


async def test_the_shipped_postgres_has_its_statements_from_the_service(
    start_process: StartProcess, database: Database, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    # The load lasts longer than the first look at the counts takes: only what comes after that is counted.
    async with start_process("mock;ttft=200;tokens=5", app={"metrics_enabled": True}) as running:
        url = f"http://127.0.0.1:{running.metrics_port}"
        done = await bench(
            "-native", "-url", running.ws_url, "-clients=3", "-requests-per-client=25", "-ramp-duration=0s",
            "-server-metrics", f"{url}/metrics", "-postgres", database.dsn, "-json", str(out), "-no-live",
        )  # fmt: skip
        assert done.code == 0, done.stdout
        async with aiohttp.ClientSession() as http, http.get(f"{url}/statements") as answer:
            whole = {one["query"]: one for one in (await answer.json())["statements"]}
    view = json.loads(await asyncio.to_thread(out.read_text))["recording"]["postgres"]
    assert view["source"] == "the services' own counts"
    shown = {one["query"]: one for one in view["statements"]}
    writing = normalized(WRITE_TURNS.text)
    assert {"COMMIT", writing[:200]} <= shown.keys()
    for query in ("COMMIT", writing):
        assert 0 < shown[query[:200]]["calls"] <= whole[query]["calls"]
    assert "source: the services' own counts" in done.stdout


@pytest.mark.parametrize("floor_ms", [300, 1000, 3000, 10_000])
async def test_every_view_of_the_same_turns_agrees(start_process: StartProcess, tmp_path: Path, floor_ms: int) -> None:
    """Summary, live view, Prometheus' quantiles, ws_bench's table of the server, and the client itself.

    The service's own views are of the same observations and always agree. A client also waits for its own machine, and
    for how long is the machine's business: it is never sooner, and one of its turns shows that nothing else is between
    them.
    """
    out = tmp_path / "out.json"
    seen = await views_of(start_process, out, floor_ms)
    for figure, which in FIGURES:
        views = {name: view[figure][which] for name, view in seen.items()}
        assert apart(views) < AGREE, (figure, which, views)
    result = json.loads(await asyncio.to_thread(out.read_text))
    turns = result["recording"]["turns"]
    took = [(ended - asked) * 1e3 for asked, ended in zip(turns["asked"], turns["ended"], strict=True)]
    shares = sorted(client_ms / told_ms for client_ms, told_ms in zip(took, turns["server_ms"], strict=True))
    assert shares[0] >= 1
    if floor_ms >= 1000:  # of a shorter turn, waking up late is more than that
        assert shares[0] - 1 < AGREE
    for figure, values in (("latency_ms", took), ("first_token_ms", turns["first_token_ms"])):
        for which, share in zip(PERCENTILES, (0.50, 0.95, 0.99), strict=True):
            assert result["whole"][figure][which] == pytest.approx(percentile(sorted(values), share), rel=0.005)
    # The first token too: none is there before the service has it.
    assert min(turns["first_token_ms"]) >= seen["summary"]["first token"]["min"] - 0.1


def apart(views: dict[str, float]) -> float:
    """How far the views of one figure lie apart, as a share of the least."""
    return max(views.values()) / min(views.values()) - 1


async def views_of(start_process: StartProcess, out: Path, floor_ms: int) -> dict[str, dict[str, dict[str, float]]]:
    """One run on a new service: view, then figure, then percentile, in milliseconds."""
    async with start_process(
        f"mock;ttft={floor_ms * 0.8:.0f};floor={floor_ms};tokens=5",
        app={"metrics_enabled": True, "kpi_log_summary_interval_sec": 3600, "kpi_log_summary_top_n": 20},
    ) as running:
        done = await bench(
            "-native", "-url", running.ws_url, "-clients", str(CLIENTS), "-requests-per-client=1", "-ramp-duration=1s",
            "-server-metrics", f"http://127.0.0.1:{running.metrics_port}/metrics", "-json", str(out),
        )  # fmt: skip
        assert done.code == 0, done.stdout
        live: dict[str, Any] = {"turns": 0}
        while live["turns"] < CLIENTS:
            live = (await running.get("/kpi/live"))["whole"]
        metrics = await running.metrics()
    result = json.loads(await asyncio.to_thread(out.read_text))
    told = result["recording"]["server"]["timers"]
    assert told["turn"]["count"] == CLIENTS
    low, high = bucket_of(metrics, 0.95)
    assert low * 1e3 <= live["turn_latency_ms"]["p95"] <= high * 1e3
    assert high / low < 1.11
    return {
        "summary": {
            "turn": summary_line(running.process.output, "app.turn_latency_ms|agent=Georges"),
            "first token": summary_line(running.process.output, "app.ttft_ms|agent=Georges"),
        },
        "live": {"turn": live["turn_latency_ms"], "first token": live["first_token_ms"]},
        "prometheus": {
            "turn": quantiles(metrics, "app_turn_quantile_seconds"),
            "first token": quantiles(metrics, "app_time_to_first_token_quantile_seconds"),
        },
        "ws_bench": {"turn": told["turn"], "first token": told["first token"]},
    }


def summary_line(log: str, key: str) -> dict[str, float]:
    """The least and the percentiles of a key in the only summary that a log holds, that of the end."""
    [line] = re.findall(rf"\[KPI\]\[SUMMARY\] timer {re.escape(key)} (.*)", log)
    return {name: float(value) for name, value in re.findall(r"(min|p\d+)=(\S+)", line)}


def quantiles(metrics: str, name: str) -> dict[str, float]:
    """The gauges of one of the quantile metrics, in milliseconds."""
    found = dict(re.findall(rf'^{name}{{q="([\d.]+)"}} (\S+)$', metrics, re.MULTILINE))
    return {which: float(found[q]) * 1e3 for which, q in zip(PERCENTILES, ("0.5", "0.95", "0.99"), strict=True)}


def bucket_of(metrics: str, share: float) -> tuple[float, float]:
    """The bounds between which `histogram_quantile` interpolates that share of the turns, in seconds."""
    found = re.findall(r'^app_turn_seconds_bucket{.*le="([^"]+)".*} (\S+)$', metrics, re.MULTILINE)
    bounds = sorted((float(le), float(count)) for le, count in found)
    below = [le for le, count in bounds if count < share * bounds[-1][1]]
    return below[-1], bounds[len(below)][0]
