"""What a search finds and what it must never find: one suite over every engine."""

from typing import Any

import numpy as np
import pytest

from knowledge_flow_backend.errors import SchemaMismatch
from knowledge_flow_backend.index import Policy, Reader
from tests.knowledge_flow_backend.corpus import ADMIN, POLICIES, SPOOL, Corpus, filled, found, vector

EVE = Reader("eve", ("guests",))


async def test_the_passage_that_answers_comes_first(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    for policy in POLICIES:
        hits = await any_corpus.search("when is a finished turn appended to the spool?", policy)
        assert found(hits)[0] == "spool"
        assert hits[0].content == SPOOL
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_an_empty_index_finds_nothing(any_corpus: Corpus) -> None:
    for policy in POLICIES:
        assert await any_corpus.search("anything", policy) == []


async def test_a_search_embeds_once_and_a_strict_one_not_at_all(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    for policy in POLICIES:
        await any_corpus.search(f"the spool, {policy}", policy)
    assert any_corpus.embedder.questions == ["the spool, hybrid", "the spool, semantic"]


async def test_a_hybrid_search_finds_what_one_half_alone_finds(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    question = "the spool"
    by_words = found(await any_corpus.search(question, "strict"))
    by_vector = found(await any_corpus.search(question, "semantic"))
    assert by_words == ["spool"]
    assert set(found(await any_corpus.search(question))) == set(by_vector) | set(by_words)


async def test_words_decide_their_share_of_a_hybrid_score_and_the_cosine_the_rest(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    question = "the pool waits for a turn"
    words = {hit.document_uid: hit.score for hit in await any_corpus.search(question, "strict")}
    cosines = {hit.document_uid: hit.score for hit in await any_corpus.search(question, "semantic")}
    assert len(words) > 1
    for hit in await any_corpus.search(question):
        share = words.get(hit.document_uid, 0.0) / max(words.values())
        assert hit.score == pytest.approx(0.6 * share + 0.4 * cosines[hit.document_uid], abs=1e-4)


async def test_a_name_of_code_is_found_by_its_parts_its_tails_and_whole(any_corpus: Corpus) -> None:
    await any_corpus.put("gather", "Call asyncio.gather(*aws) and wait.")
    await any_corpus.put("others", "Gather what asyncio has to say; __init__ and max_size are names.")
    await any_corpus.put("tail", "tasks.asyncio.gather is the same.")
    assert set(found(await any_corpus.search("gather", "strict"))) == {"gather", "others", "tail"}
    assert set(found(await any_corpus.search("asyncio.gather()", "strict"))[:2]) == {"gather", "tail"}
    assert found(await any_corpus.search("size", "strict")) == ["others"]
    assert found(await any_corpus.search("__init__", "strict")) == ["others"]


async def test_a_rare_word_counts_more_than_common_ones(any_corpus: Corpus) -> None:
    for number in range(20):
        await any_corpus.put(f"filler{number}", f"The turn ends and the turn begins, number {number}.")
    await any_corpus.put("rare", "Backpressure ends here.")
    assert found(await any_corpus.search("how does backpressure end a turn", "strict"))[0] == "rare"


async def test_words_match_in_their_other_forms(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    assert found(await any_corpus.search("appending finishes", "strict")) == ["spool"]


async def test_no_question_breaks_a_statement(any_corpus: Corpus) -> None:
    await filled(any_corpus)
    for policy in POLICIES:
        for question in (
            "",
            "   ",
            "the of and",
            "'; DROP TABLE chunks; --",
            "a & | ! ( ) : * <-> \\ ' \\'",
            '{"query": {"match_all": {}}} "text:*" AND OR NOT ~2 ^3 [a TO b] /a.*/',
            "%s %(x)s :x ::y",
            "é" * 5000,
            "漢字" * 3000,
            " ".join(f"word{number}" for number in range(3000)),
        ):
            assert len(await any_corpus.search(question, policy)) <= 3
        assert any_corpus.sql("SELECT count(*) FROM chunks") == [(3,)]


async def test_quotes_and_backslashes_are_words_like_others(any_corpus: Corpus) -> None:
    await any_corpus.put("quoted", "Set C:\\data\\pg and O'Brien's limit in http://host/a'b?c=1")
    assert found(await any_corpus.search("C:\\data\\pg O'Brien http://host/a'b?c=1", "strict")) == ["quoted"]


async def test_at_most_limit_hits_come_back(any_corpus: Corpus) -> None:
    await any_corpus.put("long", *(f"The spool, passage {number}." for number in range(30)))
    for policy in POLICIES:
        assert len(await any_corpus.search("spool passage", policy, limit=7)) == 7
        assert len(await any_corpus.search("spool passage", policy, limit=100, candidates=5)) == 30


async def test_a_search_is_narrowed_to_libraries_and_documents(any_corpus: Corpus) -> None:
    any_corpus.add_library("one")
    any_corpus.add_library("two")
    await any_corpus.put("a", "the spool of a", tag_ids=("one",))
    await any_corpus.put("b", "the spool of b", tag_ids=("one", "two"))
    await any_corpus.put("c", "the spool of c")

    for policy in POLICIES:

        async def ask(policy: Policy = policy, **narrowed: Any) -> list[str]:
            return sorted(found(await any_corpus.search("the spool", policy, **narrowed)))

        assert await ask() == ["a", "b", "c"]
        assert await ask(libraries=("one",)) == ["a", "b"]
        assert await ask(libraries=("two", "unknown")) == ["b"]
        assert await ask(documents=("a", "c")) == ["a", "c"]
        assert await ask(libraries=("two",), documents=("a",)) == []
        assert await ask(libraries=("unknown",)) == []
        assert await ask(documents=("unknown",)) == []
        assert await ask(libraries=()) == []
        assert await ask(corpus=False) == []


async def test_nobody_finds_what_is_not_theirs_whatever_they_ask_for(any_corpus: Corpus) -> None:
    any_corpus.add_library("private")
    await any_corpus.put("mine", "the spool", tag_ids=("private",))
    await any_corpus.put("attached", "the spool", session_id="s1")
    for policy in POLICIES:
        for forged in (
            {},
            {"libraries": ("private",)},
            {"documents": ("mine", "attached")},
            {"session_id": "s1"},
            {"session_id": "s1", "corpus": False},
            {"libraries": ("private",), "documents": ("mine",), "session_id": "s1"},
        ):
            assert await any_corpus.search("the spool", policy, reader=EVE, **forged) == []


@pytest.mark.parametrize("rights", [{"everyone": True}, {"reader_users": ["eve"]}, {"reader_groups": ["guests"]}])
async def test_a_shared_library_is_found_by_whom_it_is_shared_with(any_corpus: Corpus, rights: dict[str, Any]) -> None:
    any_corpus.add_library("private", name="Secret name")
    any_corpus.add_library("shared", name="Open", path="Team", **rights)
    await any_corpus.put("mine", "the spool", tag_ids=("private", "shared"))
    for policy in POLICIES:
        for narrowed in ({}, {"libraries": ("shared",)}, {"libraries": ("shared", "private")}):
            (hit,) = await any_corpus.search("the spool", policy, reader=EVE, **narrowed)
            # Of the library that is not theirs to see they do not learn the name either.
            assert (hit.tag_ids, hit.tag_names, hit.tag_full_paths) == (("shared",), ("Open",), ("Team/Open",))
        assert await any_corpus.search("the spool", policy, reader=EVE, libraries=("private",)) == []
        if "everyone" not in rights:
            assert await any_corpus.search("the spool", policy, reader=Reader("mallory")) == []


async def test_a_document_that_is_switched_off_is_not_found(any_corpus: Corpus) -> None:
    await any_corpus.put("off", "the spool")
    any_corpus.sql("UPDATE documents SET retrievable = false")
    for policy in POLICIES:
        assert await any_corpus.search("the spool", policy) == []


async def test_attachments_are_found_in_their_session_only(any_corpus: Corpus) -> None:
    await any_corpus.put("attached", "the spool", session_id="s1")
    await any_corpus.put("other", "the spool", session_id="s2")
    await any_corpus.put("corpus", "the spool")
    for policy in POLICIES:
        assert found(await any_corpus.search("the spool", policy)) == ["corpus"]
        assert sorted(found(await any_corpus.search("the spool", policy, session_id="s1"))) == ["attached", "corpus"]
        assert found(await any_corpus.search("the spool", policy, session_id="s1", corpus=False)) == ["attached"]
        # What narrows the corpus does not narrow the session.
        assert found(await any_corpus.search("the spool", policy, session_id="s1", documents=("x",))) == ["attached"]


async def test_the_best_attachments_have_a_place_however_good_the_corpus_is(any_corpus: Corpus) -> None:
    await any_corpus.put("corpus", "replaced at once, and so not followed by every engine")
    await any_corpus.put("corpus", *(f"the spool and the spool, {number}" for number in range(20)))
    await any_corpus.put(
        "attached", *(f"elsewhere a spool is named once in number {number}" for number in range(5)), session_id="s1"
    )
    for policy in POLICIES:
        hits = await any_corpus.search("the spool and the spool", policy, session_id="s1", limit=8)
        assert len(hits) == 8
        assert found(hits).count("attached") >= 3
        assert found(hits)[0] == "corpus"
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_words_too_common_to_choose_still_find_among_few_documents(any_corpus: Corpus) -> None:
    await any_corpus.put("many", *(f"the turn, passage {number}" for number in range(60)))
    await any_corpus.put("few", "another turn")
    assert found(await any_corpus.search("turn", "strict", documents=("few",))) == ["few"]


async def test_the_cosines_of_chunks_are_told_to_those_who_may_read_them(any_corpus: Corpus) -> None:
    await any_corpus.put("mine", "the spool", "the pool")
    await any_corpus.put("attached", "the spool", session_id="s1")
    uids = [uid for (uid,) in any_corpus.sql("SELECT uid FROM chunks ORDER BY document_uid DESC, ordinal")]
    known = await any_corpus.index.similarities([*uids, "unknown"], vector("the spool"), ADMIN)
    cosines = {one.chunk_uid: one.cosine for one in known}
    assert [round(cosines[uid], 4) for uid in uids] == [
        1.0,
        round(float(vector("the spool") @ vector("the pool")), 4),
        1.0,
    ]
    assert await any_corpus.index.similarities(uids, vector("the spool"), EVE) == []


async def test_a_hit_has_the_cosine_that_the_index_tells_of_its_chunk(any_corpus: Corpus) -> None:
    """To the bit: a rerank takes the one in the place of the other."""
    await filled(any_corpus)
    await any_corpus.put("attached", "the spool of an attachment", session_id="s1")
    question = "where is a finished turn appended?"
    for policy in ("hybrid", "semantic"):
        hits = await any_corpus.search(question, policy, session_id="s1")
        told = await any_corpus.index.similarities([hit.chunk_uid for hit in hits], vector(question), ADMIN)
        assert {hit.chunk_uid: hit.cosine for hit in hits} == {one.chunk_uid: one.cosine for one in told}
        assert len(hits) > 1
    assert {hit.cosine for hit in await any_corpus.search("spool", "strict")} == {None}


async def test_a_vector_of_another_length_is_refused(any_corpus: Corpus) -> None:
    await filled(any_corpus)

    class Shorter:
        model, state = "mock", "ready"

        async def embed_query(self, _text: str) -> Any:
            return np.ones(3, dtype=np.float32)

    any_corpus.embedder = Shorter()  # type: ignore[assignment]
    for policy in ("hybrid", "semantic"):
        with pytest.raises(SchemaMismatch):
            await any_corpus.search("spool", policy)


async def test_a_failing_embedder_is_raised_as_it_is(any_corpus: Corpus) -> None:
    await filled(any_corpus)

    class Failing:
        async def embed_query(self, _text: str) -> Any:
            raise KeyError("as it is")

    any_corpus.embedder = Failing()  # type: ignore[assignment]
    with pytest.raises(KeyError):
        await any_corpus.search("spool")


async def test_what_is_shared_moved_or_switched_counts_at_once(any_corpus: Corpus) -> None:
    any_corpus.add_library("team")
    any_corpus.add_library("attic")
    await any_corpus.put("doc", "the spool", tag_ids=("attic",))
    await any_corpus.put("other", "the spool", tag_ids=("team",))

    async def eve(**narrowed: Any) -> list[str]:
        return sorted(found(await any_corpus.search("the spool", reader=EVE, **narrowed)))

    assert await eve() == []
    for rights, expected in (
        ("reader_groups = '{guests}'", ["other"]),
        ("reader_groups = '{}', reader_users = '{eve}'", ["other"]),
        ("reader_users = '{}', everyone = true", ["other"]),
        ("everyone = false", []),
        ("everyone = true", ["other"]),
    ):
        any_corpus.sql(f"UPDATE tags SET {rights} WHERE id = 'team'")  # noqa: S608 - texts of this test
        assert await eve() == expected
    for change, expected in (
        ("UPDATE document_tags SET tag_id = 'team' WHERE document_uid = 'doc'", ["doc", "other"]),
        ("DELETE FROM document_tags WHERE document_uid = 'other'", ["doc"]),
        ("UPDATE documents SET retrievable = false WHERE uid = 'doc'", []),
        ("UPDATE documents SET retrievable = true WHERE uid = 'doc'", ["doc"]),
        ("INSERT INTO document_tags VALUES ('other', 'team')", ["doc", "other"]),
        ("DELETE FROM documents WHERE uid = 'doc'", ["other"]),
        ("DELETE FROM tags WHERE id = 'team'", []),
    ):
        any_corpus.sql(change)
        assert await eve() == await eve(documents=("doc", "other")) == expected
    # Its owner finds the document whatever library it left.
    assert found(await any_corpus.search("the spool")) == ["other"]


async def test_a_document_with_an_old_uid_is_a_new_one(any_corpus: Corpus) -> None:
    await any_corpus.put("doc", "the old spool", "the old pool")
    await any_corpus.writer.delete_document("doc")
    assert await any_corpus.put("doc", "the new spool") == 1
    for policy in POLICIES:
        assert [hit.content for hit in await any_corpus.search("the spool", policy)] == ["the new spool"]


async def test_every_candidate_may_be_of_documents_that_are_gone(any_corpus: Corpus) -> None:
    """The places of what is deleted go to what is left, however many were better."""
    await any_corpus.put("left", "a spool among other things in a long sentence about nothing at all")
    for number in range(5):
        await any_corpus.put(f"gone{number}", *("the spool" for _ in range(4)))
    any_corpus.sql("DELETE FROM documents WHERE uid LIKE 'gone%'")
    for policy in POLICIES:
        assert found(await any_corpus.search("the spool", policy, limit=3, candidates=3)) == ["left"]
