"""Turns of instances that died: who may take them, once each, and what becomes of them."""

import asyncio

import pytest
from sqlalchemy import text

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.membership import FleetRules
from agentic_backend.fleet.statements import INSTANCES, TAKE_OVER
from agentic_backend.session.models import Session
from agentic_backend.session.store import HeldElsewhere, LeaseLost
from tests.agentic_backend.fleet.conftest import Found
from tests.agentic_backend.fleet.instances import RULES, Instance, ask_record, died, leases_in, steady, under
from tests.agentic_backend.records import USER, new_session, rows, stored_ranks, turn, until
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

COUNTS = "SELECT exchange_id, fence, runs, deaths FROM session_lease ORDER BY exchange_id"


class Draws:
    """What is drawn, one after the other; then always the highest."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)
        self.drawn = 0

    def __call__(self) -> float:
        self.drawn += 1
        return self._values.pop(0) if self._values else 0.999


async def looked(instance: Instance, times: int = 2) -> None:
    """An instance looks for turns of the dead, so often from beginning to end."""
    instance.queries.ran.clear()
    task = instance.tasks.spawn("takeover", instance.takeover.look_for_dead)
    # One more has begun when the one before has ended.
    await until(lambda: instance.queries.ran.count("take_over") > times)
    instance.membership.draining = True
    await until(lambda: instance.queries.running == 0)
    task.cancel()
    await asyncio.wait([task])
    instance.membership.draining = False


async def dead_with(found: Found, database: Database, *exchange_ids: str, again: bool = True) -> list[Session]:
    """The sessions of an instance `one` that died in these turns."""
    one = await found("one")
    one.start_asks()
    sessions = [await new_session(one.persistence) for _ in exchange_ids]
    for session, exchange_id in zip(sessions, exchange_ids, strict=True):
        await one.begin(session, exchange_id, again=again)
    await one.stop_renewing()
    died(database.dsn, "one")
    return sessions


async def judge(found: Found, database: Database, name: str = "other", rules: FleetRules = RULES) -> Instance:
    """An instance that may call others dead."""
    made = await found(name, rules)
    made.start_asks()
    steady(database.dsn, name)
    return made


async def test_a_turn_of_the_dead_is_taken_with_a_higher_fence(found: Found, database: Database) -> None:
    (session,) = await dead_with(found, database, "x1")
    other = await judge(found, database)
    await looked(other)
    assert leases_in(database.dsn) == [("other", 2, "x1")]
    assert rows(database.dsn, COUNTS) == [("x1", 2, 1, 1)]
    (cut,) = other.turns.taken
    assert (cut.session.id, cut.user_message.exchange_id, cut.user_message.text) == (session.id, "x1", "question")
    assert cut.rerun is not None
    assert cut.rerun.restarts == 1
    # It has the lease that goes with it, and knows how long nothing was heard.
    assert other.leases.fence_of((session.id, USER)) == 2
    (silent_s,) = other.taken
    assert silent_s > 10.0


async def test_a_turn_of_who_has_left_is_taken_by_anybody_at_once(found: Found, database: Database) -> None:
    await dead_with(found, database, "x1")
    rows(database.dsn, "DELETE FROM instance RETURNING 1")
    other = await found("other")  # not steady
    await looked(other)
    assert leases_in(database.dsn) == [("other", 2, "x1")]
    assert other.taken == []  # it has not died: nobody waited for a sign of life


@pytest.mark.parametrize("silent_s", [0.0, 5.0, 9.0])
async def test_the_living_keep_their_turns(found: Found, database: Database, silent_s: float) -> None:
    await dead_with(found, database, "x1")
    rules = FleetRules(beat_s=0.05, look_s=0.01, dead_s=3600.0)
    other = await judge(found, database, rules=rules)
    steady(database.dsn, "other", 7200.0)
    died(database.dsn, "one", 3500.0 + silent_s)
    await looked(other)
    assert leases_in(database.dsn) == [("one", 1, "x1")]
    assert other.turns.taken == []


async def test_who_was_not_steady_itself_calls_nobody_dead(found: Found, database: Database) -> None:
    await dead_with(found, database, "x1")
    other = await found("other")
    steady(database.dsn, "other", -3600.0)  # however slow this machine is
    await looked(other)
    assert leases_in(database.dsn) == [("one", 1, "x1")]
    steady(database.dsn, "other")
    await looked(other)
    assert leases_in(database.dsn) == [("other", 2, "x1")]


async def test_who_has_not_renewed_calls_nobody_dead(found: Found, database: Database) -> None:
    await dead_with(found, database, "x1")
    other = await judge(found, database)
    await other.stop_renewing()
    died(database.dsn, "other", 6.0)
    values = {"me": "other", "gap_s": 5.0, "dead_s": 10.0, "most": 64}
    assert list(await other.queries.fetch("take_over", TAKE_OVER, values)) == []
    # Nor does it look, by its own clock or while it drains.
    other.clock.now += other.membership.rules.renew_s
    other.queries.ran.clear()
    task = other.tasks.spawn("takeover", other.takeover.look_for_dead)
    another = await found("another")
    await looked(another)
    assert "take_over" not in other.queries.ran
    other.membership.draining = True
    await other.renew()
    await looked(another)
    assert "take_over" not in other.queries.ran
    task.cancel()


async def test_a_lease_without_a_turn_stays_with_the_dead(found: Found, database: Database) -> None:
    one = await found("one")
    session = await new_session(one.persistence)
    await one.acquire(session)
    await one.stop_renewing()
    died(database.dsn, "one")
    other = await judge(found, database)
    await looked(other)
    assert leases_in(database.dsn) == [("one", 1, None)]
    assert (await other.acquire(session)).fence == 2  # whoever asks has it


async def test_turns_that_may_have_an_end_in_a_spool_wait_for_it(found: Found, database: Database) -> None:
    one = await found("one", keeps_spool=True)
    one.start_asks()
    session = await new_session(one.persistence)
    await one.begin(session, "x1")
    await one.stop_renewing()
    died(database.dsn, "one", 3600.0)
    other = await judge(found, database)
    await looked(other)
    assert leases_in(database.dsn) == [("one", 1, "x1")]
    assert other.turns.taken == []

    # The next process with that spool goes on with them.
    again = await found("one", keeps_spool=True)
    assert [cut.user_message.exchange_id for cut in again.turns.taken] == ["x1"]
    assert rows(database.dsn, COUNTS) == [("x1", 1, 1, 1)]
    assert again.leases.ready.is_set()


async def test_two_that_look_at_once_share_the_turns(found: Found, database: Database) -> None:
    exchange_ids = [f"x{number:02}" for number in range(20)]
    await dead_with(found, database, *exchange_ids)
    rules = FleetRules(beat_s=0.05, look_s=0.01, taken_at_once=2)
    judges = [await judge(found, database, name, rules) for name in ("two", "three")]
    for instance in judges:
        instance.start_looking()
    taken = [instance.turns.taken for instance in judges]
    await until(lambda: sum(map(len, taken)) >= 20)
    named = [sorted(cut.user_message.exchange_id for cut in one) for one in taken]
    assert sorted(named[0] + named[1]) == exchange_ids  # each once
    for instance, mine in zip(judges, named, strict=True):
        held = rows(database.dsn, "SELECT exchange_id FROM session_lease WHERE holder = %s", instance.name)
        assert sorted(one for (one,) in held) == mine
    assert {tuple(row[1:]) for row in rows(database.dsn, COUNTS)} == {(2, 1, 1)}


async def test_no_turn_is_taken_from_who_has_just_taken_it(found: Found, database: Database) -> None:
    await dead_with(found, database, *(f"x{number:02}" for number in range(30)))
    judges = [await judge(found, database, name) for name in ("two", "three", "four")]
    taken: list[str] = []

    async def take(instance: Instance) -> None:
        values = {"me": instance.name, "gap_s": 5.0, "dead_s": 10.0, "most": 1}
        while more := await instance.queries.fetch("take_over", TAKE_OVER, values):
            taken.extend(row.exchange_id for row in more)

    await asyncio.gather(*(take(instance) for instance in judges for _ in range(3)))
    assert len(taken) == len(set(taken)) == 30
    assert {fence for _, fence, *_ in rows(database.dsn, COUNTS)} == {2}


async def test_a_turn_that_another_takes_at_this_moment_is_left_to_it(found: Found, database: Database) -> None:
    await dead_with(found, database, "x1", "x2")
    other = await judge(found, database)
    blocking = "SELECT session_id FROM session_lease WHERE exchange_id = 'x1' FOR UPDATE"
    async with other.persistence.database.writes.connection() as blocker:
        await blocker.execute("blocking", text(blocking))
        await looked(other)
        assert [cut.user_message.exchange_id for cut in other.turns.taken] == ["x2"]
        await blocker.commit()


async def test_many_turns_are_taken_at_once_whatever_the_bound(found: Found, database: Database) -> None:
    await dead_with(found, database, *(f"x{number}" for number in range(5)))
    other = await judge(found, database, rules=FleetRules(beat_s=0.05, look_s=0.01, taken_at_once=2))
    await looked(other, times=3)  # the third finds one only
    assert len(other.turns.taken) == 5
    assert len(other.taken) == 5


@pytest.mark.parametrize(("lookers", "looks"), [(5, 3), (16, 2), (1000, 1)])
async def test_of_a_large_fleet_as_many_look_as_of_a_small_one(found: Found, lookers: int, looks: int) -> None:
    draws = Draws(0.0, 0.24, 0.7, 0.999)
    one = await found("one", lookers=lambda: lookers, draw=draws)
    one.queries.ran.clear()
    one.spawn(one.takeover.look_for_dead)
    await until(lambda: draws.drawn > 4)  # the look of the fourth draw has ended
    assert one.queries.ran.count("take_over") == looks


@pytest.mark.parametrize("lookers", [0, 1, 4])
async def test_of_a_small_fleet_all_look_each_time(found: Found, lookers: int) -> None:
    one = await found("one", lookers=lambda: lookers, draw=Draws())
    one.spawn(one.takeover.look_for_dead)
    await until(lambda: one.queries.ran.count("take_over") > 3)


async def test_who_drains_is_alive_and_does_not_count_among_those_who_look(found: Found, database: Database) -> None:
    one, two, third = await found("one"), await found("two"), await found("three")
    values = {"dead_s": RULES.dead_s}
    assert list(await one.queries.fetch("instances", INSTANCES, values)) == [(3, 3)]
    two.membership.draining = True
    await until(lambda: rows(database.dsn, "SELECT draining FROM instance WHERE id = 'two'") == [(True,)])
    await third.stop_renewing()
    died(database.dsn, "three")
    assert list(await one.queries.fetch("instances", INSTANCES, values)) == [(2, 1)]


async def test_what_an_instance_has_lost_sight_of_it_looks_for_whatever_is_drawn(found: Found) -> None:
    one = await found("one", lookers=lambda: 1000, draw=Draws())
    one.takeover.note_loss()
    one.spawn(one.takeover.look_for_dead)
    await until(lambda: "retake_all" in one.queries.ran)


async def test_a_turn_that_does_not_run_again_is_stored_as_interrupted(found: Found, database: Database) -> None:
    (session,) = await dead_with(found, database, "x1", again=False)
    other = await judge(found, database)
    other.persistence.start()
    await looked(other)
    assert other.turns.taken == []
    await until(lambda: leases_in(database.dsn) == [("other", 2, None)])
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1")]
    query = "SELECT metadata_json #>> '{extras,interrupted_by}' FROM session_history WHERE rank = 1"
    assert rows(database.dsn, query) == [("restart",)]
    assert rows(database.dsn, "SELECT runs, deaths FROM session_lease") == [(0, 0)]
    # It was written under the new fence: what the dead one may still write is refused.
    fresh = await other.persistence.store.get(session.id, USER)
    assert fresh is not None
    assert fresh.next_rank == 2


async def test_a_turn_that_outlived_too_many_instances_is_stored_as_interrupted(
    found: Found, database: Database
) -> None:
    (session,) = await dead_with(found, database, "x1")
    second = await judge(found, database, "second")
    await looked(second)
    assert len(second.turns.taken) == 1
    await second.stop_renewing()
    died(database.dsn, "second")
    third = await judge(found, database, "third")
    third.persistence.start()
    await looked(third)
    assert third.turns.taken == []
    await until(lambda: leases_in(database.dsn) == [("third", 3, None)])
    assert stored_ranks(database.dsn, session) == [(0, "x1"), (1, "x1")]


async def test_who_died_only_to_others_neither_records_nor_writes(found: Found, database: Database) -> None:
    one = await found("one")
    one.start_asks()
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    await one.stop_renewing()
    died(database.dsn, "one")
    other = await judge(found, database)
    await looked(other)

    await one.renew()
    one.persistence.start()
    with pytest.raises(LeaseLost):
        await one.persistence.log.append(under(lease, turn(session, "x1")))
    with pytest.raises(LeaseLost):
        await one.leases.record(lease, ask_record(session, "x2"))
    with pytest.raises(HeldElsewhere):
        await one.acquire(session)
    assert not await one.takeover.retake(session.id, USER, "x1")
    assert leases_in(database.dsn) == [("other", 2, "x1")]
    assert stored_ranks(database.dsn, session) == []

    other.persistence.start()
    taken = await other.acquire(session)
    assert await other.persistence.log.append(under(taken, turn(session, "x1"))) == "db"
    assert leases_in(database.dsn) == [("other", 2, None)]


async def test_what_an_instance_had_let_go_of_it_may_take_again(found: Found, database: Database) -> None:
    one = await found("one")
    one.start_asks()
    session = await new_session(one.persistence)
    await one.begin(session, "x1")
    for runs in (1, 2):
        assert await one.takeover.retake(session.id, USER, "x1")
        # It runs again, but no instance has died of it.
        assert rows(database.dsn, COUNTS) == [("x1", 1, runs, 0)]
    restarts = [cut.rerun.restarts for cut in one.turns.taken if cut.rerun is not None]
    assert restarts == [1, 2]
    assert not await one.takeover.retake(session.id, USER, "x0")
    assert not await one.takeover.retake(session.id, "eve", "x1")


async def test_who_has_not_renewed_again_counts_no_run(found: Found, database: Database) -> None:
    one = await found("one")
    one.start_asks()
    session = await new_session(one.persistence)
    await one.begin(session, "x1")
    await one.stop_renewing()
    one.clock.now += one.membership.rules.renew_s
    for _ in range(3):  # a client that follows it asks again and again
        assert not await one.takeover.retake(session.id, USER, "x1")
    assert rows(database.dsn, COUNTS) == [("x1", 1, 0, 0)]
    one.spawn(one.membership.renew)
    async with asyncio.timeout(PATIENCE_S):
        await one.membership.wait_valid()
    assert await one.takeover.retake(session.id, USER, "x1")
    assert rows(database.dsn, COUNTS) == [("x1", 1, 1, 0)]


async def test_turns_that_were_taken_by_a_statement_whose_answer_was_lost_go_on(
    found: Found, database: Database
) -> None:
    await dead_with(found, database, "x1", "x2")
    other = await judge(found, database)
    other.queries.lost.append("take_over")
    await looked(other)
    assert other.queries.ran.count("retake_all") == 1
    assert sorted(cut.user_message.exchange_id for cut in other.turns.taken) == ["x1", "x2"]
    # Once more, while they run: nothing begins twice.
    for cut in other.turns.taken:
        other.turns.begin(cut.session, cut.user_message.exchange_id)
    other.queries.lost.append("take_over")
    await looked(other)
    assert other.queries.ran.count("retake_all") == 1
    assert len(other.turns.taken) == 2


@pytest.mark.parametrize("why", ["failing", "lost", "note_loss"])
async def test_of_its_own_turns_those_that_run_wait_or_were_given_up_are_left(
    found: Found, database: Database, why: str
) -> None:
    other = await judge(found, database)
    sessions = {name: await new_session(other.persistence) for name in ("gone", "runs", "waits", "withdrawn")}
    leases = {name: await other.begin(session, name) for name, session in sessions.items()}
    other.turns.begin(sessions["runs"], "runs")
    appending = asyncio.create_task(
        other.persistence.log.append(under(leases["waits"], turn(sessions["waits"], "waits")))
    )
    await asyncio.sleep(0)
    other.queries.failing += ["withdraw_ask"] * 100
    other.leases.withdraw(leases["withdrawn"].fence, (sessions["withdrawn"].id, USER), "withdrawn")
    await until(lambda: "withdraw_ask" in other.queries.ran)
    if why == "note_loss":
        other.takeover.note_loss()
    else:
        getattr(other.queries, why).append("take_over")
    await looked(other)
    assert other.queries.ran.count("retake_all") == 1
    assert [cut.user_message.exchange_id for cut in other.turns.taken] == ["gone"]
    assert rows(database.dsn, "SELECT exchange_id, deaths FROM session_lease WHERE runs > 0") == [("gone", 0)]
    other.persistence.start()
    assert await appending == "db"


async def test_a_turn_that_had_ended_after_all_leaves_no_question(found: Found, database: Database) -> None:
    (session,) = await dead_with(found, database, "x1")
    other = await judge(found, database)
    await looked(other)
    (cut,) = other.turns.taken
    other.takeover.drop(cut)
    await until(lambda: leases_in(database.dsn) == [("other", 2, None)])
    other.queries.ran.clear()
    other.takeover.drop(cut)  # a second time there is nothing to take back
    await other.begin(session, "x2")
    assert other.queries.ran == ["record_asks"]


async def test_without_postgres_nobody_is_dead_and_nothing_ends(found: Found, database: Database) -> None:
    other = await judge(found, database)
    other.queries.failing += ["take_over"] * 3
    await looked(other, times=3)
    assert other.queries.failing == []
    other.queries.failing += ["retake"]
    with pytest.raises(HistoryUnavailable):
        await other.takeover.retake("s1", USER, "x1")


async def test_until_postgres_has_said_what_is_left_nothing_begins(found: Found, database: Database) -> None:
    other = await judge(found, database)
    other.leases.ready.clear()
    other.queries.failing += ["recover"] * 2
    async with asyncio.timeout(PATIENCE_S):
        await other.takeover.recover()
    assert other.leases.ready.is_set()
    assert other.queries.ran.count("recover") == 4  # its start included
