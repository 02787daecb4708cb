import asyncio
import random
import sqlite3
from typing import Any

import psycopg
import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.events import ChatMessage, text_part
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import HistoryWindow, Session, TurnRecord
from agentic_backend.spool.pending import Op, Pending
from agentic_backend.spool.spoolrows import Row
from agentic_backend.spool.statements import FORKS, HISTORY_PAGE, NEWEST_CHECKPOINT, REMEMBERED, STANDING
from backend_kit.kpi import Kpi
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, message_of, new_session, rows, total, turn, turns
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

WINDOWS = [
    HistoryWindow(limit, offset) for limit in (None, 0, 1, 2, 3, 5, 8, 50) for offset in (0, 1, 2, 4, 5, 7, 10, 50)
]


def expected(messages: list[ChatMessage], window: HistoryWindow) -> list[Any]:
    end = max(0, len(messages) - window.offset)
    start = 0 if window.limit is None else max(0, end - window.limit)
    return [loads(message.json) for message in messages[start:end]]


@pytest.mark.parametrize("stored", [0, 3, 5], ids=["all pending", "some pending", "all stored"])
async def test_a_window_is_counted_from_the_newest_message(build: Build, database: Database, stored: int) -> None:
    persistence = build(database.settings())
    await persistence.database.connect_until_ready(lambda _state: None)
    session = await new_session(persistence)
    records = turns(session, 5)
    for record in records[:stored]:
        persistence.batcher.push(Op.turn(record))
    if stored:
        await persistence.batcher._write_all()
    for record in records[stored:]:
        persistence.batcher.push(Op.turn(record))
    assert len(persistence.pending) == 5 - stored

    messages = [message for record in records for message in record.messages]
    for window in WINDOWS:
        found = [loads(message) for message in await history_of(persistence.store, session.id, USER, window)]
        assert found == expected(messages, window), window
    for message in messages:
        one = await message_of(persistence.store, session.id, USER, message.rank)
        assert one is not None
        assert loads(one) == loads(message.json)
    for rank in (-1, 10, 2**31, 10**30):
        assert await message_of(persistence.store, session.id, USER, rank) is None


async def test_a_message_comes_back_as_it_was_written(persistence: Persistence) -> None:
    session = await new_session(persistence)
    parts = [
        text_part('quotes " and \\ and \n and é and 😀 and \u2028'),
        {"type": "tool_call", "call_id": "c", "name": "n", "args": {"list": [1, 2.5, None, True, {"deep": []}]}},
    ]
    message = ChatMessage.build(
        session_id=session.id,
        exchange_id='x"1',
        rank=0,
        role="assistant",
        channel="tool_call",
        parts=parts,
        metadata={"token_usage": {"input_tokens": 12345678901}, "empty": {}},
        timestamp="2026-02-03T04:05:06.000700Z",
    )
    await persistence.log.append(TurnRecord(session.advanced(1, "t"), 'x"1', (message,)))
    assert await persistence.flush(PATIENCE_S) == 0

    (stored,) = await history_of(persistence.store, session.id, USER)
    assert loads(stored) == loads(message.json)
    assert list(loads(stored)) == list(loads(message.json))


async def test_a_reader_sees_its_own_writes_at_every_moment(persistence: Persistence) -> None:
    session = await new_session(persistence)
    for number, record in enumerate(turns(session, 200), 1):
        await persistence.log.append(record)
        if number % 3 == 0:
            await asyncio.sleep(random.uniform(0, 0.01))  # noqa: S311 - catches the commit at different moments
        history = await history_of(persistence.store, session.id, USER, HistoryWindow(4))
        found = await persistence.store.get(session.id, USER)
        (listed,) = await persistence.store.list_for(USER)
        message = await message_of(persistence.store, session.id, USER, 2 * number - 1)
        assert [loads(m)["rank"] for m in history] == list(range(max(0, 2 * number - 4), 2 * number))
        assert found is not None
        assert found.next_rank == listed.next_rank == 2 * number
        assert found.version == listed.version == number
        assert message == record.messages[1].json or loads(message or b"") == loads(record.messages[1].json)
    assert await persistence.flush(PATIENCE_S) == 0


async def test_sessions_are_listed_newest_first_with_pending_turns(held: Persistence) -> None:
    first, second, third = [await new_session(held) for _ in range(3)]
    await new_session(held, "mallory")
    record = turn(first, "x1")
    await held.log.append(record)
    gone = asyncio.ensure_future(held.store.delete(second.id, USER))
    await asyncio.sleep(0)

    assert await held.store.list_for(USER) == [record.session, third]
    assert await held.store.list_for("nobody") == []
    held.start()
    assert await gone is True
    assert await held.store.list_for(USER) == [record.session, third]


async def test_a_session_comes_back_as_it_was_created(held: Persistence) -> None:
    session = Session.new(USER, "georges", 'A "title" é')
    await held.store.create(session)
    await held.store.create(session)
    assert await held.store.get(session.id, USER) == session
    assert len(await held.store.list_for(USER)) == 1


async def test_of_many_sessions_asked_for_at_once_exactly_those_within_the_limit_are_made(
    persistence: Persistence,
) -> None:
    asked = [Session.new(USER, "georges", "") for _ in range(40)]
    await persistence.store.create(asked[0], 5)
    made = await asyncio.gather(*(persistence.store.create(session, 5) for session in asked))
    assert sorted(filter(None, made)) == ["made"] * 4 + ["there"]
    assert made[0] == "there", "as after an answer that was lost"
    kept = {session.id for session in await persistence.store.list_for(USER)}
    assert kept == {session.id for session, there in zip(asked, made, strict=True) if there}
    assert await persistence.store.create(Session.new("other", "georges", ""), 5)
    assert await persistence.store.create(Session.new(USER, "georges", ""))


async def test_a_session_that_another_process_is_about_to_make_takes_its_place(
    held: Persistence, database: Database
) -> None:
    """The last place is taken by who has begun first, though nobody sees that before it is committed."""
    with psycopg.connect(database.dsn) as other, psycopg.connect(database.dsn, autocommit=True) as looking:
        assert other.execute("SELECT room_for_session(%s, 1)", [USER]).fetchone() == (True,)
        columns = "session_id, user_id, agent_id, session_data, updated_at"
        other.execute(f"INSERT INTO session ({columns}) VALUES ('theirs', %s, 'georges', '{{}}', now())", [USER])  # noqa: S608 - constants
        late = asyncio.ensure_future(held.store.create(Session.new(USER, "georges", ""), 1))
        async with asyncio.timeout(PATIENCE_S):
            while not late.done():
                waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                if looking.execute(waiting).fetchone() is not None:
                    break
                await asyncio.sleep(0.01)
        other.commit()
        assert not await late


@pytest.mark.parametrize("pending", [True, False])
async def test_another_users_session_is_an_unknown_one(held: Persistence, pending: bool) -> None:
    session = await new_session(held)
    await held.log.append(turn(session, "x1"))
    if not pending:
        held.start()
        assert await held.flush(PATIENCE_S) == 0
    store = held.store
    assert await store.get(session.id, "mallory") is None
    assert await history_of(store, session.id, "mallory") == []
    assert await message_of(store, session.id, "mallory", 0) is None
    assert await store.remembered(session.id, "mallory", 5) == []
    assert await store.newest_checkpoint(session.id, "mallory", "Graph") == ""
    assert await store.list_for("mallory") == []


async def test_a_session_whose_delete_is_pending_is_gone_for_its_readers(held: Persistence) -> None:
    session = await new_session(held)
    await held.log.append(turn(session, "x1"))
    gone = asyncio.ensure_future(held.store.delete(session.id, USER))
    await asyncio.sleep(0)
    store = held.store
    assert await store.get(session.id, USER) is None
    assert await history_of(store, session.id, USER) == []
    assert await message_of(store, session.id, USER, 0) is None
    assert await store.remembered(session.id, USER, 5) == []
    assert await store.newest_checkpoint(session.id, USER, "Graph") == ""
    assert await store.list_for(USER) == []
    held.start()
    assert await gone is True


@pytest.mark.parametrize("session_id", ["nope", "", "a\x00b", "sé", "\ud800"])
async def test_ids_that_cannot_exist_are_unknown(persistence: Persistence, session_id: str) -> None:
    store = persistence.store
    assert await store.get(session_id, USER) is None
    assert await history_of(store, session_id, USER) == []
    assert await message_of(store, session_id, USER, 0) is None
    assert await store.remembered(session_id, USER, 5) == []
    assert await store.newest_checkpoint(session_id, USER, "Graph") == ""
    assert await store.delete(session_id, USER) is False
    assert persistence.database.trouble is None


async def test_a_user_that_postgres_refuses_is_no_outage(persistence: Persistence) -> None:
    with pytest.raises(HistoryUnavailable):
        await persistence.store.list_for("a\x00b")
    assert persistence.database.trouble is None


async def test_nothing_is_read_before_the_schema_is_known(build: Build, database: Database) -> None:
    persistence = build(database.settings())
    with pytest.raises(HistoryUnavailable):
        await persistence.store.list_for(USER)
    assert not persistence.schema_known
    assert persistence.dependencies()["postgres"]["status"] == "connecting"


def spoken(*pairs: tuple[str, str]) -> list[HistoryItem]:
    return [
        remembered
        for question, answer in pairs
        for remembered in (HistoryItem("user", question), HistoryItem("assistant", answer))
    ]


@pytest.mark.parametrize("stored", [0, 2, 4], ids=["all pending", "some pending", "all stored"])
async def test_each_exchange_of_a_session_is_found_by_its_id_and_none_of_another(
    held: Persistence, database: Database, stored: int
) -> None:
    session, other = await new_session(held), await new_session(held)
    records = turns(session, 4)
    await held.log.append(turn(other, "elsewhere"))
    for record in records[:stored]:
        await held.log.append(record)
    await held.batcher._write_all()
    for record in records[stored:]:
        await held.log.append(record)

    for record in records:
        found = await held.store.exchange(session.id, USER, record.exchange_id)
        assert [loads(message) for message in found] == [loads(message.json) for message in record.messages]
        assert await held.store.exchange(session.id, "bob", record.exchange_id) == []
    assert await held.store.exchange(session.id, USER, "elsewhere") == []
    ids = {record.exchange_id for record in records}
    assert await held.store.exchange_ids(session.id, USER, 10) == ids
    assert len(await held.store.exchange_ids(session.id, USER, 3) & ids) == 3
    assert await held.store.exchange_ids(session.id, "bob", 10) == set()


async def test_an_agent_is_reminded_of_the_last_exchanges(held: Persistence, database: Database) -> None:
    session = await new_session(held)
    for record in turns(session, 5):
        await held.log.append(record)
    everything = spoken(*((f"question {n}", f"answer {n}") for n in range(5)))
    assert await held.store.remembered(session.id, USER, 20) == everything
    held.start()
    assert await held.flush(PATIENCE_S) == 0

    for forget in (False, True):
        if forget:
            held.cache.forget((session.id, USER))
        assert await held.store.remembered(session.id, USER, 3) == everything[4:]
        assert await held.store.remembered(session.id, USER, 20) == everything
        assert await held.store.remembered(session.id, USER, 0) == []
    assert rows(database.dsn, "SELECT count(*) FROM session_history") == [(10,)]


async def test_a_restored_session_is_read_once(persistence: Persistence, kpi: Kpi) -> None:
    session = await new_session(persistence)
    first, second = turns(session, 2)
    await persistence.log.append(first)
    assert await persistence.flush(PATIENCE_S) == 0
    persistence.cache.forget((session.id, USER))

    for _ in range(3):
        assert await persistence.store.remembered(session.id, USER, 20) == spoken(("question 0", "answer 0"))
    await persistence.log.append(second)
    assert len(await persistence.store.remembered(session.id, USER, 20)) == 4
    read = kpi.registry.get_sample_value("app_db_statement_seconds_count", {"pool": "main", "op": "remembered"})
    assert read == 1
    assert total(kpi, "app_cache_requests_total", cache="history", result="miss") == 1
    assert total(kpi, "app_cache_requests_total", cache="history", result="hit") == 3


async def test_pending_turns_are_remembered_over_what_is_stored(held: Persistence) -> None:
    session = await new_session(held)
    first, second = turns(session, 2)
    held.batcher.push(Op.turn(first))
    await held.batcher._write_all()
    held.batcher.push(Op.turn(second))
    held.cache.forget((session.id, USER))
    assert await held.store.remembered(session.id, USER, 20) == spoken(
        ("question 0", "answer 0"), ("question 1", "answer 1")
    )


@pytest.mark.parametrize("restored", [True, False])
async def test_an_answer_without_words_is_remembered_for_the_state_that_it_left(
    held: Persistence, restored: bool
) -> None:
    session = await new_session(held)
    await held.log.append(turn(session, "x1", "first", "", metadata={"extras": {"checkpoint": "c.s/Graph/t"}}))
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    if restored:
        held.cache.forget((session.id, USER))
    question, answer = await held.store.remembered(session.id, USER, 20)
    assert (question.text, answer.text, answer.checkpoint) == ("first", "", "c.s/Graph/t")


@pytest.mark.parametrize("restored", [True, False])
async def test_an_exchange_without_a_question_is_remembered_where_it_left_a_state(
    held: Persistence, restored: bool
) -> None:
    session = await new_session(held)
    record = turn(session, "x1", "", "", metadata={"extras": {"checkpoint": "c1.s/Graph/t"}})
    await held.log.append(record)
    await held.log.append(turn(record.session, "x2", "", "nothing was asked"))
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    if restored:
        held.cache.forget((session.id, USER))
    (answer,) = await held.store.remembered(session.id, USER, 20)
    assert (answer.role, answer.text, answer.checkpoint) == ("assistant", "", "c1.s/Graph/t")


@pytest.mark.parametrize("restored", [True, False])
async def test_failed_and_interrupted_exchanges_are_not_remembered(held: Persistence, restored: bool) -> None:
    session = await new_session(held)
    record = turn(session, "x1", "first", "one")
    await held.log.append(record)
    record = turn(record.session, "x2", "second", "sorry", metadata={"extras": {"error": "llm_timeout"}})
    await held.log.append(record)
    record = turn(record.session, "x3", "third", "")
    await held.log.append(record)
    record = turn(record.session, "x4", "fourth", "half an", metadata={"extras": {"status": "interrupted"}})
    await held.log.append(record)
    held.start()
    assert await held.flush(PATIENCE_S) == 0
    if restored:
        held.cache.forget((session.id, USER))

    assert await held.store.remembered(session.id, USER, 20) == spoken(("first", "one"))


def by(agent_id: str, checkpoint: str = "", **extras: str) -> dict[str, Any]:
    named = {"checkpoint": checkpoint} if checkpoint else {}
    return {"agent_id": agent_id, "extras": {**extras, **named}}


ANSWERS = [
    by("Graph", "c1.s/Graph/t"),
    by("Graph", "c2.s/Graph/t"),
    by("Other", "c3.s/Other/t"),
    by("Plain"),
    by("Graph", error="llm_timeout"),
    by("Graph", status="interrupted"),
    {"model": "mock"},
]


@pytest.mark.parametrize("stored", [0, 1, 2, len(ANSWERS)])
async def test_the_newest_checkpoint_of_an_agent_is_found_behind_any_other_exchange(
    held: Persistence, kpi: Kpi, stored: int
) -> None:
    session = before = await new_session(held)
    for number, metadata in enumerate(ANSWERS):
        if number == stored:
            await held.batcher._write_all()
        record = turn(before, f"x{number}", metadata=metadata)
        await held.log.append(record)
        before = record.session
    if stored == len(ANSWERS):
        await held.batcher._write_all()
    assert len(held.pending) == len(ANSWERS) - stored

    newest = held.store.newest_checkpoint
    assert await newest(session.id, USER, "Graph") == "c2.s/Graph/t"
    asked = {"pool": "main", "op": "newest_checkpoint"}
    statements = "app_db_statement_seconds_count"
    assert (kpi.registry.get_sample_value(statements, asked) or 0) == (stored > 1)
    assert await newest(session.id, USER, "Other") == "c3.s/Other/t"
    assert await newest(session.id, USER, "Plain") == ""
    assert await newest(session.id, USER, "nobody") == ""
    assert await newest(session.id, "mallory", "Graph") == ""
    assert await newest((await new_session(held)).id, USER, "Graph") == ""


PLACES = {
    "session_id": "'{session}'", "user_id": f"'{USER}'", "agent_id": "'Graph'", "superseded": "'{{}}'", "below": "5000",
    "forks_below": "5000", "messages": "20", "rank": "7", "first": "0", "limit": "NULL", "offset": "0",
    "page_bytes": "262144", "large_bytes": "1048576",
}  # fmt: skip
TYPES = {"below": "int", "forks_below": "int", "messages": "bigint", "rank": "int", "first": "int", "limit": "bigint",
    "offset": "bigint", "page_bytes": "bigint", "large_bytes": "bigint"}  # fmt: skip


@pytest.mark.parametrize("sessions", [1, 20])
@pytest.mark.parametrize("planned", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("forked", [False, True], ids=["", "forked"])
async def test_what_a_turn_reads_is_found_along_the_ranks_of_the_session_and_its_forks(
    held: Persistence, database: Database, sessions: int, planned: str, forked: bool
) -> None:
    for _ in range(sessions):
        session = await new_session(held)
        for record in turns(session, 400 // sessions):
            await held.log.append(record)
        if forked:
            await held.log.append(turn(record.session, "fork", after_rank=1))
    await held.batcher._write_all()
    for asked in (NEWEST_CHECKPOINT, REMEMBERED, STANDING, HISTORY_PAGE, FORKS):
        statement = str(asked.compile(dialect=PGDialect_psycopg()))  # type: ignore[no-untyped-call]
        names = [name for name in PLACES if f"%({name})s" in statement]
        with psycopg.connect(database.dsn) as connection:
            connection.execute("ANALYZE session_history")
            connection.execute(f"SET plan_cache_mode = {planned}".encode())
            places = {name: f"${place}" for place, name in enumerate(names, 1)}
            types = ", ".join(TYPES.get(name, "text") for name in names)
            connection.execute(f"PREPARE asked ({types}) AS {statement % places}".encode())
            values = ", ".join(PLACES[name].format(session=session.id) for name in names)
            plan = connection.execute(f"EXPLAIN EXECUTE asked ({values})".encode()).fetchall()
            connection.rollback()
        lines = "\n".join(line for (line,) in plan)
        assert "Seq Scan" not in lines, lines
        assert "session_history_forks" in lines, lines
        if asked is NEWEST_CHECKPOINT or (asked is REMEMBERED and sessions == 1):
            assert "Index Scan Backward using" in lines, lines
            assert "Sort" not in lines, lines


async def test_a_checkpoint_that_cannot_be_looked_up_is_history_that_is_unavailable(
    build: Build, database: Database
) -> None:
    persistence = build(database.settings())  # the schema has not been seen yet
    session = Session.new(USER, "Graph", "")
    with pytest.raises(HistoryUnavailable):
        await persistence.store.newest_checkpoint(session.id, USER, "Graph")
    await persistence.log.append(turn(session, "x1", metadata=by("Graph", "c1.s/Graph/t")))
    assert await persistence.store.newest_checkpoint(session.id, USER, "Graph") == "c1.s/Graph/t"


async def test_a_spool_that_cannot_be_read_is_history_that_is_unavailable() -> None:
    async def broken(_ids: list[int]) -> list[Row]:
        raise sqlite3.OperationalError("disk I/O error")

    pending = Pending(broken, keep_bytes=0)
    on_disk = asyncio.get_running_loop().create_future()
    op = Op.turn(turn(Session.new(USER, "georges", ""), "x1"))
    pending.push(op, on_disk)
    assert len(await pending.records(op.key)) == 1
    on_disk.set_result(None)
    await asyncio.sleep(0)
    with pytest.raises(HistoryUnavailable):
        await pending.records(op.key)
