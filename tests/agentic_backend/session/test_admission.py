import asyncio

import pytest

from agentic_backend.errors import Overloaded, RateLimited, TooManyTurns
from agentic_backend.session.admission import Admission, TurnLimits


def limits(**changes):
    given = {"max_turns": 2, "queue_length": 2, "queue_deadline_s": 5.0, **changes}
    return TurnLimits(**given)


async def test_slots_go_to_the_longest_waiting():
    admission = Admission(limits(max_turns=1, queue_length=10))
    await admission.enter()
    served: list[int] = []

    async def ask(number):
        await admission.enter()
        served.append(number)
        admission.leave()

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
            await asyncio.sleep(0)
            assert admission.waiting == number + 1
        admission.leave()
    assert served == [0, 1, 2, 3, 4]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_those_behind_get_a_slot_where_nobody_else_waits():
    admission = Admission(limits(max_turns=1, queue_length=1))
    assert await admission.enter_behind() == 0.0
    served: list[str] = []

    async def take(name, enter):
        await enter()
        served.append(name)

    async with asyncio.TaskGroup() as group:
        for name in ("first behind", "second behind"):
            group.create_task(take(name, admission.enter_behind))
        await asyncio.sleep(0)
        assert (admission.waiting, admission.queue_full) == (0, False)
        group.create_task(take("asked", admission.enter))
        gone = group.create_task(take("gone", admission.enter_behind))
        await asyncio.sleep(0)
        gone.cancel()
        for count in range(1, 4):
            admission.leave()
            await asyncio.sleep(0)
            assert len(served) == count
    admission.leave()
    assert served == ["asked", "first behind", "second behind"]
    assert admission.running == 0


async def test_a_full_queue_refuses_at_once():
    admission = Admission(limits(max_turns=1, queue_length=0))
    await admission.enter()
    with pytest.raises(Overloaded) as refusal:
        await admission.enter()
    assert refusal.value.retry_after_s == 5.0
    assert admission.running == 1


async def test_the_deadline_of_the_queue_frees_the_place():
    admission = Admission(limits(max_turns=1, queue_deadline_s=0.01))
    await admission.enter()
    with pytest.raises(Overloaded):
        await admission.enter()
    assert admission.waiting == 0
    admission.leave()
    assert admission.running == 0


async def test_a_cancelled_waiter_gives_back_a_slot_handed_over_in_the_same_tick():
    admission = Admission(limits(max_turns=1))
    await admission.enter()
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(admission.enter())
        await asyncio.sleep(0)
        assert admission.waiting == 1
        admission.leave()
        waiter.cancel()
    assert admission.running == 0


async def test_zero_turns_means_no_limit():
    admission = Admission(limits(max_turns=0, queue_length=0))
    for _ in range(1000):
        await admission.enter()
    assert admission.running == 1000


def test_a_user_over_the_turns_of_a_user_is_refused_and_others_are_not():
    admission = Admission(limits(turns_per_user=2))
    for _ in range(2):
        admission.check("ann")
        admission.enter_user("ann")
    with pytest.raises(TooManyTurns):
        admission.check("ann")
    admission.check("bob")
    admission.leave_user("ann")
    admission.check("ann")


def test_a_burst_is_spent_and_then_asks_are_refused_with_the_wait():
    admission = Admission(limits(asks_per_min=6, burst=3))
    for _ in range(3):
        admission.check("ann")
    with pytest.raises(RateLimited) as refusal:
        admission.check("ann")
    assert refusal.value.retry_after_s is not None
    assert 0 < refusal.value.retry_after_s <= 10.0
