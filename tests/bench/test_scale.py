"""What the scale bench makes of its parts: demands by workers, what is too little, what two runs have in common."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.scale_steps import (
    BOUNDING,
    HEAD,
    STEPS,
    TABLE,
    Part,
    Parts,
    apart,
    bounds_next,
    commits_per_s,
    figures,
    full_at,
    looks_per_s,
    remedies,
    shown,
    table,
    too_little,
    turns_per_s,
    upkeep_cores,
    use,
)
from tests.docs.pages import ROOT
from tests.docs.pages import table as read_table

PARTS = Parts(
    turn_ms=4.0,
    turn_loop_ms=3.5,
    turn_postgres_ms=1.0,
    turn_commits=0.5,
    idle_commits_per_s=6.0,
    connections=40,
    connections_few=10,
    beat_us=100,
    count_few_us=50,
    count_many_us=250,
    look_few_us=400,
    look_many_us=25_600,
    notify_few_us=50,
    notify_many_us=680,
    redis_few_us=20,
    redis_many_us=83,
    jwks_ms=1.0,
    question_ms=2.5,
    passage_ms=20.0,
)
BY_NAME = {part.name: part for part in TABLE}


def test_a_worker_that_is_70_percent_in_use_carries_what_its_loop_has_time_for() -> None:
    assert turns_per_s(PARTS, 1) == pytest.approx(0.7 * 0.85 / 3.5e-3)
    assert turns_per_s(PARTS, 64) == pytest.approx(64 * turns_per_s(PARTS, 1))
    assert BY_NAME["cores of the workers"].demand(PARTS, 4) == pytest.approx(4 * 170 * 4e-3)


@pytest.mark.parametrize(("workers", "looks"), [(1, 4), (2, 8), (4, 16), (1000, 16)])
def test_a_large_fleet_looks_for_its_dead_as_often_as_one_of_four(workers: int, looks: float) -> None:
    assert looks_per_s(workers) == looks


def test_upkeep_is_heartbeats_counts_looks_and_whatever_else_an_idle_instance_does() -> None:
    # 0.5 heartbeats, 0.5 counts, 4 looks a second, and 1 statement of another kind, which costs as a heartbeat.
    assert upkeep_cores(PARTS, 1) == pytest.approx((0.5 * 100 + 0.5 * 50 + 4 * 400 + 1 * 100) / 1e6)
    # 16 looks at the turns of all: 400 us for each further worker's.
    assert upkeep_cores(PARTS, 64) == pytest.approx((32 * 100 + 32 * PARTS.count_us(64) + 16 * 25_600 + 64 * 100) / 1e6)
    assert PARTS.count_us(1000) == 250
    assert upkeep_cores(replace(PARTS, idle_commits_per_s=4.0), 1) < upkeep_cores(PARTS, 1)


def test_commits_are_those_of_turns_and_of_who_is_idle() -> None:
    assert commits_per_s(PARTS, 1) == pytest.approx(170 * 0.5 + 6)
    assert commits_per_s(PARTS, 1000) == pytest.approx(170_000 * 0.5 + 1000 * 2 + 16)


def test_a_message_goes_to_everybody_so_that_its_cost_grows_with_them() -> None:
    assert (PARTS.notify_us(1), PARTS.notify_us(64), PARTS.notify_us(1000)) == (50, 680, 10_040)
    by_postgres, by_redis = BY_NAME["bus by Postgres"], BY_NAME["bus by Redis"]
    assert by_postgres.demand(PARTS, 64) == pytest.approx(64 * 170 * 0.02 * 680e-6)
    assert by_redis.demand(PARTS, 64) == pytest.approx(64 * 170 * 0.02 * 83e-6)


@pytest.mark.parametrize("part", BOUNDING, ids=lambda part: part.name)
def test_a_part_is_too_little_from_the_worker_on_that_it_says(part: Part) -> None:
    full = full_at(part, PARTS)
    if full is None:
        assert use(part, PARTS, 100_000) <= 1
    else:
        assert use(part, PARTS, full) > 1
        assert full == 1 or use(part, PARTS, full - 1) <= 1


def test_what_is_too_little_stands_in_the_order_in_which_it_becomes_so() -> None:
    assert too_little(PARTS, 1) == []
    names = [part.name for part in too_little(PARTS, 64)]
    assert names[0] == "connections, pools as delivered"
    starts = [full_at(part, PARTS) or 0 for part in too_little(PARTS, 1000)]
    assert starts == sorted(starts)
    assert max(starts) <= 1000


def test_the_workers_bound_while_nothing_around_them_is_nearer_to_its_limit() -> None:
    assert bounds_next(PARTS, 1).name == "each worker"
    slow = replace(PARTS, question_ms=90.0)  # 170 turns/s, half of them with a question: 7.65 of 8 cores
    assert bounds_next(slow, 1).name == "vectors of questions"
    assert bounds_next(slow, 4).name == "each worker"  # that one is bought by then
    assert "vectors of questions" in [part.name for part in too_little(slow, 4)]


def test_two_runs_are_compared_in_every_figure_measured_and_computed() -> None:
    one = figures(PARTS)
    assert len(one) == len(Parts.__slots__) + len(TABLE) * len(STEPS)
    other = figures(replace(PARTS, question_ms=3.0))
    differ = {name: share for name, share in apart(one, other).items() if share}
    assert set(differ) == {"question_ms", *(f"vectors of questions, {n} workers" for n in STEPS)}
    assert all(share == pytest.approx(0.2) for share in differ.values())
    assert apart(one, other) == apart(other, one)


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (0.0004, "0"),
        (0.0123, "0.0123"),
        (4.0, "4"),
        (12.34, "12.3"),
        (99.96, "100"),
        (1234.0, "1,230"),
        (1e6, "1,000,000"),
    ],
)
def test_a_figure_is_shown_with_three_digits(figure: float, text: str) -> None:
    assert shown(figure) == text


def test_the_page_has_the_rows_and_columns_of_the_command() -> None:
    page = ROOT / "docs/scale.md"
    names = [*(part.name for part in TABLE), "before it", "bounds next"]
    rows = read_table(page, *HEAD)
    assert [row[0] for row in rows] == names
    assert [(row[1], row[7]) for row in rows[: len(TABLE)]] == [
        (part.unit, f"{part.limit:,.0f}" if part.limit else "") for part in TABLE
    ]
    assert [row[0].strip("`") for row in read_table(page, "measured", "figure", "of the rounds")] == [*Parts.__slots__]


def test_the_page_says_of_each_bound_what_the_command_says() -> None:
    page = (ROOT / "docs/scale.md").read_text()
    assert remedies() in page


def test_what_is_printed_can_be_read_as_a_table(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(table(PARTS))
    rows = read_table(file, *HEAD)
    assert len(rows) == len(TABLE) + 2
    assert rows[0][2:7] == [shown(turns_per_s(PARTS, n)) for n in STEPS]
