"""The counts of words against a count from scratch: whatever was written, by however many at once, or cut off."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from backend_kit.db.audit import DROP_AUDIT
from backend_kit.settings import Postgres
from knowledge_flow_backend.engines.pgvector.word_counts import WordCounter
from knowledge_flow_backend.errors import DocumentsUnavailable
from knowledge_flow_backend.index.database import migrate
from tests.knowledge_flow_backend.corpus import INDEX, Corpus
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

VOCABULARY = ("turn", "spool", "pool", "backpressure", "asyncio.gather", "max_size", "o'brien", "the", "rinse", "漢字")
FROM_SCRATCH = """
SELECT d.owner_id, d.session_id, (SELECT coalesce(array_agg(t.tag_id ORDER BY t.tag_id), '{}') FROM document_tags t
    WHERE t.document_uid = d.uid AND d.session_id IS NULL), c.words
FROM documents d JOIN chunks c ON c.document_uid = d.uid WHERE d.retrievable"""
KEPT = """
SELECT p.owner_id, p.session_id, p.tag_ids, k.word, k.chunks FROM word_places p JOIN word_counts k ON k.place = p.id"""


def from_scratch(corpus: Corpus) -> tuple[Counter[Any], Counter[Any]]:
    """Chunks by place and word, and by place, as the rows say now."""
    words: Counter[Any] = Counter()
    chunks: Counter[Any] = Counter()
    for owner, session, tags, lexemes in corpus.sql(
        f"SELECT s.owner_id, s.session_id, s.coalesce, tsvector_to_array(s.words) FROM ({FROM_SCRATCH}) s"  # noqa: S608 - constants of this module
    ):
        place = (owner, session, tuple(tags))
        chunks[place] += 1
        words.update((place, word) for word in lexemes)
    return words, chunks


def kept(corpus: Corpus) -> tuple[Counter[Any], Counter[Any]]:
    """The same as they were counted."""
    words: Counter[Any] = Counter()
    for owner, session, tags, word, chunks in corpus.sql(KEPT):
        words[(owner, session, tuple(tags)), word] += chunks
    rows = corpus.sql("SELECT owner_id, session_id, tag_ids, chunks FROM word_places")
    return words, Counter({(owner, session, tuple(tags)): chunks for owner, session, tags, chunks in rows})


async def counted(corpus: Corpus) -> None:
    """Count until nothing is noted."""
    while await WordCounter(corpus.database).count():
        pass
    assert corpus.sql("SELECT count(*) FROM word_notes") == [(0,)]


async def random_writes(corpus: Corpus, seed: int, writes: int) -> None:
    """What users do, in the order of a seed: any document may be anybody's next one."""
    chance = random.Random(seed)  # noqa: S311 - a repeatable order
    for _ in range(writes):
        owner = chance.choice(("ada", "bob"))
        uid = f"{owner}{chance.randrange(6)}"
        libraries = tuple(tag for tag in (f"{owner}-x", f"{owner}-y") if chance.random() < 0.5)
        texts = [" ".join(chance.choices(VOCABULARY, k=5)) for _ in range(chance.randint(1, 5))]
        statement: str | None = None
        match chance.randrange(8):
            case 0 | 1 | 2:
                await corpus.put(uid, *texts, owner=owner, tag_ids=libraries)
            case 3:
                await corpus.put(f"{uid}-attached", *texts, owner=owner, session_id=chance.choice(("s1", "s2")))
            case 4:
                await corpus.writer.delete_document(chance.choice((uid, f"{uid}-attached")))
            case 5:
                statement = "UPDATE documents SET retrievable = NOT retrievable WHERE uid = %s"
            case 6:
                statement = "DELETE FROM document_tags WHERE document_uid = %s"
            case 7:
                statement = f"INSERT INTO document_tags SELECT uid, '{owner}-x' FROM documents WHERE uid = %s AND session_id IS NULL ON CONFLICT DO NOTHING"  # noqa: E501, S608 - a text of this test
        if statement is not None:
            # Another writer may delete the document while a tag is given to it: then there is nothing to count.
            with suppress(psycopg.errors.ForeignKeyViolation):
                await asyncio.to_thread(corpus.sql, statement, [uid])


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_counts_are_those_of_a_count_from_scratch(corpus: Corpus, seed: int) -> None:
    for owner in ("ada", "bob"):
        for name in "xy":
            corpus.add_library(f"{owner}-{name}", owner=owner)
    counters = [WordCounter(corpus.database), WordCounter(corpus.database)]
    writing = True

    async def count(counter: WordCounter) -> None:
        while writing:
            await counter.count()
            await asyncio.sleep(0)

    async def write() -> None:
        nonlocal writing
        async with asyncio.TaskGroup() as writers:
            for number in range(3):
                writers.create_task(random_writes(corpus, seed * 10 + number, 25))
        writing = False

    async with asyncio.TaskGroup() as tasks:
        for counter in counters:
            tasks.create_task(count(counter))
        tasks.create_task(write())
    await counted(corpus)
    assert kept(corpus) == from_scratch(corpus)
    assert kept(corpus)[0]
    corpus.sql("DELETE FROM tags WHERE id = 'ada-x'")
    await counted(corpus)
    assert kept(corpus) == from_scratch(corpus)
    corpus.sql("DELETE FROM documents")
    await counted(corpus)
    assert kept(corpus) == (Counter(), Counter())
    assert corpus.sql("SELECT count(*) FROM counted_documents") == [(0,)]


async def test_a_count_that_was_cut_off_is_done_again(corpus: Corpus) -> None:
    await corpus.put("one", "the spool", "the pool")
    await counted(corpus)
    await corpus.put("one", "the drain")
    await corpus.put("two", "a spool")
    noted = corpus.sql("SELECT document_uid FROM word_notes ORDER BY id")
    with psycopg.connect(corpus.dsn, options=f'-c search_path="{corpus.database.index}",public') as holder:
        holder.execute("LOCK TABLE counted_documents IN ACCESS EXCLUSIVE MODE")
        counting = asyncio.ensure_future(WordCounter(corpus.database).count())
        waiting = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        )
        while not corpus.sql(waiting, ["WITH state AS%fresh AS%"]):  # noqa: ASYNC110 - a lock tells nobody
            await asyncio.sleep(0.01)
        with pytest.raises(DocumentsUnavailable):
            await counting
    assert corpus.sql("SELECT document_uid FROM word_notes ORDER BY id") == noted
    await counted(corpus)
    assert kept(corpus) == from_scratch(corpus)


async def test_writers_of_one_library_do_not_wait_for_each_other(corpus: Corpus) -> None:
    corpus.add_library("mine")
    await corpus.put("long", "the spool", tag_ids=("mine",))
    await corpus.put("short", "the spool", tag_ids=("mine",))
    with psycopg.connect(corpus.dsn, options=f'-c search_path="{corpus.database.index}",public') as writer:
        # A write that has done everything but end.
        writer.execute("UPDATE documents SET version = version + 1 WHERE uid = 'long'")
        writer.execute("DELETE FROM chunks WHERE document_uid = 'long'")
        async with asyncio.timeout(PATIENCE_S):
            await corpus.put("short", "the pool", tag_ids=("mine",))
            await counted(corpus)
        words, chunks = kept(corpus)
        place = ("admin", None, ("mine",))
        assert (chunks[place], words[place, "spool"], words[place, "pool"]) == (2, 1, 1)
    await counted(corpus)
    assert kept(corpus) == from_scratch(corpus)


async def test_a_document_of_many_notes_is_counted_once_and_a_large_one_alone(corpus: Corpus) -> None:
    await corpus.put("large", *(f"the spool {number}" for number in range(10)))
    notes = corpus.sql("SELECT count(*) FROM word_notes")[0][0]
    assert notes == 4  # three of each COPY
    await corpus.put("small", "the pool")
    counter = WordCounter(corpus.database, notes=2, chunks=5)
    assert await counter.count() == notes
    assert corpus.sql("SELECT document_uid FROM counted_documents") == [("large",)]
    assert await counter.count() == 1
    assert await counter.count() == 0
    assert kept(corpus) == from_scratch(corpus)


async def test_a_migration_counts_what_is_there(corpus: Corpus, database: Database) -> None:
    corpus.add_library("mine")
    await corpus.put("one", "the spool", "the pool and the spool", tag_ids=("mine",))
    await corpus.put("two", "the drain, asyncio.gather")
    await corpus.put("attached", "the drain", session_id="s1")
    await corpus.put("off", "the drain")
    corpus.sql("UPDATE documents SET retrievable = false WHERE uid = 'off'")
    await counted(corpus)
    whole = kept(corpus)
    corpus.sql("DROP FUNCTION note_words_of_document, note_words_of_place, note_words_of_chunks CASCADE")
    corpus.sql("DROP TABLE word_notes, counted_documents, word_counts, word_places")
    for statement in DROP_AUDIT:
        corpus.sql(statement)
    corpus.sql("UPDATE alembic_version SET version_num = '0005'")
    await asyncio.to_thread(migrate, Postgres.model_validate(database.settings()), INDEX)
    assert kept(corpus) == whole == from_scratch(corpus)
    await corpus.put("one", "the drain")
    await counted(corpus)
    assert kept(corpus) == from_scratch(corpus)
