import asyncio
import time
import weakref
from dataclasses import replace

import pytest

from agentic_backend.session.models import Session
from agentic_backend.session.registry import RegistryRules
from agentic_backend.session.stream import Cancelled, Failed, Final
from backend_kit.wire import Code
from tests.agentic_backend.session.lab import USER, ended, ticks


async def test_turns_of_a_session_run_one_at_a_time_in_the_order_of_asking(lab):
    turns = [lab.ask(f"e{number}") for number in range(4)]
    await ticks()
    assert lab.runner.order == ["e0"]
    assert lab.registry.running == 4
    for turn in turns:
        lab.runner.gate(turn.ask.exchange_id).set()
    finals = [await ended(turn) for turn in turns]
    assert lab.runner.order == ["e0", "e1", "e2", "e3"]
    assert [message.rank for final in finals for message in final.messages] == list(range(8))
    assert lab.registry.running == 0


async def test_a_session_is_handed_over_and_a_newcomer_finds_it_busy(lab):
    first, second = lab.ask("e0"), lab.ask("e1")
    await ticks()
    lab.runner.gate("e0").set()
    await ended(first)
    # e1 has the session since that tick, though its task may not have run yet.
    newcomer = lab.ask("e2", if_busy="reject")
    assert newcomer.events[-1].payload.code is Code.SESSION_BUSY
    await lab.finish(second)
    assert lab.runner.order == ["e0", "e1"]


async def test_two_that_come_in_one_tick_do_not_both_run(lab):
    one, other = lab.ask("e0", if_busy="reject"), lab.ask("e1", if_busy="reject")
    assert (await ended(other)).code is Code.SESSION_BUSY
    await lab.finish(one)
    assert lab.runner.order == ["e0"]


async def test_a_turn_that_is_stopped_in_the_tick_of_its_handover_passes_the_session_on(lab):
    first, second, third = lab.ask("e0"), lab.ask("e1"), lab.ask("e2")
    await ticks()
    lab.runner.gate("e0").set()
    await first.done.wait()
    second.cancel()
    lab.runner.gate("e2").set()
    assert isinstance(await ended(second), Cancelled)
    assert isinstance(await ended(third), Final)
    assert (await ended(third)).messages[0].rank >= 2


async def test_those_who_gave_up_waiting_leave_their_place(lab):
    lab.ask("e0")
    waiting = [lab.ask(f"w{number}") for number in range(8)]
    await ticks()
    assert lab.ask("one too many").events[-1].payload.code is Code.SESSION_BUSY
    for turn in waiting:
        turn.cancel()
        assert isinstance(await ended(turn), Cancelled)
    again = lab.ask("again")
    await ticks()
    assert again.events == []
    again.cancel()
    await lab.finish(lab.registry.find("e0", USER))


async def test_the_same_ask_twice_is_one_turn_and_another_text_a_conflict(lab):
    turn = lab.ask("e0")
    assert lab.ask("e0") is turn
    assert lab.ask("e0", message="else").events[-1].payload.code is Code.CONFLICT
    await lab.finish(turn)
    assert lab.ask("e0") is turn
    assert lab.ask("e0", message="else").events[-1].payload.code is Code.CONFLICT
    assert lab.registry.find("e0", USER) is turn
    assert lab.registry.find("e0", "bob") is None


async def test_another_user_with_the_same_ids_is_another_turn(lab):
    mine, theirs = lab.ask("e0"), lab.ask("e0", user_id="bob")
    assert mine is not theirs
    lab.runner.gate("e0").set()
    assert isinstance(await ended(mine), Final)
    assert isinstance(await ended(theirs), Final)


async def test_a_refused_ask_may_come_again(lab):
    lab.log.room = False
    refused = lab.ask("e0")
    assert (refused.events[-1].seq, refused.events[-1].payload.code) == (0, Code.STORAGE_FULL)
    assert refused.events[-1].payload.retry_after_ms == 5000
    lab.log.room = True
    await lab.finish(lab.ask("e0"))


async def test_a_failure_that_nobody_foresaw_ends_the_turn_and_frees_its_session(lab, caplog):
    lab.runner.failure = ZeroDivisionError("in the runner")
    turn = lab.ask("e0")
    failed = await ended(turn)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.refused) == (Code.INTERNAL, True)
    assert "in the runner" in caplog.text
    lab.runner.failure = None
    await lab.finish(lab.ask("e1"))


async def test_forget_stops_the_running_turn_and_refuses_those_that_wait(lab):
    running, waiting = lab.ask("e0"), lab.ask("e1")
    await ticks()
    await lab.registry.forget("s1", USER)
    assert isinstance(running.events[-1].payload, Cancelled)
    assert (await ended(waiting)).code is Code.SESSION_NOT_FOUND
    await lab.registry.forget("unknown", USER)


async def test_ended_turns_are_kept_for_a_while(lab):
    old, young = lab.ask("old"), lab.ask("young", session_id="s2")
    await lab.finish(old, young)
    assert lab.registry.replay_events == len(old.events) + len(young.events)
    assert lab.registry.replay_bytes == old.bytes_held + young.bytes_held
    old.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    lab.registry.expire()
    assert lab.registry.find("old", USER) is None
    assert lab.registry.find("young", USER) is young
    assert lab.registry.replay_bytes == young.bytes_held


async def test_an_ended_turn_that_is_kept_keeps_no_task(lab):
    others = asyncio.all_tasks()
    turn = lab.ask("e0")
    (task,) = (weakref.ref(one) for one in asyncio.all_tasks() - others)
    assert task() is not None
    await lab.finish(turn)
    await ticks()
    assert lab.registry.find("e0", USER) is turn
    assert task() is None


async def test_ended_turns_are_kept_within_a_bound_of_bytes(make_lab):
    def asked(lab, number):
        return lab.ask(f"e{number}", session_id=f"s{number}", message="x" * 1000)

    unbounded = make_lab()
    measured = asked(unbounded, 0)
    await unbounded.finish(measured)
    lab = make_lab(RegistryRules(kept_bytes=int(measured.bytes_held * 2.5)))
    turns = [asked(lab, number) for number in range(5)]
    await lab.finish(*turns)
    assert [lab.registry.find(f"e{number}", USER) is not None for number in range(5)] == [False] * 3 + [True] * 2
    assert lab.registry.replay_bytes == turns[3].bytes_held + turns[4].bytes_held


async def test_idle_sessions_are_forgotten_and_busy_ones_never(make_lab):
    lab = make_lab(RegistryRules(idle_sessions=2))
    busy = lab.ask("busy", session_id="busy")
    await ticks()
    for number in range(5):
        session = Session(f"s{number}", USER, "Georges", "t", "")
        lab.registry.update(session)
        lab.registry.update(replace(session, next_rank=10))
    # The busy session is the oldest and still known as busy; of the idle ones the newest are known.
    assert lab.ask("again", session_id="busy", if_busy="reject").events[-1].payload.code is Code.SESSION_BUSY
    ranks = {}
    for number in (0, 4):
        turn = lab.ask(f"e{number}", session_id=f"s{number}")
        await lab.finish(turn)
        ranks[number] = turn.events[-1].payload.messages[0].rank
    assert ranks == {0: 0, 4: 10}
    await lab.finish(busy)


async def test_a_drain_waits_for_running_turns_and_refuses_new_ones(lab):
    turn = lab.ask("e0")
    await ticks()
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(lab.registry.drain(30))
        await ticks()
        assert not drain.done()
        assert lab.ask("e1", session_id="s2").events[-1].payload.code is Code.DRAINING
        await lab.finish(turn)
    assert drain.result() == 0
    assert isinstance(turn.events[-1].payload, Final)


async def test_a_drain_cancels_what_is_left_at_its_deadline(lab):
    turns = [lab.ask(f"e{number}", session_id=f"s{number}") for number in range(3)]
    await ticks()
    assert await lab.registry.drain(0.01) == 3
    assert all(isinstance(turn.events[-1].payload, Cancelled) for turn in turns)
    assert await lab.registry.drain(0.01) == 0


async def test_a_drain_ends_though_a_turn_does_not_let_itself_be_stopped(make_lab, caplog):
    lab = make_lab(RegistryRules(cancelled_end_s=0.01))
    lab.runner.stubborn = True
    turn = lab.ask("e0")
    await ticks()
    assert await lab.registry.drain(0.01) == 1
    assert "1 turns did not end" in caplog.text
    await lab.finish(turn)


@pytest.mark.parametrize("if_busy", ["queue", "replace"])
async def test_replace_stops_the_running_turn_and_queue_does_not(lab, if_busy):
    first, second = lab.ask("e0"), lab.ask("e1", if_busy=if_busy)
    await lab.runner.began("e0")
    if if_busy == "queue":
        await lab.finish(first)
    await lab.runner.began("e1")
    assert isinstance(first.events[-1].payload, Final if if_busy == "queue" else Cancelled)
    await lab.finish(second)


async def test_a_stop_after_the_end_or_twice_has_no_effect(lab):
    turn = lab.ask("e0")
    await ticks()
    turn.cancel()
    turn.cancel()
    assert isinstance(await ended(turn), Cancelled)
    turn.cancel()
    turn.unfollow(lambda: None)
    assert len([event for event in turn.events if event.terminal]) == 1
