"""When turns arrive in an open loop."""

import itertools
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ws_bench.dice import dice
from ws_bench.config.arrivals import Stage, duration_of, parse_rate, parse_stages, schedule, steady_stages
from ws_bench.errors import UsageError


def test_constant_arrivals_are_evenly_spaced_from_the_first_moment_on() -> None:
    times = schedule(steady_stages(20, 2), "constant", dice(0))
    assert (len(times), times[0]) == (40, 0.0)
    assert {round(b - a, 9) for a, b in itertools.pairwise(times)} == {0.05}


def test_poisson_arrivals_have_the_rate_and_the_spread_of_chance() -> None:
    times = schedule(steady_stages(100, 100), "poisson", dice(3))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert len(times) == pytest.approx(10_000, rel=0.03)
    assert (fmean(gaps), stdev(gaps)) == (pytest.approx(0.01, rel=0.03), pytest.approx(0.01, rel=0.05))
    assert schedule(steady_stages(100, 100), "poisson", dice(3)) == times


def test_stages_move_in_straight_lines() -> None:
    stages = parse_stages("0:10s,50:30s,100:60s")
    assert stages == (Stage(0, 10), Stage(50, 30), Stage(100, 60))
    assert duration_of(stages) == 100
    times = schedule(stages, "constant", dice(0))
    # The area under the lines: 0, then 25 a second for 30 s, then 75 a second for 60 s.
    assert len(times) == 750 + 4500
    assert sum(time < 10 for time in times) == 0
    assert sum(10 <= time < 40 for time in times) == pytest.approx(750, abs=1)
    assert sum(39.5 <= time < 40.5 for time in times) == pytest.approx(50, abs=1)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), min_size=1, max_size=5),
    st.sampled_from(["constant", "poisson"]),
)
def test_arrivals_are_in_order_and_inside_the_stages(given_stages: list[tuple[float, float]], kind: str) -> None:
    stages = [Stage(rate, seconds) for rate, seconds in given_stages]
    times = schedule(stages, kind, dice(1))
    assert list(times) == sorted(times)
    assert all(0 <= time <= duration_of(stages) + 1e-6 for time in times)


def test_rates_have_units() -> None:
    assert [parse_rate(text) for text in ("20/s", "20", "300/m", "7200/h", "")] == [20, 20, 5, 2, 0]


@pytest.mark.parametrize("text", ["0", "-1/s", "fast", "5/y", "inf"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "50", "x:3s", "0:10s", "-1:3s", "5:1y"])
def test_stages_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_stages(text)


def test_more_arrivals_than_can_be_meant_are_refused() -> None:
    with pytest.raises(UsageError, match="5000000"):
        schedule(steady_stages(1e6, 60), "constant", dice(0))
    undrawn, drawn = dice(0), dice(0)
    with pytest.raises(UsageError, match="5000000"):
        schedule((Stage(0, 0), Stage(1e6, 8), Stage(1e6, 2)), "poisson", drawn)
    assert drawn.random() == undrawn.random(), "refused before the first is thrown"
