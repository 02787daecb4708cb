"""Sessions that were not used for a long time, preferences that are set meanwhile, sessions that are deleted."""

import asyncio
from dataclasses import replace

import pytest

from agentic_backend.session.models import Remembered, Session
from agentic_backend.session.recall import Memory
from agentic_backend.session.stream import Cancelled, Failed, Final
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code
from tests.agentic_backend.session.lab import USER, Lab, ended, ticks
from tests.agentic_backend.session.shelf import SESSION, Process, Shelf
from tests.support.clock import Clock

OLD = replace(SESSION, rested=True)


def know_from_long_ago(process: Process, clock: Clock) -> None:
    """Let the process know the session by a turn that was 13 hours ago."""
    process.registry.update(SESSION)
    clock.now += 13 * 3600


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(OLD)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def process(shelf: Shelf, tasks: TaskRegistry, clock: Clock) -> Process:
    return Process(shelf, tasks, memory=Memory(clock=clock))


async def test_an_old_session_is_marked_as_used_before_its_turn_and_only_then(shelf, process):
    assert isinstance(await ended(process.ask("e1")), Final)
    assert isinstance(await ended(process.ask("e2")), Final)
    assert (shelf.reads["get"], shelf.reads["touch"]) == (1, 1)


async def test_a_session_that_this_process_knows_from_long_ago_is_read_again(shelf, process, clock):
    know_from_long_ago(process, clock)
    assert isinstance(await ended(process.ask("e1")), Final)
    assert (shelf.reads["get"], shelf.reads["touch"]) == (1, 1)


async def test_a_known_session_that_was_pruned_gets_no_turn_and_is_not_known_any_more(shelf, process, clock):
    know_from_long_ago(process, clock)
    shelf.sessions.clear()
    for exchange_id in ("e1", "e2"):
        refused = await ended(process.ask(exchange_id))
        assert (refused.code, refused.refused) == (Code.SESSION_NOT_FOUND, True)
    assert (shelf.asks, process.registry._slots) == ([], {})


class Pruned(Shelf):
    """Its sessions go between the read and the mark of a use."""

    async def touch(self, _session_id: str, _user_id: str) -> bool:
        return False


async def test_a_session_that_is_pruned_while_it_is_read_gets_no_turn(tasks):
    shelf = Pruned(OLD)
    assert (await ended(Process(shelf, tasks).ask("e1"))).code is Code.SESSION_NOT_FOUND
    assert shelf.asks == []


async def test_without_storage_an_old_session_waits_and_a_lately_used_one_goes_on(shelf, process, clock):
    shelf.away = True
    know_from_long_ago(process, clock)
    assert (await ended(process.ask("e1"))).code is Code.HISTORY_UNAVAILABLE
    process.registry.update(SESSION)
    assert isinstance(await ended(process.ask("e2")), Final)


async def test_preferences_that_are_set_while_a_turn_runs_stand_at_its_end_and_after_it(lab: Lab):
    lab.registry.update(replace(SESSION, preferences={"theme": "light"}))
    turn, following = lab.ask("e0"), lab.ask("e1")
    await ticks()
    lab.registry.prefer("s1", USER, {"theme": "dark"})
    await lab.finish(turn, following)
    assert following.events[-1].payload.session.preferences == {"theme": "dark"}
    lab.registry.prefer("s1", USER, {})
    third = lab.ask("e2")
    await lab.finish(third)
    assert third.events[-1].payload.session.preferences == {}


class SlowToRemember(Shelf):
    """What an agent is reminded of is read when the test says so."""

    def __init__(self, *sessions: Session) -> None:
        super().__init__(*sessions)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def remembered(self, _session_id: str, _user_id: str, _max_exchanges: int) -> list[Remembered]:
        self.reached.set()
        await self.go_on.wait()
        return []


async def test_the_end_of_a_turn_shows_the_preferences_that_were_set_meanwhile(tasks):
    shelf = SlowToRemember(OLD)
    process = Process(shelf, tasks)
    turn = process.ask("e1")
    await shelf.reached.wait()
    process.registry.prefer(SESSION.id, USER, {"theme": "dark"})
    shelf.go_on.set()
    assert (await ended(turn)).session.preferences == {"theme": "dark"}
    assert shelf.sessions[SESSION.id, USER].preferences == {"theme": "dark"}


async def test_preferences_of_an_unknown_session_are_nobodys(lab: Lab):
    lab.registry.prefer("s1", USER, {"theme": "dark"})
    assert lab.registry._slots == {}


async def test_a_deleted_session_has_no_turn_to_find_ended_or_running(lab: Lab):
    old, other = lab.ask("old"), lab.ask("other", session_id="s2")
    await lab.finish(old, other)
    running, foreign = lab.ask("running"), lab.ask("foreign", user_id="bob")
    await ticks()
    await lab.registry.forget("s1", USER)
    assert isinstance(await ended(running), Cancelled)
    await lab.finish(foreign)
    found = {name: lab.registry.find(name, USER) for name in ("old", "running", "other")}
    assert found == {"old": None, "running": None, "other": other}
    assert lab.registry.find("foreign", "bob") is foreign
    assert lab.registry.replay_bytes == other.bytes_held + foreign.bytes_held
    # The same ids asked again are new turns.
    again = lab.ask("old")
    assert again is not old
    await lab.finish(again)


async def test_a_deleted_session_leaves_nothing_of_a_turn_that_was_being_recorded(lab: Lab):
    turn = lab.ask("e0")
    await ticks()
    turn.settle()  # too late to stop it
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(lab.registry.forget("s1", USER))
        await ticks()
        assert not forgetting.done()
        await lab.finish(turn)
    await ticks()
    assert lab.registry.find("e0", USER) is None
    assert lab.registry.replay_bytes == 0
    assert not isinstance(turn.events[-1].payload, Failed)


async def test_a_turn_that_begins_while_another_ends_for_a_delete_is_stopped_too(lab: Lab):
    lab.runner.stubborn = True
    first = lab.ask("e0")
    await ticks()
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(lab.registry.forget("s1", USER))
        await ticks()
        lab.runner.stubborn = False
        second = lab.ask("e1")  # it has a slot of its own: that of the first is forgotten
        await lab.runner.began("e1")
        assert not forgetting.done()
        await lab.finish(first)
    assert isinstance(await ended(second), Cancelled)
    assert [lab.registry.find(exchange_id, USER) for exchange_id in ("e0", "e1")] == [None, None]
