"""The history of a day: steps that are added up, in bounded memory, and the ledgers of the newest turns."""

import json
import sys
from array import array

import pytest

from agentic_backend.verdict import Day, Gauged, NewestLedgers, Slice
from agentic_backend.verdict.day import (
    DAY_S,
    LEDGER_BYTES_KEPT,
    LEDGERS_KEPT,
    LEVELS,
    OTHERS,
    DayStep,
    Tally,
    joined,
    mark_of,
    ms_of,
    quantile,
)

NO_LEVELS = [0.0] * len(LEVELS)


def second(turns: int = 0) -> Slice:
    slice_ = Slice(seconds=1.0, turns=turns, begun=Gauged(), ended=Gauged(lag_s=0.01, lag_samples=10))
    slice_.turn_ms = array("d", [1.0] * turns)
    return slice_


def lived(day: Day, seconds: int, *, agents: int = 1) -> None:
    """So many seconds with a turn of each agent."""
    for _ in range(seconds):
        for number in range(agents):
            day.ended(f"agent-{number}", "mock", (1000.0, 100.0, 5.0), failed=number == 1)
        day.close(second(agents), [3.0, *NO_LEVELS[1:]])


def of(step: DayStep, kind: str, name: str = OTHERS) -> tuple[int, int]:
    kept = step.tallies[kind, name]  # type: ignore[index]
    return kept.turns, kept.failed


@pytest.mark.parametrize("ms", [0.0, 0.05, 0.11, 1.0, 49.3, 3_050.0, 120_000.0, 2_900_000.0])
def test_a_mark_stands_for_durations_near_it(ms: float) -> None:
    assert ms_of(mark_of(ms)) == pytest.approx(max(ms, 0.1), rel=0.036)
    assert 0 <= mark_of(ms) <= 255
    assert mark_of(1e12) == 255


def test_percentiles_are_by_nearest_rank() -> None:
    tally = Tally()
    for ms in range(1, 101):
        tally.enter((float(ms), None, None), failed=False)
    whole = Tally()
    whole.add(tally.kept())
    whole.add(tally.kept())
    assert [quantile(whole.counts[0], share) for share in (0.5, 0.95, 0.99)] == pytest.approx([50, 95, 99], rel=0.036)
    assert (whole.turns, quantile(whole.counts[1], 0.5)) == (200, None)


def test_steps_are_told_at_once_and_longer_ones_have_all_of_the_shorter() -> None:
    day = Day()
    lived(day, 3)
    for window_s, least in ((300, 1), (3600, 1), (DAY_S, 1)):
        steps = day.steps(window_s)
        assert (len(steps), of(steps[-1], "all")) == (least, (3, 0))
    lived(day, 372)
    for window_s, ended in ((300, 30), (3600, 6), (DAY_S, 1)):
        steps = day.steps(window_s)
        whole = joined(steps)
        assert len(steps) == ended + 1
        shown = 305 if window_s == 300 else 375
        assert (of(whole, "all"), of(whole, "agent", "agent-0"), of(whole, "model", "mock")) == ((shown, 0),) * 3
        assert (whole.time.seconds, whole.time.turns, whole.levels[0]) == (shown, shown, 3.0)
        assert not whole.time.turn_ms
        assert whole.time.lag_ms == pytest.approx(1.0)


def test_names_beyond_the_first_are_counted_together() -> None:
    day = Day()
    lived(day, 61, agents=40)
    whole = joined(day.steps(3600))
    agents = {name: kept.turns for (kind, name), kept in whole.tallies.items() if kind == "agent"}
    assert agents == {**{f"agent-{number}": 61 for number in range(12)}, OTHERS: 28 * 61}
    assert of(whole, "all") == (40 * 61, 61)


def test_a_day_has_an_end() -> None:
    day = Day()
    for _ in range(25):
        lived(day, 3600)
    assert len(day.steps(DAY_S)) == 289
    assert len(day.steps(3600)) == 61


def test_the_newest_ledgers_are_kept() -> None:
    ledgers = NewestLedgers()
    for number in range(LEDGERS_KEPT + 1):
        ledgers.keep(f"e{number}", {"total_ms": number})
    assert ledgers.find("e0") is None
    assert json.loads(ledgers.find("e1") or b"") == {"total_ms": 1}
    ledgers.keep("e1", {"total_ms": 7})
    assert json.loads(ledgers.find("e1") or b"") == {"total_ms": 7}


def test_large_ledgers_are_fewer() -> None:
    ledgers = NewestLedgers()
    large = {"ledger": ["x" * 100_000]}
    for number in range(200):
        ledgers.keep(f"e{number}", large)
    kept = [found for number in range(200) if (found := ledgers.find(f"e{number}")) is not None]
    assert LEDGER_BYTES_KEPT * 0.9 < sum(map(sys.getsizeof, kept)) < LEDGER_BYTES_KEPT * 1.1
