"""What others write is not to be seen in anything that a search answers: not in a score, an order or a hit less."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from knowledge_flow_backend.index import Policy
from tests.knowledge_flow_backend.corpus import POLICIES, Corpus, found, vector

QUESTIONS = (
    "how does backpressure end a turn in the spool",
    "asyncio.gather and the pool",
    "turn turn pool passage 3",
    "a word that nobody has, zanzibar",
)
NARROWED: tuple[dict[str, Any], ...] = (
    {},
    {"libraries": ("mine", "team")},
    {"documents": ("doc3", "team1")},
    {"session_id": "s1"},
    {"session_id": "s1", "corpus": False},
    {"limit": 3, "candidates": 3},
)


async def answers(corpus: Corpus) -> dict[tuple[str, Policy, int], list[tuple[str, float]]]:
    """Every answer there is, with its exact scores."""
    return {
        (question, policy, number): [
            (hit.chunk_uid, hit.score) for hit in await corpus.search(question, policy, **narrowed)
        ]
        for question in QUESTIONS
        for policy in POLICIES
        for number, narrowed in enumerate(NARROWED)
    }


async def readable(corpus: Corpus) -> None:
    """What the asking user reads: documents of their own, a library of another's, attachments."""
    corpus.add_library("mine")
    corpus.add_library("team", owner="bob", reader_users=["admin"])
    for number in range(8):
        text = f"The turn ends in the pool, passage {number}." + " Spool." * (number % 3)
        await corpus.put(f"doc{number}", text, tag_ids=("mine",) if number % 2 else ())
    await corpus.put("rare", "Backpressure ends here.", "Call asyncio.gather(*aws) in a turn.")
    for number in range(3):
        await corpus.put(f"team{number}", f"The pool of the team, turn {number}.", owner="bob", tag_ids=("team",))
    await corpus.put("attached", "A spool and backpressure, attached.", session_id="s1")


async def test_nothing_that_others_write_changes_a_score_or_an_order(any_corpus: Corpus) -> None:
    await readable(any_corpus)
    any_corpus.add_library("secret", owner="eve")
    any_corpus.add_library("guests", owner="eve", reader_groups=["guests"])
    before = await answers(any_corpus)
    assert any(any_corpus_hits for any_corpus_hits in before.values())

    async def flood() -> None:
        for number in range(40):
            texts = ("backpressure ends a turn in the spool", "asyncio.gather and the pool, zanzibar")
            await any_corpus.put(f"eve{number}", *texts, owner="eve", tag_ids=("secret",) if number % 2 else ())

    async def replace() -> None:
        await any_corpus.put("eve1", "passage 3 " * 20, owner="eve")

    async def attach() -> None:
        await any_corpus.put("eve-attached", "backpressure, turn and spool", owner="eve", session_id="s1")
        await any_corpus.put("bob-private", "backpressure, turn and spool", owner="bob")

    async def delete() -> None:
        for number in range(10, 20):
            await any_corpus.writer.delete_document(f"eve{number}")

    changes: list[Callable[[], Awaitable[object]]] = [flood, replace, attach, delete]
    for change in changes:
        await change()
        assert await answers(any_corpus) == before, change.__name__
    for statement in (
        "UPDATE tags SET reader_users = '{mallory}', reader_groups = '{guests}' WHERE id = 'secret'",
        "INSERT INTO document_tags SELECT uid, 'guests' FROM documents WHERE uid IN ('eve3', 'eve5')",
        "UPDATE documents SET retrievable = false WHERE uid IN ('eve7', 'eve9')",
        "DELETE FROM document_tags WHERE document_uid = 'eve21'",
        "DELETE FROM tags WHERE id = 'guests'",
        "DELETE FROM documents WHERE owner_id = 'eve'",
    ):
        any_corpus.sql(statement)
        assert await answers(any_corpus) == before, statement


async def test_what_a_reader_gets_to_read_counts_and_what_they_lose_does_not(any_corpus: Corpus) -> None:
    """The control: the scores above stay equal because nothing else is counted, not because nothing is."""
    await readable(any_corpus)
    any_corpus.add_library("secret", owner="eve")
    for number in range(10):
        await any_corpus.put(f"eve{number}", "backpressure in the spool", owner="eve", tag_ids=("secret",))

    async def of_rare() -> float:
        hits = await any_corpus.search("backpressure", "strict", limit=100)
        return next(hit.score for hit in hits if hit.document_uid == "rare")

    alone = await of_rare()
    any_corpus.sql("UPDATE tags SET everyone = true WHERE id = 'secret'")
    shared = await of_rare()
    assert shared < alone
    any_corpus.sql("UPDATE documents SET retrievable = false WHERE uid = 'eve0'")
    assert shared < await of_rare() < alone
    any_corpus.sql("UPDATE tags SET everyone = false WHERE id = 'secret'")
    assert await of_rare() == alone


async def test_no_chunk_of_others_takes_the_place_of_a_near_one(corpus: Corpus) -> None:
    """A graph of everybody's chunks is walked through theirs: with many near ones of others, own ones are missed."""
    rng = np.random.default_rng(7)
    question = vector("the spool")

    def insert(uid: str, owner: str, count: int, spread: float) -> None:
        corpus.sql(
            "INSERT INTO documents (uid, owner_id, title, file_name, mime_type, content_hash, size_bytes, chunk_count) "
            "VALUES (%s, %s, 'T', 'f', 'text/plain', 'h', 1, %s)",
            [uid, owner, count],
        )
        made = question + rng.normal(0, spread, (count, len(question))).astype(np.float32)
        rows = ["[" + ",".join(f"{value:.4f}" for value in one) + "]" for one in made]
        corpus.sql(
            "INSERT INTO chunks (uid, document_uid, version, ordinal, title, section, content, char_start, char_end, "
            "token_count, embedding) SELECT %s || n, %s, 1, n, '', '', 'text', 0, 1, 1, row::vector "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS u(row, n)",
            [uid, uid, rows],
        )

    await corpus.put("first", "nothing alike at all", owner="eve")
    await asyncio.to_thread(insert, "own", "admin", 3200, 0.2)
    before = [(hit.chunk_uid, hit.score) for hit in await corpus.search("the spool", "semantic", limit=50)]
    assert len(before) == 50
    await asyncio.to_thread(insert, "hay", "eve", 1500, 0.01)
    assert [(hit.chunk_uid, hit.score) for hit in await corpus.search("the spool", "semantic", limit=50)] == before


async def test_the_same_chunks_are_found_however_they_are_looked_for(corpus: Corpus) -> None:
    """By the index of words, or through the documents in scope: `common_words` decides, and changes nothing else."""
    await readable(corpus)
    for number in range(30):
        await corpus.put(f"eve{number}", "the turn and the pool", owner="eve")
    corpus.sql("DELETE FROM common_words")
    by_words = await answers(corpus)
    corpus.sql("INSERT INTO common_words VALUES ('turn', 1000000), ('pool', 1000000), ('spool', 1000000)")
    assert await answers(corpus) == by_words
    assert len(found(await corpus.search("turn", "strict"))) > 1
