"""Sessions as threads: their metadata, their state, the search in them and their copies."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from agentic_backend.errors import HistoryUnavailable, SessionBusy, SessionNotFound, TooLarge
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.persist.threads import SEARCH_THREADS
from agentic_backend.session.models import Session
from agentic_backend.session.threads import Thread, ThreadsWanted
from backend_kit.kpi import Kpi
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, rows, stored_ranks, turn
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

AWAITS = {"agent_id": "georges", "extras": {"status": "awaiting_human", "awaiting": {"payload": {}, "seq": 3}}}
FAILED = {"agent_id": "georges", "extras": {"error": "llm_timeout"}}


async def made(
    persistence: Persistence,
    session_id: str,
    metadata: dict[str, Any] | None = None,
    agent_id: str = "georges",
    user_id: str = USER,
) -> Session:
    """A stored thread."""
    session = Session.with_id(session_id, user_id, agent_id, "")
    assert await persistence.threads.create(session, metadata or {}) == "made"
    return session


async def asked(persistence: Persistence, session: Session, metadata: dict[str, Any] | None = None) -> Session:
    """The session after a turn that ended with this."""
    record = turn(session, f"{session.id}-{session.next_rank}", "question", "answer", metadata=metadata)
    await persistence.log.append(record)
    return record.session


async def found(persistence: Persistence, user_id: str = USER, **wanted: Any) -> list[str]:
    """The ids of the threads found, in their order, and as many counted where all are on the page."""
    ask = ThreadsWanted(**wanted)
    threads, total = await persistence.threads.search(user_id, ask)
    assert await persistence.threads.count(user_id, ask) == total >= len(threads)
    return [thread.session.id for thread in threads]


async def thread_of(persistence: Persistence, session: Session) -> Thread:
    thread = await persistence.threads.get(session.id, session.user_id)
    assert thread is not None
    assert (await persistence.threads.search(session.user_id, ThreadsWanted(ids=(session.id,))))[0] == [thread]
    return thread


async def test_a_thread_is_made_once_with_its_metadata(persistence: Persistence) -> None:
    session = await made(persistence, "t1", {"user": "u", "tags": ["a"], "none": None}, agent_id="")
    assert await persistence.threads.create(session, {"user": "other"}) == "there"
    thread = await thread_of(persistence, session)
    assert thread == Thread.new(session, {"user": "u", "tags": ["a"], "none": None})
    assert not thread.has_run
    assert await persistence.threads.get("t1", "mallory") is None
    assert await persistence.threads.get("t\x00", USER) is None
    assert await persistence.threads.get("t2", USER) is None


async def test_nobody_has_more_threads_than_they_may(persistence: Persistence) -> None:
    await made(persistence, "t1")
    more = Session.with_id("t2", USER, "", "")
    assert await persistence.threads.create(more, {}, 1) is None
    assert await persistence.threads.copy("t1", USER, "t3", 1) is None
    assert await persistence.threads.copy("t1", USER, "t3", 2) == "made"
    assert await found(persistence, sort_by="thread_id", sort_order="asc") == ["t1", "t3"]


async def test_metadata_is_merged_key_by_key(persistence: Persistence) -> None:
    session = await made(persistence, "t1", {"a": {"x": 1}, "b": 2, "c": 3})
    before = await thread_of(persistence, session)
    assert await persistence.threads.merge("t1", USER, {"a": {"y": 2}, "b": None, "d": "é\\\n"})
    after = await thread_of(persistence, session)
    assert after.metadata == {"a": {"y": 2}, "b": None, "c": 3, "d": "é\\\n"}
    assert after.session.updated_at > before.session.updated_at
    assert after.state_at == before.state_at
    assert not await persistence.threads.merge("t1", "mallory", {"b": 1})
    assert not await persistence.threads.merge("t\x00", USER, {"b": 1})
    assert (await thread_of(persistence, session)).metadata == after.metadata


async def test_metadata_is_bounded(persistence: Persistence) -> None:
    with pytest.raises(TooLarge):
        await made(persistence, "t1", {"a": "x" * 16_400})
    with pytest.raises(TooLarge):
        await made(persistence, "t1", {"a": [1e300] * 60})  # 301 digits each, where they are stored
    await made(persistence, "t1", {"a": "x" * 16_000})
    with pytest.raises(TooLarge):
        await persistence.threads.merge("t1", USER, {"b": "x" * 500})
    assert await persistence.threads.merge("t1", USER, {"a": "y"})
    assert await persistence.threads.merge("t1", USER, {"b": "x" * 500})


@pytest.mark.parametrize("stored", [False, True])
async def test_the_newest_answer_is_the_state(held: Persistence, stored: bool) -> None:
    if stored:
        held.start()
    states = {}
    for name, metadata in (("idle", None), ("interrupted", AWAITS), ("error", FAILED)):
        session = await asked(held, await made(held, name), FAILED if metadata is None else None)
        session = await asked(held, session, metadata)
        if stored:
            await held.flush(PATIENCE_S)
        thread = await thread_of(held, session)
        states[name] = thread.state
        assert thread.session == session
        assert thread.has_run
        assert thread.state_at >= thread.created_at
    assert states == {name: name for name in states}
    for name in states:
        assert await found(held, status=name) == [name]
    assert await found(held, status="busy") == []
    assert await found(held, sort_by="status", sort_order="asc") == ["error", "idle", "interrupted"]


async def test_what_an_earlier_process_left_in_its_spool_has_its_state(
    build: Build, database: Database, tmp_path: Path
) -> None:
    async def held_again() -> Persistence:
        """Persistence with the same spool, which writes nothing to Postgres."""
        rules = PersistenceRules(spool_s=PATIENCE_S, close_s=0.0)
        own_kpi = Kpi(CollectorRegistry(), service="agentic")
        spool = {"spool_dir": str(tmp_path / "own")}
        made = build(database.settings(), rules=rules, own_kpi=own_kpi, persistence=spool)
        await made.database.connect_until_ready(lambda _state: None)
        return made

    first = await held_again()
    session = await asked(first, await asked(first, await made(first, "t1"), FAILED), AWAITS)
    await first.aclose()
    assert rows(database.dsn, "SELECT count(*) FROM session_history") == [(0,)]
    thread = await thread_of(await held_again(), session)
    assert (thread.state, thread.session.next_rank) == ("interrupted", 4)


async def test_a_thread_in_which_a_turn_runs_is_busy(persistence: Persistence, database: Database) -> None:
    here, there = await made(persistence, "t1", agent_id=""), await made(persistence, "t2", agent_id="")
    await made(persistence, "t3")
    persistence.threads.running = lambda user_id: {"t1": "rico"} if user_id == USER else {}
    lease = (
        "INSERT INTO session_lease (session_id, holder, fence, exchange_id, ask) VALUES ('t2', 'other', 1, 'e1',"
        """ '{"session":{"agent_id":"sammy"}}') RETURNING 1"""
    )
    rows(database.dsn, lease)
    for session, agent_id in ((here, "rico"), (there, "sammy")):
        thread = await thread_of(persistence, session)
        assert (thread.busy, thread.has_run, thread.session.agent_id) == (True, True, agent_id)
    assert sorted(await found(persistence, status="busy")) == ["t1", "t2"]
    assert await found(persistence, status="idle") == ["t3"]
    for session_id in ("t1", "t2"):
        with pytest.raises(SessionBusy):
            await persistence.threads.copy(session_id, USER, "copy")


async def test_a_lease_whose_turn_has_ended_here_is_not_busy(held: Persistence, database: Database) -> None:
    session = await made(held, "t1")
    lease = (
        "INSERT INTO session_lease (session_id, holder, fence, exchange_id) VALUES ('t1', 'me', 1, 't1-0') RETURNING 1"
    )
    rows(database.dsn, lease)
    assert (await thread_of(held, session)).busy
    assert not (await thread_of(held, await asked(held, session))).busy


async def test_a_search_finds_what_has_all_of_the_metadata(persistence: Persistence) -> None:
    await made(persistence, "t1", {"user": "u", "n": 1, "deep": {"a": [1, 2], "b": None}})
    await made(persistence, "t2", {"user": "u", "n": 2})
    await made(persistence, "t3", {"user": "v", "n": 1})
    await made(persistence, "t4")
    await made(persistence, "t5", {"user": "u"}, user_id="bob")
    assert await found(persistence) == ["t4", "t3", "t2", "t1"]
    assert await found(persistence, metadata={"user": "u"}) == ["t2", "t1"]
    assert await found(persistence, metadata={"user": "u", "n": 1}) == ["t1"]
    assert await found(persistence, metadata={"deep": {"a": [2]}}) == ["t1"]
    assert await found(persistence, metadata={"user": "w"}) == []
    assert await found(persistence, user_id="bob", metadata={"user": "u"}) == ["t5"]
    assert await found(persistence, user_id="bob", ids=("t1", "t5")) == ["t5"]
    assert await found(persistence, ids=()) == []
    assert await found(persistence, limit=2) == ["t4", "t3"]
    assert await found(persistence, limit=2, offset=3) == ["t1"]
    assert await found(persistence, limit=2, offset=9) == []
    for sort_by in ("thread_id", "created_at", "updated_at"):
        assert await found(persistence, sort_by=sort_by, sort_order="asc") == ["t1", "t2", "t3", "t4"]
        assert await found(persistence, sort_by=sort_by, sort_order="desc") == ["t4", "t3", "t2", "t1"]


async def test_a_search_finds_what_follows_from_the_agent(held: Persistence) -> None:
    wanted: dict[str, Any] = {
        "metadata": {"graph_id": "g", "user": "u"},
        "agents": {"graph_id": ("georges", "sammy")},
        "sort_by": "thread_id",
        "sort_order": "asc",
    }
    await made(held, "new", {"user": "u"})
    for name, agent_id, metadata in (
        ("by-agent", "georges", {"user": "u"}),
        ("no-agent", "", {"user": "u"}),
        ("other-agent", "rico", {"user": "u"}),
        ("other-user", "georges", {"user": "v"}),
        ("own", "rico", {"user": "u", "graph_id": "g"}),
        ("own-other", "georges", {"user": "u", "graph_id": "h"}),
    ):
        session = await made(held, name, metadata, agent_id)
        await asked(held, session.with_agent("sammy"))
    expected = ["by-agent", "no-agent", "own"]
    assert await found(held, **wanted) == expected
    held.start()
    await held.flush(PATIENCE_S)
    assert await found(held, **wanted) == expected
    assert await found(held, **{**wanted, "metadata": {"graph_id": "g"}}) == [
        "by-agent",
        "no-agent",
        "other-user",
        "own",
    ]


async def test_what_waits_for_postgres_takes_part(held: Persistence) -> None:
    old, young = await made(held, "old"), await made(held, "young")
    assert await found(held) == ["young", "old"]
    await asked(held, old)
    assert await found(held, limit=1) == ["old"]
    assert await found(held, limit=1, offset=1) == ["young"]
    deleting = asyncio.ensure_future(held.store.delete(young.id, USER))
    renaming = asyncio.ensure_future(held.store.change(old.id, USER, title="Renamed"))
    await asyncio.wait([renaming], timeout=0)
    await asyncio.sleep(0)
    assert await found(held) == ["old"]
    assert await held.threads.get(young.id, USER) is None
    with pytest.raises(SessionNotFound):
        await held.threads.copy(young.id, USER, "copy")
    held.start()
    await asyncio.gather(deleting, renaming)
    assert (await thread_of(held, old)).session.title == "Renamed"


async def test_a_thread_from_before_is_as_old_as_its_first_message(
    persistence: Persistence, database: Database
) -> None:
    session = await made(persistence, "t1")
    rows(database.dsn, "UPDATE session SET created_at = NULL RETURNING 1")
    thread = await thread_of(persistence, session)
    assert thread.created_at == session.updated_at
    session = await asked(persistence, await asked(persistence, session))
    await persistence.flush(PATIENCE_S)
    first = loads((await history_of(persistence.store, "t1"))[0])
    assert (await thread_of(persistence, session)).created_at == first["timestamp"] < session.updated_at
    assert await found(persistence, sort_by="created_at") == ["t1"]


async def test_a_copy_is_a_thread_of_its_own(persistence: Persistence, database: Database) -> None:
    session = await made(persistence, "t1", {"user": "u"})
    session = await asked(persistence, await asked(persistence, session), AWAITS)
    assert await persistence.threads.copy("t1", USER, "t2") == "made"
    copy = await persistence.threads.get("t2", USER)
    assert copy is not None
    assert (copy.metadata, copy.state, copy.session.next_rank) == ({"user": "u"}, "interrupted", 4)
    assert copy.session.version == session.version
    told = [loads(message) for message in await history_of(persistence.store, "t1")]
    copied = [loads(message) for message in await history_of(persistence.store, "t2")]
    own = {"session_id", "exchange_id"}
    assert [{k: v for k, v in one.items() if k not in own} for one in copied] == [
        {k: v for k, v in one.items() if k not in own} for one in told
    ]
    ids = [exchange_id for _, exchange_id in stored_ranks(database.dsn, copy.session)]
    assert [ids[0], ids[2]] == [ids[1], ids[3]]
    assert not set(ids) & {one["exchange_id"] for one in told}
    await asked(persistence, copy.session)
    assert await persistence.store.delete("t1", USER)
    assert len(await history_of(persistence.store, "t2")) == 6


async def test_nobody_copies_what_is_anothers(persistence: Persistence) -> None:
    await asked(persistence, await made(persistence, "t1"))
    for session_id, user_id in (("t1", "mallory"), ("t2", USER), ("t\x00", USER)):
        with pytest.raises(SessionNotFound):
            await persistence.threads.copy(session_id, user_id, "copy")
    assert await found(persistence, user_id="mallory") == []


async def test_a_copy_waits_for_what_is_pending(build: Build, database: Database) -> None:
    held = build(database.settings(), rules=PersistenceRules(spool_s=PATIENCE_S, close_s=0.0, commit_s=0.01))
    await held.database.connect_until_ready(lambda _state: None)
    session = await asked(held, await made(held, "t1"))
    with pytest.raises(HistoryUnavailable):
        await held.threads.copy("t1", USER, "t2")
    assert await found(held) == ["t1"]
    held.start()
    await held.flush(PATIENCE_S)
    assert (await thread_of(held, session)).session.updated_at == session.updated_at
    assert await held.threads.copy("t1", USER, "t2") == "made"
    assert len(await history_of(held.store, "t2")) == 2


async def test_a_copy_has_what_was_pending(held: Persistence) -> None:
    await asked(held, await made(held, "t1"))
    copying = asyncio.ensure_future(held.threads.copy("t1", USER, "t2"))
    held.start()
    assert await copying == "made"
    assert len(await history_of(held.store, "t2")) == 2


async def test_a_search_can_use_the_index_of_metadata(persistence: Persistence, database: Database) -> None:
    await made(persistence, "t1", {"user": "u"})
    compile_: Callable[..., Any] = SEARCH_THREADS[True, "updated_at", "desc"].compile
    statement = str(compile_(dialect=PGDialect_psycopg()))  # type: ignore[no-untyped-call]
    wanted = {"ids": None, "status": None, "derived": "[]", "metadata": '{"user": "u"}', "limit": 10, "offset": 0}
    with psycopg.connect(database.dsn) as connection:
        # Among this few any other way is cheaper.
        connection.execute("SET enable_seqscan = off")
        connection.execute("DROP INDEX session_by_user")
        values = {"user_id": USER, "pending": "[]", "running": "{}", **wanted}
        plan = connection.execute(f"EXPLAIN {statement}".encode(), values).fetchall()
        connection.rollback()
    assert "Bitmap Index Scan on session_by_metadata" in "\n".join(line for (line,) in plan)


async def test_a_copy_has_the_states_of_its_graphs(persistence: Persistence, database: Database) -> None:
    session = await made(persistence, "t1")
    await asked(persistence, session, {"agent_id": "georges", "extras": {"checkpoint": "t1/georges/x@c1"}})
    other = await made(persistence, "t10")
    async with persistence.graph_state.saver() as saver:
        for thread in ("t1", "t1/georges/x", f"{other.id}/georges/x"):
            where: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            state: Any = {"v": 4, "id": "c1", "ts": "", "channel_values": {"messages": ["hi"]}, "versions_seen": {}}
            state |= {"channel_versions": {"messages": "1"}}
            put = await saver.aput(where, state, {}, {"messages": "1"})
            await saver.aput_writes(put, [("messages", thread)], "task")
    assert await persistence.threads.copy("t1", USER, "t2") == "made"
    assert await persistence.store.newest_checkpoint("t2", USER, "georges") == "t2/georges/x@c1"
    async with persistence.graph_state.saver() as saver:
        for thread, written in (("t2", "t1"), ("t2/georges/x", "t1/georges/x")):
            found = await saver.aget_tuple({"configurable": {"thread_id": thread, "checkpoint_id": "c1"}})
            assert found is not None
            assert found.checkpoint["channel_values"] == {"messages": ["hi"]}
            assert found.pending_writes == [("task", "messages", written)]
    assert rows(database.dsn, "SELECT count(*) FROM checkpoints") == [(5,)]
