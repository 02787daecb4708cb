"""An ask under an id whose exchange has ended: told again from storage, run again in place, or a conflict."""

import asyncio
import time
from collections.abc import Callable

import pytest

from agentic_backend.chat import relay
from agentic_backend.session.past_exchanges import SessionMemory, StoredExchange
from agentic_backend.session.registry import RegistryRules
from agentic_backend.session.stream import Accepted, Cancelled, Cited, Failed, Final, TextDelta, Whole
from agentic_backend.testing import USER, MemoryStorage
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended
from tests.support.patience import PATIENCE_S

Start = Callable[..., EchoProcess]


@pytest.fixture
def storage():
    return MemoryStorage(SESSION)


@pytest.fixture
def start(storage, tasks) -> Start:
    return lambda **parts: EchoProcess(storage, tasks, **parts)


def kinds(turn):
    return [type(event.payload) for event in turn.events]


def streamed(turn):
    return "".join(event.payload.text for event in turn.events if isinstance(event.payload, TextDelta))


def questions(storage):
    return [record.user_message.exchange_id for record in storage.asks]


@pytest.mark.parametrize("question", ["hello", "cite"])
async def test_after_a_restart_the_same_ask_is_told_from_storage_without_the_agent(storage, start, question):
    first = start().ask("e1", question)
    original = await ended(first)
    stored = storage.history()
    after = start()
    again = after.ask("e1", question)
    final = await ended(again)
    cited = [Cited] if question == "cite" else []
    assert sorted(kinds(again), key=str) == sorted(kinds(first), key=str)
    assert kinds(again) == [Accepted, Whole, Whole, *cited, TextDelta, Final]
    assert streamed(again) == streamed(first) == question.upper()
    assert [event.seq for event in again.events] == list(range(1, len(again.events) + 1))
    assert [message.json for message in final.messages] == [message.json for message in original.messages] == stored
    assert final.session == original.session
    assert (final.durable, final.warnings) == ("db", original.warnings)
    rows = loads(final.ledger)
    assert rows == loads(stored[-1])["metadata"]["extras"]["ledger"]
    assert loads(original.ledger)[: len(rows)] == rows
    assert questions(storage) == ["e1"]
    assert storage.history() == stored
    # What was told again is kept as any ended turn is.
    assert after.ask("e1", question) is again


async def test_what_the_registry_has_dropped_is_told_from_storage(storage, start):
    process = start()
    turn = process.ask("e1")
    original = await ended(turn)
    await ended(process.ask("e2"))
    turn.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    process.registry.expire()
    assert process.registry.find("e1", USER) is None
    again = await ended(process.ask("e1"))
    assert [message.json for message in again.messages] == [message.json for message in original.messages]
    assert again.session.next_rank == 6  # the session as it is now
    assert questions(storage) == ["e1", "e2"]


async def forgotten(process, *turns):
    """Let the registry drop turns as it does 120 s after their end."""
    for turn in turns:
        await ended(turn)
        turn.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    process.registry.expire()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kept", [70, 3])
async def test_an_exchange_that_many_have_followed_is_told_again_and_never_runs_twice(storage, start, restarted, kept):
    memory = SessionMemory(exchanges=kept)
    process = start(memory=memory)
    process.registry.update(SESSION)
    first = process.ask("e0")
    original = await ended(first)
    await forgotten(process, first, *(process.ask(f"e{number}", if_busy="queue") for number in range(1, 6)))
    for number in range(6, 71):
        await forgotten(process, process.ask(f"e{number}"))
    process = start(memory=memory) if restarted else process
    stored = storage.history()
    assert (await ended(process.ask("e0", "else"))).code is Code.CONFLICT
    again = process.ask("e0")
    told = await ended(again)
    assert again.restarted
    assert [message.json for message in told.messages] == [message.json for message in original.messages]
    assert storage.history() == stored
    assert questions(storage) == [f"e{number}" for number in range(71)]


@pytest.mark.parametrize(("question", "partial"), [("fail", False), ("fail late", True)])
async def test_a_failure_is_told_again_as_the_same_failure(storage, start, question, partial):
    first = start().ask("e1", question)
    original = await ended(first)
    told = start().ask("e1", question)
    again = await ended(told)
    assert isinstance(again, Failed)
    assert (again.code, again.refused, again.partial) == (Code.LLM_TIMEOUT, False, partial)
    assert (again.code, again.partial) == (original.code, original.partial)
    assert streamed(told) == streamed(first) == ("FAIL LATE" if partial else "")
    assert [message.json for message in again.messages] == [message.json for message in original.messages]
    assert questions(storage) == ["e1"]


async def test_a_failure_whose_code_is_not_known_any_more_is_internal(storage, start):
    await ended(start().ask("e1", "fail"))
    rows = storage.rows[SESSION.id, USER]
    rows[1] = rows[1].replace(b"llm_timeout", b"gone_by_now")
    assert (await ended(start().ask("e1", "fail"))).code is Code.INTERNAL


async def test_a_stop_is_told_again_as_a_stop_and_does_not_run_again(storage, start):
    turn = start().ask("e1", "wait")
    while not any(isinstance(event.payload, TextDelta) for event in turn.events):
        await follow(turn)
    turn.cancel()
    original = await ended(turn)
    again = await ended(start().ask("e1", "wait"))
    assert isinstance(again, Cancelled)
    assert [message.json for message in again.messages] == [message.json for message in original.messages]
    assert questions(storage) == ["e1"]


async def test_another_text_or_another_agent_under_a_known_id_is_a_conflict(storage, start):
    await ended(start().ask("e1"))
    stored = storage.history()
    process = start()
    for other in ({"message": "else"}, {"agent_id": "Other"}):
        refused = await ended(process.ask("e1", **other))
        assert (refused.code, refused.refused) == (Code.CONFLICT, True)
    # Nothing of the refusals is kept: the right ask finds its answer.
    assert isinstance(await ended(process.ask("e1")), Final)
    assert storage.history() == stored
    assert questions(storage) == ["e1"]


async def test_a_turn_that_a_restart_cut_off_runs_again_in_its_place(storage, start):
    await ended(start().ask("e1"))
    await storage.cut_short("e2", "again?")
    asked = storage.history()[3]
    process = start()
    assert (await ended(process.ask("e2", "else"))).code is Code.CONFLICT
    final = await ended(process.ask("e2", "again?"))
    assert isinstance(final, Final)
    assert [message.rank for message in final.messages] == [3, 4, 5]
    assert storage.history()[3] == asked == storage.asks[-1].user_message.json
    rows = [loads(row) for row in storage.history()]
    assert [row["rank"] for row in rows] == list(range(6))
    assert [row["exchange_id"] for row in rows] == ["e1"] * 3 + ["e2"] * 3
    assert [row["channel"] for row in rows[3:]] == ["final", "thought", "final"]
    assert rows[5]["parts"] == [{"type": "text", "text": "AGAIN?"}]
    assert final.session.next_rank == 6
    # The next turn goes on behind it, and the exchange is known once.
    assert [message.rank for message in (await ended(process.ask("e3"))).messages] == [6, 7, 8]
    assert questions(storage) == ["e1", "e2", "e3"]
    assert [message.rank for message in (await ended(start().ask("e2", "again?"))).messages] == [3, 4, 5]
    assert questions(storage) == ["e1", "e2", "e3"]


async def test_which_agent_was_asked_does_not_stop_a_cut_off_turn_from_running_again(storage, start):
    await storage.cut_short("e1", "hello")
    assert isinstance(await ended(start().ask("e1", agent_id="Other")), Final)


async def test_a_cut_off_turn_that_others_followed_does_not_run_again(storage, start):
    await storage.cut_short("e1", "hello")
    process = start()
    assert [message.rank for message in (await ended(process.ask("e2"))).messages] == [2, 3, 4]
    stored = storage.history()
    assert (await ended(process.ask("e1"))).code is Code.CONFLICT
    assert storage.history() == stored
    assert questions(storage) == ["e2"]


async def test_a_question_without_any_answer_in_history_is_told_as_stopped(storage, start):
    await ended(start().ask("e1"))
    del storage.rows[SESSION.id, USER][2]
    told = await ended(start().ask("e1"))
    assert isinstance(told, Cancelled)
    assert [message.rank for message in told.messages] == [0, 1]


async def test_a_session_is_read_once_and_a_new_one_not_at_all(storage, start):
    process = start()
    process.registry.update(SESSION)
    for number in range(3):
        await ended(process.ask(f"e{number}"))
    assert storage.reads == {}
    process = start()
    for number in range(3, 6):
        await ended(process.ask(f"e{number}"))
    assert storage.reads == {"get": 1, "exchange_ids": 1}
    await ended(start().ask("e0"))
    assert storage.reads == {"get": 2, "exchange_ids": 2, "exchange": 1}


async def test_a_session_without_a_turn_has_no_exchanges_to_read(storage, start):
    await ended(start().ask("e1"))
    assert storage.reads == {"get": 1}


async def test_a_session_that_changed_before_its_first_turn_here_is_read_by_that_turn(storage, start):
    await ended(start().ask("e1"))
    process = start()
    process.registry.update(storage.sessions[SESSION.id, USER])
    assert isinstance(await ended(process.ask("e1")), Final)
    assert questions(storage) == ["e1"]


async def test_with_storage_away_nothing_is_run_and_the_same_ask_may_come_again(storage, start):
    await ended(start().ask("e1"))
    process = start()
    storage.away = True
    refused = await ended(process.ask("e1"))
    assert (refused.code, refused.refused) == (Code.HISTORY_UNAVAILABLE, True)
    storage.away = False
    assert isinstance(await ended(process.ask("e1")), Final)
    assert questions(storage) == ["e1"]


async def test_an_exchange_that_is_gone_from_storage_runs_as_new(storage, start):
    process = start()
    turns = [process.ask("e1"), process.ask("e2", if_busy="queue")]
    for turn in turns:
        await ended(turn)
        turn.ended_at = time.monotonic() - RegistryRules().kept_s - 1
    process.registry.expire()
    for rank in range(3):
        del storage.rows[SESSION.id, USER][rank]
    assert [message.rank for message in (await ended(process.ask("e1"))).messages] == [6, 7, 8]
    assert questions(storage) == ["e1", "e2", "e1"]


async def test_what_storage_did_not_take_is_not_called_final(storage, start, caplog):
    storage.full = True
    process = start()
    turn = process.ask("e1")
    failed = await ended(turn)
    assert isinstance(failed, Failed)
    assert (failed.code, failed.refused, failed.partial, failed.messages) == (Code.STORAGE_FULL, False, True, ())
    assert "turn not stored exchange_id=e1" in caplog.text
    (frame,) = relay.compatible(turn, turn.events[-1])
    assert (loads(frame)["type"], loads(frame)["code"]) == ("error", "storage_full")
    # It is still on its way, so its ranks are taken.
    storage.full = False
    assert [message.rank for message in (await ended(process.ask("e2"))).messages] == [3, 4, 5]


def test_exchanges_are_known_each_once_and_within_a_bound():
    memory = SessionMemory(exchanges=1024)
    known = memory.read(SESSION, [f"x{number}" for number in range(1023)])
    assert known.may_have("x0")
    assert not known.may_have("new")
    assert known.after(SESSION, "x0").hashes == known.hashes
    full = known.after(SESSION, "new")
    assert full.may_have("new")
    assert full.may_have("x0")
    assert not full.may_have("newer")
    assert not known.may_have("new")
    # From here on nothing is certain without storage, whatever comes.
    for more in (full.after(SESSION, "newer"), memory.read(SESSION, map(str, range(1025)))):
        assert more.may_have("never seen")
        assert more.after(SESSION, "another").may_have("never seen")


async def test_a_session_of_more_exchanges_than_are_kept_looks_each_id_up(storage, start):
    process = start(memory=SessionMemory(exchanges=2))
    process.registry.update(SESSION)
    for number in range(3):
        await ended(process.ask(f"e{number}"))
    assert storage.reads == {}
    await ended(process.ask("e3"))
    assert storage.reads == {"exchange": 1}
    # It could not be told from one that has been, so it is not run.
    storage.away = True
    refused = await ended(process.ask("e4"))
    assert (refused.code, refused.refused) == (Code.HISTORY_UNAVAILABLE, True)
    assert questions(storage) == [f"e{number}" for number in range(4)]


async def test_a_stored_exchange_keeps_the_bytes_of_its_messages(storage, start):
    await ended(start().ask("e1", "cite"))
    stored = StoredExchange.decode(storage.history())
    assert [message.json for message in stored.messages] == storage.history()
    assert not stored.cut_off


async def follow(turn):
    """Wait for the turn's next event."""
    woken = asyncio.Event()
    turn.follow(woken.set)
    async with asyncio.timeout(PATIENCE_S):
        await woken.wait()
    turn.unfollow(woken.set)
