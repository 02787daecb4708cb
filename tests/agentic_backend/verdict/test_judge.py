"""The verdict over made-up windows: each cause in its turn, the larger of two, and nobody where there is none."""

import re
from typing import Any

import pytest

from agentic_backend.verdict import CAUSES, Gauged, Slice, capacity_ratio, judge
from agentic_backend.verdict.causes import Account
from agentic_backend.verdict.judge import backlog_ms

TURNS = 100
SAMPLES = 250
LINE = re.compile(
    r"\[KPI\]\[VERDICT\] bound_by=\w+ share=[01]\.\d\d ms_per_turn=\d+\.\d\d next=\w+ next_share=[01]\.\d\d "
    r"turns=\d+ refused=\d+ turn_ms=\d+\.\d\d loop=[01]\.\d\d window_s=\d+\.\d"
)


def window(
    *, cpu: float = 0.05, held: float = 0.0, lag_ms: float = 0.2, turns: float = TURNS, spread: float = 0.2, **ms: float
) -> Slice:
    """10 s of turns that each spent so many milliseconds on each account; the least row is `spread` below the mean."""
    seen = Slice(seconds=10.0, turns=int(turns))
    seen.ended = Gauged(cpu_s=cpu * 10, held_s=held * 10, lag_s=lag_ms / 1e3 * SAMPLES, lag_samples=SAMPLES)
    for name, each in ms.items():
        account: Account = name  # type: ignore[assignment]  # the names of the accounts, as keywords
        seen.ms[account] = each * turns
        seen.rows[account] = seen.turns
        seen.least_ms[account] = each * (1 - spread)
    return seen


def gauged(seen: Slice, **more: Any) -> Slice:
    """The window with further counts at its end."""
    fields = {name: getattr(seen.ended, name) for name in Gauged.__slots__} | more
    seen.ended = Gauged(**fields)
    return seen


ORDINARY = {"own": 5.0, "llm_floor": 3000.0, "disk": 1.5, "slow_clients": 0.3}


def test_the_model_is_the_floor() -> None:
    verdict = judge(window(**ORDINARY))
    assert (verdict.bound_by, verdict.next) == ("llm_floor", "loop_cpu")
    assert verdict.share == pytest.approx(0.998, abs=0.002)
    assert verdict.ms_per_turn == pytest.approx(3000, abs=2)
    assert verdict.turn_ms == pytest.approx(3006.8)
    assert sum(verdict.causes_ms.values()) == pytest.approx(verdict.turn_ms)


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in ("llm_floor", "loop_cpu", "agent")])
def test_each_wait_that_is_longer_than_the_model_bounds(cause: str) -> None:
    verdict = judge(window(**{**ORDINARY, "llm_floor": 200.0, cause: 900.0}))
    assert (verdict.bound_by, verdict.next) == (cause, "llm_floor")
    assert verdict.ms_per_turn == pytest.approx(900, abs=2)


@pytest.mark.parametrize(("one", "other"), [("search", "disk"), ("admission", "embedding"), ("slow_clients", "rerank")])
def test_of_two_causes_it_names_the_larger_and_then_the_other(one: str, other: str) -> None:
    verdict = judge(window(own=5.0, llm_floor=100.0, **{one: 700.0, other: 600.0}))
    assert (verdict.bound_by, verdict.next) == (one, other)
    assert verdict.share > verdict.next_share > 0.3


@pytest.mark.parametrize(
    "seen",
    [
        Slice(),
        window(turns=0),
        window(own=6.0, llm_floor=12.0, disk=1.5),
        window(own=40.0, llm_floor=45.0, disk=20.0, cpu=0.5),
    ],
    ids=["no window", "no turn", "a model of 0 s", "busy and fast"],
)
def test_nobody_bounds_what_is_fast_and_not_full(seen: Slice) -> None:
    verdict = judge(seen)
    assert (verdict.bound_by, verdict.share, verdict.ms_per_turn) == ("nobody", 0.0, 0.0)
    assert verdict.next_share <= 1.0
    assert LINE.fullmatch(verdict.line())


def test_a_full_loop_bounds_though_each_wait_looks_longer() -> None:
    """150 turns at once on a model of 0 s: everything waits for the loop, most of it where the model is awaited."""
    verdict = judge(window(cpu=0.97, lag_ms=40.0, own=200.0, llm_floor=600.0, disk=60.0, spread=0.95))
    assert verdict.bound_by == "loop_cpu"
    assert verdict.causes_ms["llm_floor"] <= 31
    assert verdict.share > 0.9


def test_a_full_loop_behind_a_slow_model_bounds_once_it_is_material() -> None:
    assert judge(window(cpu=0.95, own=300.0, llm_floor=3100.0, spread=0.03)).bound_by == "loop_cpu"
    assert judge(window(cpu=0.95, own=30.0, llm_floor=3010.0, spread=0.003)).bound_by == "llm_floor"


def test_a_call_that_holds_the_loop_is_the_loop_s_though_it_computes_nothing() -> None:
    verdict = judge(window(cpu=0.02, held=0.9, lag_ms=90.0, turns=45, own=210.0, llm_floor=30.0))
    assert verdict.bound_by == "loop_cpu"


def test_a_late_loop_is_subtracted_from_what_waited_for_it() -> None:
    """One call of 200 ms a second: every other turn's wait is longer by the lateness it met."""
    verdict = judge(window(held=0.2, lag_ms=20.0, own=60.0, llm_floor=160.0, disk=22.0))
    assert verdict.causes_ms["llm_floor"] == pytest.approx(100)
    assert verdict.causes_ms["disk"] == pytest.approx(2)
    assert verdict.causes_ms["loop_cpu"] == pytest.approx(140)


def test_what_an_agent_waits_for_under_no_name_is_the_agent_s() -> None:
    verdict = judge(window(cpu=0.03, own=2000.0, llm_floor=100.0))
    assert verdict.bound_by == "agent"
    assert verdict.causes_ms["loop_cpu"] < 50


def test_the_wait_for_an_earlier_turn_of_the_session_is_nobody_s() -> None:
    assert judge(window(own=5.0, ahead=5000.0, llm_floor=20.0)).bound_by == "nobody"


def test_asks_that_were_turned_away_count_with_the_wait_they_were_told() -> None:
    seen = window(own=5.0, llm_floor=300.0, admission=100.0)
    for _ in range(60):
        seen.turns += 1
        seen.refused += 1
        seen.enter("admission", 2000.0)
    verdict = judge(seen)
    assert (verdict.bound_by, verdict.refused) == ("admission", 60)


@pytest.mark.parametrize(("waited", "took", "bound"), [(0.1, 30.0, "sql"), (30.0, 3.0, "pool_wait")])
def test_an_acknowledgement_by_the_database_is_divided_between_pool_and_statements(
    waited: float, took: float, bound: str
) -> None:
    seen = gauged(window(own=5.0, llm_floor=50.0, stored=400.0), batch_wait_s=waited, batch_sql_s=took)
    assert judge(seen).bound_by == bound


def test_a_queue_bounds_once_it_grows_and_ages() -> None:
    calm = gauged(window(**ORDINARY), pending=9, oldest_s=9.0, batch_sql_s=1.0)
    assert judge(calm).bound_by == "llm_floor"
    young = gauged(window(**ORDINARY), pending=90, oldest_s=0.4, batch_sql_s=1.0)
    assert judge(young).bound_by == "llm_floor"
    growing = gauged(window(**ORDINARY), pending=90, oldest_s=8.0, batch_sql_s=9.0)
    assert (judge(growing).bound_by, judge(growing).next) == ("sql", "llm_floor")
    assert backlog_ms(growing) == 8000
    standing = gauged(window(**ORDINARY), pending=90, oldest_s=8.0)
    standing.begun = standing.ended
    assert backlog_ms(standing) == 0


def test_reads_over_rest_count_as_one_average_read_a_turn() -> None:
    quick = gauged(window(**ORDINARY), reads=100_000, read_wait_s=50.0, read_sql_s=200.0)
    assert judge(quick).bound_by == "llm_floor"
    starved = gauged(window(own=5.0, llm_floor=60.0), reads=50, read_wait_s=60.0, read_sql_s=3.0)
    verdict = judge(starved)
    assert verdict.bound_by == "pool_wait"
    assert verdict.ms_per_turn == pytest.approx(1200)


def test_the_line_and_the_json_say_the_same() -> None:
    verdict = judge(window(**ORDINARY))
    assert LINE.fullmatch(verdict.line())
    said = dict(field.split("=") for field in verdict.line().split()[1:])
    told = verdict.json()
    assert {key: value for key, value in told.items() if key != "causes"}.keys() == said.keys()
    assert said["bound_by"] == told["bound_by"] == "llm_floor"
    assert float(said["turn_ms"]) == pytest.approx(told["turn_ms"], abs=0.01)
    assert tuple(told["causes"]) == CAUSES


@pytest.mark.parametrize(
    ("cpu", "held", "slots", "ratio"),
    [
        (0.0, 0.0, 0.0, 0.0),
        (0.17, 0.0, 0.0, 0.2),
        (0.17, 0.34, 0.1, 0.4),
        (0.17, 0.0, 0.5, 0.5),
        (0.85, 0.0, 0.2, 1.0),
        (1.0, 0.0, 1.0, 1.0 / 0.85),
    ],
    ids=["idle", "it computes", "one call holds the loop", "slots are scarcer", "the loop is full", "no time is left"],
)
def test_what_is_in_use_is_the_larger_of_loop_and_slots(cpu: float, held: float, slots: float, ratio: float) -> None:
    assert capacity_ratio(window(cpu=cpu, held=held), slots) == pytest.approx(ratio)


def test_without_a_window_only_slots_are_in_use() -> None:
    assert capacity_ratio(Slice(), 0.25) == 0.25
