"""The gate that users share: turns by user, reserve, bounds of waiting, budget, and nothing lost on the way."""

import asyncio
from collections.abc import Callable

import pytest

from backend_kit.aio import Crowded, FairGate, GateRules, Pace
from tests.support.clock import Clock


class Crowd:
    """People at a gate, who note when they get in and leave when they are told."""

    def __init__(self, gate: FairGate) -> None:
        self._gate = gate
        self.entered: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        """Each is a user and a number, "a1"."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name))
        await ticks()

    async def go(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
        await ticks()

    async def all_go(self) -> list[str]:
        """Everybody leaves as soon as they are in; who got in, in order."""
        for event in self._leave.values():
            event.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        return self.entered

    async def _stay(self, name: str) -> None:
        """A name in capitals is the next step of something that has begun."""
        await self._gate.enter(name[0].lower(), ahead=name.isupper())
        try:
            self.entered.append(name)
            await self._leave[name].wait()
        finally:
            self._gate.leave(name[0].lower())


async def ticks(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def crowd(clock: Callable[[], float] | None = None, **rules: float) -> tuple[Crowd, FairGate]:
    made = GateRules(**rules)  # type: ignore[arg-type] # whole numbers, as the tests name them
    gate = FairGate(made, clock=clock) if clock else FairGate(made)
    return Crowd(gate), gate


async def test_places_go_to_users_in_turn_and_within_one_by_age() -> None:
    people, _ = crowd(places=1)
    await people.come("a1", "a2", "a3", "a4", "b1", "b2", "c1")

    assert await people.all_go() == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


async def test_who_comes_later_waits_for_one_of_the_flood_and_no_more() -> None:
    people, _ = crowd(places=1)
    await people.come(*(f"a{number}" for number in range(50)))
    await people.come("b1")
    await people.go("a0", "a1")

    assert people.entered == ["a0", "a1", "b1"]
    await people.all_go()


async def test_one_user_holds_no_more_than_a_users_places() -> None:
    people, gate = crowd(places=4, per_user=2)
    await people.come("a1", "a2", "a3", "b1")

    assert people.entered == ["a1", "a2", "b1"]
    assert gate.held_by("a") == 2
    await people.go("b1")
    assert people.entered == ["a1", "a2", "b1"]
    await people.go("a1")
    assert people.entered[-1] == "a3"
    await people.all_go()


async def test_the_reserve_is_for_those_who_hold_nothing() -> None:
    people, _ = crowd(places=2, reserve=1)
    await people.come("a1", "a2", "a3")
    assert people.entered == ["a1"]

    await people.come("b1")
    assert people.entered == ["a1", "b1"]
    await people.go("a1")
    assert people.entered == ["a1", "b1", "a2"]
    await people.all_go()


async def test_what_has_begun_goes_before_the_users_others_in_order() -> None:
    people, gate = crowd(places=1)
    await people.come("b1", "a1", "a2", "A3", "A4")
    await people.go("b1")

    assert await people.all_go() == ["b1", "A3", "A4", "a1", "a2"]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_what_has_begun_goes_before_other_users_while_its_own_holds_nothing() -> None:
    people, _ = crowd(places=2)
    await people.come("x1", "y1", "a1", "b1", "C1")
    await people.go("x1")
    assert people.entered[2:] == ["C1"]

    await people.come("C2")  # they hold a place: those who hold none go first
    await people.go("y1")
    assert people.entered[2:] == ["C1", "a1"]
    assert await people.all_go() == ["x1", "y1", "C1", "a1", "b1", "C2"]


async def test_who_gives_up_a_next_step_leaves_the_others_where_they_were() -> None:
    people, gate = crowd(places=1)
    await people.come("x1", "a1", "A2", "A3", "b1")
    people.tasks["A2"].cancel()
    await ticks()

    assert await people.all_go() == ["x1", "A3", "b1", "a1"]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_of_one_user_only_so_many_wait() -> None:
    people, gate = crowd(places=1, waiting_per_user=2)
    await people.come("a1", "a2", "a3", "a4", "b1")

    refused = people.tasks["a4"].exception()
    assert isinstance(refused, Crowded)
    assert refused.bound == "per_user"
    assert gate.waiting == 3
    assert await people.all_go() == ["a1", "a2", "b1", "a3"]


async def test_where_too_many_wait_the_newest_of_the_longest_queue_goes() -> None:
    people, gate = crowd(places=1, waiting=3)
    await people.come("a1", "a2", "a3", "a4", "b1")

    refused = people.tasks["a4"].exception()
    assert isinstance(refused, Crowded)
    assert refused.bound == "overall"
    await people.come("a5")
    assert isinstance(people.tasks["a5"].exception(), Crowded)
    assert gate.waiting == 3
    assert await people.all_go() == ["a1", "a2", "b1", "a3"]
    assert (gate.running, gate.waiting) == (0, 0)


async def test_who_used_more_than_their_budget_goes_behind_until_it_is_forgotten() -> None:
    clock = Clock()
    people, gate = crowd(clock, places=1, budget_s=10.0, half_life_s=60.0)
    await gate.enter("a")
    gate.leave("a", used_s=15.0)
    await people.come("c1", "a1", "b1", "b2")
    await people.go("c1", "b1", "b2")
    assert people.entered == ["c1", "b1", "b2", "a1"]
    await people.all_go()

    clock.now += 60.0
    people = Crowd(gate)
    await people.come("c1", "a1", "b1")
    assert await people.all_go() == ["c1", "a1", "b1"]


async def test_a_block_says_what_it_used() -> None:
    people, gate = crowd(Clock(), places=1, budget_s=1.0)
    async with gate.place("a") as place:
        place.used_s = 2.0
    await people.come("c1", "a1", "b1")

    assert await people.all_go() == ["c1", "b1", "a1"]


@pytest.mark.parametrize("at_the_same_tick", [False, True])
async def test_a_cancelled_wait_loses_no_place(at_the_same_tick: bool) -> None:
    people, gate = crowd(places=1)
    await people.come("a1", "b1", "c1")
    if at_the_same_tick:
        people.tasks["a1"].cancel()
        await asyncio.sleep(0)  # the place is handed to b1, who does not run before this ends
    people.tasks["b1"].cancel()
    await ticks()

    assert people.tasks["b1"].cancelled()
    await people.all_go()
    assert people.entered == (["a1", "c1"])
    assert (gate.running, gate.waiting, gate.held_by("b")) == (0, 0, 0)


async def test_whatever_people_do_places_are_kept_and_given_back() -> None:
    """Comings, goings and cancellations by a fixed pattern: never too many inside, and nobody is left over."""
    gate = FairGate(GateRules(places=3, per_user=2, reserve=1, waiting=8, waiting_per_user=4))
    people = Crowd(gate)
    for step in range(400):
        name = f"{'abcd'[step * 7 % 4]}{step}"
        await people.come(name)
        assert gate.running <= 3
        assert all(gate.held_by(user) <= 2 for user in "abcd")
        assert gate.waiting <= 8
        if step % 3:
            await people.go(people.entered[step // 3 % len(people.entered)])
        if step % 5 == 0:
            list(people.tasks.values())[-1 - step % 4 if step > 3 else -1].cancel()
    await people.all_go()

    assert (gate.running, gate.waiting) == (0, 0)
    assert len(people.entered) > 100


def test_who_comes_too_early_has_a_place_in_time_and_none_beyond_the_longest_wait() -> None:
    clock = Clock()
    pace = Pace(2.0, burst=3, clock=clock)

    assert [pace.take("a", 1.0) for _ in range(6)] == [0.0, 0.0, 0.0, 0.5, 1.0, None]
    assert pace.take("b", 1.0) == 0.0
    clock.now += 1.0
    assert pace.take("a", 1.0) == 0.5
    clock.now += 100.0
    assert [pace.take("a", 0.0) for _ in range(4)] == [0.0, 0.0, 0.0, None]


async def test_where_all_are_one_user_only_what_is_bounded_in_all_holds() -> None:
    gate = FairGate(GateRules(places=3, per_user=1, reserve=1, waiting=4, waiting_per_user=1).of_one_user())
    people = Crowd(gate)
    await people.come(*(f"a{number}" for number in range(8)))

    assert people.entered == ["a0", "a1", "a2"]
    assert gate.waiting == 4
    assert isinstance(people.tasks["a7"].exception(), Crowded)
    await people.all_go()
