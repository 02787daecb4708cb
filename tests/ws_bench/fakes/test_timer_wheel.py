"""The timer wheel."""

import asyncio

from tests.support.patience import PATIENCE_S
from ws_bench.fakes.timer_wheel import EARLY_S, TimerWheel


async def test_calls_come_in_order_of_their_times_and_never_early() -> None:
    wheel = TimerWheel(asyncio.get_running_loop())
    called: list[tuple[float, float]] = []
    done = asyncio.Event()
    begin = wheel.time()
    for delay in (0.05, 0.01, 0.03, 0.0, 0.0301):
        due = begin + delay
        wheel.call_at(due, lambda due=due: called.append((due, wheel.time())))  # type: ignore[misc]
    wheel.call_at(begin + 0.06, done.set)
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert [due for due, _ in called] == sorted(due for due, _ in called)
    assert len(called) == 5
    assert all(now >= due - EARLY_S for due, now in called)


async def test_a_call_may_ask_for_another_one_and_the_past_is_served_too() -> None:
    wheel = TimerWheel(asyncio.get_running_loop())
    done = asyncio.Event()
    left = [20]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            wheel.call_at(wheel.time() - 1.0, again)
        else:
            done.set()

    again()
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert left == [0]


async def test_an_earlier_call_moves_the_timer_forward() -> None:
    wheel = TimerWheel(asyncio.get_running_loop())
    done = asyncio.Event()
    wheel.call_at(wheel.time() + 3600, lambda: None)
    wheel.call_at(wheel.time() + 0.01, done.set)
    await asyncio.wait_for(done.wait(), PATIENCE_S)
