"""Bootstrap errors, Student's t, slopes: against known figures and known distributions."""

import math

import pytest

from tests.ws_bench.dice import dice
from ws_bench.record.stats import (
    Estimate,
    bootstrap_mean,
    bootstrap_percentiles,
    bootstrap_rate,
    prediction_band,
    ratio_of,
    slope_of,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize(
    ("share", "degrees", "quantile"),
    [(0.975, 1, 12.706), (0.975, 4, 2.776), (0.995, 8, 3.355), (0.975, 9, 2.262), (0.99, 30, 2.457), (0.9, 2, 1.886)],
)
def test_students_t_has_the_printed_quantiles(share: float, degrees: int, quantile: float) -> None:
    assert student_quantile(share, degrees) == pytest.approx(quantile, abs=0.001)
    assert student_cdf(quantile, degrees) == pytest.approx(share, abs=0.001)
    assert student_cdf(-quantile, degrees) == pytest.approx(1 - share, abs=0.001)


def test_a_bootstrapped_median_has_the_error_that_theory_gives_it() -> None:
    random = dice(1)
    blocks = [[random.lognormvariate(0, 0.5) for _ in range(100)] for _ in range(40)]
    (median,) = bootstrap_percentiles(blocks, [0.5], dice(2))
    assert median.value == pytest.approx(1.0, abs=0.04)
    # Of a median of n normal logs: sd * sqrt(pi/2) / sqrt(n).
    assert median.log_error == pytest.approx(0.5 * math.sqrt(math.pi / 2) / math.sqrt(4000), rel=0.35)
    assert median.degrees == 39


def test_values_that_hang_together_in_time_have_the_larger_error_of_their_blocks() -> None:
    random = dice(3)
    together = []
    for _ in range(40):
        level = random.lognormvariate(0, 0.5)
        together.append([level * random.lognormvariate(0, 0.01) for _ in range(100)])
    (median,) = bootstrap_percentiles(together, [0.5], dice(2))
    assert median.log_error > 0.05


def test_a_rate_and_a_mean_of_runs_have_an_error_too() -> None:
    rate = bootstrap_rate([10, 12, 8, 10, 11, 9, 10, 10], 2.0, dice(1))
    assert rate.value == 5.0
    assert 0.01 < rate.log_error < 0.1
    mean = bootstrap_mean([100.0, 101.0, 99.0, 100.0, 102.0], dice(1))
    assert mean.value == pytest.approx(100.4, abs=0.1)
    assert mean.log_error == pytest.approx(0.0114 / math.sqrt(5), rel=0.2)


def test_the_interval_of_a_ratio_is_students() -> None:
    old, new = Estimate(100.0, 0.01, 4), Estimate(110.0, 0.01, 4)
    ratio = ratio_of(old, new, 0.95)
    assert ratio.ratio == pytest.approx(1.1)
    assert ratio.high / ratio.ratio == pytest.approx(math.exp(2.306 * math.hypot(0.01, 0.01)), rel=1e-4)
    assert ratio.differs
    assert not ratio_of(old, Estimate(102.0, 0.01, 4), 0.95).differs
    assert not ratio_of(Estimate(1.0, math.inf, 0), new, 0.95).differs


def test_one_more_run_lies_in_the_band_as_often_as_it_says() -> None:
    random = dice(5)
    inside = 0
    for _ in range(1000):
        *runs, more = (random.lognormvariate(4, 0.05) for _ in range(6))
        low, high = prediction_band(runs, 0.9)
        inside += low <= more <= high
    assert 870 <= inside <= 930


def test_a_rise_is_told_from_chance() -> None:
    random = dice(6)
    flat = [(float(x), 10 + random.gauss(0, 1)) for x in range(20)]
    rising = [(float(x), 10 + 0.5 * x + random.gauss(0, 1)) for x in range(20)]
    assert slope_of(flat).p_rise > 0.01
    assert (slope_of(rising).p_rise < 0.001, slope_of(rising).slope) == (True, pytest.approx(0.5, abs=0.15))
    assert slope_of([(0, 1), (1, 2), (2, 3)]).p_rise == pytest.approx(0.0, abs=1e-6)
    assert slope_of([(0, 1), (1, 1), (2, 1)]).p_rise == 1.0
