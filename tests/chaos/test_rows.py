"""A row holds only what was seen: nothing out of nothing is no success, and what broke off is a miss."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import BEGIN, END, carry_out, choose, write_table
from tests.chaos.deployment import FULL, SHORT, Deployment, Size
from tests.chaos.kills import Used, busy_rows
from tests.chaos.rows import MISSED, OK, Row, all_of, at_least, at_most, broken, exactly, none_lost, none_of
from tests.chaos.scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (exactly("A1", "what", 0, 0), OK),
        (exactly("A1", "what", 1, 0), MISSED),
        (none_of("A1", "what", 0, of=5, unit="turns"), OK),
        (none_of("A1", "what", 1, of=5, unit="turns"), MISSED),
        (none_of("A1", "what", 0, of=0, unit="turns"), MISSED),
        (none_lost("A1", "what", 0, 0, of=5, words=""), OK),
        (none_lost("A1", "what", 1, 0, of=5, words="lost=1"), MISSED),
        (none_lost("A1", "what", 0, 1, of=5, words="gaps=1"), MISSED),
        (none_lost("A1", "what", 0, 0, of=0, words=""), MISSED),
        (all_of("A1", "what", 5, of=5, unit="turns"), OK),
        (all_of("A1", "what", 4, of=5, unit="turns"), MISSED),
        (all_of("A1", "what", 0, of=0, unit="turns"), MISSED),
        (at_most("A1", "what", 5, 5, "ms"), OK),
        (at_most("A1", "what", 5.1, 5, "ms"), MISSED),
        (at_most("A1", "what", float("inf"), 5, "ms"), MISSED),
        (at_most("A1", "what", float("nan"), 5, "ms"), MISSED),
        (at_least("A1", "what", 0, 1, "turns"), MISSED),
    ],
)
def test_the_verdict_of_a_row(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


@pytest.mark.parametrize(
    ("used", "verdicts"),
    [
        ([Used(1.0, 0.95, 0.95, 0.0)], [OK, OK]),
        ([Used(1.0, 0.5, 0.48, 0.5)], [OK, OK]),  # others have the core half of the time
        ([Used(1.0, 0.5, 0.5, 0.0)], [MISSED, MISSED]),
        ([Used(1.0, 1.0, 1.0, 0.0), Used(1.0, 0.5, 0.5, 0.0)], [MISSED, MISSED]),  # it had little to do before one kill
        ([Used(1.0, 0.2, 0.5, 0.5)], [OK, MISSED]),
    ],
)
def test_a_core_is_full_where_its_loop_has_work_all_the_time(used: list[Used], verdicts: list[str]) -> None:
    assert [row.verdict for row in busy_rows(used, 0.9)] == verdicts


async def test_a_scenario_that_breaks_off_misses_all_its_rows() -> None:
    class Nothing:
        async def normal(self) -> None:
            pass

    async def breaks(_deployment: Deployment, _size: Size) -> list[Row]:
        raise ZeroDivisionError("in the middle")

    rows = await carry_out(Nothing(), SHORT, Scenario(("A1", "A2"), breaks))  # type: ignore[arg-type]
    assert [(row.id, row.verdict) for row in rows] == [("A1", MISSED), ("A2", MISSED)]
    assert "ZeroDivisionError in the middle" in rows[0].what


def test_rows_are_chosen_by_name_and_an_unknown_one_ends_it() -> None:
    assert choose("", FULL) == list(SCENARIOS)
    assert {row for scenario in choose("A1,B3", SHORT) for row in scenario.ids} == {"A1", "A2", "B3"}
    with pytest.raises(SystemExit, match="no such row: A99"):
        choose("A1,A99", SHORT)


def test_what_the_short_form_leaves_out_it_runs_by_name() -> None:
    left_out = [scenario for scenario in SCENARIOS if scenario not in choose("", SHORT)]
    assert {row for scenario in left_out for row in scenario.ids} == {"network"}
    assert set(left_out) < set(choose("network", SHORT))


def test_every_promise_has_a_row() -> None:
    rows = {row for scenario in SCENARIOS for row in scenario.ids}
    assert {f"A{number}" for number in range(1, 20)} | {f"B{number}" for number in range(1, 10)} <= rows
    assert {"A1-none", "A1-busy"} <= rows


def test_the_table_stands_between_its_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(broken(["A1"], "why"), SHORT, page)
    write_table([exactly("A2", "what", 0, 0)], SHORT, page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n`make chaos`")
    assert text.endswith(f"| A2 | what | 0 | = 0 | ok |\n{END}\nafter\n")
    assert "old" not in text
