"""Windows add up what turns left, second by second, and forget what is older than they keep."""

import time

from prometheus_client import CollectorRegistry

from agentic_backend.verdict import Gauged, Windows
from agentic_backend.verdict.window import KEPT_S
from backend_kit.kpi import Kpi, Ledger


def ledger(*, age_s: float = 0.0) -> Ledger:
    return Ledger(Kpi(CollectorRegistry(), service="t"), started=time.perf_counter() - age_s)


def turn(windows: Windows, *, llm_s: float, ack: str = "spool_ack") -> None:
    """A turn with one model call and an acknowledgement of 10 ms."""
    row = ledger()
    row.add("llm_invoke", row.started, row.started + llm_s, 0)
    row.add(ack, row.started + llm_s, row.started + llm_s + 0.01, 0)
    total_ms = llm_s * 1e3 + 12
    windows.ended(row.rows(), total_ms=total_ms, unattributed_ms=2.0, first_token_ms=5.0)


def test_slices_hold_what_ended_in_them_and_sum_up() -> None:
    windows = Windows()
    turn(windows, llm_s=0.1)
    windows.close_slice(Gauged(cpu_s=1.0, lag_s=0.1, lag_samples=10, pending=3))
    turn(windows, llm_s=0.3)
    windows.delivered(0.05)
    windows.close_slice(Gauged(cpu_s=1.5, lag_s=0.2, lag_samples=30, pending=5))
    whole, mark = windows.since(0)
    assert (whole.turns, mark) == (2, 2)
    assert {account: round(ms) for account, ms in whole.ms.items()} == {
        "llm_floor": 400, "disk": 20, "own": 4, "slow_clients": 50,
    }  # fmt: skip
    assert round(whole.least_ms["llm_floor"]) == 100
    assert whole.rows["llm_floor"] == 2
    assert sorted(round(ms) for ms in whole.turn_ms) == [112, 312]
    assert (whole.begun.pending, whole.ended.pending) == (3, 5)
    assert whole.lag_ms == 5.0
    second, mark = windows.since(1)
    assert (second.turns, mark) == (1, 2)
    nothing, mark = windows.since(2)
    assert (nothing.turns, nothing.seconds, mark) == (0, 0.0, 2)


def test_an_acknowledgement_of_the_database_is_kept_apart() -> None:
    windows = Windows()
    turn(windows, llm_s=0.1, ack="db_ack")
    seen = windows.close_slice(Gauged())
    assert round(seen.ms["stored"]) == 10
    assert "disk" not in seen.ms


def test_a_refused_ask_is_a_turn_that_cost_its_wait() -> None:
    windows = Windows()
    windows.refused("admission", 2000.0)
    seen = windows.close_slice(Gauged())
    assert (seen.turns, seen.refused, dict(seen.ms)) == (1, 1, {"admission": 2000.0})


def test_a_turn_that_outlasts_the_window_counts_with_what_it_does() -> None:
    windows = Windows()
    long, short = ledger(age_s=60.0), ledger(age_s=-60.0)  # however long this test takes, shorter than the window
    long.current = "llm_invoke"
    short.current = "llm_invoke"
    windows.begin(long)
    windows.begin(short)
    windows.close_slice(Gauged())
    seen = windows.last(60.0)
    assert (windows.running, seen.turns) == (2, 1)
    assert seen.ms["llm_floor"] == seen.seconds * 1e3
    windows.leave(long)
    windows.leave(short)
    windows.leave(short)
    assert windows.last(60.0).turns == windows.running == 0


def test_an_end_that_waits_for_its_reader_counts_as_far_as_the_window_goes() -> None:
    windows = Windows()
    windows.undelivered = lambda: [0.0005, 60.0]
    windows.close_slice(Gauged())
    seen = windows.last(60.0)
    assert seen.ms["slow_clients"] == sum(min(seconds, seen.seconds) * 1e3 for seconds in (0.0005, 60.0))
    assert windows.last(0.0).ms == {}


def test_what_is_older_than_five_minutes_is_forgotten() -> None:
    windows = Windows()
    turn(windows, llm_s=0.1)
    for _ in range(KEPT_S + 1):
        windows.close_slice(Gauged())
    assert len(windows.kept()) == KEPT_S
    assert windows.last(1e6).turns == 0


def test_what_ended_before_a_restart_is_in_no_window() -> None:
    windows = Windows()
    turn(windows, llm_s=2.0)
    windows.close_slice(Gauged(cpu_s=4.0, held_s=2.3))
    turn(windows, llm_s=2.0)
    _, mark = windows.since(0)
    windows.restart()
    assert windows.kept() == []
    turn(windows, llm_s=0.1)
    windows.close_slice(Gauged(cpu_s=4.5, held_s=2.3))
    seen, _ = windows.since(mark)
    assert (seen.turns, round(seen.ms["llm_floor"]), seen.occupied) == (1, 100, 0.0)
