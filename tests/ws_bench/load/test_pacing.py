"""When turns may start, and how a run is stopped."""

import asyncio

import pytest

from ws_bench.load.pacing import ClosedLoop, Interrupt, SharedTotal
from ws_bench.record.dialects import clock


async def test_each_client_of_a_closed_loop_has_its_own_turns() -> None:
    pacer = ClosedLoop(Interrupt(1.0), clients=2, turns_each=2)
    starts = [await pacer.admit(0) for _ in range(3)]
    assert [start is not None for start in starts] == [True, True, False]
    assert await pacer.admit(1) is not None


async def test_first_starts_are_spread_over_the_ramp() -> None:
    before = clock()
    pacer = ClosedLoop(Interrupt(1.0), clients=3, turns_each=1, ramp_s=0.2)
    starts: dict[int, float] = {}

    async def client(number: int) -> None:
        start = await pacer.admit(number)
        assert start is not None
        starts[number] = start

    async with asyncio.TaskGroup() as clients:
        for number in (2, 0, 1):
            clients.create_task(client(number))
    # Never early: an intended start is not before its slot.
    assert all(starts[number] - before >= number * 0.1 - 0.01 for number in range(3))


async def test_an_interrupt_ends_the_wait_for_a_ramp_slot_and_admits_nobody() -> None:
    interrupt = Interrupt(1.0)
    pacer = ClosedLoop(interrupt, clients=2, turns_each=5, ramp_s=3600.0)
    async with asyncio.TaskGroup() as clients:
        waiting = clients.create_task(pacer.admit(1))
        await asyncio.sleep(0)
        interrupt.request()
    assert waiting.result() is None
    assert await pacer.admit(0) is None


async def test_a_shared_total_is_given_out_once() -> None:
    pacer = SharedTotal(Interrupt(1.0), total=3)
    starts = [await pacer.admit(client % 2) for client in range(5)]
    assert [start is not None for start in starts] == [True, True, True, False, False]


async def test_an_interrupted_total_admits_nobody() -> None:
    interrupt = Interrupt(1.0)
    interrupt.request()
    assert await SharedTotal(interrupt, total=3).admit(0) is None


async def test_an_interrupt_shortens_deadlines_that_run_already() -> None:
    interrupt = Interrupt(0.0)
    asyncio.get_running_loop().call_soon(interrupt.request)
    with pytest.raises(TimeoutError):
        async with interrupt.within(3600.0):
            await asyncio.Event().wait()


async def test_a_deadline_begun_after_an_interrupt_has_the_grace_time() -> None:
    interrupt = Interrupt(0.0)
    interrupt.request()
    interrupt.request()
    with pytest.raises(TimeoutError):
        async with interrupt.within(3600.0):
            await asyncio.Event().wait()


async def test_an_interrupt_leaves_deadlines_that_end_sooner() -> None:
    interrupt = Interrupt(3600.0)
    asyncio.get_running_loop().call_soon(interrupt.request)
    with pytest.raises(TimeoutError):
        async with interrupt.within(0.01):
            await asyncio.Event().wait()
