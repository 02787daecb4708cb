"""The figures are right: against a service of known behaviour, by that service's own log."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ws_bench.dice import dice
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, scripted_service
from ws_bench.distributions import Distribution
from ws_bench.results import percentile

QUICK = ("-ramp-duration", "0s", "-timeout", "20s", "-no-live")


def result_of(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    counts = result["counts"]
    assert counts["success"] + counts["errors"] + counts["not_sent"] == counts["total"]
    return result


@pytest.mark.parametrize(
    "load",
    [
        ("-clients=40", "-requests-per-client=10"),
        ("-clients=150", "-rate=100/s", "-arrival=poisson", "-duration=4s", "-native"),
    ],
    ids=["closed", "open"],
)
async def test_counts_and_percentiles_are_those_of_the_services_own_log(tmp_path: Path, load: tuple[str, ...]) -> None:
    out = tmp_path / "out.json"
    times, random = Distribution("lognormal", 300.0, 900.0), dice(11)

    async def slow(service: ScriptedService, exchange: Exchange) -> None:
        began = time.perf_counter()
        await asyncio.sleep(times.draw(random) / 1000)
        exchange.total_ms = (time.perf_counter() - began) * 1e3
        log.append(exchange.total_ms)
        await answer(service, exchange)

    log: list[float] = []
    async with scripted_service(slow) as service:
        done = await bench("-url", service.url, *load, "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    turns = result["recording"]["turns"]
    assert result["counts"]["success"] == len(log)
    assert sorted(turns["server_ms"]) == pytest.approx(sorted(log), abs=0.01)
    # Turn by turn: never sooner than the service was, and as a rule hardly later. A machine that hesitates makes some
    # turns later than that, but not most of them.
    took = [(ended - asked) * 1e3 for asked, ended in zip(turns["asked"], turns["ended"], strict=True)]
    later = sorted(took_ms - told_ms for took_ms, told_ms in zip(took, turns["server_ms"], strict=True))
    assert later[0] > -0.1
    assert percentile(later, 0.50) < 20
    # The figures are those of the turns.
    seen = result["uncorrected_latency_ms"] or result["latency_ms"]
    for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
        assert seen[name] == pytest.approx(percentile(sorted(took), share), rel=0.005)
    assert result["littles_law"]["broken"] is False


class Frozen:
    """A service that answers at once, but nothing while it is frozen: once, for a second, after its 100th ask."""

    def __init__(self) -> None:
        self.thawed = asyncio.Event()
        self.thawed.set()

    async def __call__(self, service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number == 100:
            self.thawed.clear()
            asyncio.get_running_loop().call_later(1.0, self.thawed.set)
        await self.thawed.wait()
        await answer(service, exchange)


async def test_an_open_loop_counts_the_turns_that_a_frozen_service_kept_from_being_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(Frozen()) as service:
        done = await bench("-url", service.url, "-clients=10", "-rate=100/s", "-duration=4s", "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    assert result["counts"] == {"total": 400, "success": 400, "errors": 0, "not_sent": 0}
    corrected, uncorrected = result["latency_ms"], result["uncorrected_latency_ms"]
    # 100 of 400 turns should have begun in that second, spread evenly over it; ten could, one a client.
    turns = result["recording"]["turns"]
    waits = [(end - due) * 1000 for due, end in zip(turns["intended"], turns["ended"], strict=True)]
    assert 40 <= sum(wait > 500 for wait in waits) <= 100
    assert 80 <= sum(wait > 100 for wait in waits) <= 200
    assert corrected["p95"] > 600
    asked = [(end - ask) * 1000 for ask, end in zip(turns["asked"], turns["ended"], strict=True)]
    assert 1 <= sum(wait > 500 for wait in asked) <= 10
    assert uncorrected["p95"] < corrected["p95"] / 2
    # Both know the worst one; only one knows how many there were.
    assert (corrected["max"] > 900, uncorrected["max"] > 900) == (True, True)
    assert result["late_start_ms"]["max"] > 700
    assert "Uncorrected latency ms" in done.stdout


async def test_a_closed_loop_is_corrected_by_the_interval_at_which_it_would_have_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(Frozen()) as service:
        done = await bench(
            "-url", service.url, "-clients=1", "-requests-per-client=200", "-expected-interval=10ms", "-json", str(out),
            *QUICK,
        )  # fmt: skip
    assert done.code == 0
    result = result_of(out)
    assert result["latency_ms"]["count"] == 200
    assert result["latency_ms"]["p99"] < 500
    # One answer of a second stands for the hundred that were due meanwhile, any other for as many as it kept from
    # being asked.
    turns = result["recording"]["turns"]
    took = [(end - ask) * 1000 for ask, end in zip(turns["asked"], turns["ended"], strict=True)]
    corrected = result["corrected_latency_ms"]
    assert corrected["count"] == pytest.approx(sum(max(1, int(ms / 10)) for ms in took), abs=3)
    assert corrected["count"] >= 199 + 98
    assert corrected["max"] > 980
    assert corrected["p95"] > 3 * result["latency_ms"]["p95"]
    assert "Corrected latency ms" in done.stdout


async def test_what_no_client_was_free_for_is_dropped_and_counted(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def slow(service: ScriptedService, exchange: Exchange) -> None:
        await asyncio.sleep(0.4)
        await answer(service, exchange)

    async with scripted_service(slow) as service:
        done = await bench(
            "-url", service.url, "-clients=1", "-rate=20/s", "-duration=2s", "-json", str(out), "-ramp-duration=0s",
            "-timeout=800ms", "-no-live",
        )  # fmt: skip
    result = result_of(out)
    assert result["counts"]["total"] == 40
    assert result["dropped_turns"] > 10
    assert result["counts"]["not_sent"] == result["dropped_turns"]
    assert f"dropped: {result['dropped_turns']} turns" in done.stdout


async def test_the_first_token_the_gaps_and_the_tail_are_told_apart(tmp_path: Path) -> None:
    out = tmp_path / "out.json"

    async def paced(service: ScriptedService, exchange: Exchange) -> None:
        head = {"session_id": exchange.ask["session_id"], "exchange_id": exchange.ask["client_exchange_id"]}
        messages = [exchange.message("user", "q"), exchange.message("assistant", "abc")]
        await exchange.send("accepted", seq=0, **head)
        await asyncio.sleep(0.1)
        for seq, (text, pause) in enumerate((("a", 0.05), ("b", 0.2), ("c", 0.15)), start=1):
            await exchange.send("delta", seq=seq, rank=1, channel="final", text=text, **head)
            await asyncio.sleep(pause)
        await exchange.send("final", seq=9, messages=messages, session={}, ledger=[], **head)

    async with scripted_service(paced) as service:
        done = await bench(
            "-native", "-url", service.url, "-clients=2", "-requests-per-client=3", "-json", str(out), *QUICK
        )
    assert done.code == 0
    result = result_of(out)
    assert result["first_event_ms"]["p50"] < 100
    # Never sooner than the service was; how much later is the machine's business.
    assert result["first_token_ms"]["min"] >= 99
    assert result["gap_ms"]["count"] == 12
    assert result["longest_stall_ms"]["min"] >= 190
    assert result["tail_ms"]["min"] >= 149
    assert result["latency_ms"]["min"] >= 499
