"""What the headline bench makes of its figures: percentiles above a floor, lateness, calibration, and its table."""

import math
from collections import Counter
from pathlib import Path

import pytest

from tests.bench import turn
from tests.bench.bench import Run, Verdicts
from tests.bench.calibration import Speed, changed, loops_a_turn, measure_speed, speed_of, turns_in_loops
from tests.bench.disk import Flushes, Probe, busy_disk, flushes, time_flushes
from tests.bench.headline_stage import FULL, SHORT, Size, first_s, late_ms, slow_model, spread_of
from tests.bench.headline_times import is_quiet
from tests.bench.measured import Series, above
from tests.bench.test_figures import figures
from tests.support.postgres import Database
from ws_bench.fakes.knobs import Knobs, knobs_of


def test_percentiles_count_from_the_floor() -> None:
    times = [3.0 + number / 1000 for number in range(1, 101)]
    found = above(times[::-1], 3.0)
    assert (found.p50, found.p95, found.p99) == pytest.approx((50.0, 95.0, 99.0))
    assert above([2.5], 3.0).p95 == pytest.approx(-500.0)
    assert above([], 3.0).p99 == math.inf


def test_a_cost_is_told_in_loops_of_the_speed_around_it() -> None:
    before, after = speed_of([2.0, 1.0, 9.0]), speed_of([4.0])
    assert before == Speed(2.0, 1.0, 9.0)
    assert loops_a_turn(6.0, before, after) == 2.0
    assert turns_in_loops(500.0, before, after) == 1500.0
    assert changed(before, after)
    assert not changed(before, speed_of([2.1]))
    assert measure_speed(1).loop_ms > 0


def test_a_run_of_the_release_is_told_by_its_turns() -> None:
    result = {"counts": {"success": 100, "errors": 2, "not_sent": 1}, "elapsed_s": 4.0}
    run = Run(result, used_s=0.5, before=speed_of([2.0]), after=speed_of([2.0]))
    assert (run.bad, run.cpu_ms, run.loops_a_turn) == (3, 5.0, 2.5)
    assert (run.turns_per_s, run.turns_in_loops) == (25.0, 50.0)


def test_lateness_is_that_between_two_looks() -> None:
    before = Counter({0: 5, 900: 1})
    after = Counter({0: 95, 7: 5, 40: 5, 900: 1})
    assert late_ms(before, after, 0.50) == 0
    assert late_ms(before, after, 0.95) == 7
    assert late_ms(before, after, 0.99) == 40
    assert late_ms(after, after, 0.99) == 0


def test_a_slow_model_ends_at_its_floor() -> None:
    model = slow_model(3.0, 50, 50.0)
    assert model == "mock;ttft=550;gap=50;tokens=50"
    knobs = knobs_of(model, Knobs())
    assert (knobs.ttft_ms, knobs.gap_ms, knobs.tokens) == (550.0, 50.0, 50)
    assert first_s(3.0, 21, 20.0) == 2.6
    with pytest.raises(ValueError, match="take longer"):
        first_s(1.0, 50, 50.0)


@pytest.mark.parametrize("size", [FULL, SHORT])
def test_sizes_agree_with_themselves(size: Size) -> None:
    assert size.judged_crowd in size.crowds
    assert size.rest_s >= size.idle_s
    assert list(size.positions) == sorted(size.positions)
    # Around a position as many turns before it as after; the first of a session has none before it.
    assert size.positions[1] >= size.costs.rounds * size.at_each


def test_spread_is_of_the_least() -> None:
    assert spread_of([2.0, 2.5, 2.2]) == pytest.approx(0.25)


def test_a_machine_is_quiet_by_its_core_and_its_disk() -> None:
    disk = Flushes(1.0, 2.0, 100)
    assert is_quiet(figures(1.0, foreign_share=0.05), disk)
    assert not is_quiet(figures(1.0, foreign_share=0.5), disk)
    assert not is_quiet(figures(1.0), Flushes(1.0, 20.0, 100))


def test_a_load_that_wakes_late_is_a_doubt() -> None:
    assert Series([figures(1.0, load_late_ms=12.0)]).doubts == "load late by up to 12 ms (p95)"


def test_all_figures_stand_in_the_table_with_what_became_of_them() -> None:
    verdicts = Verdicts()
    verdicts.tell("a", 12.3456, "ms")
    verdicts.hold("b", 2.0, 1.5, "x")
    verdicts.hold_at_least("c", 7.0, 6.0, "")
    assert verdicts.markdown().splitlines() == [
        "| measure | goal | figure | verdict |",
        "|---|---|---|---|",
        "| a |  | 12.35 ms |  |",
        "| b | <= 1.5 x | 2 x | MISSED |",
        "| c | >= 6 | 7 | ok |",
    ]
    assert verdicts.failed == 1


def test_ratios_are_held_to_what_is_asked_of_them() -> None:
    ours, naive, floor = (Series([figures(cost)]) for cost in (1.0, 20.0, 0.4))
    verdicts = Verdicts()
    turn.hold_ratios(turn.SATURATED, {"naive": naive, "floor_asgi": floor, "ours": ours}, verdicts, slack=1.0)
    turn.hold_ratios(turn.CALM, {"naive": naive, "ours": ours}, verdicts, slack=1.0)
    turn.hold_ratios(turn.WHOLE, {"original_like": naive, "ours": ours}, verdicts, slack=1.0)
    turn.hold_tokens(turn.each_token_us(3.0), verdicts, slack=1.0)
    assert [(row.figure, row.verdict) for row in verdicts.rows] == [
        ("0.05 x", "ok"),
        ("2.5 x", "MISSED"),
        ("0.05 x", "ok"),
        ("20 x", "ok"),
        ("20 us", "ok"),
    ]


def test_percentiles_of_flushes_are_in_milliseconds(tmp_path: Path) -> None:
    assert flushes([0.001, 0.003, 0.002]) == Flushes(2.0, 3.0, 3)
    assert len(time_flushes(tmp_path, count=2)) == 2


@pytest.mark.servers
def test_the_disk_is_watched_beside_a_neighbour(tmp_path: Path) -> None:
    probe = Probe(tmp_path)
    with busy_disk(tmp_path), probe.watching():
        pass
    assert probe.seen.count >= 1
    assert 0 < probe.seen.p50_ms <= probe.seen.p95_ms


@pytest.mark.servers
def test_commits_are_timed_until_their_block_ends(database: Database) -> None:
    for _ in range(2):  # its leases may be there already
        probe = Probe(database.dsn, "commits")
        with probe.watching():
            pass
        assert probe.seen.count >= 1
        assert 0 < probe.seen.p50_ms <= probe.seen.p95_ms
