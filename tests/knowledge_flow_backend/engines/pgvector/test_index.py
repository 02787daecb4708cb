"""What is pgvector's own: statistics of words, the graph under filters, statements that stay compiled."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from knowledge_flow_backend.engines.pgvector.index import PgVectorIndex
from knowledge_flow_backend.errors import SchemaMismatch
from tests.knowledge_flow_backend.corpus import POLICIES, Corpus, filled, found, vector
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database


async def test_the_counts_of_common_words_come_from_the_statistics(corpus: Corpus) -> None:
    assert isinstance(corpus.index, PgVectorIndex)
    index = corpus.index
    await corpus.put("many", *(f"the turn goes on, passage {number}" for number in range(60)))
    await corpus.put("rare", "backpressure in a turn")
    await index.count_common_words()
    assert corpus.sql("SELECT * FROM common_words") == []
    corpus.sql("ANALYZE chunks")
    await index.count_common_words()
    assert dict(corpus.sql("SELECT word, chunks FROM common_words"))["turn"] == 61
    assert found(await corpus.search("does backpressure go on in a turn", "strict"))[0] == "rare"
    # What is common no more is counted again.
    corpus.sql("DELETE FROM chunks WHERE document_uid = 'many'")
    corpus.sql("ANALYZE chunks")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(index.count_common_words())
    assert "passag" not in dict(corpus.sql("SELECT word, chunks FROM common_words"))


async def test_a_filter_finds_its_few_chunks_in_a_large_index(corpus: Corpus) -> None:
    """The graph alone, filtered after the fact, would find none of them."""
    await corpus.put("needle", "nothing alike at all")
    corpus.sql(
        "INSERT INTO documents (uid, owner_id, title, file_name, mime_type, content_hash, size_bytes, chunk_count) "
        "VALUES ('hay', 'admin', 'Hay', 'hay', 'text/plain', 'h', 1, 4000)"
    )
    hay = "[" + ",".join(str(value) for value in vector("the spool").tolist()) + "]"
    await asyncio.to_thread(  # it takes a second
        corpus.sql,
        "INSERT INTO chunks (uid, document_uid, version, ordinal, title, section, content, char_start, char_end, "
        "token_count, embedding) SELECT 'hay' || n, 'hay', 1, n, '', '', 'the spool', 0, 1, 1, %s::vector "
        "FROM generate_series(1, 4000) n",
        [hay],
    )
    for policy in ("semantic", "hybrid"):
        assert found(await corpus.search("the spool", policy, documents=("needle",))) == ["needle"]
        assert set(found(await corpus.search("the spool", policy))) == {"hay"}


async def test_another_model_is_refused(corpus: Corpus) -> None:
    await filled(corpus)
    other = PgVectorIndex(corpus.database, model="other", kpi=corpus.kpi)
    with pytest.raises(SchemaMismatch, match=r"holds vectors of mock \(384 numbers\).*those of other"):
        await other.check()
    other_corpus = replace(corpus, index=other)
    for policy in ("hybrid", "semantic"):
        with pytest.raises(SchemaMismatch):
            await other_corpus.search("spool", policy)
    assert found(await other_corpus.search("spool", "strict")) == ["spool"]


async def test_the_words_are_searched_while_the_question_is_embedded(corpus: Corpus) -> None:
    await filled(corpus)
    searched = asyncio.Event()
    lexical = {"pool": "main", "op": "lexical"}

    class Waiting:
        async def embed_query(self, text: str) -> Any:
            while not corpus.kpi.registry.get_sample_value("app_db_statement_seconds_count", lexical):  # noqa: ASYNC110 - a metric tells nobody
                await asyncio.sleep(0.005)
            searched.set()
            return vector(text)

    corpus.embedder = Waiting()  # type: ignore[assignment]
    async with asyncio.timeout(PATIENCE_S):
        assert found(await corpus.search("spool"))[0] == "spool"
    assert searched.is_set()


async def test_two_indices_of_one_database_know_nothing_of_each_other(corpus: Corpus, database: Database) -> None:
    await filled(corpus)
    async with Corpus.on(database, index="another-index", model="other") as other:
        assert await other.search("spool") == []
    assert found(await corpus.search("spool"))[0] == "spool"


async def test_no_search_passes_through_the_compiler(corpus: Corpus) -> None:
    await filled(corpus)
    before = corpus.database.main.stats()
    for policy in POLICIES:
        await corpus.search("spool", policy)
    after = corpus.database.main.stats()  # by words one statement, by vector two, by both two
    assert (after.compiled, after.statements) == (before.compiled, before.statements + 5)


async def test_what_only_words_find_is_as_near_as_the_last_of_the_nearest(corpus: Corpus) -> None:
    await corpus.put("by_title", "Alpha and beta.", title="Zebra")
    await corpus.put("by_text", "A zebra, among others.", title="Animals")
    (words,) = await corpus.search("zebra", "strict", limit=1, candidates=1)
    (nearest,) = await corpus.search("zebra", "semantic", limit=1, candidates=1)
    assert (words.document_uid, nearest.document_uid) == ("by_title", "by_text")
    (best,) = await corpus.search("zebra", limit=1, candidates=1)
    assert best.document_uid == "by_title"
    assert best.score == pytest.approx(0.6 + 0.4 * nearest.score)
