"""Counting and measuring: pure functions over results."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_bench.config.options import Cut
from ws_bench.record.results import (
    Histogram,
    TurnResult,
    back_filled,
    first_tokens,
    gaps,
    in_window,
    latencies,
    percentile,
    ramp_seconds,
    spread,
    steady_window,
    tally,
)


def turn(client: int, asked: float, ended: float, error: str = "", **more: object) -> TurnResult:
    return TurnResult(client=client, asked=asked, ended=ended, error=error, **more)  # type: ignore[arg-type]


def test_percentiles_are_by_nearest_rank() -> None:
    values = [15.0, 20.0, 35.0, 40.0, 50.0]
    assert [percentile(values, share) for share in (0.0, 0.05, 0.30, 0.40, 0.50, 1.0)] == [15, 15, 20, 20, 35, 50]
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95
    assert percentile([1.0, 2.0], 0.5) == 1
    assert percentile([], 0.5) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.001, 1))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    ordered = sorted(values)
    chosen = percentile(ordered, share)
    assert sum(value <= chosen for value in ordered) >= share * len(ordered) - 1e-9
    assert sum(value < chosen for value in ordered) < share * len(ordered) + 1e-9


def test_a_spread_holds_the_six_figures() -> None:
    figures = spread([4.0, 1.0, 3.0, 2.0])
    assert figures is not None
    assert (figures.count, figures.min, figures.avg, figures.p50, figures.p95, figures.p99, figures.max) == (
        4, 1.0, 2.5, 2.0, 4.0, 4.0, 4.0,
    )  # fmt: skip
    assert spread([]) is None


@given(st.lists(st.sampled_from(["", "", "tcp_refused", "turn_timeout"])), st.integers(0, 5))
def test_success_errors_and_not_sent_make_the_total(errors: list[str], missing: int) -> None:
    counts = tally([turn(0, 0, 1, error) for error in errors], len(errors) + missing)
    assert counts.success + counts.errors + counts.not_sent == counts.total
    assert counts.not_sent == missing
    assert sum(counts.by_class.values()) == counts.errors


def test_error_classes_are_sorted_by_frequency() -> None:
    counts = tally([turn(0, 0, 1, error) for error in ("b", "a", "c", "c")], 4)
    assert list(counts.by_class.items()) == [("c", 2), ("a", 1), ("b", 1)]


def test_only_successes_are_measured() -> None:
    results = [
        turn(0, 1.0, 1.5, first_token_ms=100.0, gaps_ms=array("d", [1.0, 2.0])),
        turn(0, 2.0, 9.0, "turn_timeout", first_token_ms=50.0, gaps_ms=array("d", [99.0])),
        turn(1, 2.0, 2.25, gaps_ms=array("d", [3.0])),
    ]
    assert latencies(results) == [500.0, 250.0]
    assert first_tokens(results) == [100.0]
    pooled = gaps(results).spread()
    assert pooled is not None
    assert (pooled.count, pooled.min, pooled.avg, pooled.max) == (3, 1.0, 2.0, 3.0)


def test_the_steady_window_is_where_all_clients_run() -> None:
    results = [turn(0, 0, 1), turn(0, 1, 2), turn(0, 2, 4), turn(1, 1.5, 3), turn(1, 3, 5)]
    window = steady_window(results)
    assert window is not None
    assert (window.begin, window.end, window.turns, window.turns_per_s) == (1.5, 4, 3, 3 / 2.5)


def test_there_is_no_steady_window_where_clients_never_ran_together() -> None:
    assert steady_window([turn(0, 0, 1), turn(1, 2, 3)]) is None
    assert steady_window([]) is None


def test_what_was_never_sent_opens_no_window() -> None:
    assert steady_window([turn(0, 0, 1, "tcp_refused", sent=False)]) is None
    assert ramp_seconds([turn(0, 0, 1, "tcp_refused", sent=False)]) == (0.0, 0.0)


def test_setup_ends_with_the_first_ask_and_the_ramp_with_the_last_clients_first_one() -> None:
    assert ramp_seconds([turn(0, 0.5, 1), turn(0, 7, 8), turn(1, 2.5, 3)]) == (0.5, pytest.approx(2.0))


def test_warm_up_and_cool_down_are_cut_by_time_share_and_turns() -> None:
    results = [turn(0, at, at + 1) for at in range(10)]
    whole = steady_window(results)
    assert whole is not None
    assert (whole.begin, whole.end, whole.turns) == (0, 10, 10)
    by_time = steady_window(results, warmup=Cut("seconds", 2), cooldown=Cut("seconds", 3))
    by_share = steady_window(results, warmup=Cut("share", 0.2), cooldown=Cut("share", 0.3))
    by_turns = steady_window(results, warmup=Cut("turns", 2), cooldown=Cut("turns", 3))
    for window in (by_time, by_share, by_turns):
        assert window is not None
        assert (window.begin, window.end, window.turns) == (2, 7, 5)
    assert steady_window(results, warmup=Cut("seconds", 10)) is None
    assert steady_window(results, warmup=Cut("turns", 11)) is None


def test_a_client_whose_socket_broke_does_not_end_the_window() -> None:
    results = [turn(0, 0, 1), turn(0, 1, 5), turn(1, 0, 1, "ws_close_1011"), turn(2, 0, 4)]
    window = steady_window(results)
    assert window is not None
    assert (window.begin, window.end) == (0, 4)


def test_an_open_loops_window_is_its_schedule_and_turns_belong_to_it_by_their_intended_start() -> None:
    results = [turn(0, 1.5, 9.0, intended=1.0), turn(0, 9.0, 9.5, intended=8.0)]
    window = steady_window(results, planned=(0.0, 8.0))
    assert window is not None
    assert (window.begin, window.end) == (0.0, 8.0)
    assert in_window(results, window, by_begin=True) == results[:1]


def test_latency_counts_from_the_intended_start() -> None:
    late = turn(0, 3.0, 3.5, intended=1.0)
    assert (late.latency_ms, late.response_ms) == (2500.0, 500.0)
    assert (turn(0, 3.0, 3.5).latency_ms, turn(0, 3.0, 3.5).response_ms) == (500.0, 500.0)


def test_back_fill_adds_what_was_not_asked_during_a_stall() -> None:
    assert list(back_filled([100.0, 1000.0], 250.0)) == [100.0, 1000.0, 750.0, 500.0, 250.0]
    assert list(back_filled([1000.0], 0.0)) == [1000.0]


def test_only_many_values_have_a_p999() -> None:
    assert [figures and figures.p999 for figures in (spread(range(9_999)), spread(range(10_000)))] == [None, 9_989]


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=300))
def test_a_histogram_is_within_half_a_percent_and_can_be_stored_and_added(values: list[float]) -> None:
    exact, half = spread(values), len(values) // 2
    joined = Histogram.from_json(Histogram(values[:half]).as_json())
    joined.merge(Histogram(values[half:]))
    assert exact is not None
    for figures in (Histogram(values).spread(), joined.spread()):
        assert figures is not None
        assert (figures.count, figures.min, figures.max) == (exact.count, exact.min, exact.max)
        assert figures.avg == pytest.approx(exact.avg)
        for name in ("p50", "p95", "p99"):
            assert getattr(figures, name) == pytest.approx(getattr(exact, name), rel=0.005)
