import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi
from knowledge_flow_backend.engines.scheduling import PrioritySemaphore
from knowledge_flow_backend.metrics import PHASES


class Hall:
    """A semaphore, the steps that are through, and what lets each of them go on."""

    def __init__(self, places: int) -> None:
        self.semaphore = PrioritySemaphore(places, Kpi(CollectorRegistry(), service="test", phases=PHASES))
        self.inside: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gives_up: dict[str, str] = {}

    def come(self, name: str, *, first: bool = False) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.ensure_future(self._step(name, first=first))

    async def _step(self, name: str, *, first: bool) -> None:
        async with self.semaphore.step(first=first):
            self.inside.append(name)
            await self._ends[name].wait()
        if name in self._gives_up:
            self._tasks[self._gives_up[name]].cancel()

    async def go(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settled()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait({self._tasks[name]})

    def gives_up_at_the_end_of(self, other: str, name: str) -> None:
        """In the moment in which the other's place is free again: before `name` can have run."""
        self._gives_up[other] = name

    async def clear(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def settled() -> None:
    """Until every task has gone as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    made = Hall(2)
    yield made
    await made.clear()


async def test_so_many_run_and_who_came_first_goes_first(hall: Hall) -> None:
    for name in "abcd":
        hall.come(name, first=True)
    await settled()
    assert hall.inside == ["a", "b"]
    await hall.go("b")
    assert hall.inside == ["a", "b", "c"]
    await hall.go("a")
    assert hall.inside == ["a", "b", "c", "d"]


async def test_a_search_that_has_begun_goes_before_a_new_one(hall: Hall) -> None:
    for name in "ab":
        hall.come(name, first=True)
    await settled()
    hall.come("new", first=True)
    await settled()
    hall.come("begun")
    await settled()
    await hall.go("a")
    assert hall.inside == ["a", "b", "begun"]
    await hall.go("b")
    assert hall.inside == ["a", "b", "begun", "new"]


async def test_who_gave_up_is_passed_over(hall: Hall) -> None:
    for name in "abcd":
        hall.come(name)
    await settled()
    await hall.give_up("c")
    await hall.go("a")
    assert hall.inside == ["a", "b", "d"]


async def test_a_place_that_comes_to_one_who_gives_up_goes_on(hall: Hall) -> None:
    for name in "abcd":
        hall.come(name)
    await settled()
    hall.gives_up_at_the_end_of("a", "c")
    await hall.go("a")
    assert hall.inside == ["a", "b", "d"]
    for name in "bd":
        await hall.go(name)
    for name in "ef":
        hall.come(name, first=True)
    await settled()
    assert hall.inside == ["a", "b", "d", "e", "f"]
