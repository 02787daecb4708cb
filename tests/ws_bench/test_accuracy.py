"""The figures are right: against a service of known behaviour, by that service's own log."""

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_bench.dice import dice
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, scripted_service
from ws_bench.config.distributions import RandomVariable
from ws_bench.record.results import percentile

pytestmark = pytest.mark.servers

QUICK = ("-ramp-duration", "0s", "-timeout", f"{PATIENCE_S}s", "-no-live")


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
    times, random = RandomVariable("lognormal", 300.0, 900.0), dice(11)

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
    # Turn by turn: never sooner than the service was; where the machine let it, hardly later. How many turns a busy
    # machine makes later than that is its business, but what the client itself added to each would be in all of them.
    took = took_ms(turns)
    later = [client_ms - service_ms for client_ms, service_ms in zip(took, turns["server_ms"], strict=True)]
    assert -0.1 < min(later) < 20
    # No turn takes time that belongs to another one of its client.
    for begun, ended in spans_of_clients(turns):
        assert all(end <= begin for end, begin in zip(ended, begun[1:], strict=False))
    # The figures are those of the turns.
    seen = result["uncorrected_latency_ms"] or result["latency_ms"]
    for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
        assert seen[name] == pytest.approx(percentile(sorted(took), share), rel=0.005)
    assert result["littles_law"]["broken"] is False


def took_ms(turns: dict[str, Any]) -> list[float]:
    """From the ask of each turn to its end."""
    return [(ended - asked) * 1e3 for asked, ended in zip(turns["asked"], turns["ended"], strict=True)]


def spans_of_clients(turns: dict[str, Any]) -> list[tuple[list[float], list[float]]]:
    """When the turns of each client began and ended, in their order."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for client, asked, ended in zip(turns["client"], turns["asked"], turns["ended"], strict=True):
        spans.setdefault(client, []).append((asked, ended))
    ordered = [sorted(each) for each in spans.values()]
    return [([begun for begun, _ in each], [ended for _, ended in each]) for each in ordered]


def expect_percentiles(seen: dict[str, float], values_ms: list[float]) -> None:
    """The figures are those of these values."""
    assert seen["count"] == len(values_ms)
    for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
        assert seen[name] == pytest.approx(percentile(sorted(values_ms), share), rel=0.005, abs=0.1)


class Frozen:
    """A service that answers at once, but nothing while it is frozen: once, for a second, after its 50th ask."""

    def __init__(self) -> None:
        self.thawed = asyncio.Event()
        self.thawed.set()

    async def __call__(self, service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number == 50:
            self.thawed.clear()
            asyncio.get_running_loop().call_later(1.0, self.thawed.set)
        await self.thawed.wait()
        await answer(service, exchange)


async def test_an_open_loop_counts_the_turns_that_a_frozen_service_kept_from_being_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(Frozen()) as service:
        done = await bench("-url", service.url, "-clients=5", "-rate=50/s", "-duration=4s", "-json", str(out), *QUICK)
    assert done.code == 0
    result = result_of(out)
    assert result["counts"] == {"total": 200, "success": 200, "errors": 0, "not_sent": 0}
    corrected, uncorrected = result["latency_ms"], result["uncorrected_latency_ms"]
    # 50 of 200 turns should have begun in that second, spread evenly over it.
    turns = result["recording"]["turns"]
    waits = [(end - due) * 1000 for due, end in zip(turns["intended"], turns["ended"], strict=True)]
    assert sum(wait > 500 for wait in waits) >= 20
    assert sum(wait > 100 for wait in waits) >= 40
    assert corrected["p95"] > 600
    # Five could, one a client, however long the machine took over the others.
    begin, end = longest_silence(turns["ended"])
    asked_then = [at for at, due in zip(turns["asked"], turns["intended"], strict=True) if begin <= due < end]
    assert len(asked_then) >= 20
    assert sum(at < end for at in asked_then) <= 5
    # Both know the worst one; only one knows how many there were.
    assert (corrected["max"] > 900, uncorrected["max"] > 900) == (True, True)
    expect_percentiles(corrected, waits)
    expect_percentiles(uncorrected, took_ms(turns))
    assert result["late_start_ms"]["max"] > 700
    assert "Uncorrected latency ms" in done.stdout


def longest_silence(ended: list[float]) -> tuple[float, float]:
    """The longest time in which no turn ended."""
    return max(itertools.pairwise(sorted(ended)), key=lambda pair: pair[1] - pair[0])


async def test_a_closed_loop_is_corrected_by_the_interval_at_which_it_would_have_asked(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    async with scripted_service(Frozen()) as service:
        done = await bench(
            "-url", service.url, "-clients=1", "-requests-per-client=200", "-expected-interval=10ms", "-json", str(out),
            *QUICK,
        )  # fmt: skip
    assert done.code == 0
    result = result_of(out)
    took = took_ms(result["recording"]["turns"])
    assert len(took) == 200
    expect_percentiles(result["latency_ms"], took)
    # One answer of a second stands for the hundred that were due meanwhile, any other for as many as it kept from
    # being asked: each 10 ms later than the one before, so it waited 10 ms less.
    stands_for = [ms - 10 * missed for ms in took for missed in range(max(1, int(ms / 10)))]
    corrected = result["corrected_latency_ms"]
    assert corrected["count"] == pytest.approx(len(stands_for), abs=3)
    assert corrected["count"] >= 199 + 98
    assert corrected["max"] > 980
    for name, share in (("p50", 0.50), ("p95", 0.95), ("p99", 0.99)):
        assert corrected[name] == pytest.approx(percentile(sorted(stands_for), share), rel=0.02, abs=1)
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
    turns = result["recording"]["turns"]
    latency, first, tail, stall = took_ms(turns), turns["first_token_ms"], turns["tail_ms"], turns["stall_ms"]
    # Nothing is seen sooner than the service said it; how much later is the machine's business, and so is how much of
    # a pause is left between two events that it hands over late.
    assert min(first) >= 99
    assert min(whole - end for whole, end in zip(latency, tail, strict=True)) >= 349
    assert min(latency) >= 499
    assert result["gap_ms"]["count"] == 12
    assert turns["frames"] == [5] * 6
    assert "Frames a turn (p50/p95/max): 5/5/5\n" in done.stdout
    # The parts make up the whole: two gaps a turn, of which the stall is the longer one.
    for whole, begin, longest, end in zip(latency, first, stall, tail, strict=True):
        assert longest - 0.1 <= whole - begin - end <= 2 * longest + 0.1
    # One turn in six was seen about as it came.
    assert max(begin - event for begin, event in zip(first, turns["first_event_ms"], strict=True)) > 50
    assert max(stall) > 100
    assert max(tail) > 75
    for name, values in (("first_token_ms", first), ("longest_stall_ms", stall), ("tail_ms", tail)):
        assert result[name]["min"] == pytest.approx(min(values), abs=0.1)
