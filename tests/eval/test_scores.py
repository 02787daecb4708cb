"""The measures against figures worked out by hand."""

from math import log2

import pytest

from tests.eval.scores import DEEP, bootstrap, difference, scores

NONE = frozenset[int]()
ONE = frozenset({0})
TWO = frozenset({1})
BOTH = frozenset({0, 1})


def test_the_only_answer_at_rank_three() -> None:
    found = scores([NONE, NONE, ONE], [10, 10, 10], [ONE], 1)
    assert found.ndcg == pytest.approx(1 / log2(4))
    assert found.reciprocal == pytest.approx(1 / 3)
    assert (found.recall, found.in_context) == (1.0, 1.0)


def test_a_second_chunk_of_the_same_place_gains_nothing() -> None:
    repeated = scores([ONE, ONE, TWO], [1, 1, 1], [ONE, ONE, TWO], 2)
    assert repeated.ndcg == pytest.approx((1 + 1 / log2(4)) / (1 + 1 / log2(3)))
    assert scores([ONE, TWO], [1, 1], [ONE, ONE, TWO], 2).ndcg == pytest.approx(1.0)


def test_a_chunk_that_covers_two_places_is_the_best_first() -> None:
    chunks = [ONE, TWO, BOTH]
    assert scores([BOTH], [1], chunks, 2).ndcg == pytest.approx(1.0)
    assert scores([ONE, TWO], [1, 1], chunks, 2).ndcg == pytest.approx((1 + 1 / log2(3)) / 2)


def test_ranks_beyond_ten_and_fifty_do_not_count() -> None:
    late = scores([*[NONE] * 10, ONE], [1] * 11, [ONE], 1)
    assert late.reciprocal == pytest.approx(1 / 11)
    assert (late.ndcg, late.recall) == (0.0, 1.0)
    too_late = scores([*[NONE] * DEEP, ONE], [1] * (DEEP + 1), [ONE], 1)
    assert (too_late.ndcg, too_late.recall, too_late.reciprocal) == (0.0, 0.0, 0.0)


def test_a_context_takes_whole_hits_as_long_as_they_fit() -> None:
    assert scores([NONE, ONE], [4_000, 6_000], [ONE], 1).in_context == 1.0
    assert scores([NONE, ONE], [4_000, 6_001], [ONE], 1).in_context == 0.0


def test_nothing_found_is_nothing() -> None:
    found = scores([], [], [ONE], 1)
    assert (found.ndcg, found.recall, found.reciprocal, found.in_context) == (0.0, 0.0, 0.0, 0.0)


def test_the_interval_of_a_coin_is_that_of_the_normal_approximation() -> None:
    interval = bootstrap([0.0, 1.0] * 200)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.006)
    assert interval.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.006)
    assert bootstrap([0.0, 1.0] * 200) == interval


def test_a_paired_difference_is_surer_than_its_parts() -> None:
    one = {f"q{number}": number / 100 for number in range(100)}
    other = {query: value - 0.1 for query, value in one.items()}
    found = difference(one, other)
    assert [found.mean, found.low, found.high] == [pytest.approx(0.1)] * 3
    assert bootstrap([]).mean == 0.0
