"""Sessions that were not used for a long time, preferences that are set meanwhile, sessions that are deleted."""

import asyncio
from dataclasses import replace

import pytest

from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import SessionMemory
from agentic_backend.session.stream import Cancelled, Failed, Final
from agentic_backend.testing import MemoryStorage
from backend_kit.aio import TaskRegistry
from backend_kit.wire import Code
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import USER, GatedTurns, ended, ticks
from tests.support.clock import Clock

OLD = replace(SESSION, rested=True)


def know_from_long_ago(turn_process: EchoProcess, clock: Clock) -> None:
    """Let the process know the session by a turn that was 13 hours ago."""
    turn_process.registry.update(SESSION)
    clock.now += 13 * 3600


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(OLD)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turn_process(storage: MemoryStorage, tasks: TaskRegistry, clock: Clock) -> EchoProcess:
    return EchoProcess(storage, tasks, memory=SessionMemory(clock=clock))


async def test_an_old_session_is_marked_as_used_before_its_turn_and_only_then(storage, turn_process):
    assert isinstance(await ended(turn_process.ask("e1")), Final)
    assert isinstance(await ended(turn_process.ask("e2")), Final)
    assert (storage.reads["get"], storage.reads["touch"]) == (1, 1)


async def test_a_session_that_this_process_knows_from_long_ago_is_read_again(storage, turn_process, clock):
    know_from_long_ago(turn_process, clock)
    assert isinstance(await ended(turn_process.ask("e1")), Final)
    assert (storage.reads["get"], storage.reads["touch"]) == (1, 1)


async def test_a_known_session_that_was_pruned_gets_no_turn_and_is_not_known_any_more(storage, turn_process, clock):
    know_from_long_ago(turn_process, clock)
    storage.sessions.clear()
    for exchange_id in ("e1", "e2"):
        refused = await ended(turn_process.ask(exchange_id))
        assert (refused.code, refused.refused) == (Code.SESSION_NOT_FOUND, True)
    assert (storage.asks, turn_process.registry._slots) == ([], {})


class Pruned(MemoryStorage):
    """Its sessions go between the read and the mark of a use."""

    async def touch(self, _session_id: str, _user_id: str) -> bool:
        return False


async def test_a_session_that_is_pruned_while_it_is_read_gets_no_turn(tasks):
    storage = Pruned(OLD)
    assert (await ended(EchoProcess(storage, tasks).ask("e1"))).code is Code.SESSION_NOT_FOUND
    assert storage.asks == []


async def test_without_storage_an_old_session_waits_and_a_lately_used_one_goes_on(storage, turn_process, clock):
    storage.away = True
    know_from_long_ago(turn_process, clock)
    assert (await ended(turn_process.ask("e1"))).code is Code.HISTORY_UNAVAILABLE
    turn_process.registry.update(SESSION)
    assert isinstance(await ended(turn_process.ask("e2")), Final)


async def test_preferences_that_are_set_while_a_turn_runs_stand_at_its_end_and_after_it(gated_turns: GatedTurns):
    gated_turns.registry.update(replace(SESSION, preferences={"theme": "light"}))
    turn, following = gated_turns.ask("e0"), gated_turns.ask("e1")
    await ticks()
    await gated_turns.registry.prefer("s1", USER, {"theme": "dark"})
    await gated_turns.finish(turn, following)
    assert following.events[-1].payload.session.preferences == {"theme": "dark"}
    await gated_turns.registry.prefer("s1", USER, {})
    third = gated_turns.ask("e2")
    await gated_turns.finish(third)
    assert third.events[-1].payload.session.preferences == {}


class SlowToRemember(MemoryStorage):
    """What an agent is reminded of is read when the test says so."""

    def __init__(self, *sessions: Session) -> None:
        super().__init__(*sessions)
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    async def remembered(
        self, _session_id: str, _user_id: str, _max_exchanges: int, _up_to: int | None = None
    ) -> list[HistoryItem]:
        self.reached.set()
        await self.go_on.wait()
        return []


async def test_the_end_of_a_turn_shows_the_preferences_that_were_set_meanwhile(tasks):
    storage = SlowToRemember(OLD)
    turn_process = EchoProcess(storage, tasks)
    turn = turn_process.ask("e1")
    await storage.reached.wait()
    await turn_process.registry.prefer(SESSION.id, USER, {"theme": "dark"})
    storage.go_on.set()
    assert (await ended(turn)).session.preferences == {"theme": "dark"}
    assert storage.sessions[SESSION.id, USER].preferences == {"theme": "dark"}


async def test_preferences_of_an_unknown_session_are_nobodys(gated_turns: GatedTurns):
    await gated_turns.registry.prefer("s1", USER, {"theme": "dark"})
    assert gated_turns.registry._slots == {}


async def test_a_deleted_session_has_no_turn_to_find_ended_or_running(gated_turns: GatedTurns):
    old, other = gated_turns.ask("old"), gated_turns.ask("other", session_id="s2")
    await gated_turns.finish(old, other)
    running, foreign = gated_turns.ask("running"), gated_turns.ask("foreign", user_id="bob")
    await ticks()
    await gated_turns.registry.forget("s1", USER)
    assert isinstance(await ended(running), Cancelled)
    await gated_turns.finish(foreign)
    found = {name: gated_turns.registry.find(name, USER) for name in ("old", "running", "other")}
    assert found == {"old": None, "running": None, "other": other}
    assert gated_turns.registry.find("foreign", "bob") is foreign
    assert gated_turns.registry.replay_bytes == other.bytes_held + foreign.bytes_held
    # The same ids asked again are new turns.
    again = gated_turns.ask("old")
    assert again is not old
    await gated_turns.finish(again)


async def test_a_deleted_session_leaves_nothing_of_a_turn_that_was_being_recorded(gated_turns: GatedTurns):
    turn = gated_turns.ask("e0")
    await ticks()
    turn.settle()  # too late to stop it
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(gated_turns.registry.forget("s1", USER))
        await ticks()
        assert not forgetting.done()
        await gated_turns.finish(turn)
    await ticks()
    assert gated_turns.registry.find("e0", USER) is None
    assert gated_turns.registry.replay_bytes == 0
    assert not isinstance(turn.events[-1].payload, Failed)


async def test_a_turn_that_begins_while_another_ends_for_a_delete_is_stopped_too(gated_turns: GatedTurns):
    gated_turns.runner.stubborn = True
    first = gated_turns.ask("e0")
    await ticks()
    async with asyncio.TaskGroup() as group:
        forgetting = group.create_task(gated_turns.registry.forget("s1", USER))
        await ticks()
        gated_turns.runner.stubborn = False
        second = gated_turns.ask("e1")  # it has a slot of its own: that of the first is forgotten
        await gated_turns.runner.began("e1")
        assert not forgetting.done()
        await gated_turns.finish(first)
    assert isinstance(await ended(second), Cancelled)
    assert [gated_turns.registry.find(exchange_id, USER) for exchange_id in ("e0", "e1")] == [None, None]
