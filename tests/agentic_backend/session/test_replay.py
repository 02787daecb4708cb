"""What is kept of ended turns for those who come back, and what history tells those who come later."""

import asyncio
import time

import pytest

from agentic_backend.session.models import Session
from agentic_backend.session.registry import RegistryRules
from agentic_backend.session.stream import Ask, Cancelled, Failed, Final, TextDelta, Turn
from agentic_backend.testing import USER, MemoryStorage
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended, ticks

ABANDONED = 1000


async def test_a_thousand_abandoned_turns_end_in_history_and_keep_no_more_than_the_bound(tasks):
    sessions = [Session(f"s{number}", USER, "Echo", "t", SESSION.updated_at) for number in range(ABANDONED)]
    storage = MemoryStorage(*sessions)
    process = EchoProcess(storage, tasks)
    question = "why " * 2500
    turns = []
    for session in sessions:
        ask = Ask(session.id, "Echo", question, f"e-{session.id}", USER, received_at=0.0)
        turns.append(process.registry.submit(ask))
        if len(turns) % 50 == 0:  # all in one tick of the loop would hold it
            assert all([isinstance(await ended(turn), Final) for turn in turns[-50:]])
    await ticks()
    assert sum(turn.bytes_held for turn in turns) > 2 * RegistryRules().kept_bytes
    kept = [turn for turn in turns if process.registry.find(turn.ask.exchange_id, USER) is turn]
    assert sum(turn.bytes_held for turn in kept) == process.registry.replay_bytes <= RegistryRules().kept_bytes
    assert sum(len(turn.events) for turn in kept) == process.registry.replay_events
    assert kept == turns[-len(kept) :]  # the newest
    for session in sessions:
        assert [loads(row)["role"] for row in storage.history(session.id)] == ["user", "assistant", "assistant"]
    first = process.registry.resume("s0", "e-s0", USER)
    assert first is not turns[0]
    assert (await ended(first)).messages == turns[0].events[-1].payload.messages


async def test_a_turn_that_is_kept_is_resumed_itself_and_one_that_is_not_is_told_once_and_not_kept(tasks):
    storage = MemoryStorage(SESSION)
    process = EchoProcess(storage, tasks)
    turn = process.ask("e1")
    await ended(turn)
    await ticks()
    assert process.registry.resume("s1", "e1", USER) is turn
    turn.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    process.registry.expire()
    told = process.registry.resume("s1", "e1", USER)
    final = await ended(told)
    assert (final.messages, final.durable) == (turn.events[-1].payload.messages, "db")
    assert [event.seq for event in told.events] == list(range(1, len(told.events) + 1))
    assert process.registry.find("e1", USER) is None
    assert process.registry.running == 0


@pytest.mark.parametrize(
    ("session_id", "exchange_id", "user_id"),
    [("s1", "other", USER), ("s2", "e1", USER), ("none", "e1", USER), ("s1", "e1", "bob")],
)
async def test_what_is_not_the_users_exchange_of_that_session_is_not_found(tasks, session_id, exchange_id, user_id):
    storage = MemoryStorage(SESSION, Session("s2", USER, "Echo", "t", SESSION.updated_at))
    process = EchoProcess(storage, tasks)
    await ended(process.ask("e1"))
    turn = process.registry.resume(session_id, exchange_id, user_id, "r1")
    failed = await ended(turn)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.refused, turn.events[0].seq, len(turn.events)) == (
        Code.EXCHANGE_NOT_FOUND,
        True,
        0,
        1,
    )


class Odd(MemoryStorage):
    """Storage whose look-up of an exchange fails as nobody foresaw."""

    async def exchange(self, _session_id, _user_id, _exchange_id):
        raise ZeroDivisionError("while telling")


async def test_history_that_cannot_be_read_and_a_failure_that_nobody_foresaw_are_told(tasks, caplog):
    storage = MemoryStorage(SESSION)
    storage.away = True
    process = EchoProcess(storage, tasks)
    assert (await ended(process.registry.resume("s1", "e1", USER))).code is Code.HISTORY_UNAVAILABLE
    process = EchoProcess(Odd(SESSION), tasks)
    assert (await ended(process.registry.resume("s1", "e1", USER))).code is Code.INTERNAL
    await ticks()
    assert "while telling" in caplog.text


async def test_a_cut_off_turn_is_told_as_it_stands_and_heard_from_the_first_once_it_runs_again(tasks):
    storage = MemoryStorage(SESSION)
    await storage.cut_short("e1", "wait")
    process = EchoProcess(storage, tasks)
    told = process.registry.resume("s1", "e1", USER)
    assert isinstance(await ended(told), Cancelled)
    again = process.ask("e1", "wait")
    news = asyncio.Event()
    again.follow(news.set)
    while not any(isinstance(event.payload, TextDelta) for event in again.events):
        await news.wait()
        news.clear()
    followed = process.registry.resume("s1", "e1", USER)
    assert followed is again
    assert followed.after(2) == 0  # a number of the run that was cut off
    again.cancel()
    await ended(again)


def test_the_place_after_a_number():
    turn = Turn(Ask("s", "a", "m", "e", USER, 0.0))
    assert (turn.after(0), turn.after(5)) == (0, 0)
    for text in ("a", "b", "c"):
        turn.publish(TextDelta(1, "final", text))
    assert [turn.after(seq) for seq in range(5)] == [0, 1, 2, 3, 0]
    turn.restarted = True
    assert [turn.after(seq) for seq in range(5)] == [0] * 5
