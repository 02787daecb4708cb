import asyncio

import pytest

from agentic_backend.errors import Overloaded, RateLimited, TooManyTurns
from agentic_backend.session.admission import Admission, TurnLimits


def limits(**changes):
    given = {"max_turns": 2, "queue_length": 2, "queue_deadline_s": 5.0, **changes}
    return TurnLimits(**given)


async def test_slots_go_to_the_longest_waiting():
    admission = Admission(limits(max_turns=1, queue_length=10))
    await admission.enter("m")
    served: list[int] = []

    async def ask(number):
        await admission.enter("m")
        served.append(number)
        admission.leave("m")

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(ask(number))
            await asyncio.sleep(0)
            assert admission.waiting == number + 1
        admission.leave("m")
    assert served == [0, 1, 2, 3, 4]
    assert (admission.running, admission.waiting) == (0, 0)


async def test_those_behind_get_a_slot_where_nobody_else_waits():
    admission = Admission(limits(max_turns=1, queue_length=1))
    assert await admission.enter_behind("m") == 0.0
    served: list[str] = []

    async def take(name, enter):
        await enter("m")
        served.append(name)

    async with asyncio.TaskGroup() as group:
        for name in ("first behind", "second behind"):
            group.create_task(take(name, admission.enter_behind))
        await asyncio.sleep(0)
        assert (admission.waiting, admission.queue_full("m")) == (0, False)
        group.create_task(take("asked", admission.enter))
        gone = group.create_task(take("gone", admission.enter_behind))
        await asyncio.sleep(0)
        gone.cancel()
        for count in range(1, 4):
            admission.leave("m")
            await asyncio.sleep(0)
            assert len(served) == count
    admission.leave("m")
    assert served == ["asked", "first behind", "second behind"]
    assert admission.running == 0


async def test_a_full_queue_refuses_at_once():
    admission = Admission(limits(max_turns=1, queue_length=0))
    await admission.enter("m")
    with pytest.raises(Overloaded) as refusal:
        await admission.enter("m")
    assert refusal.value.retry_after_s == 5.0
    assert admission.running == 1


async def test_the_deadline_of_the_queue_frees_the_place():
    admission = Admission(limits(max_turns=1, queue_deadline_s=0.01))
    await admission.enter("m")
    with pytest.raises(Overloaded):
        await admission.enter("m")
    assert admission.waiting == 0
    admission.leave("m")
    assert admission.running == 0


async def test_a_cancelled_waiter_gives_back_a_slot_handed_over_in_the_same_tick():
    admission = Admission(limits(max_turns=1))
    await admission.enter("m")
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(admission.enter("m"))
        await asyncio.sleep(0)
        assert admission.waiting == 1
        admission.leave("m")
        waiter.cancel()
    assert admission.running == 0


async def test_zero_turns_means_no_limit():
    admission = Admission(limits(max_turns=0, queue_length=0))
    for _ in range(1000):
        await admission.enter("m")
    assert admission.running == 1000


async def waiting_for(group, admission, model, served):
    """A task that waits for a slot, and has its place when this returns."""

    async def ask():
        await admission.enter(model)
        served.append(model)

    task = group.create_task(ask())
    await asyncio.sleep(0)
    return task


async def test_a_model_that_holds_its_share_leaves_the_rest_to_the_others():
    admission = Admission(limits(max_turns=4, queue_length=8, turns_per_model=2))
    served: list[str] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            await admission.enter("slow")
        assert admission.full("slow")
        assert not admission.full("quick")
        await waiting_for(group, admission, "slow", served)
        for _ in range(2):
            assert await admission.enter("quick") == 0.0
        await waiting_for(group, admission, "quick", served)
        assert (admission.running, admission.waiting) == (4, 2)
        # The ask for the slow one came first, but that holds its share still.
        admission.leave("quick")
        await asyncio.sleep(0)
        assert served == ["quick"]
        admission.leave("quick")
        assert (admission.running, admission.waiting) == (3, 1)
        admission.leave("slow")
        await asyncio.sleep(0)
        assert served == ["quick", "slow"]
    assert (admission.running, admission.waiting) == (3, 0)


async def test_among_those_that_may_enter_the_longest_waiting_is_next():
    admission = Admission(limits(max_turns=2, queue_length=8, turns_per_model=2))
    served: list[str] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            await admission.enter("a")
        for model in ("b", "a", "c"):
            await waiting_for(group, admission, model, served)
        for model in ("a", "a", "b"):
            admission.leave(model)
            await asyncio.sleep(0)
    assert served == ["b", "a", "c"]


async def test_who_waits_for_a_model_holds_its_share_of_the_queue_at_most():
    hits: list[str] = []
    admission = Admission(limits(max_turns=4, queue_length=4, turns_per_model=2), hits.append)
    for _ in range(2):
        await admission.enter("slow")
    async with asyncio.TaskGroup() as group:
        waiters = [await waiting_for(group, admission, "slow", []) for _ in range(2)]
        with pytest.raises(Overloaded):
            await admission.enter("slow")
        assert hits == ["model_share"]
        for _ in range(2):
            await admission.enter("quick")
        waiters.append(await waiting_for(group, admission, "quick", []))
        assert admission.waiting == 3
        for waiter in waiters:
            waiter.cancel()
    assert (admission.running, admission.waiting) == (4, 0)


@pytest.mark.parametrize(("model", "limit"), [("slow", "model_share"), ("quick", "max_turns")])
async def test_the_deadline_names_the_limit_that_held_an_ask_up(model, limit):
    hits: list[str] = []
    admission = Admission(limits(max_turns=3, queue_deadline_s=0.01, turns_per_model=2), hits.append)
    for name in ("slow", "slow", *(["quick"] if model == "quick" else [])):
        await admission.enter(name)
    with pytest.raises(Overloaded):
        await admission.enter(model)
    assert hits == [limit]


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


async def test_it_tells_how_full_it_is():
    admission, unbounded = Admission(limits(max_turns=4)), Admission(limits(max_turns=0, queue_length=0))
    assert admission.fill == 0.0
    for running in (0.25, 0.5):
        await admission.enter("m")
        await unbounded.enter("m")
        assert admission.fill == running
    admission.leave("m")
    assert admission.fill == 0.25
    assert unbounded.fill == 0.0
