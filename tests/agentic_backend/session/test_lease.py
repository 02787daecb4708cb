"""Turns where several instances share the sessions: each runs under a lease, which stays with its instance, and its
question is stored before it is accepted."""

import asyncio
from dataclasses import replace

import pytest

from agentic_backend.session.admission import TurnLimits
from agentic_backend.session.stream import Cancelled, Failed, Final, Restarted
from agentic_backend.session.turn import TurnRules
from agentic_backend.testing import MemoryStorage
from backend_kit.wire import Code, loads
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended, ticks
from tests.agentic_backend.session.leased import LeaseView, Others, Table, speaking
from tests.support.patience import PATIENCE_S


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def leases(table):
    return [LeaseView(table, name) for name in "ab"]


@pytest.fixture
def others():
    return [Others() for _ in "ab"]


@pytest.fixture
def instances(table, tasks, leases, others):
    return [
        EchoProcess(table, tasks, leases=leases[place], elsewhere=others[place], rules=TurnRules(30.0, 20))
        for place in range(2)
    ]


async def test_turns_at_either_instance_go_on_from_one_another(table, instances):
    for number in range(6):
        final = await ended(instances[number % 2].ask(f"e{number}", f"question {number}"))
        assert isinstance(final, Final)
    assert [loads(row)["rank"] for row in table.history()] == list(range(18))
    assert table.reads["get"] == 6  # each was the other's meanwhile
    assert table.fences == [1, 2, 3, 4, 5, 6]
    assert table.recorded == [f"e{number}" for number in range(6)]
    assert table.asked is None


async def test_the_turns_of_one_instance_read_the_session_once(table, instances):
    for number in range(4):
        assert isinstance(await ended(instances[0].ask(f"e{number}")), Final)
    assert table.reads["get"] == 1
    assert table.fences == [1, 1, 1, 1]


async def test_while_one_instance_runs_a_turn_the_other_is_busy(table, instances):
    running = await speaking(instances[0].ask("e1", "wait"))
    refused = await ended(instances[1].ask("e2", if_busy="reject"))
    assert (refused.code, refused.refused, refused.retry_after_ms) == (Code.SESSION_BUSY, True, 1000)
    assert (table.holder, table.asked) == ("a", "e1")
    running.cancel()
    assert isinstance(await ended(running), Cancelled)
    assert isinstance(await ended(instances[1].ask("e2", if_busy="reject")), Final)


async def test_an_ask_that_queues_runs_once_the_other_instance_has_ended(table, instances, others):
    running = await speaking(instances[0].ask("e1", "wait"))
    queued = instances[1].ask("e2", if_busy="queue")
    await ticks(20)
    assert not queued.events
    running.cancel()
    await ended(running)
    assert isinstance(await ended(queued), Final)
    assert others[1].stopped == []
    assert table.fences == [1, 2]


async def test_an_ask_that_replaces_stops_the_turn_of_the_other_instance_once(table, instances, others):
    running = await speaking(instances[0].ask("e1", "wait"))
    replacing = instances[1].ask("e2", if_busy="replace")
    async with asyncio.timeout(PATIENCE_S):
        while not others[1].stopped:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    running.cancel()
    assert isinstance(await ended(replacing), Final)
    assert others[1].stopped == ["e1"]
    assert table.fences == [1, 2]


async def test_who_queues_too_long_is_refused(table, tasks, instances, leases, others):
    rules = TurnRules(30.0, 20, lease_wait_s=0.0)
    impatient = EchoProcess(table, tasks, leases=leases[1], elsewhere=others[1], rules=rules)
    running = await speaking(instances[0].ask("e1", "wait"))
    assert (await ended(impatient.ask("e2", if_busy="queue"))).code is Code.SESSION_BUSY
    running.cancel()
    await ended(running)


async def test_the_same_ask_is_told_by_the_instance_that_runs_it(instances, others):
    running = await speaking(instances[0].ask("e1", "wait"))
    again = instances[1].ask("e1", "wait")
    assert isinstance(await ended(again), Cancelled)
    assert others[1].mirrored == [again]
    await ticks()
    assert instances[1].registry.running == 0
    assert instances[1].registry.runs("e1", SESSION.user_id) is None
    running.cancel()
    await ended(running)


@pytest.mark.parametrize("question", ["fail", "fail late"])
async def test_a_turn_that_fails_leaves_no_question(table, instances, question):
    assert isinstance(await ended(instances[0].ask("e1", question)), Failed)
    assert table.recorded == ["e1"]
    assert table.asked is None


async def test_a_question_is_stored_before_anybody_hears_of_it(table, instances):
    table.waits = asyncio.Event()
    turn = instances[0].ask("e1")
    await ticks(20)
    assert not turn.events
    assert table.asks == []
    table.waits.set()
    assert isinstance(await ended(turn), Final)


async def test_a_question_that_waits_for_a_slot_is_stored_and_taken_back_if_it_is_stopped(table, tasks, leases, others):
    limits = TurnLimits(max_turns=1, queue_length=1, queue_deadline_s=600.0)
    process = EchoProcess(table, tasks, leases=leases[0], elsewhere=others[0], limits=limits)
    await process.admission.enter("none")
    turn = process.ask("e1")
    async with asyncio.timeout(PATIENCE_S):
        while not turn.events:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    assert table.asked == "e1"
    turn.cancel()
    assert isinstance(await ended(turn), Cancelled)
    assert table.asked is None
    process.admission.leave("none")


async def test_a_question_under_a_lease_that_another_took_is_asked_of_what_is_there_now(table, instances):
    await ended(instances[0].ask("e1"))
    table.waits = asyncio.Event()
    late = instances[0].ask("e2")
    await ticks(20)
    # Meanwhile the other one has the session, and a turn of it.
    waits, table.waits = table.waits, None
    await ended(instances[1].ask("e3"))
    waits.set()
    assert isinstance(await ended(late), Final)
    assert table.fences == [1, 2, 3]
    assert [loads(row)["exchange_id"] for row in table.history()[::3]] == ["e1", "e3", "e2"]
    assert [loads(row)["rank"] for row in table.history()] == list(range(9))


async def test_an_end_that_comes_too_late_is_the_one_that_the_other_instance_has_stored(table, instances, others):
    running = await speaking(instances[0].ask("e1", "wait"))
    table.fence += 1  # taken over, and given up
    table.give_up(replace(table.asks[0].interrupted(), fence=table.fence))
    others[0].has = False
    stored = table.history()
    running.cancel()
    end = await ended(running)
    assert others[0].mirrored == [running]
    assert [message.json for message in end.messages] == stored == table.history()
    # Whoever follows it knows that what was said before is replaced.
    shown = [event.payload for event in running.events][running.shown_from :]
    assert (shown[0], shown[-1]) == (Restarted(0), end)


async def test_a_run_that_may_have_been_taken_says_nothing_more(table, instances, leases, others):
    running = await speaking(instances[0].ask("e1", "wait"))
    leases[0].valid = False
    said = len(running.events)
    running.cancel()
    assert isinstance(await ended(running), Cancelled)
    assert others[0].mirrored == [running]
    # What follows is what the other instance says.
    assert [type(running.events[place].payload) for place in range(said, len(running.events))] == [Cancelled]
    assert table.history() == []


async def test_a_turn_that_could_not_be_stored_says_so(table, instances):
    table.full = True
    assert (await ended(instances[0].ask("e1"))).code == Code.STORAGE_FULL


async def test_an_ask_that_is_told_again_or_refused_stores_no_question(table, instances):
    await ended(instances[0].ask("e1", "hello"))
    assert isinstance(await ended(instances[1].ask("e1", "hello")), Final)
    assert len(table.asks) == 1
    assert table.recorded == ["e1"]
    del table.sessions[SESSION.id, SESSION.user_id]
    assert (await ended(instances[0].ask("e2"))).code == Code.SESSION_NOT_FOUND
    assert table.recorded == ["e1"]


async def test_without_a_lease_nothing_is_read_or_run(table, instances):
    table.unreachable = True
    assert (await ended(instances[0].ask("e1"))).code == Code.HISTORY_UNAVAILABLE
    assert table.reads == {}
    assert table.asks == []


async def test_alone_no_record_has_a_fence(tasks):
    storage = MemoryStorage(SESSION)
    await ended(EchoProcess(storage, tasks).ask("e1"))
    assert storage.fences == [None]


async def test_a_turn_that_is_taken_over_runs_before_the_ask_that_waits_for_it(table, tasks, leases, others):
    at = [
        EchoProcess(table, tasks, restart="from_question", leases=leases[place], elsewhere=others[place])
        for place in range(2)
    ]
    at[1].begin_again()
    others[0].gate.clear()
    running = await speaking(at[0].ask("e1", "wait"))
    queued = at[1].ask("e2", if_busy="queue")
    later = at[1].ask("e3", if_busy="queue")
    await ticks(20)
    # The first instance dies, and the second one takes what it had open.
    at[0].registry.let_go()
    (cut,) = table.asks
    table.holder, table.fence = "b", table.fence + 1
    leases[1].keep(table.fence)
    message = replace(cut.user_message, json=cut.user_message.json.replace(b'"wait"', b'"go on"'))
    at[1].registry.take_up(replace(cut, user_message=message, rerun=replace(cut.rerun, restarts=1)))
    again = at[1].registry.runs("e1", SESSION.user_id)
    for turn in (again, queued, later):
        assert isinstance(await ended(turn), Final)
    assert [row["exchange_id"] for row in map(loads, table.history()) if row["role"] == "user"] == ["e1", "e2", "e3"]
    others[0].gate.set()
    await ended(running)


async def test_a_turn_that_was_lost_while_it_waited_for_a_slot_does_not_run(table, tasks, leases, others):
    limits = TurnLimits(max_turns=1, queue_length=1, queue_deadline_s=600.0)
    process = EchoProcess(table, tasks, restart="from_question", leases=leases[0], elsewhere=others[0], limits=limits)
    process.begin_again()
    first = await speaking(process.ask("e1", "wait"))
    process.registry.let_go()
    await ended(first)
    (cut,) = table.asks
    await process.admission.enter("none")
    process.registry.take_up(replace(cut, rerun=replace(cut.rerun, restarts=1)))
    turn = process.registry.runs("e1", SESSION.user_id)
    async with asyncio.timeout(PATIENCE_S):
        while leases[0].acquired < 2:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    await ticks(20)
    # It stands still, another takes the turn, and it is back before the slot is free.
    leases[0].term += 1
    leases[0].keep(None)
    table.holder, table.fence = "b", table.fence + 1
    process.registry.let_go()
    process.admission.leave("none")
    assert isinstance(await ended(turn), Cancelled)
    assert others[0].mirrored == [first, turn]
    assert Restarted not in [type(event.payload) for event in turn.events]
    await process.admission.enter("none")  # its slot is free
    process.admission.leave("none")


async def test_a_turn_whose_end_was_refused_can_be_stopped_where_it_goes_on(table, instances, others):
    others[0].gate.clear()
    turn = instances[0].ask("e1")
    async with asyncio.timeout(PATIENCE_S):
        while not table.recorded:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
        table.fence += 1  # taken over
        while not others[0].mirrored:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
        assert await instances[0].registry.stop("e1", SESSION.user_id)
        while len(others[0].mirrored) < 2:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    assert turn.cancel_requested  # the mirror stops it there
    others[0].gate.set()
    assert isinstance(await ended(turn), Cancelled)
