import asyncio
import time
import weakref
from dataclasses import replace

import pytest

from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.models import Session
from agentic_backend.session.registry import RegistryRules
from agentic_backend.session.stream import Cancelled, Failed, Final
from backend_kit.wire import Code
from tests.agentic_backend.session.gated_turns import USER, ended, ticks


async def test_turns_of_a_session_run_one_at_a_time_in_the_order_of_asking(gated_turns):
    turns = [gated_turns.ask(f"e{number}") for number in range(4)]
    await ticks()
    assert gated_turns.runner.order == ["e0"]
    assert gated_turns.registry.running == 4
    for turn in turns:
        gated_turns.runner.gate(turn.ask.exchange_id).set()
    finals = [await ended(turn) for turn in turns]
    assert gated_turns.runner.order == ["e0", "e1", "e2", "e3"]
    assert [message.rank for final in finals for message in final.messages] == list(range(8))
    assert gated_turns.registry.running == 0


async def test_a_session_is_handed_over_and_a_newcomer_finds_it_busy(gated_turns):
    first, second = gated_turns.ask("e0"), gated_turns.ask("e1")
    await ticks()
    gated_turns.runner.gate("e0").set()
    await ended(first)
    # e1 has the session since that tick, though its task may not have run yet.
    newcomer = gated_turns.ask("e2", if_busy="reject")
    assert newcomer.events[-1].payload.code is Code.SESSION_BUSY
    await gated_turns.finish(second)
    assert gated_turns.runner.order == ["e0", "e1"]


async def test_two_that_come_in_one_tick_do_not_both_run(gated_turns):
    one, other = gated_turns.ask("e0", if_busy="reject"), gated_turns.ask("e1", if_busy="reject")
    assert (await ended(other)).code is Code.SESSION_BUSY
    await gated_turns.finish(one)
    assert gated_turns.runner.order == ["e0"]


async def test_a_turn_that_is_stopped_in_the_tick_of_its_handover_passes_the_session_on(gated_turns):
    first, second, third = gated_turns.ask("e0"), gated_turns.ask("e1"), gated_turns.ask("e2")
    await ticks()
    gated_turns.runner.gate("e0").set()
    await first.wait_ended()
    second.cancel()
    gated_turns.runner.gate("e2").set()
    assert isinstance(await ended(second), Cancelled)
    assert isinstance(await ended(third), Final)
    assert (await ended(third)).messages[0].rank >= 2


async def test_those_who_gave_up_waiting_leave_their_place(gated_turns):
    gated_turns.ask("e0")
    waiting = [gated_turns.ask(f"w{number}") for number in range(8)]
    await ticks()
    assert gated_turns.ask("one too many").events[-1].payload.code is Code.SESSION_BUSY
    for turn in waiting:
        turn.cancel()
        assert isinstance(await ended(turn), Cancelled)
    again = gated_turns.ask("again")
    await ticks()
    assert not again.events
    again.cancel()
    await gated_turns.finish(gated_turns.registry.find("e0", USER))


async def test_the_same_ask_twice_is_one_turn_and_another_text_a_conflict(gated_turns):
    turn = gated_turns.ask("e0")
    assert gated_turns.ask("e0") is turn
    assert gated_turns.ask("e0", message="else").events[-1].payload.code is Code.CONFLICT
    await gated_turns.finish(turn)
    assert gated_turns.ask("e0") is turn
    assert gated_turns.ask("e0", message="else").events[-1].payload.code is Code.CONFLICT
    assert gated_turns.registry.find("e0", USER) is turn
    assert gated_turns.registry.find("e0", "bob") is None


async def test_another_user_with_the_same_ids_is_another_turn(gated_turns):
    mine, theirs = gated_turns.ask("e0"), gated_turns.ask("e0", user_id="bob")
    assert mine is not theirs
    gated_turns.runner.gate("e0").set()
    assert isinstance(await ended(mine), Final)
    assert isinstance(await ended(theirs), Final)


async def test_a_refused_ask_may_come_again(gated_turns):
    gated_turns.log.room = False
    refused = gated_turns.ask("e0")
    assert (refused.events[-1].seq, refused.events[-1].payload.code) == (0, Code.STORAGE_FULL)
    assert refused.events[-1].payload.retry_after_ms == 5000
    gated_turns.log.room = True
    await gated_turns.finish(gated_turns.ask("e0"))


async def test_a_failure_that_nobody_foresaw_ends_the_turn_and_frees_its_session(gated_turns, caplog):
    gated_turns.runner.failure = ZeroDivisionError("in the runner")
    turn = gated_turns.ask("e0")
    failed = await ended(turn)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.refused) == (Code.INTERNAL, True)
    assert "in the runner" in caplog.text
    gated_turns.runner.failure = None
    await gated_turns.finish(gated_turns.ask("e1"))


async def test_forget_stops_the_running_turn_and_refuses_those_that_wait(gated_turns):
    running, waiting = gated_turns.ask("e0"), gated_turns.ask("e1")
    await ticks()
    await gated_turns.registry.forget("s1", USER)
    assert isinstance(running.events[-1].payload, Cancelled)
    assert (await ended(waiting)).code is Code.SESSION_NOT_FOUND
    await gated_turns.registry.forget("unknown", USER)


async def test_ended_turns_are_kept_for_a_while(gated_turns):
    old, young = gated_turns.ask("old"), gated_turns.ask("young", session_id="s2")
    await gated_turns.finish(old, young)
    assert gated_turns.registry.replay_events == len(old.events) + len(young.events)
    assert gated_turns.registry.replay_bytes == old.bytes_held + young.bytes_held
    old.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    gated_turns.registry.expire()
    assert gated_turns.registry.find("old", USER) is None
    assert gated_turns.registry.find("young", USER) is young
    assert gated_turns.registry.replay_bytes == young.bytes_held
    assert gated_turns.registry.replay_events == len(young.events)


async def test_an_ended_turn_that_is_kept_keeps_no_task(gated_turns):
    others = asyncio.all_tasks()
    turn = gated_turns.ask("e0")
    (task,) = (weakref.ref(one) for one in asyncio.all_tasks() - others)
    assert task() is not None
    await gated_turns.finish(turn)
    await ticks()
    assert gated_turns.registry.find("e0", USER) is turn
    assert task() is None


async def test_ended_turns_are_kept_within_a_bound_of_bytes(make_gated_turns):
    def asked(gated_turns, number):
        return gated_turns.ask(f"e{number}", session_id=f"s{number}", message="x" * 1000)

    unbounded = make_gated_turns()
    measured = asked(unbounded, 0)
    await unbounded.finish(measured)
    gated_turns = make_gated_turns(RegistryRules(kept_bytes=int(measured.bytes_held * 2.5)))
    turns = [asked(gated_turns, number) for number in range(5)]
    await gated_turns.finish(*turns)
    assert [gated_turns.registry.find(f"e{number}", USER) is not None for number in range(5)] == [False] * 3 + [
        True
    ] * 2
    assert gated_turns.registry.replay_bytes == turns[3].bytes_held + turns[4].bytes_held


async def test_the_conversations_that_came_with_them_count_too(make_gated_turns):
    gated_turns = make_gated_turns(RegistryRules(kept_bytes=1_000_000))
    given = (HistoryItem("user", "x" * 300_000), HistoryItem("assistant", "Yes."))
    turns = [gated_turns.ask(f"e{number}", session_id=f"s{number}", given=given) for number in range(3)]
    await gated_turns.finish(*turns)
    assert [gated_turns.registry.find(f"e{number}", USER) is not None for number in range(3)] == [False, False, True]


async def test_the_newest_answer_of_a_session_is_known_while_nothing_else_can_have_come(gated_turns):
    registry, runner = gated_turns.registry, gated_turns.runner
    assert registry.newest("s1", USER) is None
    first = gated_turns.ask("e1")
    await runner.began("e1")
    assert registry.newest("s1", USER) is None
    await gated_turns.finish(first)
    await ticks()
    assert registry.newest("s1", USER) is first
    assert registry.newest("s1", "another") is None
    second = gated_turns.ask("e2")
    await gated_turns.finish(second)
    await ticks()
    assert registry.newest("s1", USER) is second
    assert (first.follows, second.follows) == (None, "e1")
    runner.alone = False
    assert registry.newest("s1", USER) is None


async def test_what_failed_or_was_only_told_again_is_not_the_newest_answer(gated_turns):
    registry, runner = gated_turns.registry, gated_turns.runner
    turns = [gated_turns.ask(f"e{number}") for number in range(2)]
    await gated_turns.finish(*turns)
    runner.told["again"] = turns[0].events[-1].payload
    await ended(gated_turns.ask("again"))
    await ticks()
    assert registry.newest("s1", USER) is None
    third = gated_turns.ask("e3")
    await gated_turns.finish(third)
    await ticks()
    assert registry.newest("s1", USER) is third
    stopped = gated_turns.ask("e4")
    await runner.began("e4")
    stopped.cancel()
    await ended(stopped)
    await ticks()
    assert registry.newest("s1", USER) is None


async def test_idle_sessions_are_forgotten_and_busy_ones_never(make_gated_turns):
    gated_turns = make_gated_turns(RegistryRules(idle_sessions=2))
    busy = gated_turns.ask("busy", session_id="busy")
    await ticks()
    for number in range(5):
        session = Session(f"s{number}", USER, "Georges", "t", "")
        gated_turns.registry.update(session)
        gated_turns.registry.update(replace(session, next_rank=10))
    # The busy session is the oldest and still known as busy; of the idle ones the newest are known.
    assert gated_turns.ask("again", session_id="busy", if_busy="reject").events[-1].payload.code is Code.SESSION_BUSY
    ranks = {}
    for number in (0, 4):
        turn = gated_turns.ask(f"e{number}", session_id=f"s{number}")
        await gated_turns.finish(turn)
        ranks[number] = turn.events[-1].payload.messages[0].rank
    assert ranks == {0: 0, 4: 10}
    await gated_turns.finish(busy)


async def test_a_drain_waits_for_running_turns_and_refuses_new_ones(gated_turns):
    turn = gated_turns.ask("e0")
    await ticks()
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(gated_turns.registry.drain(30))
        await ticks()
        assert not drain.done()
        assert gated_turns.ask("e1", session_id="s2").events[-1].payload.code is Code.DRAINING
        await gated_turns.finish(turn)
    assert drain.result() == 0
    assert isinstance(turn.events[-1].payload, Final)


async def test_a_drain_cancels_what_is_left_at_its_deadline(gated_turns):
    turns = [gated_turns.ask(f"e{number}", session_id=f"s{number}") for number in range(3)]
    await ticks()
    assert await gated_turns.registry.drain(0.01) == 3
    assert all(isinstance(turn.events[-1].payload, Cancelled) for turn in turns)
    assert await gated_turns.registry.drain(0.01) == 0


async def test_a_drain_ends_though_a_turn_does_not_let_itself_be_stopped(make_gated_turns, caplog):
    gated_turns = make_gated_turns(RegistryRules(cancelled_end_s=0.01))
    gated_turns.runner.stubborn = True
    turn = gated_turns.ask("e0")
    await ticks()
    assert await gated_turns.registry.drain(0.01) == 1
    assert "1 turns did not end" in caplog.text
    await gated_turns.finish(turn)


@pytest.mark.parametrize("if_busy", ["queue", "replace"])
async def test_replace_stops_the_running_turn_and_queue_does_not(gated_turns, if_busy):
    first, second = gated_turns.ask("e0"), gated_turns.ask("e1", if_busy=if_busy)
    await gated_turns.runner.began("e0")
    if if_busy == "queue":
        await gated_turns.finish(first)
    await gated_turns.runner.began("e1")
    assert isinstance(first.events[-1].payload, Final if if_busy == "queue" else Cancelled)
    await gated_turns.finish(second)


async def test_a_stop_after_the_end_or_twice_has_no_effect(gated_turns):
    turn = gated_turns.ask("e0")
    await ticks()
    turn.cancel()
    turn.cancel()
    assert isinstance(await ended(turn), Cancelled)
    turn.cancel()
    turn.unfollow(lambda: None)
    assert len([event for event in turn.events if event.terminal]) == 1
