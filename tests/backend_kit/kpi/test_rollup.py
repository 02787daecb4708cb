"""A rollup's figures: exact in a small window, bounded and still right in a large one, whole under threads."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_kit.kpi.rollup import FOLD_ABOVE, Rollup, nearest_rank


def test_an_empty_window_has_no_figures() -> None:
    rollup = Rollup()
    assert rollup.take() is None
    rollup.add(1.0)
    assert rollup.take() is not None
    assert rollup.take() is None


def test_figures_are_those_of_the_window() -> None:
    rollup = Rollup()
    for value in (4.0, 1.0, 3.0, 2.0):
        rollup.add(value)
    stats = rollup.take()
    assert stats is not None
    assert (stats.count, stats.last, stats.average, stats.minimum, stats.maximum) == (4, 2.0, 2.5, 1.0, 4.0)
    assert (stats.p50, stats.p95, stats.p99) == (2.0, 4.0, 4.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_nearest_rank_leaves_the_share_at_or_below(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, share)
    assert found in values
    # As many as the share asks for lie at or below it; one rank lower there would be too few.
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-6
    assert sum(value < found for value in ordered) < share * len(ordered) + 1e-6


@pytest.mark.parametrize("count", [FOLD_ABOVE, FOLD_ABOVE + 1, 3 * FOLD_ABOVE + 77])
def test_above_the_bound_counts_stay_exact_and_percentiles_close(count: int) -> None:
    rollup = Rollup()
    for number in range(count):
        rollup.add(float(number))
    stats = rollup.take()
    assert stats is not None
    assert (stats.count, stats.last, stats.minimum, stats.maximum) == (count, count - 1, 0.0, count - 1)
    assert stats.total == sum(range(count))
    assert stats.p50 == pytest.approx(count * 0.50, rel=0.01)
    assert stats.p99 == pytest.approx(count * 0.99, rel=0.01)
    assert rollup.take() is None


def test_a_window_of_millions_holds_few() -> None:
    rollup = Rollup()
    for number in range(20 * FOLD_ABOVE):
        rollup.add(number % 1000)
    assert len(rollup._samples) <= FOLD_ABOVE
    assert len(rollup._kept) <= FOLD_ABOVE
    stats = rollup.take()
    assert stats is not None
    assert stats.count == 20 * FOLD_ABOVE
    assert stats.p50 == pytest.approx(500, abs=20)


def test_no_sample_is_lost_or_counted_twice_between_threads() -> None:
    rollup = Rollup()
    each, writers = 40_000, 4
    done = threading.Event()
    counts: list[int] = []

    def write() -> None:
        for _ in range(each):
            rollup.add(1.0)

    def read() -> None:
        while not done.is_set():
            stats = rollup.take()
            counts.append(stats.count if stats else 0)

    threads = [threading.Thread(target=write) for _ in range(writers)]
    reader = threading.Thread(target=read)
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    rest = rollup.take()
    assert sum(counts) + (rest.count if rest else 0) == each * writers
