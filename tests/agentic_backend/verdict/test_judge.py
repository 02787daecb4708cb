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


@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if cause not in ("llm_floor", "loop_cpu", "agent", "starved")]
)
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


def hungry(seen: Slice, *, core_wait_ms: float, starved: float) -> Slice:
    """The window of a loop that waited for a core, for this share of the time, and on average at each hop."""
    wait_s = core_wait_ms / 1e3 * SAMPLES
    return gauged(seen, starved_s=starved * seen.seconds, core_waits=SAMPLES, core_wait_s=wait_s)


def test_a_loop_that_others_keep_from_its_core_is_starved_though_it_is_late() -> None:
    """39 turns one after the other on a machine whose cores others took: they read as `loop_cpu`, 0.6 of a turn."""
    late = window(cpu=0.06, lag_ms=9.0, turns=39, own=150.0, llm_floor=88.0, disk=22.0)
    assert judge(late).bound_by == "loop_cpu"  # what a loop that is late for any other reason is
    verdict = judge(hungry(late, core_wait_ms=9.0, starved=0.25))
    assert verdict.bound_by == "starved"
    assert verdict.share > 0.6
    assert verdict.occupied == pytest.approx(0.06)
    assert verdict.causes_ms["loop_cpu"] < 50
    assert sum(verdict.causes_ms.values()) == pytest.approx(260)


def test_the_lateness_of_the_loop_is_divided_by_what_it_waited_for() -> None:
    verdict = judge(hungry(window(cpu=0.0, lag_ms=20.0, llm_floor=160.0, disk=40.0), core_wait_ms=5.0, starved=0.0))
    assert verdict.causes_ms["loop_cpu"] == pytest.approx(3 * 15 + 15)
    assert verdict.causes_ms["starved"] == pytest.approx(3 * 5 + (1 + 2) * 5)
    assert verdict.causes_ms["llm_floor"] == pytest.approx(100)
    assert verdict.causes_ms["disk"] == pytest.approx(10)


def test_a_quota_delays_hops_that_the_loop_does_not_see_late() -> None:
    """Throttled, the monitor's thread stands still with the loop's, and finds it on time afterwards."""
    verdict = judge(hungry(window(lag_ms=0.2, own=20.0, llm_floor=150.0), core_wait_ms=40.0, starved=0.5))
    assert verdict.bound_by == "starved"
    assert verdict.causes_ms["llm_floor"] == pytest.approx(30)


def test_a_loop_without_a_core_is_not_held() -> None:
    late = window(cpu=0.06, held=0.9, lag_ms=60.0, turns=39, own=300.0, llm_floor=200.0)
    assert judge(late).occupied == pytest.approx(0.9)
    verdict = judge(hungry(late, core_wait_ms=60.0, starved=0.8))
    assert verdict.bound_by == "starved"
    assert verdict.occupied == pytest.approx(0.06)


def test_a_blocking_call_on_a_machine_with_free_cores_is_the_loop_s() -> None:
    seen = window(cpu=0.02, held=0.9, lag_ms=90.0, turns=45, own=210.0, llm_floor=30.0)
    assert judge(hungry(seen, core_wait_ms=0.3, starved=0.01)).bound_by == "loop_cpu"


def test_a_full_loop_that_others_delay_a_little_is_full() -> None:
    seen = window(cpu=0.9, lag_ms=40.0, own=200.0, llm_floor=600.0, spread=0.95)
    verdict = judge(hungry(seen, core_wait_ms=3.0, starved=0.08))
    assert verdict.bound_by == "loop_cpu"
    assert 0 < verdict.causes_ms["starved"] < 0.25 * verdict.causes_ms["loop_cpu"]


def test_reads_over_rest_are_not_slow_that_waited_for_a_core() -> None:
    seen = window(own=5.0, llm_floor=60.0)
    slow = gauged(hungry(seen, core_wait_ms=30.0, starved=0.5), reads=100, read_sql_s=6.0)
    assert judge(slow).causes_ms["sql"] == pytest.approx(0)


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


QUEUE = {"pending": 900, "oldest_s": 8.0, "batch_wait_s": 0.1}


@pytest.mark.parametrize(("starved_s", "bound"), [(0.0, "loop_cpu"), (9.0, "starved")])
def test_what_a_full_loop_is_late_to_write_is_no_fault_of_the_database(starved_s: float, bound: str) -> None:
    busy = window(own=280.0, llm_floor=40.0, cpu=(10.0 - starved_s) / 10, lag_ms=60.0)
    late = gauged(busy, **QUEUE, batch_sql_s=9.0, batch_statements=70, reads=50, read_sql_s=5.0, starved_s=starved_s)
    verdict = judge(late)
    assert verdict.bound_by == bound
    assert verdict.causes_ms[bound] > 8000 * 0.8
    assert sum(verdict.causes_ms.values()) == pytest.approx(280 + 40 + 8000 + 100)


@pytest.mark.parametrize(
    ("counts", "cause", "ms"),
    [
        ({**QUEUE, "batch_sql_s": 9.9, "batch_statements": 12}, "sql", 8000),
        ({**QUEUE, "batch_sql_s": 0.0, "batch_statements": 0, "batch_wait_s": 0.0}, "sql", 8000),
        ({"reads": 50, "read_sql_s": 250.0, "read_wait_s": 1.0}, "sql", 5000),
        ({"reads": 50, "read_sql_s": 1.0, "read_wait_s": 250.0}, "pool_wait", 5000),
    ],
    ids=["slow writes", "writes that hang", "slow reads", "too few connections"],
)
def test_a_slow_database_is_named_beside_a_full_loop_too(counts: dict[str, float], cause: str, ms: float) -> None:
    seen = gauged(window(own=30.0, llm_floor=900.0, cpu=0.86, lag_ms=0.5), **counts)
    verdict = judge(seen)
    assert (verdict.bound_by, verdict.next) == (cause, "llm_floor")
    assert verdict.ms_per_turn == pytest.approx(ms, rel=0.05)


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


def test_a_loop_that_gets_half_a_core_is_full_at_half_the_work() -> None:
    assert capacity_ratio(hungry(window(cpu=0.4), core_wait_ms=10.0, starved=0.45), 0.1) == pytest.approx(1.0)
    assert capacity_ratio(hungry(window(cpu=0.4), core_wait_ms=0.1, starved=0.0), 0.1) == pytest.approx(0.4 / 0.85)


def test_without_a_window_only_slots_are_in_use() -> None:
    assert capacity_ratio(Slice(), 0.25) == 0.25
