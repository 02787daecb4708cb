"""Knobs in a model name."""

import pytest

from ws_bench.fakes.knobs import BadKnob, Knobs, knobs_of, parse_knob, with_knobs


def test_a_name_without_knobs_keeps_the_flags() -> None:
    defaults = Knobs(ttft_ms=5.0)
    assert knobs_of("mock", defaults) is defaults
    assert knobs_of("mock;", defaults) == defaults


def test_the_documented_example() -> None:
    assert knobs_of("mock;ttft=3000;gap=20;tokens=50;error=0.1;status=429;stall=10;truncate=5", Knobs()) == Knobs(
        ttft_ms=3000.0, gap_ms=20.0, tokens=50, error=0.1, status=429, stall=10, truncate=5
    )


def test_a_name_changes_only_what_it_says() -> None:
    assert knobs_of("m; gap = 1.5 ;floor=10", Knobs(ttft_ms=5.0, gap_ms=9.0)) == Knobs(
        ttft_ms=5.0, gap_ms=1.5, floor_ms=10.0
    )


def test_a_status_alone_refuses_every_request() -> None:
    assert knobs_of("m;status=503", Knobs()).error == 1.0
    assert knobs_of("m;status=503", Knobs(error=0.5)).error == 0.5
    assert with_knobs(Knobs(), {"status": 503, "error": 0.0}).error == 0.0


@pytest.mark.parametrize(
    "model",
    ["m;speed=1", "m;ttft", "m;ttft=-1", "m;ttft=nan", "m;error=2", "m;status=200", "m;tokens=1.5", "m;tokens=100001"],
)
def test_a_wrong_knob_is_refused(model: str) -> None:
    with pytest.raises(BadKnob):
        knobs_of(model, Knobs())


def test_an_unknown_knob_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadKnob, match="unknown knob 'speed': use ttft, gap, tokens, think, cached, floor, error, sta"):
        parse_knob("speed", "1")
