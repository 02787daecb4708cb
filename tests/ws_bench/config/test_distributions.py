"""Distributions have the figures in their name, and the same seed gives the same values."""

from statistics import fmean, median, stdev

import pytest

from tests.ws_bench.dice import dice
from ws_bench.config.distributions import RandomVariable, constant, parse_distribution
from ws_bench.config.golang import parse_duration
from ws_bench.errors import UsageError
from ws_bench.record.results import percentile

COUNT = 20_000


def drawn(text: str, seed: int = 1) -> list[float]:
    distribution = parse_distribution(text, float)
    random = dice(seed)
    return [distribution.draw(random) for _ in range(COUNT)]


def test_a_plain_value_is_constant_and_draws_nothing() -> None:
    random = dice(1)
    before = random.getstate()
    assert {parse_distribution("2s", parse_duration).draw(random) for _ in range(5)} == {2.0}
    assert random.getstate() == before


def test_an_exponential_has_its_mean() -> None:
    values = drawn("exp:5")
    assert fmean(values) == pytest.approx(5, rel=0.03)
    assert stdev(values) == pytest.approx(5, rel=0.05)


def test_a_uniform_fills_its_range() -> None:
    values = drawn("uniform:1..8")
    assert (min(values) >= 1, max(values) <= 8) == (True, True)
    assert fmean(values) == pytest.approx(4.5, rel=0.02)


def test_a_normal_is_cut_off_at_zero() -> None:
    values = drawn("normal:10,2")
    assert (fmean(values), stdev(values)) == (pytest.approx(10, rel=0.01), pytest.approx(2, rel=0.05))
    assert min(drawn("normal:1,5")) == 0


def test_a_lognormal_has_its_median_and_its_95th_percentile() -> None:
    values = sorted(drawn("lognormal:300,900"))
    assert median(values) == pytest.approx(300, rel=0.03)
    assert percentile(values, 0.95) == pytest.approx(900, rel=0.05)


def test_the_seed_decides() -> None:
    assert drawn("exp:5", 7)[:10] == drawn("exp:5", 7)[:10] != drawn("exp:5", 8)[:10]


def test_units_belong_to_the_caller() -> None:
    assert parse_distribution("uniform:1s..1m30s", parse_duration) == RandomVariable("uniform", 1.0, 90.0)
    assert constant(3.0) == parse_distribution("3", float)


@pytest.mark.parametrize("text", ["uniform:8..1", "uniform:1", "pareto:1,2", "lognormal:0,1", "lognormal:9,3"])
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_distribution(text, float)
