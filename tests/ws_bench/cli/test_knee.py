"""The knee: where it is searched, what counts as piling up, and whether a planted capacity is found."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ws_bench.dice import dice
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, scripted_service
from ws_bench.cli.knee import Knee, Probe, knee_text, over_saturated, search
from ws_bench.config.arrivals import schedule, steady_stages
from ws_bench.config.flags import config_as_json, parse_run_flags
from ws_bench.record.recording import Recording
from ws_bench.record.results import TurnResult


def probe_of(rate: float, *, held: bool, why: str = "turn_p95<1s does not hold") -> Probe:
    return Probe(rate, held, "" if held else why, rate, 1.0, 1.0, 0.0, 0.0)


def capacity(limit: float, tried: list[float]) -> Callable[[float], Probe | None]:
    def probe(rate: float) -> Probe | None:
        tried.append(rate)
        return probe_of(rate, held=rate <= limit)

    return probe


@pytest.mark.parametrize("limit", [3.0, 80.0, 700.0])
def test_the_search_ends_within_the_tolerance_of_the_capacity(limit: float) -> None:
    tried: list[float] = []
    knee = search(capacity(limit, tried), start=10, highest=1000, tolerance=0.05)
    assert knee.held is not None
    assert knee.broke is not None
    assert knee.held <= limit < knee.broke <= knee.held * 1.05
    assert knee.rate == pytest.approx(limit, rel=0.05)
    assert len(tried) < 15


def test_the_search_knows_its_bounds() -> None:
    tried: list[float] = []
    assert search(capacity(1e9, tried), start=10, highest=50, tolerance=0.05) == Knee(50, None)
    assert tried == [10, 20, 40, 50]
    assert search(capacity(0.1, tried), start=8, highest=50, tolerance=0.05) == Knee(None, 1.0)
    assert search(lambda _: None, start=8, highest=50, tolerance=0.05) == Knee(None, None)


def test_a_rate_that_piles_up_only_once_holds() -> None:
    verdicts = iter([False, True, True])

    def probe(rate: float) -> Probe | None:
        return probe_of(rate, held=next(verdicts), why="piles up")

    assert search(probe, start=5, highest=10, tolerance=0.05) == Knee(10, None)


def test_the_words_say_what_was_found() -> None:
    probes = [probe_of(10, held=True), probe_of(11, held=False)]
    assert knee_text(Knee(10, 11), probes) == (
        "Knee: 10.49 turns/s (10.00 held, 11.00 did not); the highest rate that came out was 11.00 turns/s"
    )
    assert knee_text(Knee(10, None), probes).startswith("Knee: not found, 10.00 turns/s still held")
    assert knee_text(Knee(None, 5), probes).startswith("Knee: below 5.00 turns/s")


def queue(rate: float, seconds: float, per_s: float, *, arrival: str = "constant", clients: int = 10**6) -> Recording:
    """An open loop against one server of exactly `per_s` turns a second, with a cap on what is asked at a time."""
    due = schedule(steady_stages(rate, seconds), arrival, dice(1))
    free = 0.0
    ends: list[float] = []
    turns: list[TurnResult] = []
    for number, at in enumerate(due):
        asked = max(at, ends[number - clients]) if number >= clients else at
        free = max(free, asked) + 1 / per_s
        ends.append(free + 0.1)
        ms = (ends[-1] - asked) * 1000
        turns.append(TurnResult(client=0, asked=asked, ended=ends[-1], intended=at, first_token_ms=ms))
    config = parse_run_flags(["-rate", f"{rate}/s", "-duration", f"{seconds}s"], {})
    return Recording(config_as_json(config), 0.0, len(due), turns=turns, planned=(0.0, seconds))


@pytest.mark.parametrize("clients", [10**6, 15])
def test_a_rate_above_the_capacity_piles_up_whatever_the_cap_on_clients(clients: int) -> None:
    assert over_saturated(queue(105, 10, 100, clients=clients))[0] == "piles up"
    assert over_saturated(queue(150, 10, 100, clients=clients))[0] == "piles up"


def test_a_rate_below_it_does_not_even_where_arrivals_bunch() -> None:
    assert over_saturated(queue(95, 10, 100))[0] == ""
    found = [over_saturated(queue(rate, 20, 100, arrival="poisson"))[0] for rate in (20, 40, 60, 80)]
    assert found == [""] * 4


def test_nothing_asked_holds_nothing() -> None:
    empty = queue(10, 1, 10)
    empty.turns = []
    assert over_saturated(empty)[0] == "nothing was asked"


HESITATES_S = 0.03
"""A timer that comes so late, on a loop that does next to nothing, was kept from a core."""


class Server:
    """Serves exactly `per_s` turns a second, one after the other, however late its timers are."""

    def __init__(self, per_s: float) -> None:
        self.each = 1 / per_s
        self.free = 0.0
        self.late_s = 0.0
        """How late its timers were at worst: the share of the machine in what it served."""

    async def __call__(self, service: ScriptedService, exchange: Exchange) -> None:
        now = asyncio.get_running_loop().time()
        self.free = max(self.free, now) + self.each
        due = self.free
        await asyncio.sleep(due - now)
        self.late_s = max(self.late_s, asyncio.get_running_loop().time() - due)
        await answer(service, exchange)


@pytest.mark.servers
async def test_the_knee_of_a_planted_capacity_is_found(tmp_path: Path) -> None:
    out = tmp_path / "knee.json"
    server = Server(80.0)
    async with scripted_service(server) as service:
        done = await bench(
            "find-knee", "-url", service.url, "-clients=60", "-start=50/s", "-step=3s", "-tolerance=8%",
            "-ramp-duration=0s", "-no-live", "-json", str(out),
        )  # fmt: skip
    assert done.code == 0, done.stdout + done.stderr
    knee = json.loads(out.read_text())["knee"]
    assert knee["held"] < knee["broke"] <= 1.08 * knee["held"]
    # No more than what is planted, ever; less only where the machine did not serve as much.
    assert knee["rate"] < 88
    assert knee["rate"] > 72 or server.late_s > HESITATES_S
    assert "Knee: " in done.stdout


@pytest.mark.servers
async def test_an_objective_ends_the_search_too() -> None:
    async with scripted_service(Server(200.0)) as service:
        done = await bench(
            "find-knee", "-url", service.url, "-clients=20", "-start=8/s", "-max-rate=8/s", "-step=1s",
            "-slo", "turn_p50<1ms", "-ramp-duration=0s", "-no-live",
        )  # fmt: skip
    assert done.code == 1
    assert "turn_p50<1ms does not hold" in done.stdout
    assert "Knee: below 1.00 turns/s" in done.stdout


@pytest.mark.parametrize("flag", ["-rate=5/s", "-duration=5s", "-workers=2", "-start=0"])
@pytest.mark.servers
async def test_flags_that_find_knee_sets_itself_are_refused(flag: str) -> None:
    assert (await bench("find-knee", flag)).code == 2
