"""Label values are bound once and bounded."""

from backend_kit.kpi import Labelled
from backend_kit.kpi.metrics import MAX_VALUES


def test_the_same_values_give_the_same_object() -> None:
    made: list[tuple[str, ...]] = []
    labelled: Labelled[list[str]] = Labelled(2, lambda values: made.append(values) or list(values))  # type: ignore[func-returns-value]
    assert labelled("georges", "ok") is labelled("georges", "ok")
    assert made == [("georges", "ok")]


def test_values_beyond_the_bound_count_as_other() -> None:
    labelled: Labelled[list[str]] = Labelled(2, list)
    for number in range(MAX_VALUES):
        assert labelled(f"agent-{number}", "ok") == [f"agent-{number}", "ok"]
    assert labelled("one-too-many", "ok") == ["other", "ok"]
    assert labelled("one-too-many", "ok") is labelled("another", "ok")
    assert labelled("agent-3", "error") == ["agent-3", "error"]
    assert len(labelled._bound) == MAX_VALUES + 2
