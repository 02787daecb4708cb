"""Branches as readers see them, wherever each exchange is: in Postgres, pending, or in the cache."""

import random
from typing import Any

import psycopg
import pytest

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.events import ChatMessage
from agentic_backend.persist.history import LARGE_BYTES
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.branches import forks_in, line_forks, line_of, marked, standing_of, superseded_by
from agentic_backend.session.models import HistoryWindow, Session, TurnRecord, checkpoint_of
from agentic_backend.spool.pending import Op
from agentic_backend.spool.statements import WRITE_TURNS, JsonBytes
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, message_of, new_session, turn
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

DEPTHS = [1, 2, 3, 20]


def of_graph(number: int, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"agent_id": "Graph", "extras": {"checkpoint": f"c{number}.s/Graph/t"}, **(metadata or {})}


def conversation(session: Session, *after_ranks: int | None, size: int = 1) -> list[TurnRecord]:
    """An exchange for each, whose answer has `size` characters."""
    records = []
    for number, after_rank in enumerate(after_ranks):
        said = f"question {number}", f"{number % 10}" * size
        records.append(turn(session, f"x{number}", *said, metadata=of_graph(number), after_rank=after_rank))
        session = records[-1].session
    return records


def at_random(session: Session, seed: int, count: int = 7) -> list[TurnRecord]:
    """A conversation whose exchanges begin behind any others, of the live line and of other branches."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    records: list[TurnRecord] = []
    for number in range(count):
        ends = [-1, *(one.rank for one in messages_of(records) if one.role == "assistant")]
        failed = {"extras": {"error": "llm_timeout"}} if chance.random() < 0.2 else None
        after_rank = chance.choice([None, None, *ends])
        records.append(
            turn(
                session,
                f"x{number}",
                f"q{number}",
                f"a{number}",
                metadata=of_graph(number, failed),
                after_rank=after_rank,
            )
        )
        session = records[-1].session
    return records


def messages_of(records: list[TurnRecord]) -> list[ChatMessage]:
    return [message for record in records for message in record.messages]


async def keep(persistence: Persistence, records: list[TurnRecord], stored: int) -> None:
    """Write so many of them to Postgres; the others wait."""
    for record in records[:stored]:
        persistence.batcher.push(Op.turn(record))
        await write_all(persistence)
    for record in records[stored:]:
        persistence.batcher.push(Op.turn(record))


async def write_all(persistence: Persistence) -> None:
    while len(persistence.pending):
        await persistence.batcher._write_all()


def expected(messages: list[ChatMessage], window: HistoryWindow) -> list[Any]:
    if window.branches:
        up_to = window.up_to
        chosen = [message for message in messages if up_to is None or message.rank <= up_to]
        forks = line_forks(forks_in(messages), up_to)
        told = [loads(marked(one.json, superseded_by(forks, one.rank))) for one in chosen]
    else:
        told = [loads(one.json) for one in line_of(messages, window.up_to)]
    end = max(0, len(told) - window.offset)
    return told[0 if window.limit is None else max(0, end - window.limit) : end]


def windows(last: int) -> list[HistoryWindow]:
    return [
        HistoryWindow(limit, offset, branches, up_to)
        for limit in (None, 1, 3, 50)
        for offset in (0, 1, 3, 50)
        for branches in (False, True)
        for up_to in (None, -1, 0, last // 2, last - 1, last, last + 5)
    ]


@pytest.mark.parametrize("seed", range(6))
async def test_every_window_is_that_of_the_line(held: Persistence, seed: int) -> None:
    for stored in (0, 3, 5, 7):
        session = await new_session(held)
        records = at_random(session, seed)
        await keep(held, records, stored)
        messages = messages_of(records)
        for window in windows(messages[-1].rank):
            found = [loads(message) for message in await history_of(held.store, session.id, USER, window)]
            assert found == expected(messages, window), (stored, window)
        for message in messages:
            assert await held.store.standing(session.id, USER, message.rank) == standing_of(messages, message.rank)
            by = superseded_by(line_forks(forks_in(messages)), message.rank)
            one = await message_of(held.store, session.id, USER, message.rank)
            assert one is not None
            assert loads(one) == loads(marked(message.json, by))
            assert await held.store.exchange(session.id, USER, message.exchange_id), "superseded ones are there, too"
        for rank in (-1, len(messages), 2**31):
            assert await held.store.standing(session.id, USER, rank) is None
        assert await held.store.standing(session.id, "mallory", 0) is None
        await write_all(held)


def remembered(records: list[TurnRecord], depth: int, up_to: int | None) -> list[str]:
    """What an agent is told, as the texts of the line's answered exchanges."""
    line = {message.rank for message in line_of(messages_of(records), up_to)}
    on_it = [record for record in records if record.messages[0].rank in line][-depth:]
    failed = [record for record in on_it if "error" in record.messages[1].metadata["extras"]]
    return [message.text for record in on_it if record not in failed for message in record.messages]


@pytest.mark.parametrize("seed", range(6))
async def test_an_agent_gets_the_line_alone(held: Persistence, seed: int) -> None:
    store = held.store
    for stored in (0, 3, 7):
        session = await new_session(held)
        records = at_random(session, seed)
        await keep(held, records, stored)
        for up_to in [None, *(message.rank for message in messages_of(records) if message.role == "assistant")]:
            held.cache.forget((session.id, USER))
            found = await store.remembered(session.id, USER, 20, up_to)
            assert [item.text for item in found] == remembered(records, 20, up_to), (stored, up_to)
            named = [checkpoint_of(message, "Graph") for message in line_of(messages_of(records), up_to)]
            newest = next(filter(None, reversed(named)), "")
            assert await store.newest_checkpoint(session.id, USER, "Graph", up_to) == newest
        await write_all(held)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("depth", DEPTHS)
async def test_what_is_cached_is_what_would_be_read(held: Persistence, seed: int, depth: int) -> None:
    session = await new_session(held)
    cache = held.cache
    records = at_random(session, seed, 9)
    for number, record in enumerate(records, 1):
        await held.log.append(record)
        found = [item.text for item in await held.store.remembered(session.id, USER, depth)]
        whole = remembered(records[:number], 99, None)
        assert found == whole[max(0, len(whole) - 2 * depth) :], "failed ones are not cached, and do not count"
    assert cache.hits


async def test_a_fork_that_is_committed_between_two_pages_does_not_count(held: Persistence) -> None:
    session = await new_session(held)
    *before, fork = conversation(session, *[None] * 8, 1, size=60_000)
    await keep(held, before, 5)
    told: list[bytes] = []
    async for page in held.store.pages(session.id, USER, HistoryWindow()):
        if not told:
            held.batcher.push(Op.turn(fork))
        told += page.messages
        await write_all(held)
    assert [loads(message) for message in told] == expected(messages_of(before), HistoryWindow())
    after = await history_of(held.store, session.id, USER)
    assert [loads(message)["rank"] for message in after] == [0, 1, 16, 17]


@pytest.mark.parametrize("stored", [2, 3])
async def test_a_large_superseded_message_says_so(held: Persistence, stored: int) -> None:
    session = await new_session(held)
    first = conversation(session, None)[0]
    large = turn(first.session, "large", "q", "é" * LARGE_BYTES)
    await keep(held, [first, large, turn(large.session, "fork", after_rank=1)], stored)
    window = HistoryWindow(branches=True)
    pages = [page async for page in held.store.pages(session.id, USER, window)]
    assert [page.large for page in pages if page.large is not None] == [3]
    message = b"".join([piece async for piece in held.store.message(session.id, USER, 3)])
    assert loads(message)["metadata"]["extras"] == {"superseded_by": "fork"}
    cut = b"".join([piece async for piece in held.store.message(session.id, USER, 3, HistoryWindow(2, 1))])
    assert loads(cut)["metadata"]["extras"] == {"superseded_by": "fork"}
    assert loads(cut)["parts"] == [{"type": "text", "text": "éé"}]


async def test_with_postgres_away_what_is_pending_is_told_as_far_as_it_goes(build: Build, database: Database) -> None:
    persistence = build(database.settings())  # the schema has not been seen yet
    session = Session.new(USER, "Graph", "")
    first, second, fork = conversation(session, None, None, 1)
    for record in (first, second, fork):
        await persistence.log.append(record)
    told = await history_of(persistence.store, session.id, USER)
    assert [loads(message)["rank"] for message in told] == [0, 1, 4, 5]
    everything = await history_of(persistence.store, session.id, USER, HistoryWindow(branches=True))
    by = [loads(message)["metadata"]["extras"].get("superseded_by") for message in everything]
    assert by == [None, None, "x2", "x2", None, None]
    standing = await persistence.store.standing(session.id, USER, 3)
    assert standing is not None
    assert not standing.live
    with pytest.raises(HistoryUnavailable):
        await persistence.store.standing(session.id, USER, 6)


async def test_records_that_are_written_again_change_nothing(persistence: Persistence, database: Database) -> None:
    session = await new_session(persistence)
    records = conversation(session, None, None, 1, None, 5)
    for record in records:
        await persistence.log.append(record)
    assert await persistence.flush(PATIENCE_S) == 0
    told = await history_of(persistence.store, session.id, USER, HistoryWindow(branches=True))
    for again in (records, records[::-1], records[1:2]):
        body = JsonBytes(b"[" + b",".join(record.encode() for record in again) + b"]")
        async with persistence.database.writes.connection() as connection:
            assert not list(await connection.execute("write_turns", WRITE_TURNS, {"records": body}))
            await connection.commit()
    assert await history_of(persistence.store, session.id, USER, HistoryWindow(branches=True)) == told
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM session_history").fetchone() == (10,)
