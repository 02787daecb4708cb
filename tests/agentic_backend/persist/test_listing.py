"""Pages of a user's sessions and the search in them, with what still waits for Postgres."""

import asyncio
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.persist.listing import _PENDING_BYTES, SEARCH_SESSIONS
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import Session, SessionsWanted
from tests.agentic_backend.records import EVERYTHING, USER, new_session, turn
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database


async def talked(persistence: Persistence, title: str, *texts: str, user_id: str = USER) -> Session:
    """A session of that title with one turn of those texts."""
    session = await new_session(persistence, user_id, title)
    record = turn(session, f"{session.id}-e1", *texts)
    await persistence.log.append(record)
    return record.session


async def titles(persistence: Persistence, words: str = "", user_id: str = USER, **page: int) -> list[str]:
    return [s.title for s in await persistence.store.list_for(user_id, SessionsWanted(words, **page))]


@pytest.fixture
async def conversations(persistence: Persistence) -> Persistence:
    """Three conversations, the last one newest, all of it committed."""
    await talked(persistence, "Holidays", "Where is it warm in March?", "Try **Lisbon**, or the Canaries.")
    await talked(persistence, "Émigré cooking", "How long do lentils boil?", "Twenty minutes.\nNot the red ones.")
    await talked(persistence, "Steuern", "Wie lange muss ich Belege aufheben?", "Zehn Jahre, in der Regel.")
    await talked(persistence, "Holidays", "Lisbon, again", "Lisbon.", user_id="bob")
    await persistence.flush(PATIENCE_S)
    assert not len(persistence.pending)
    return persistence


ALL = ["Steuern", "Émigré cooking", "Holidays"]


async def test_pages_follow_one_another(conversations: Persistence) -> None:
    assert await titles(conversations) == ALL
    assert await titles(conversations, limit=2) == ALL[:2]
    assert await titles(conversations, limit=2, offset=2) == ALL[2:]
    assert await titles(conversations, offset=1) == ALL[1:]
    assert await titles(conversations, limit=5, offset=3) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("lisbon", ["Holidays"]),
        ("LISB", ["Holidays"]),
        ("holidays", ["Holidays"]),
        ("émigré", ["Émigré cooking"]),
        ("cook", ["Émigré cooking"]),
        ("lentils boil", ["Émigré cooking"]),
        ("boil lentils", ["Émigré cooking"]),
        ("red", ["Émigré cooking"]),
        ("jahre", ["Steuern"]),
        ("lange", ["Steuern"]),
        ("in", ["Steuern", "Holidays"]),
        ("ho", []),  # not the beginning of anything: too short
        ("lisbon lentils", []),  # in no one message
        ("holidays lisbon", []),
        ("  ", ALL),
        ("?!", []),
        ("'", []),
        ("lisbon' & !x:*", []),
        ("\\", []),
        ("%", []),
        ("-lisbon", ["Holidays"]),
    ],
)
async def test_a_search_looks_into_titles_questions_and_answers(
    conversations: Persistence, words: str, found: list[str]
) -> None:
    assert await titles(conversations, words) == found


async def test_a_search_is_paged_too(conversations: Persistence) -> None:
    assert await titles(conversations, "in", limit=1) == ["Steuern"]
    assert await titles(conversations, "in", limit=1, offset=1) == ["Holidays"]


async def test_nobody_finds_what_is_anothers(conversations: Persistence) -> None:
    assert await titles(conversations, "again") == []
    assert await titles(conversations, "again", "bob") == ["Holidays"]
    assert await titles(conversations, "lisbon", "mallory") == []


async def test_a_search_can_use_its_index(conversations: Persistence, database: Database) -> None:
    statement = str(SEARCH_SESSIONS.compile(dialect=PGDialect_psycopg()))  # type: ignore[no-untyped-call]
    asked = {"user_id": USER, "pending": "[]", "limit": None, "offset": 0, "words": "lisbon", "beginning": ":*"}
    asked |= {"only": None, "begun": False, "behind_at": None, "behind_pinned": False, "behind_id": None}
    asked |= {"typed": ["lisbon"], "snippets": True}
    with psycopg.connect(database.dsn) as connection:
        # Among this few messages any other way is cheaper.
        connection.execute("SET enable_seqscan = off")
        connection.execute("ALTER TABLE session_history DROP CONSTRAINT session_history_pkey")
        plan = connection.execute(f"EXPLAIN {statement}".encode(), asked).fetchall()
        connection.rollback()
    assert "Bitmap Index Scan on session_history_words" in "\n".join(line for (line,) in plan)


async def test_what_waits_for_postgres_takes_part(held: Persistence) -> None:
    old = await new_session(held, title="Old")
    young = await new_session(held, title="Young")
    assert await titles(held) == ["Young", "Old"]
    record = turn(old, "e1", "What is a quokka?", "A marsupial.")
    await held.log.append(record)
    assert await titles(held, limit=1) == ["Old"]
    assert await titles(held, limit=1, offset=1) == ["Young"]
    assert await titles(held, "quokka") == ["Old"]
    assert await titles(held, "marsup") == ["Old"]
    assert await titles(held, "young") == ["Young"]
    renaming = asyncio.ensure_future(held.store.change(young.id, USER, title="Middle-aged"))
    await asyncio.sleep(0)
    while not held.pending.holds((young.id, USER)):  # noqa: ASYNC110 - the change reads the session first
        await asyncio.sleep(0.01)
    assert await titles(held) == ["Middle-aged", "Old"]
    assert await titles(held, "middle") == ["Middle-aged"]
    assert await titles(held, "young") == []
    deleting = asyncio.ensure_future(held.store.delete(old.id, USER))
    await asyncio.sleep(0)
    assert await titles(held) == ["Middle-aged"]
    assert await titles(held, "quokka") == []
    held.start()
    assert await deleting
    assert await renaming is not None
    assert await titles(held) == ["Middle-aged"]


async def test_the_title_of_a_pending_first_turn_is_found_and_never_hides_one_that_is_there(held: Persistence) -> None:
    untitled = await new_session(held)
    titled = await new_session(held, title="Mine")
    first = turn(untitled, "e1", "Anything about wombats", "Yes.")
    other = turn(titled, "e2")
    await held.log.append(replace(first, session=replace(first.session, title="Anything about wombats")))
    await held.log.append(replace(other, session=replace(other.session, title="Anything else")))
    assert await titles(held, "wombats") == ["Anything about wombats"]
    assert await titles(held, "mine") == ["Mine"]
    assert await titles(held, "else") == []


async def test_of_much_that_waits_a_search_reads_the_newest(held: Persistence) -> None:
    early = await new_session(held, title="Early")
    late = await new_session(held, title="Late")
    await held.log.append(turn(early, "e1", "needle", "x" * _PENDING_BYTES))
    await held.log.append(turn(late, "e2", "needle", "x" * (_PENDING_BYTES // 2)))
    assert await titles(held, "needle") == ["Late"]
    held.start()
    await held.flush(PATIENCE_S)
    assert await titles(held, "needle") == ["Late", "Early"]


async def test_a_message_of_any_size_and_kind_is_stored(persistence: Persistence) -> None:
    words = " ".join(map("word{}".format, range(300_000)))  # a generator would hold the loop, under coverage for 0.5 s
    session = await talked(persistence, "Large", "one", words)
    odd = turn(session, "e2", "x" * 5000, "")
    await persistence.log.append(odd)
    await persistence.flush(PATIENCE_S)
    pages = [page async for page in persistence.store.pages(session.id, USER, EVERYTHING)]
    assert sum(len(page.messages) for page in pages) == 3
    assert [page.large for page in pages if page.large is not None] == [1]
    pieces = [piece async for piece in persistence.store.message(session.id, USER, 1)]
    assert b"word299999" in b"".join(pieces)
    assert await titles(persistence, "word100") == ["Large"]
    assert await titles(persistence, "word299999") == []


async def test_without_postgres_there_is_no_list(persistence: Persistence) -> None:
    await persistence.database.main.aclose()
    persistence.database._ready.clear()
    with pytest.raises(HistoryUnavailable):
        await titles(persistence)
