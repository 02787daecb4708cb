"""Documents are in the index whole or not at all."""

import asyncio
from uuid import uuid4

import numpy as np
import pytest

from knowledge_flow_backend.engines.pgvector.writer import MAX_DIMENSIONS, PgVectorWriter
from knowledge_flow_backend.errors import Conflict, SchemaMismatch, UploadProcessingFailed
from knowledge_flow_backend.index import Chunk, Document, DocumentContent
from tests.knowledge_flow_backend.corpus import Corpus, found, vector

INDEXES = "SELECT indexname FROM pg_indexes WHERE indexname IN ('chunks_embedding', 'chunks_vectors') ORDER BY 1"
STRANGE = "tab\there, line\nand \\N and \\ and \r and é 漢 🦊 \x01"


async def test_a_document_comes_back_as_it_was_given(any_corpus: Corpus) -> None:
    any_corpus.add_library("one")
    version = await any_corpus.put(
        "strange", STRANGE, "second", title=f"Title: {STRANGE}", tag_ids=("one", "deleted meanwhile")
    )
    assert version == 1
    assert any_corpus.sql("SELECT content, title, section, page, version FROM chunks ORDER BY ordinal") == [
        (STRANGE, f"Title: {STRANGE}", "Part > One", 1, 1),
        ("second", f"Title: {STRANGE}", "Part > One", 2, 1),
    ]
    assert any_corpus.sql("SELECT markdown FROM document_contents") == [(f"{STRANGE}\n\nsecond",)]
    assert any_corpus.sql("SELECT status, chunk_count, error FROM documents") == [("ready", 2, None)]
    assert any_corpus.sql("SELECT tag_id FROM document_tags") == [("one",)]


async def test_a_new_version_replaces_every_chunk(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", *(f"old passage {number}" for number in range(8)))
    assert await any_corpus.put("doc", "new passage") == 2
    assert any_corpus.sql("SELECT content, version FROM chunks") == [("new passage", 2)]
    assert any_corpus.sql("SELECT chunk_count FROM documents") == [(1,)]
    assert [hit.content for hit in await any_corpus.search("passage", "strict")] == ["new passage"]


async def test_a_write_that_fails_leaves_everything_as_it_was(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "old passage one", "old passage two")
    with pytest.raises(UploadProcessingFailed):
        await any_corpus.put("doc", "new passage", "a second one", "a third one", "poison \0 in the second batch")
    assert any_corpus.sql("SELECT content, version FROM chunks ORDER BY ordinal") == [
        ("old passage one", 1),
        ("old passage two", 1),
    ]
    assert any_corpus.sql("SELECT version, markdown FROM documents JOIN document_contents ON uid = document_uid") == [
        (1, "old passage one\n\nold passage two")
    ]


async def test_a_reader_sees_the_old_chunks_or_the_new_ones(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", *(f"passage {number} of version 1" for number in range(12)))
    stop = asyncio.Event()

    async def read() -> set[frozenset[str]]:
        seen = set()
        while not stop.is_set():
            hits = await any_corpus.search("passage version", "strict", limit=50)
            seen.add(frozenset(hit.content.rsplit(" ", 1)[1] for hit in hits))
        return seen

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        for version in range(2, 8):
            await any_corpus.put("doc", *(f"passage {number} of version {version}" for number in range(12)))
        stop.set()
    assert all(len(versions) == 1 for versions in reading.result())


async def test_concurrent_writes_of_one_document_are_one_after_the_other(any_corpus: Corpus) -> None:
    async with asyncio.TaskGroup() as tasks:
        writes = [tasks.create_task(any_corpus.put("doc", *(f"{who} {n}" for n in range(5)))) for who in "abcd"]
    assert sorted(write.result() for write in writes) == [1, 2, 3, 4]
    ((owners,),) = any_corpus.sql("SELECT count(DISTINCT left(content, 1)) FROM chunks")
    assert (owners, any_corpus.sql("SELECT count(*) FROM chunks")) == (1, [(5,)])


async def test_the_first_write_gives_the_index_its_model(corpus: Corpus) -> None:
    assert corpus.sql("SELECT * FROM index_info") == []
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(corpus.put(f"doc{number}", "text"))
    assert corpus.sql("SELECT embedding_model, dimension FROM index_info") == [("mock", 384)]
    assert corpus.sql(INDEXES) == [("chunks_embedding",), ("chunks_vectors",)]


@pytest.mark.parametrize(
    ("length", "indexes"),
    [
        (640, ["chunks_embedding", "chunks_vectors"]),
        (641, ["chunks_embedding"]),
        (MAX_DIMENSIONS, ["chunks_embedding"]),
    ],
)
async def test_vectors_stand_alone_in_an_index_where_its_pages_take_them(
    corpus: Corpus, length: int, indexes: list[str]
) -> None:
    long = np.random.default_rng(0).standard_normal(length).astype(np.float32)
    document = Document(uuid4().hex, "admin", "New", "new.md", "text/markdown", "h", 1)
    await corpus.writer.replace_document(document, DocumentContent("x", b"x"), [Chunk("c", 0, "x", 0, 1)], [long])
    assert corpus.sql(INDEXES) == [(name,) for name in indexes]


async def test_vectors_of_another_model_are_refused(corpus: Corpus) -> None:
    await corpus.put("doc", "text")
    other = PgVectorWriter(corpus.database, model="other")
    document = Document("new", "admin", "New", "new.md", "text/markdown", "h", 1)
    with pytest.raises(SchemaMismatch, match=r"mock \(384 numbers\).* other \(384\)"):
        await other.replace_document(document, DocumentContent("x", b"x"), [Chunk("c", 0, "x", 0, 1)], [vector("x")])
    for model, length in ((PgVectorWriter(corpus.database, model="mock"), 3), (corpus.writer, MAX_DIMENSIONS + 1)):
        unfit = np.ones(length, dtype=np.float32)
        with pytest.raises(SchemaMismatch):
            await model.replace_document(document, DocumentContent("x", b"x"), [Chunk("c", 0, "x", 0, 1)], [unfit])
    assert corpus.sql("SELECT uid FROM documents") == [("doc",)]


async def test_a_uid_of_another_owner_is_refused(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "text")
    with pytest.raises(Conflict):
        await any_corpus.put("doc", "other text", owner="eve")
    assert any_corpus.sql("SELECT owner_id, version FROM documents") == [("admin", 1)]


async def test_what_another_upload_has_claimed_or_somebody_deleted_is_not_written(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "the spool")
    any_corpus.sql("""UPDATE documents SET stages = '{"claim": "newer"}'""")
    for uid in ("doc", "gone"):
        with pytest.raises(Conflict):
            await any_corpus.put(uid, "the spool of before", claim="older")
    assert [hit.content for hit in await any_corpus.search("the spool")] == ["the spool"]
    assert any_corpus.sql("SELECT uid, version FROM documents") == [("doc", 1)]
    assert await any_corpus.put("doc", "the spool of now", claim="newer") == 2
    assert [hit.content for hit in await any_corpus.search("the spool")] == ["the spool of now"]


async def test_chunks_without_their_vectors_are_a_mistake_of_the_caller(any_corpus: Corpus) -> None:
    document = Document("new", "admin", "New", "new.md", "text/markdown", "h", 1)
    with pytest.raises(ValueError, match="1 chunks with 0 vectors"):
        await any_corpus.writer.replace_document(document, DocumentContent("x", b"x"), [Chunk("c", 0, "x", 0, 1)], [])


async def test_a_deleted_document_is_gone(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "the spool")
    await any_corpus.put("other", "the spool")
    assert await any_corpus.writer.delete_document("doc")
    assert not await any_corpus.writer.delete_document("doc")
    for policy in ("strict", "semantic", "hybrid"):
        assert found(await any_corpus.search("the spool", policy)) == ["other"]
    assert any_corpus.sql("SELECT document_uid FROM document_contents") == [("other",)]


async def test_what_was_switched_off_stays_off_when_it_is_replaced(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "the spool")
    any_corpus.sql("UPDATE documents SET retrievable = false")
    await any_corpus.put("doc", "the spool again")
    assert await any_corpus.search("the spool") == []
