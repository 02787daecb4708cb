"""What the Live view is told of a day."""

import pytest

from agentic_backend.rest.kpi_day import day_view
from agentic_backend.verdict import Gauged, Windows
from agentic_backend.verdict.day import DAY_S, LEVELS


def lived(windows: Windows, begin: int, seconds: int) -> None:
    for second in range(begin, begin + seconds):
        windows.ended([], total_ms=1000.0, unattributed_ms=10.0, first_token_ms=100.0)
        windows.day.ended("Georges", "mock", (1000.0, 100.0, 10.0), failed=False)
        gauged = Gauged(
            reads=2 * second, read_wait_s=0.02 * second, batch_statements=second, batch_wait_s=0.003 * second
        )
        windows.day.close(windows.close_slice(gauged), [float(second)] * len(LEVELS))


@pytest.mark.parametrize("window_s", [300.0, 3600.0, float(DAY_S)])
def test_telling_of_a_step_changes_nothing_in_it(window_s: float) -> None:
    windows = Windows()
    for begin in range(0, 700, 7):
        lived(windows, begin, 7)
        for asked_s in (300.0, 3600.0, float(DAY_S)):
            day_view(windows, asked_s)
    told = day_view(windows, window_s)
    shown = told["whole"]["turns"]
    assert shown == (300 if window_s == 300 else 700)
    assert sum(step["turns"] for step in told["steps"]) == shown
    assert (told["agents"][0]["name"], told["agents"][0]["turns"], told["levels"]["running"]) == (
        "Georges",
        shown,
        699.0,
    )
    assert told["steps"][0] == day_view(windows, window_s)["steps"][0]


def test_waits_for_connections_are_those_of_the_period() -> None:
    windows = Windows()
    lived(windows, 0, 30)
    told = day_view(windows, 300.0)
    assert told["steps"][1]["db_wait_ms"] == pytest.approx(10.0)
    assert told["steps"][1]["batch_wait_ms"] == pytest.approx(3.0)
    assert told["steps"][1]["levels"]["queued"] == 19.0


def test_without_a_second_there_is_nothing_to_tell() -> None:
    told = day_view(Windows(), 300.0)
    assert (told["steps"], told["agents"], told["whole"]["turns"], told["whole"]["turn_ms"]) == ([], [], 0, None)
    assert told["whole"]["bound_by"] == "nobody"
