"""What a search finds and what it must never find, on real Postgres."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from knowledge_flow_backend.errors import SchemaMismatch
from knowledge_flow_backend.index import Policy, Reader
from knowledge_flow_backend.search.pgvector import PgVectorIndex
from tests.knowledge_flow_backend.corpus import ADMIN, Corpus, found, vector
from tests.support.postgres import Database

POLICIES = [*Policy]
EVE = Reader("eve", ("guests",))

SPOOL = "A finished turn is appended to the spool before the final event is sent."
POOL = "The pool waits for a free connection and times the wait."
DRAIN = "At SIGTERM the service drains: running turns end, new ones are refused."


async def filled(corpus: Corpus) -> None:
    await corpus.put("spool", SPOOL)
    await corpus.put("pool", POOL)
    await corpus.put("drain", DRAIN)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_passage_that_answers_comes_first(corpus: Corpus, policy: Policy) -> None:
    await filled(corpus)
    hits = await corpus.search("when is a finished turn appended to the spool?", policy)
    assert found(hits)[0] == "spool"
    assert hits[0].content == SPOOL
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_empty_index_finds_nothing(corpus: Corpus, policy: Policy) -> None:
    assert await corpus.search("anything", policy) == []


async def test_a_search_embeds_once_and_a_strict_one_not_at_all(corpus: Corpus) -> None:
    await filled(corpus)
    for policy in POLICIES:
        await corpus.search(f"the spool, {policy}", policy)
    assert corpus.embedder.questions == ["the spool, hybrid", "the spool, semantic"]


async def test_a_hybrid_search_finds_what_one_half_alone_finds(corpus: Corpus) -> None:
    await filled(corpus)
    question = "the spool"
    by_words = found(await corpus.search(question, "strict"))
    by_vector = found(await corpus.search(question, "semantic"))
    assert by_words == ["spool"]
    assert set(found(await corpus.search(question))) == set(by_vector) | set(by_words)


async def test_ranks_are_fused_by_their_reciprocals(corpus: Corpus) -> None:
    await filled(corpus)
    question = "the pool waits for a free connection"
    places = {
        policy: {hit.document_uid: place for place, hit in enumerate(await corpus.search(question, policy), start=1)}
        for policy in ("strict", "semantic")
    }
    for hit in await corpus.search(question):
        ranks = [places[policy][hit.document_uid] for policy in places if hit.document_uid in places[policy]]
        assert hit.score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))


async def test_a_rare_word_counts_more_than_common_ones(corpus: Corpus) -> None:
    for number in range(20):
        await corpus.put(f"filler{number}", f"The turn ends and the turn begins, number {number}.")
    await corpus.put("rare", "Backpressure ends here.")
    assert found(await corpus.search("how does backpressure end a turn", "strict"))[0] == "rare"


async def test_the_counts_of_common_words_come_from_the_statistics(corpus: Corpus) -> None:
    await corpus.put("many", *(f"the turn goes on, passage {number}" for number in range(60)))
    await corpus.put("rare", "backpressure in a turn")
    await corpus.index.count_common_words()
    assert corpus.sql("SELECT * FROM common_words") == []
    corpus.sql("ANALYZE chunks")
    await corpus.index.count_common_words()
    assert dict(corpus.sql("SELECT word, chunks FROM common_words"))["turn"] == 61
    assert found(await corpus.search("does backpressure go on in a turn", "strict"))[0] == "rare"
    # What is common no more is counted again.
    corpus.sql("DELETE FROM chunks WHERE document_uid = 'many'")
    corpus.sql("ANALYZE chunks")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(corpus.index.count_common_words())
    assert "passag" not in dict(corpus.sql("SELECT word, chunks FROM common_words"))


async def test_words_match_in_their_other_forms(corpus: Corpus) -> None:
    await filled(corpus)
    assert found(await corpus.search("appending finishes", "strict")) == ["spool"]


@pytest.mark.parametrize(
    "question",
    [
        "",
        "   ",
        "the of and",
        "'; DROP TABLE chunks; --",
        "a & | ! ( ) : * <-> \\ ' \\'",
        "%s %(x)s :x ::y",
        "é" * 5000,
    ],
)
@pytest.mark.parametrize("policy", POLICIES)
async def test_no_question_breaks_a_statement(corpus: Corpus, policy: Policy, question: str) -> None:
    await filled(corpus)
    hits = await corpus.search(question, policy)
    assert len(hits) <= 3
    assert corpus.sql("SELECT count(*) FROM chunks") == [(3,)]


async def test_quotes_and_backslashes_are_words_like_others(corpus: Corpus) -> None:
    await corpus.put("quoted", "Set C:\\data\\pg and O'Brien's limit in http://host/a'b?c=1")
    assert found(await corpus.search("C:\\data\\pg O'Brien http://host/a'b?c=1", "strict")) == ["quoted"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_at_most_limit_hits_come_back(corpus: Corpus, policy: Policy) -> None:
    await corpus.put("long", *(f"The spool, passage {number}." for number in range(30)))
    assert len(await corpus.search("spool passage", policy, limit=7)) == 7
    assert len(await corpus.search("spool passage", policy, limit=100, candidates=5)) == 30


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_search_is_narrowed_to_libraries_and_documents(corpus: Corpus, policy: Policy) -> None:
    corpus.add_library("one")
    corpus.add_library("two")
    await corpus.put("a", "the spool of a", tag_ids=("one",))
    await corpus.put("b", "the spool of b", tag_ids=("one", "two"))
    await corpus.put("c", "the spool of c")

    async def ask(**narrowed: Any) -> list[str]:
        return sorted(found(await corpus.search("the spool", policy, **narrowed)))

    assert await ask() == ["a", "b", "c"]
    assert await ask(libraries=("one",)) == ["a", "b"]
    assert await ask(libraries=("two", "unknown")) == ["b"]
    assert await ask(documents=("a", "c")) == ["a", "c"]
    assert await ask(libraries=("two",), documents=("a",)) == []
    assert await ask(libraries=("unknown",)) == []
    assert await ask(documents=("unknown",)) == []
    assert await ask(libraries=()) == []
    assert await ask(corpus=False) == []


@pytest.mark.parametrize("policy", POLICIES)
async def test_nobody_finds_what_is_not_theirs_whatever_they_ask_for(corpus: Corpus, policy: Policy) -> None:
    corpus.add_library("private")
    await corpus.put("mine", "the spool", tag_ids=("private",))
    await corpus.put("attached", "the spool", session_id="s1")
    for forged in (
        {},
        {"libraries": ("private",)},
        {"documents": ("mine", "attached")},
        {"session_id": "s1"},
        {"session_id": "s1", "corpus": False},
        {"libraries": ("private",), "documents": ("mine",), "session_id": "s1"},
    ):
        assert await corpus.search("the spool", policy, reader=EVE, **forged) == []


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rights", [{"everyone": True}, {"reader_users": ["eve"]}, {"reader_groups": ["guests"]}])
async def test_a_shared_library_is_found_by_whom_it_is_shared_with(
    corpus: Corpus, policy: Policy, rights: dict[str, Any]
) -> None:
    corpus.add_library("private", name="Secret name")
    corpus.add_library("shared", name="Open", path="Team", **rights)
    await corpus.put("mine", "the spool", tag_ids=("private", "shared"))
    for narrowed in ({}, {"libraries": ("shared",)}, {"libraries": ("shared", "private")}):
        (hit,) = await corpus.search("the spool", policy, reader=EVE, **narrowed)
        # Of the library that is not theirs to see they do not learn the name either.
        assert (hit.tag_ids, hit.tag_names, hit.tag_full_paths) == (("shared",), ("Open",), ("Team/Open",))
    assert await corpus.search("the spool", policy, reader=EVE, libraries=("private",)) == []
    if "everyone" not in rights:
        assert await corpus.search("the spool", policy, reader=Reader("mallory")) == []


async def test_a_document_that_is_switched_off_is_not_found(corpus: Corpus) -> None:
    await corpus.put("off", "the spool")
    corpus.sql("UPDATE documents SET retrievable = false")
    for policy in POLICIES:
        assert await corpus.search("the spool", policy) == []


@pytest.mark.parametrize("policy", POLICIES)
async def test_attachments_are_found_in_their_session_only(corpus: Corpus, policy: Policy) -> None:
    await corpus.put("attached", "the spool", session_id="s1")
    await corpus.put("other", "the spool", session_id="s2")
    await corpus.put("corpus", "the spool")
    assert found(await corpus.search("the spool", policy)) == ["corpus"]
    assert sorted(found(await corpus.search("the spool", policy, session_id="s1"))) == ["attached", "corpus"]
    assert found(await corpus.search("the spool", policy, session_id="s1", corpus=False)) == ["attached"]
    # What narrows the corpus does not narrow the session.
    assert found(await corpus.search("the spool", policy, session_id="s1", documents=("x",))) == ["attached"]


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_best_attachments_have_a_place_however_good_the_corpus_is(corpus: Corpus, policy: Policy) -> None:
    await corpus.put("corpus", *(f"the spool and the spool, {number}" for number in range(20)))
    await corpus.put(
        "attached", *(f"elsewhere a spool is named once in number {number}" for number in range(5)), session_id="s1"
    )
    hits = await corpus.search("the spool and the spool", policy, session_id="s1", limit=8)
    assert len(hits) == 8
    assert found(hits).count("attached") >= 3
    assert found(hits)[0] == "corpus"
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


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


async def test_words_too_common_to_choose_still_find_among_few_documents(corpus: Corpus) -> None:
    await corpus.put("many", *(f"the turn, passage {number}" for number in range(60)))
    await corpus.put("few", "another turn")
    assert found(await corpus.search("turn", "strict", documents=("few",))) == ["few"]


async def test_the_cosines_of_chunks_are_told_to_those_who_may_read_them(corpus: Corpus) -> None:
    await corpus.put("mine", "the spool", "the pool")
    await corpus.put("attached", "the spool", session_id="s1")
    uids = [uid for (uid,) in corpus.sql("SELECT uid FROM chunks ORDER BY document_uid DESC, ordinal")]
    known = await corpus.index.similarities([*uids, "unknown"], vector("the spool"), ADMIN)
    cosines = {one.chunk_uid: one.cosine for one in known}
    assert [round(cosines[uid], 4) for uid in uids] == [
        1.0,
        round(float(vector("the spool") @ vector("the pool")), 4),
        1.0,
    ]
    assert await corpus.index.similarities(uids, vector("the spool"), EVE) == []


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


async def test_a_vector_of_another_length_is_refused(corpus: Corpus) -> None:
    await filled(corpus)

    class Shorter:
        model, state = "mock", "ready"

        async def embed_query(self, _text: str) -> Any:
            return np.ones(3, dtype=np.float32)

    corpus.embedder = Shorter()  # type: ignore[assignment]
    for policy in ("hybrid", "semantic"):
        with pytest.raises(SchemaMismatch):
            await corpus.search("spool", policy)


async def test_a_failing_embedder_is_raised_as_it_is(corpus: Corpus) -> None:
    await filled(corpus)

    class Failing:
        async def embed_query(self, _text: str) -> Any:
            raise KeyError("as it is")

    corpus.embedder = Failing()  # type: ignore[assignment]
    with pytest.raises(KeyError):
        await corpus.search("spool")


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
    async with asyncio.timeout(20):
        assert found(await corpus.search("spool"))[0] == "spool"
    assert searched.is_set()


async def test_two_indices_of_one_database_know_nothing_of_each_other(corpus: Corpus, database: Database) -> None:
    await filled(corpus)
    async with Corpus.on(database, index="another-index", model="other") as other:
        assert await other.search("spool") == []
    assert found(await corpus.search("spool"))[0] == "spool"


async def test_no_statement_is_compiled_after_its_first_use(corpus: Corpus) -> None:
    await filled(corpus)
    for policy in POLICIES:
        await corpus.search("spool", policy)
    compiled = corpus.database.main.stats().compiled
    for policy in POLICIES:
        await corpus.search("another spool", policy, documents=("spool",))
    assert corpus.database.main.stats().compiled == compiled
