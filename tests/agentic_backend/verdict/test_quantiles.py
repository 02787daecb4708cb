"""Percentiles for Prometheus are those of the turns themselves, and of the last minute alone."""

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.verdict import Gauged, TurnQuantiles, Windows
from agentic_backend.verdict.window import QUANTILE_WINDOW_S


def ended(windows: Windows, turn_ms: float, first_token_ms: float | None) -> None:
    windows.ended([], total_ms=turn_ms, unattributed_ms=0.0, first_token_ms=first_token_ms)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_they_are_by_nearest_rank_over_every_turn(registry: CollectorRegistry) -> None:
    windows = Windows()
    TurnQuantiles(windows, registry)
    assert registry.get_sample_value("app_turn_quantile_seconds", {"q": "0.95"}) is None
    for number in range(100):
        ended(windows, 3000.0 + number, None if number % 2 else 2600.0 + number)
        if number % 10 == 9:
            windows.close_slice(Gauged())
    told = {
        (name, q): registry.get_sample_value(f"app_{name}_quantile_seconds", {"q": q})
        for name in ("turn", "time_to_first_token")
        for q in ("0.5", "0.95", "0.99")
    }
    assert told == {
        ("turn", "0.5"): 3.049,
        ("turn", "0.95"): 3.094,
        ("turn", "0.99"): 3.098,
        ("time_to_first_token", "0.5"): 2.648,
        ("time_to_first_token", "0.95"): 2.694,
        ("time_to_first_token", "0.99"): 2.698,
    }


def test_what_ended_longer_ago_is_not_in_them(registry: CollectorRegistry) -> None:
    windows = Windows()
    TurnQuantiles(windows, registry)
    ended(windows, 9000.0, None)
    windows.close_slice(Gauged()).ended_at -= QUANTILE_WINDOW_S
    assert registry.get_sample_value("app_turn_quantile_seconds", {"q": "0.5"}) is None
    ended(windows, 100.0, None)
    windows.close_slice(Gauged())
    assert registry.get_sample_value("app_turn_quantile_seconds", {"q": "0.99"}) == 0.1
