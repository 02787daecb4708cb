"""Counting and measuring: pure functions over results."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_bench.results import (
    TurnResult,
    first_tokens,
    gaps,
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
