"""Sessions that several instances share: who may run a turn, which question is kept, and what comes too late."""

import asyncio
import logging

import psycopg
import pytest
from sqlalchemy import TextClause, text

from agentic_backend.errors import HistoryUnavailable, SessionNotFound, SessionRecovering
from agentic_backend.fleet.leases import FleetLeases, SessionLease
from agentic_backend.session.models import AskRecord
from agentic_backend.session.store import HeldElsewhere, LeaseLost
from agentic_backend.spool.statements import WRITE_TURNS, JsonBytes
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.fleet.conftest import Found
from tests.agentic_backend.fleet.instances import (
    MANY,
    RULES,
    Instance,
    ask_record,
    died,
    leases_in,
    steady,
    under,
)
from tests.agentic_backend.records import (
    USER,
    new_session,
    rows,
    settings_for,
    stored_ranks,
    total,
    turn,
    until,
    until_waiting,
)
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

Pair = tuple[Instance, Instance]


def _locked() -> TextClause:
    return text("SELECT FROM session_lease FOR UPDATE")


def _taken_by(name: str) -> TextClause:
    return text(f"UPDATE session_lease SET fence = fence + 1, holder = '{name}'")  # noqa: S608 - ours


def asks_in(dsn: str) -> list[tuple[str | None, str | None]]:
    """(exchange id, question) of each lease."""
    found = rows(dsn, "SELECT exchange_id, ask FROM session_lease ORDER BY session_id")
    return [(one, None if ask is None else AskRecord.decode(ask.encode()).user_message.text) for one, ask in found]


async def test_a_lease_without_a_question_is_had_by_whoever_asks(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    assert await one.acquire(session) == SessionLease(1, True)
    assert leases_in(database.dsn) == [("one", 1, None)]
    assert await other.acquire(session) == SessionLease(2, False)
    assert leases_in(database.dsn) == [("other", 2, None)]


async def test_who_has_a_lease_needs_no_statement_for_it(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    first = await one.acquire(session)
    one.queries.ran.clear()
    assert await one.acquire(session) == first
    assert one.queries.ran == []


async def test_while_a_turn_runs_nobody_else_has_its_session(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    await one.begin(session, "x1")
    with pytest.raises(HeldElsewhere) as held:
        await other.acquire(session)
    assert held.value.exchange_id == "x1"
    # Nor when the one that runs it has died: only with the turn.
    await one.stop_renewing()
    died(database.dsn, "one", 3600.0)
    steady(database.dsn, "other")
    with pytest.raises(HeldElsewhere):
        await other.acquire(session)
    assert leases_in(database.dsn) == [("one", 1, "x1")]


async def test_a_question_that_is_recorded_meanwhile_is_known_by_its_exchange(pair: Pair, database: Database) -> None:
    """So that the same ask, sent to both at once, follows it here instead of finding the session busy."""
    one, other = pair
    session = await new_session(one.persistence)
    await one.acquire(session)
    async with await psycopg.AsyncConnection.connect(database.dsn) as recording:
        await recording.execute("UPDATE session_lease SET exchange_id = 'x1', ask = '{}'")
        asking = asyncio.create_task(other.acquire(session))
        await until_waiting(database.dsn, 1)
        await recording.commit()
        with pytest.raises(HeldElsewhere) as held:
            await asking
    assert held.value.exchange_id == "x1"


async def test_of_many_that_ask_at_once_each_gets_it_in_turn(pair: Pair, database: Database) -> None:
    session = await new_session(pair[0].persistence)
    for _ in range(5):
        first, second = await asyncio.gather(*(one.acquire(session) for one in pair))
        ((holder, fence, _),) = leases_in(database.dsn)
        assert {"one": first, "other": second}[holder].fence == fence == max(first.fence, second.fence)
        for one in pair:
            one.leases.lose_all()


async def test_its_holder_takes_it_again_with_the_same_fence_and_trusts_nothing_it_remembered(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    await one.acquire(session)
    one.persistence.cache.begin((session.id, USER))
    one.leases.lose_all()
    assert await one.acquire(session) == SessionLease(1, False)
    assert len(one.persistence.cache) == 0


@pytest.mark.parametrize("session_id", ["unknown", "a\x00b", "\ud800", "é"])
async def test_a_session_that_is_not_there_cannot_be_had(found: Found, database: Database, session_id: str) -> None:
    one = await found("one")
    with pytest.raises(SessionNotFound):
        await one.leases.acquire(session_id, USER)
    assert leases_in(database.dsn) == []


async def test_nobody_gets_the_session_of_another_user(pair: Pair, database: Database) -> None:
    session = await new_session(pair[0].persistence)
    with pytest.raises(SessionNotFound):
        await pair[0].leases.acquire(session.id, "eve")
    assert leases_in(database.dsn) == []


async def test_a_lease_goes_with_its_session(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    other.persistence.start()
    assert await other.persistence.store.delete(session.id, USER)
    assert leases_in(database.dsn) == []
    with pytest.raises(LeaseLost):
        await one.leases.record(lease, ask_record(session, "x1"))
    with pytest.raises(SessionNotFound):
        await one.acquire(session)


async def test_where_a_spool_may_have_the_end_of_a_turn_its_session_waits_for_it(
    found: Found, database: Database
) -> None:
    one, other = await found("one", keeps_spool=True), await found("other")
    one.start_asks()
    session = await new_session(one.persistence)
    await one.begin(session, "x1")
    with pytest.raises(HeldElsewhere):
        await other.acquire(session)
    await one.stop_renewing()
    died(database.dsn, "one")
    with pytest.raises(SessionRecovering) as refusal:
        await other.acquire(session)
    assert refusal.value.retry_after_s == other.membership.rules.dead_s


async def test_who_could_not_renew_has_nothing(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    one.leases.expect_valid(lease)
    await one.stop_renewing()
    one.clock.now += one.membership.rules.renew_s
    with pytest.raises(HistoryUnavailable) as refusal:
        await one.acquire(session)
    assert refusal.value.retry_after_s
    with pytest.raises(LeaseLost):
        one.leases.expect_valid(lease)


async def test_a_question_stands_there_until_its_turn_is_written(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    assert asks_in(database.dsn) == [("x1", "question")]
    one.persistence.start()
    assert await one.persistence.log.append(under(lease, turn(session, "x1"))) == "db"
    assert asks_in(database.dsn) == [(None, None)]
    assert leases_in(database.dsn) == [("one", 1, None)]
    assert (await other.acquire(session)).fence == 2


async def test_another_turn_of_the_session_leaves_the_question(pair: Pair, database: Database) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x2")
    one.persistence.start()
    assert await one.persistence.log.append(under(lease, turn(session, "x1"))) == "db"
    assert leases_in(database.dsn) == [("one", 1, "x2")]


async def test_a_question_under_a_lease_that_another_has_got_is_refused(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    late = await one.acquire(session)
    await other.acquire(session)
    one.persistence.cache.begin((session.id, USER))
    with pytest.raises(LeaseLost):
        await one.leases.record(late, ask_record(session, "x1"))
    assert leases_in(database.dsn) == [("other", 2, None)]
    # What it remembered of the session is gone with the lease.
    assert len(one.persistence.cache) == 0
    assert await one.acquire(session) == SessionLease(3, False)


async def test_questions_that_come_together_are_recorded_by_one_statement(found: Found, database: Database) -> None:
    one, other = await found("one"), await found("other")
    sessions = [await new_session(one.persistence) for _ in range(8)]
    leases = [await one.acquire(session) for session in sessions]
    await other.acquire(sessions[3])
    one.queries.ran.clear()
    recording = [
        asyncio.create_task(one.leases.record(lease, ask_record(session, f"x{number}", f"question {number}")))
        for number, (lease, session) in enumerate(zip(leases, sessions, strict=True))
    ]
    await asyncio.sleep(0)
    one.start_asks()
    results = await asyncio.gather(*recording, return_exceptions=True)
    assert one.queries.ran == ["record_asks"]
    assert [type(result) for result in results] == [LeaseLost if place == 3 else type(None) for place in range(8)]
    expected = {session.id: f"x{number}" for number, session in enumerate(sessions) if number != 3}
    stored = rows(database.dsn, "SELECT session_id, exchange_id FROM session_lease WHERE exchange_id IS NOT NULL")
    assert dict(stored) == expected


async def test_questions_of_two_instances_do_not_lock_each_other_out(pair: Pair) -> None:
    one, _ = pair
    sessions = [await new_session(one.persistence) for _ in range(12)]
    leases = [await pair[number % 2].acquire(session) for number, session in enumerate(sessions)]
    for attempt in range(4):
        records = [
            pair[number % 2].leases.record(leases[number], ask_record(sessions[number], f"x{number}-{attempt}"))
            for number in range(12)
        ]
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*records)


async def test_a_question_that_is_given_up_before_it_is_sent_is_not_sent(found: Found, database: Database) -> None:
    one = await found("one")
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    recording = asyncio.create_task(one.leases.record(lease, ask_record(session, "x1")))
    await asyncio.sleep(0)
    recording.cancel()
    await asyncio.wait([recording])
    one.queries.ran.clear()
    one.start_asks()
    await one.leases.record(lease, ask_record(session, "x2"))
    assert one.queries.ran == ["withdraw_ask", "record_asks"]
    assert leases_in(database.dsn) == [("one", 1, "x2")]


async def test_a_question_that_is_given_up_on_its_way_is_withdrawn(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    async with other.persistence.database.writes.connection() as blocker:
        await blocker.execute("blocking", _locked())
        recording = asyncio.create_task(one.leases.record(lease, ask_record(session, "x1")))
        await until_waiting(database.dsn, 1)
        recording.cancel()
        await asyncio.wait([recording])
        assert recording.cancelled()
        await blocker.commit()
    await until(lambda: "withdraw_ask" in one.queries.ran and leases_in(database.dsn) == [("one", 1, None)])
    assert one.queries.ran[-2:] == ["record_asks", "withdraw_ask"]


@pytest.mark.parametrize("way", ["failing", "lost"])
async def test_a_question_of_which_nobody_knows_whether_it_is_there_is_withdrawn(
    pair: Pair, database: Database, way: str
) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    getattr(one.queries, way).append("record_asks")
    with pytest.raises(HistoryUnavailable) as refusal:
        await one.leases.record(lease, ask_record(session, "x1"))
    assert refusal.value.retry_after_s
    await until(lambda: leases_in(database.dsn) == [("one", 1, None)] and one.queries.ran[-1] == "withdraw_ask")


async def test_what_is_withdrawn_is_so_in_the_end_and_never_what_was_recorded_since(
    pair: Pair, database: Database
) -> None:
    one, _ = pair
    session, marker = await new_session(one.persistence), await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    one.queries.failing.append("withdraw_ask")
    gate = one.queries.gates["withdraw_ask"] = asyncio.Event()
    one.leases.withdraw(lease.fence, (session.id, USER), "x1")
    await until(lambda: one.queries.ran[-1] == "withdraw_ask")
    # Asked again while the withdrawal is on its way, which fails then.
    recording = asyncio.create_task(one.leases.record(lease, ask_record(session, "x1", "again")))
    await asyncio.sleep(0)
    gate.set()
    await recording
    assert one.queries.failing == []
    one.queries.ran.clear()
    one.leases.withdraw(1, (marker.id, USER), "none")
    await one.begin(marker, "x2")
    assert "withdraw_ask" in one.queries.ran
    assert ("x1", "again") in asks_in(database.dsn)


async def test_a_withdrawal_takes_only_the_turn_that_it_names(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    for fence, exchange_id in ((lease.fence, "x0"), (lease.fence - 1, "x1")):
        one.queries.ran.clear()
        one.leases.withdraw(fence, (session.id, USER), exchange_id)
        await until(lambda: one.queries.ran == ["withdraw_ask"])
    # One after the other, in one task.
    await one.begin(await new_session(one.persistence), "x2")
    assert ("one", 1, "x1") in leases_in(database.dsn)
    one.leases.withdraw(lease.fence, (session.id, USER), "x1")
    await until(lambda: ("one", 1, None) in leases_in(database.dsn))
    assert (await other.acquire(session)).fence == 2


async def test_what_is_written_under_a_lease_that_another_has_got_is_refused(
    pair: Pair, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    session, bystander = await new_session(one.persistence), await new_session(one.persistence)
    late = await one.acquire(session)
    taken = await other.begin(session, "new")
    assert taken.fence == late.fence + 1

    # Both reach Postgres in one batch.
    appending = asyncio.gather(
        one.persistence.log.append(under(late, turn(session, "late"))),
        one.persistence.log.append(under(await one.acquire(bystander), turn(bystander, "good"))),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    one.persistence.start()
    refused, kept = await appending
    assert isinstance(refused, LeaseLost)
    assert kept == "db"
    assert stored_ranks(database.dsn, session) == []
    assert stored_ranks(database.dsn, bystander) == [(0, "good"), (1, "good")]
    fresh = await other.persistence.store.get(session.id, USER)
    assert fresh is not None
    assert fresh.next_rank == fresh.version == 0
    assert total(one.kpi, "app_persist_failures_total", reason="fenced") == 1
    alarms = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(alarms) == 1
    assert alarms[0].startswith("ALARM record given up: reason=fenced")
    assert "exchange_id=late" in alarms[0]

    # And the one that has it now goes on as if nothing had been.
    assert ("other", 2, "new") in leases_in(database.dsn)
    other.persistence.start()
    assert await other.persistence.log.append(under(taken, turn(fresh, "new"))) == "db"
    assert stored_ranks(database.dsn, session) == [(0, "new"), (1, "new")]
    assert ("other", 2, None) in leases_in(database.dsn)


async def test_the_same_turn_of_a_stale_holder_neither_is_written_nor_ends_the_new_one(
    pair: Pair, database: Database
) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    late = await one.begin(session, "x1")
    rows(database.dsn, "UPDATE session_lease SET holder = 'other', fence = fence + 1, runs = 1 RETURNING 1")
    one.persistence.start()
    with pytest.raises(LeaseLost):
        await one.persistence.log.append(under(late, turn(session, "x1")))
    assert leases_in(database.dsn) == [("other", 2, "x1")]
    assert stored_ranks(database.dsn, session) == []


async def test_turns_of_instances_in_turn_have_ranks_without_a_gap(found: Found, database: Database) -> None:
    instances = [await found(name) for name in ("one", "two", "three")]
    session = await new_session(instances[0].persistence)
    for instance in instances:
        instance.start_asks()
        instance.persistence.start()
    for number in range(12):
        instance = instances[number % 3]
        persistence = instance.persistence
        await instance.acquire(session)
        fresh = await persistence.store.get(session.id, USER)
        assert fresh is not None
        try:
            lease = await instance.begin(fresh, f"x{number}")
        except LeaseLost:
            lease = await instance.begin(fresh, f"x{number}")
        assert await persistence.log.append(under(lease, turn(fresh, f"x{number}"))) == "db"
        remembered = await persistence.store.remembered(session.id, USER, 20)
        assert len(remembered) == 2 * (number + 1)
    assert stored_ranks(database.dsn, session) == [(rank, f"x{rank // 2}") for rank in range(24)]


async def test_nobody_gets_a_session_while_a_turn_of_it_is_being_committed(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    record = under(lease, turn(session, "x1"))
    async with one.persistence.database.writes.connection() as connection:
        records = {"records": JsonBytes(b"[" + record.encode() + b"]")}
        assert list(await connection.execute("write_turns", WRITE_TURNS, records)) == []
        async with asyncio.TaskGroup() as group:
            taking = group.create_task(other.acquire(session))
            await until_waiting(database.dsn, 1)
            await connection.commit()
    assert taking.result().fence == 2
    fresh = await other.persistence.store.get(session.id, USER)
    assert fresh is not None
    assert fresh.next_rank == 2


async def test_a_turn_that_finds_its_lease_being_taken_waits_and_is_refused(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    record = under(lease, turn(session, "x1"))
    writes = one.persistence.database.writes
    async with other.persistence.database.writes.connection() as taking, writes.connection() as writing:
        await taking.execute("taking", _taken_by("other"))
        async with asyncio.TaskGroup() as group:
            records = {"records": JsonBytes(b"[" + record.encode() + b"]")}
            wrote = group.create_task(writing.execute("write_turns", WRITE_TURNS, records))
            await until_waiting(database.dsn, 1)
            await taking.commit()
        await writing.commit()
    assert [(row.verdict, row.ord) for row in wrote.result()] == [("fenced", 1)]
    assert stored_ranks(database.dsn, session) == []
    assert leases_in(database.dsn) == [("other", 2, "x1")]


async def test_a_question_that_finds_its_lease_being_taken_waits_and_is_refused(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    lease = await one.acquire(session)
    async with other.persistence.database.writes.connection() as taking:
        await taking.execute("taking", _taken_by("other"))
        async with asyncio.TaskGroup() as group:
            recording = group.create_task(_lost(one, lease, ask_record(session, "x1")))
            await until_waiting(database.dsn, 1)
            await taking.commit()
    assert recording.result()
    assert leases_in(database.dsn) == [("other", 2, None)]


async def _lost(instance: Instance, lease: SessionLease, record: AskRecord) -> bool:
    try:
        await instance.leases.record(lease, record)
    except LeaseLost:
        return True
    return False


async def test_who_is_cancelled_while_it_takes_a_session_keeps_nobody_from_it(pair: Pair, database: Database) -> None:
    one, other = pair
    session = await new_session(one.persistence)
    await one.acquire(session)
    one.leases.lose_all()
    async with other.persistence.database.writes.connection() as blocker:
        await blocker.execute("blocking", _locked())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(one.acquire(session))
            await until_waiting(database.dsn, 1)
            waiting.cancel()
            await asyncio.wait([waiting])
            await blocker.commit()
    assert waiting.cancelled()
    assert (await other.acquire(session)).fence == 2


async def test_a_connection_that_died_while_it_was_idle_costs_nothing(pair: Pair, database: Database) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    await one.acquire(session)
    one.leases.lose_all()
    query = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name ^@ %s"
    assert rows(database.dsn, query, "turnwise-agentic-main") != []
    assert (await one.acquire(session)).fence == 1


async def test_before_it_has_renewed_or_knows_the_schema_an_instance_has_nothing(
    build: Build, pair: Pair, database: Database, tasks: TaskRegistry
) -> None:
    one, _ = pair
    starting = build(database.settings(), persistence=MANY)
    unrenewed = Instance("new", settings_for(database.settings()), starting, tasks, one.kpi, RULES)
    with pytest.raises(HistoryUnavailable):
        await unrenewed.leases.acquire("s1", USER)
    unprepared = FleetLeases(starting.queries, one.membership, starting.cache, lambda _key: False)
    unprepared.ready.set()
    with pytest.raises(HistoryUnavailable):
        await unprepared.acquire("s1", USER)


async def test_until_the_turns_of_an_earlier_process_are_known_nobody_gets_a_session(pair: Pair) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    one.leases.ready.clear()
    acquiring = asyncio.create_task(one.acquire(session))
    await asyncio.sleep(0)
    assert not acquiring.done()
    await one.takeover.recover()
    assert (await acquiring).fence == 1


async def test_a_run_that_goes_on_is_recorded_after_the_end_of_the_one_before(pair: Pair, database: Database) -> None:
    """Else that end, written later, would take the note away that it runs."""
    one, _ = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    one.waiting.add((session.id, USER))
    one.waiting.ends.append("x1")
    one.queries.ran.clear()
    again = asyncio.create_task(one.leases.record(lease, ask_record(session, "x1")))
    await asyncio.wait([again], timeout=0.1)  # time enough to do it too early
    assert one.queries.ran == []
    one.waiting.ends.clear()
    async with asyncio.timeout(PATIENCE_S):
        await again
    assert leases_in(database.dsn) == [("one", 1, "x1")]


async def test_while_a_turn_of_a_session_waits_for_postgres_its_question_stands(pair: Pair, database: Database) -> None:
    one, _ = pair
    session, other = await new_session(one.persistence), await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    one.waiting.add((session.id, USER))
    one.leases.withdraw(lease.fence, (session.id, USER), "x1")
    await one.begin(other, "x2")
    assert ("one", 1, "x1") in leases_in(database.dsn)
    one.waiting.clear()
    one.leases.withdraw(0, (other.id, USER), "none")  # the next of any tries them all
    await until(lambda: ("one", 1, "x1") not in leases_in(database.dsn))


async def test_a_turn_that_was_let_go_of_is_not_lost_to_the_next_question(pair: Pair, database: Database) -> None:
    one, _ = pair
    session = await new_session(one.persistence)
    lease = await one.begin(session, "x1")
    one.leases.lose_all()  # what it has recorded itself it may replace
    assert (await one.acquire(session)).fence == lease.fence
    one.leases.end_term()
    with pytest.raises(HeldElsewhere) as held:
        await one.acquire(session)
    assert held.value.exchange_id == "x1"
    with pytest.raises(LeaseLost):
        one.leases.expect_valid(lease)  # though it has renewed since
    # It is taken again, though nobody follows it.
    one.start_looking()
    async with asyncio.timeout(PATIENCE_S):
        await one.turns.changed.wait()
    assert [cut.user_message.exchange_id for cut in one.turns.taken] == ["x1"]
    one.leases.expect_valid(await one.acquire(session))
