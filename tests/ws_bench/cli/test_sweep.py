"""A sweep over numbers of clients, and the word on recovery."""

import json
from pathlib import Path

import pytest

from tests.ws_bench.cli.test_knee import HESITATES_S, Server
from tests.ws_bench.recordings import closed_run
from tests.ws_bench.scripted import Exchange, ScriptedService, answer, bench, scripted_service
from ws_bench.cli.sweep import Level, recovery_text, sweep_html, sweep_text
from ws_bench.record.summary import build_report
from ws_bench.report.report import Style


def level(clients: int, factor: float = 1.0) -> Level:
    return Level(clients, build_report(closed_run(clients, clients=clients, factor=factor)))


def test_levels_stand_beside_one_another_with_their_scaling() -> None:
    text = sweep_text([level(2), level(4), level(8, 2.0)], None, Style(enabled=False))
    rows = [line.split() for line in text.splitlines()]
    scaling = {row[0]: row[2] for row in rows if row and row[0].isdigit()}
    assert scaling["2"] == "100%"
    assert 80 <= int(scaling["4"].rstrip("%")) <= 120
    assert 40 <= int(scaling["8"].rstrip("%")) <= 60


def test_recovery_is_a_matter_of_the_first_levels_median() -> None:
    assert recovery_text(level(4), level(4)).startswith("Recovery: yes")
    assert recovery_text(level(4), level(4, 1.5)).startswith("Recovery: NO")


def test_the_page_has_a_chart_for_rate_and_latency() -> None:
    page = sweep_html([level(2), level(4)], level(2))
    assert page.count("<svg") == 2
    assert "Recovery: yes" in page


@pytest.mark.servers
async def test_a_sweep_shows_where_the_rate_stops_growing_and_whether_it_recovers(tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    server = Server(50.0)
    async with scripted_service(server) as service:
        done = await bench(
            "sweep", "-url", service.url, "-levels=1,4,8", "-requests-per-client=12", "-ramp-duration=0s", "-no-live",
            "-json", str(out), "-html", str(tmp_path / "s.html"), "-md", str(tmp_path / "s.md"),
        )  # fmt: skip
    assert done.code == 0, done.stderr
    result = json.loads(out.read_text())
    rates = [one["steady"]["turns_per_s"] for one in result["levels"]]
    assert [one["clients"] for one in result["levels"]] == [1, 4, 8]
    # One turn at a time is served, so more clients only wait longer: the more there are in a rate, the longer each.
    waits_s = [one["steady"]["latency_ms"]["avg"] / 1000 for one in result["levels"]]
    assert all(rate * wait_s <= 1.15 * n for rate, wait_s, n in zip(rates, waits_s, (1, 4, 8), strict=True))
    assert max(rates) < 57.5
    assert result["recovered"] is ("Recovery: yes" in done.stdout)
    if server.late_s < HESITATES_S:
        assert rates[2] > 42.5
        assert waits_s[2] > 3 * waits_s[0]
        assert result["recovered"] is True
    assert sorted(service.deleted) == sorted(service.created)


@pytest.mark.servers
async def test_a_service_that_does_not_recover_is_told(tmp_path: Path) -> None:
    async def tires(service: ScriptedService, exchange: Exchange) -> None:
        if exchange.number > 30:
            await Server(1 / 0.25)(service, exchange)
        else:
            await answer(service, exchange)

    async with scripted_service(tires) as service:
        done = await bench(
            "sweep", "-url", service.url, "-levels=1,5", "-requests-per-client=6", "-ramp-duration=0s", "-no-live"
        )
    assert done.code == 0
    assert "Recovery: NO" in done.stdout


@pytest.mark.servers
async def test_a_sweep_in_which_nothing_succeeds_is_exit_code_3() -> None:
    async def cut(_: ScriptedService, exchange: Exchange) -> None:
        exchange.cut()

    async with scripted_service(cut) as service:
        done = await bench("sweep", "-url", service.url, "-levels=1,2", "-requests-per-client=1", "-no-live")
    assert done.code == 3


@pytest.mark.parametrize("flag", ["-levels=4,1", "-levels=a", "-rate=5/s", "-requests-per-client=0", "-workers=2"])
@pytest.mark.servers
async def test_flags_that_a_sweep_has_no_use_for_are_refused(flag: str) -> None:
    assert (await bench("sweep", flag, "-duration=1s")).code == 2
