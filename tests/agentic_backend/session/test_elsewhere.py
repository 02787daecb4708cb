"""Turns that other instances run, as the registry of one has them: followed as its own, stopped there, let go of."""

import asyncio
from dataclasses import replace

import pytest

from agentic_backend.session.admission import TurnLimits
from agentic_backend.session.models import AskRecord, Rerun
from agentic_backend.session.stream import (
    RUN_SEQS,
    Awaiting,
    Cancelled,
    Final,
    HumanAnswer,
    Restarted,
    TextDelta,
    TurnEvent,
)
from agentic_backend.testing import USER, MemoryStorage
from backend_kit.wire import Code
from tests.agentic_backend.session.echo_process import SESSION, EchoProcess
from tests.agentic_backend.session.gated_turns import ended, ticks
from tests.agentic_backend.session.hosted import Hosted
from tests.agentic_backend.session.leased import LeaseView, Others, Table, speaking
from tests.support.patience import PATIENCE_S


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def leases(table):
    return LeaseView(table, "a")


@pytest.fixture
def process(table, tasks, leases, others):
    made = EchoProcess(table, tasks, restart="from_question", leases=leases, elsewhere=others)
    made.begin_again()
    return made


def payloads(turn):
    return [event.payload for event in turn.events]


async def mirroring(others, count=1):
    """Wait until so many turns were looked for at the others."""
    async with asyncio.timeout(PATIENCE_S):
        while len(others.mirrored) < count:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)


async def test_a_run_that_is_let_go_ends_without_an_end_and_goes_on_as_another_instance_tells_it(
    process, table, others
):
    turn = await speaking(process.ask("e1", "wait"))
    seen = len(turn.events)
    others.gate.clear()
    process.registry.let_go()
    await mirroring(others)
    assert others.mirrored == [turn]
    assert (turn.ended, len(turn.events), process.registry.running) == (False, seen, 0)
    assert table.asked == "e1"  # who goes on with it needs the question
    assert table.history() == []
    # It is the same turn to whoever follows it, or comes now.
    assert process.registry.find("e1", USER) is turn
    assert process.registry.runs("e1", USER) is None
    assert process.registry.resume(SESSION.id, "e1", USER, "", 1) is turn
    turn.begin_again(1)
    assert turn.events[-1].seq == RUN_SEQS + 1
    others.gate.set()
    assert isinstance(await ended(turn), Cancelled)
    assert [type(one) for one in payloads(turn)[seen:]] == [Restarted, Cancelled]
    await ticks()
    assert process.registry.find("e1", USER) is None


async def test_what_does_not_end_in_time_goes_on_at_another_instance(process, table, others):
    others.takers = True
    turn = await speaking(process.ask("e1", "wait"))
    others.gate.clear()
    assert await process.registry.drain(0.01) == 0
    assert others.handed == ["e1"]
    assert others.mirrored == [turn]  # to clients who cannot go there themselves
    assert (turn.ended, table.asked, table.history()) == (False, "e1", [])
    others.gate.set()
    await ended(turn)


async def handing_over(others):
    """Wait until a turn is being handed over."""
    async with asyncio.timeout(PATIENCE_S):
        while not others.handing:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)


async def test_a_stop_of_what_is_being_handed_over_goes_where_it_goes_on(process, others):
    others.takers = True
    others.takes.clear()
    turn = await speaking(process.ask("e1", "wait"))
    draining = asyncio.create_task(process.registry.drain(0.01))
    await handing_over(others)
    turn.cancel()
    await ticks()
    others.takes.set()
    assert isinstance(await ended(turn), Cancelled)
    assert (others.handed, others.mirrored, turn.cancel_requested) == (["e1"], [turn], True)
    assert await draining == 0


async def test_the_end_of_the_process_in_a_hand_over_says_that_it_drains(process, others, tasks):
    others.takers = True
    others.takes.clear()
    turn = await speaking(process.ask("e1", "wait"))
    draining = asyncio.create_task(process.registry.drain(0.01))
    await handing_over(others)
    async with asyncio.timeout(PATIENCE_S):
        await tasks.aclose()
    assert (await ended(turn)).code is Code.DRAINING
    await draining


class Slow(Hosted):
    """Its agent takes its time to be stopped."""

    def __init__(self):
        super().__init__()
        self.stopping = asyncio.Event()

    async def run(self, run):
        try:
            return await super().run(run)
        finally:
            self.stopping.set()
            await asyncio.shield(self.gate.wait())


async def test_what_its_user_has_stopped_does_not_move(table, tasks, leases, others):
    agent = Slow()
    others.takers = True
    process = EchoProcess(table, tasks, agent, leases=leases, elsewhere=others)
    turn = process.ask("e1")
    await agent.began()
    turn.cancel()
    await agent.stopping.wait()
    draining = asyncio.create_task(process.registry.drain(0.01))
    await asyncio.sleep(0.05)
    agent.gate.set()
    assert isinstance(await ended(turn), Cancelled)
    await draining
    assert (others.handing, table.asked) == ([], None)


async def test_all_who_follow_turns_of_other_instances_are_to_leave_with_the_process(process, others):
    others.gate.clear()
    registry = process.registry
    # The second one comes from there, and is ahead of what is told here.
    turns = [registry.resume(SESSION.id, "e1", USER), registry.resume(SESSION.id, "e1", USER, "", 5)]
    await mirroring(others, 2)
    assert await registry.drain(0.01) == 0
    turns.append(registry.resume(SESSION.id, "e2", USER))
    assert [(turn.let_go, turn.ended) for turn in turns] == [(True, False)] * 3
    others.gate.set()
    for turn in turns:
        await ended(turn)


@pytest.mark.parametrize("takers", [True, False])
async def test_what_waits_when_the_process_ends_is_to_be_asked_elsewhere(process, others, takers):
    others.takers = takers
    running = await speaking(process.ask("e1", "wait"))
    waiting = process.ask("e2", if_busy="queue")
    await ticks()
    draining = asyncio.create_task(process.registry.drain(PATIENCE_S if takers else 0.01))
    refused = await ended(waiting)
    assert (refused.code, refused.retry_after_ms, running.has_published) == (Code.DRAINING, 2000, True)
    running.cancel()
    assert isinstance(await ended(running), Cancelled)
    await draining
    assert others.handed == []


async def test_what_waits_for_a_turn_of_another_instance_when_the_process_ends_is_to_be_asked_again(process, table):
    table.holder, table.asked = "b", "e0"
    turn = process.ask("e1", if_busy="queue")
    await ticks()
    await process.registry.drain(0.01)
    refused = await ended(turn)
    assert (refused.code, refused.refused, refused.retry_after_ms) == (Code.DRAINING, True, 2000)


@pytest.mark.parametrize("stopped", [True, False])
async def test_what_waits_for_a_slot_when_the_process_ends_is_to_be_asked_again(table, tasks, leases, others, stopped):
    limits = TurnLimits(max_turns=1, queue_length=1, queue_deadline_s=600.0)
    process = EchoProcess(table, tasks, restart="from_question", leases=leases, elsewhere=others, limits=limits)
    others.takers = True
    await process.admission.enter("none")
    turn = process.ask("e1")
    async with asyncio.timeout(PATIENCE_S):
        while not turn.events:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    if stopped:
        turn.cancel()
    await process.registry.drain(0.01)
    end = await ended(turn)
    if stopped:
        assert isinstance(end, Cancelled)
    else:
        assert (end.code, end.refused) == (Code.DRAINING, False)
    assert (others.handing, table.asked, process.admission.waiting) == ([], None, 0)
    process.admission.leave("none")


async def test_a_stop_in_the_moment_of_the_refusal_is_a_stop(process, others, tasks):
    others.takers = True
    running = await speaking(process.ask("e1", "wait"))
    waiting = process.ask("e2", if_busy="queue")
    await ticks()
    waiting.cancel()
    await process.registry.drain(0.01)
    assert isinstance(await ended(waiting), Cancelled)
    await ended(running)
    assert not tasks.failures


@pytest.mark.parametrize("case", ["nobody takes it", "it must not run twice"])
async def test_what_cannot_move_is_stopped(table, tasks, leases, others, case):
    others.takers = case == "it must not run twice"
    restart = "from_question" if case == "nobody takes it" else "never"
    process = EchoProcess(table, tasks, restart=restart, leases=leases, elsewhere=others)
    turn = await speaking(process.ask("e1", "wait"))
    assert await process.registry.drain(0.01) == 1
    assert isinstance(await ended(turn), Cancelled)
    assert (others.handed, table.asked) == ([], None)


async def test_an_agent_with_steps_moves_behind_the_one_that_it_is_in(table, tasks, leases, others):
    agent = Hosted("from_checkpoint")
    others.takers = True
    process = EchoProcess(table, tasks, agent, leases=leases, elsewhere=others)
    turn = process.ask("e1")
    await agent.began()
    (run,) = agent.runs
    assert not run.moves()
    draining = asyncio.create_task(process.registry.drain(PATIENCE_S))
    await ticks()
    assert run.moves()
    agent.gate.set()
    assert await draining == 0
    assert others.handed == ["e1"]
    await ended(turn)


async def test_what_is_taken_from_the_dead_as_the_drain_begins_moves_as_well(table, tasks, leases, others):
    agent = Hosted("from_checkpoint")
    others.takers = True
    others.gate.clear()
    process = EchoProcess(table, tasks, agent, leases=leases, elsewhere=others)
    process.begin_again()
    turns = [process.ask("e1")]
    await agent.began()
    process.registry.let_go()
    await mirroring(others)
    turns.append(process.ask("e2"))
    draining = asyncio.create_task(process.registry.drain(PATIENCE_S))
    await ticks()
    cut = table.asks[0]
    assert cut.rerun is not None
    process.registry.take_up(replace(cut, rerun=replace(cut.rerun, restarts=1)))  # its statement was on its way
    turns.append(process.registry.runs("e1", USER))
    agent.gate.set()
    assert await draining == 0
    assert others.handed == ["e2", "e1"]
    others.gate.set()
    for turn in turns:
        await ended(turn)


async def test_a_run_that_is_let_go_may_be_taken_up_here_again(process, table, others):
    first = await speaking(process.ask("e1", "wait"))
    others.gate.clear()
    process.registry.let_go()
    await mirroring(others)
    cut = table.asks[0]
    assert cut.rerun is not None
    process.registry.take_up(replace(cut, rerun=replace(cut.rerun, restarts=1)))
    again = process.registry.runs("e1", USER)
    assert again is not None
    assert again is not first
    await speaking(again)
    assert type(payloads(again)[0]) is Restarted
    # A second message of the same is no second run.
    process.registry.take_up(cut)
    assert process.registry.runs("e1", USER) is again
    again.cancel()
    await ended(again)
    others.gate.set()
    await ended(first)
    assert table.fences == [1]


async def test_who_waits_for_a_slot_when_it_is_let_go_leaves_its_question(table, tasks, leases, others):
    limits = TurnLimits(max_turns=1, queue_length=1, queue_deadline_s=600.0)
    process = EchoProcess(table, tasks, leases=leases, elsewhere=others, limits=limits)
    await process.admission.enter("none")
    turn = process.ask("e1")
    async with asyncio.timeout(PATIENCE_S):
        while not turn.events:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    process.registry.let_go()
    assert isinstance(await ended(turn), Cancelled)
    assert others.mirrored == [turn]
    assert table.asked == "e1"
    assert process.admission.waiting == 0
    process.admission.leave("none")


async def test_what_has_not_begun_is_not_let_go(process, table, others):
    running = await speaking(process.ask("e1", "wait"))
    waiting = process.ask("e2", if_busy="queue")
    await ticks()
    process.registry.let_go()
    assert isinstance(await ended(running), Cancelled)
    table.asked = None  # it has ended there
    assert isinstance(await ended(waiting), Final)
    assert others.mirrored == [running]


async def test_a_turn_that_is_being_recorded_is_not_let_go(process, table, others):
    gate, append = asyncio.Event(), table.append

    async def late(record):
        await gate.wait()
        return await append(record)

    table.append = late
    turn = process.ask("e1")
    async with asyncio.timeout(PATIENCE_S):
        while not (table.asks and len(turn.events) > 3):  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0)
    await ticks(10)
    process.registry.let_go()
    gate.set()
    assert isinstance(await ended(turn), Final)
    assert others.mirrored == []


@pytest.mark.parametrize("begun", [True, False])
async def test_a_mirror_that_is_stopped_is_looked_for_and_stopped_there(process, others, begun):
    others.gate.clear()
    turn = process.registry.resume(SESSION.id, "e1", USER)
    if begun:
        await mirroring(others)
    assert await process.registry.stop("e1", USER)
    await mirroring(others, 1 + begun)
    assert turn.cancel_requested  # `Elsewhere.mirror` stops such a turn where it finds it
    assert not turn.ended  # its end comes from there
    others.gate.set()
    assert isinstance(await ended(turn), Cancelled)


@pytest.mark.parametrize("stopped", ["before it begins", "while it is followed", "never"])
async def test_the_end_of_the_process_ends_a_mirror_whether_it_was_stopped_or_not(process, others, tasks, stopped):
    others.gate.clear()
    turn = process.registry.resume(SESSION.id, "e1", USER)
    if stopped == "before it begins":
        turn.cancel()
    await mirroring(others)
    if stopped == "while it is followed":
        turn.cancel()
        await ticks()
    async with asyncio.timeout(PATIENCE_S):
        await tasks.aclose()
    assert (await ended(turn)).code is Code.DRAINING


async def test_the_end_of_the_process_changes_nothing_in_what_has_ended_elsewhere(process, others, tasks):
    others.hangs_up.clear()
    turn = process.registry.resume(SESSION.id, "e1", USER)
    await ended(turn)
    async with asyncio.timeout(PATIENCE_S):
        await tasks.aclose()
    assert isinstance(await ended(turn), Cancelled)
    assert not tasks.failures


class Unread(MemoryStorage):
    """Its history is read while `gate` is set."""

    def __init__(self):
        super().__init__(SESSION)
        self.gate = asyncio.Event()
        self.gate.set()

    async def exchange(self, session_id, user_id, exchange_id):
        await self.gate.wait()
        return await super().exchange(session_id, user_id, exchange_id)


@pytest.mark.parametrize("case", ["stopped", "stopped, and the process ends", "the process ends"])
@pytest.mark.parametrize("alone", [True, False])
async def test_what_is_being_read_from_history_is_told_or_to_be_asked_for_again(tasks, case, alone):
    storage, elsewhere = Unread(), None if alone else Others(has=False)
    await ended(EchoProcess(storage, tasks, elsewhere=elsewhere).ask("e1"))
    storage.gate.clear()
    process = EchoProcess(storage, tasks, elsewhere=elsewhere)
    turn = process.registry.resume(SESSION.id, "e1", USER)
    await ticks()
    if case.startswith("stopped"):
        turn.cancel()
        await ticks()
    if case.endswith("the process ends"):
        async with asyncio.timeout(PATIENCE_S):
            await tasks.aclose()
        assert (await ended(turn)).code is Code.DRAINING
    else:
        storage.gate.set()
        assert isinstance(await ended(turn), Final)
    assert not tasks.failures


@pytest.mark.parametrize("runs", [True, False])
async def test_a_stop_of_what_is_not_here_is_answered_by_the_others(process, others, runs):
    others.has = runs
    assert await process.registry.stop("e1", USER) is runs
    assert others.stopped == ["e1"]


async def test_a_stop_of_what_has_ended_stops_nothing(process, others):
    await ended(process.ask("e1"))
    others.has = False
    assert not await process.registry.stop("e1", USER)


async def test_one_mirror_serves_all_whom_it_can_tell_what_they_have_not(process, others):
    others.gate.clear()
    registry = process.registry
    late = registry.resume(SESSION.id, "e1", USER, "", 5)
    assert late.begins_after == 5
    assert registry.resume(SESSION.id, "e1", USER, "", 5) is late
    early = registry.resume(SESSION.id, "e1", USER, "", 2)
    assert early is not late
    assert early.begins_after == 2
    early.take(TurnEvent(3, TextDelta(1, "final", "a")))
    early.take(TurnEvent(4, TextDelta(1, "final", "b")))
    assert registry.resume(SESSION.id, "e1", USER, "", 4) is early
    # Whoever has more than the mirror, since they come from the instance itself, would hear that again.
    ahead = registry.resume(SESSION.id, "e1", USER, "", 5)
    assert (ahead is early, ahead.begins_after, ahead.after(5)) == (False, 5, 0)
    whole = registry.resume(SESSION.id, "e1", USER)
    assert (whole.begins_after, registry.find("e1", USER)) == (0, whole)
    await mirroring(others, 4)
    others.gate.set()
    for turn in (late, early, ahead, whole):
        assert isinstance(await ended(turn), Cancelled)
    await ticks()
    assert registry.find("e1", USER) is None


async def test_a_mirror_of_another_session_is_not_shown(process, others):
    others.gate.clear()
    turn = process.registry.resume(SESSION.id, "e1", USER)
    assert process.registry.resume("another", "e1", USER) is not turn
    await mirroring(others, 2)
    others.gate.set()
    await ended(turn)


async def test_what_nobody_runs_is_told_from_history(process, others):
    final = await ended(process.ask("e1"))
    await ticks()
    process.registry.runs("e1", USER).ended_at = float("-inf")
    process.registry.expire()
    others.has = False
    told = process.registry.resume(SESSION.id, "e1", USER)
    assert (await ended(told)).messages == final.messages
    assert others.mirrored == [told]
    assert (await ended(process.registry.resume(SESSION.id, "e0", USER))).code is Code.EXCHANGE_NOT_FOUND


async def test_without_postgres_who_comes_back_is_told_so(process, others):
    others.away = True
    refused = await ended(process.registry.resume(SESSION.id, "e1", USER))
    assert (refused.code, refused.refused) == (Code.HISTORY_UNAVAILABLE, True)


async def test_while_its_end_waits_for_postgres_who_comes_back_is_told_so(process, others):
    others.waits = True
    refused = await ended(process.registry.resume(SESSION.id, "e1", USER))
    assert (refused.code, refused.refused) == (Code.STORAGE_FULL, True)


async def test_a_mirror_that_nobody_follows_ends(process, others):
    others.ends = False
    turn = process.registry.resume(SESSION.id, "e1", USER)
    assert (await ended(turn)).code is Code.EXCHANGE_NOT_FOUND
    await ticks()
    assert process.registry.find("e1", USER) is None


async def test_a_delete_is_told_to_the_others_first(process, others):
    await ended(process.ask("e1"))
    await process.registry.forget(SESSION.id, USER)
    assert others.forgot == [SESSION.id]
    assert process.registry.find("e1", USER) is None
    # What another one deletes is told to nobody.
    await ended(process.ask("e2"))
    await process.registry.forget_here(SESSION.id, USER)
    assert others.forgot == [SESSION.id]
    assert process.registry.find("e2", USER) is None


async def test_changes_are_told_to_the_others_and_those_of_the_others_taken_over(process, table, others):
    await ended(process.ask("e1"))
    await process.registry.rename(SESSION.id, USER, "Mine")
    await process.registry.prefer(SESSION.id, USER, {"model": "m"})
    await ticks()
    assert others.told == [SESSION.id] * 2
    turn = await speaking(process.ask("e2", "wait"))
    process.registry.reread(replace(SESSION, title="Theirs", preferences={"model": "n"}))
    await ticks()
    assert others.told == [SESSION.id] * 2
    turn.cancel()
    session = (await ended(turn)).session
    assert (session.title, session.preferences) == ("Theirs", {"model": "n"})


async def test_a_turn_is_located_wherever_it_runs(process, others):
    registry = process.registry
    assert await registry.locate("e1", USER) is None
    running = await speaking(process.ask("e1", "wait"))
    assert await registry.locate("e1", USER) is running
    asked = AskRecord(SESSION, running.events[1].payload.message, None, Rerun("Other"))
    others.runs = asked
    others.gate.clear()
    elsewhere = await registry.locate(running.ask.exchange_id + "x", USER)
    assert elsewhere is not None
    assert (elsewhere.ask.agent_id, elsewhere.ask.message) == ("Other", "wait")
    others.gate.set()
    running.cancel()
    await ended(running)


async def waiting_at_a(table, tasks):
    """Two instances, and an exchange that waits for a person at the first. Both have the session in memory."""
    agents = Hosted()
    made = [
        EchoProcess(table, tasks, agents=agents, leases=LeaseView(table, name), elsewhere=Others(has=False))
        for name in "ab"
    ]
    agents.gate.set()
    for number, instance in enumerate(made):
        assert isinstance(await ended(instance.ask(f"e{number}")), Final)
    agents.asks = True
    asked = made[0].ask("ask")
    assert isinstance(await ended(asked), Awaiting)
    agents.asks = False
    return made, asked


async def test_a_person_may_answer_at_an_instance_that_remembers_an_older_session(table, tasks):
    (_, other), _ = await waiting_at_a(table, tasks)
    final = await ended(other.ask("ask", "", human=HumanAnswer({"choice_id": "yes"})))
    assert isinstance(final, Final)


async def test_a_question_that_was_answered_elsewhere_is_not_asked_again(table, tasks):
    (one, other), asked = await waiting_at_a(table, tasks)
    final = await ended(other.ask("ask", "", human=HumanAnswer({"choice_id": "yes"})))
    for turn in (one.registry.resume(SESSION.id, "ask", USER, "", asked.events[-1].seq), one.ask("ask")):
        assert (await ended(turn)).messages == final.messages


async def test_an_answer_that_comes_second_is_not_told_what_became_of_the_first(table, tasks):
    (_, other), _ = await waiting_at_a(table, tasks)
    table.asked, others = "ask", other.registry._runner.elsewhere
    others.has = True  # its run went on elsewhere, and has ended since
    refused = await ended(other.ask("ask", "", human=HumanAnswer({"choice_id": "yes"})))
    assert (refused.code, refused.refused, others.mirrored) == (Code.NOT_AWAITING, True, [])


async def test_a_stop_reaches_a_turn_that_a_person_let_continue_elsewhere(table, tasks):
    (one, _), _ = await waiting_at_a(table, tasks)
    others = one.registry._runner.elsewhere
    others.has = True
    assert await one.registry.stop("ask", USER)
    assert others.stopped == ["ask"]


async def test_what_a_person_was_asked_is_not_told_once_another_exchange_came_after_it(table, tasks):
    (one, other), _ = await waiting_at_a(table, tasks)
    assert one.registry.runs("ask", USER) is not None
    await ended(other.ask("ask", "", human=HumanAnswer({"choice_id": "yes"})))
    assert isinstance(await ended(one.ask("later")), Final)
    assert one.registry.runs("ask", USER) is None
