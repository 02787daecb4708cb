"""The local reranker on a real index: what it changes, what it knows, and that the loop does not notice it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from knowledge_flow_backend.embed import Passages
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index import ChunkHit, Reader, Vector
from knowledge_flow_backend.rerank import Candidate, RerankFailed, RerankService
from knowledge_flow_backend.rerank.local import WAITING, LocalReranker, QuestionVectors, bm25
from tests.knowledge_flow_backend.corpus import ADMIN, Corpus, vector
from tests.support.patience import PATIENCE_S

QUESTION = "how is a finished turn written to postgres?"
BEST = "A finished turn is written to Postgres by the batcher, in spool order."
OTHERS = [
    "Postgres is a database.",
    "A turn begins with an ask.",
    "The page shows each turn.",
    "Written by hand.",
]


@asynccontextmanager
async def reranker(
    corpus: Corpus, vectors: QuestionVectors | None = None, word_scores: object = bm25, deadline_s: float = PATIENCE_S
) -> AsyncIterator[LocalReranker]:
    made = LocalReranker(
        corpus.embedder,
        corpus.index,
        vectors or QuestionVectors(),
        passages=Passages(corpus.embedder, step=4),
        threads=1,
        deadline_s=deadline_s,
        metrics=corpus.metrics,
        kpi=corpus.kpi,
        word_scores=word_scores,  # type: ignore[arg-type]
    )
    try:
        yield made
    finally:
        made.close()


def service(corpus: Corpus, reranker: LocalReranker | None) -> RerankService:
    return RerankService(reranker, metrics=corpus.metrics, kpi=corpus.kpi)


def skipped(corpus: Corpus, cause: str) -> float:
    return corpus.kpi.registry.get_sample_value("app_rerank_skipped_total", {"cause": cause}) or 0.0


async def retrieved(corpus: Corpus) -> list[ChunkHit]:
    """The passages of a corpus with the best one last."""
    for number, text in enumerate([*OTHERS, BEST]):
        await corpus.put(f"doc{number}", text)
    hits = await corpus.search(QUESTION, "semantic")
    return sorted(hits, key=lambda hit: hit.content == BEST)


def candidates(hits: Sequence[ChunkHit]) -> list[Candidate]:
    return [Candidate(hit.content, hit.chunk_uid) for hit in hits]


async def test_the_best_passage_retrieved_last_comes_first(corpus: Corpus) -> None:
    hits = await retrieved(corpus)
    assert hits[-1].content == BEST
    async with reranker(corpus) as made:
        done = await service(corpus, made).rerank(QUESTION, candidates(hits), 3, ADMIN)
    assert done.skipped is None
    assert len(done.order) == 3
    assert hits[done.order[0][0]].content == BEST
    scores = [score for _, score in done.order if score is not None]
    assert scores == sorted(scores, reverse=True)
    assert all(0.0 <= score <= 1.0 for score in scores)


async def test_each_half_alone_can_decide(corpus: Corpus) -> None:
    async with reranker(corpus) as made:
        by_words = await made.score("spool", [Candidate("pool"), Candidate("the spool")], ADMIN)
        assert by_words[1] == 1.0
    async with reranker(corpus, word_scores=lambda _question, texts: [0.0] * len(texts)) as made:
        by_vector = await made.score("spool", [Candidate("pool"), Candidate("the spool")], ADMIN)
    assert by_vector == [0.0, 0.5]


async def test_equal_candidates_keep_the_order_of_retrieval(corpus: Corpus) -> None:
    async with reranker(corpus) as made:
        done = await service(corpus, made).rerank("q", [Candidate("same")] * 4, 3, ADMIN)
    assert [place for place, _ in done.order] == [0, 1, 2]


async def test_the_cosines_of_stored_chunks_are_not_computed_again(corpus: Corpus) -> None:
    hits = await retrieved(corpus)
    vectors = QuestionVectors()
    vectors.leave(QUESTION, vector(QUESTION))
    asked = len(corpus.embedder.questions)
    async with reranker(corpus, vectors) as made:
        stored = await made.score(QUESTION, candidates(hits), ADMIN)
        assert corpus.embedder.texts == []
        assert len(corpus.embedder.questions) == asked
        # Texts that are no chunks get the same scores, for the price of embedding them.
        assert await made.score(QUESTION, [Candidate(hit.content) for hit in hits], ADMIN) == pytest.approx(stored)
    assert corpus.embedder.texts == [hit.content for hit in hits]
    assert len(corpus.embedder.questions) == asked + 1


async def test_a_chunk_that_is_not_the_readers_is_a_text_like_any_other(corpus: Corpus) -> None:
    hits = await retrieved(corpus)
    forged = [Candidate("the spool", hits[0].chunk_uid), Candidate(hits[0].content, "unknown")]
    async with reranker(corpus) as made:
        assert await made.score("the spool", forged, Reader("eve")) == [1.0, 0.0]


async def test_late_the_order_of_retrieval_is_the_answer(corpus: Corpus) -> None:
    hits = await retrieved(corpus)

    let = threading.Event()

    def slow(question: str, texts: Sequence[str]) -> list[float]:
        assert let.wait(PATIENCE_S)
        return bm25(question, texts)

    async with reranker(corpus, word_scores=slow, deadline_s=0.05) as made:
        done = await service(corpus, made).rerank(QUESTION, candidates(hits), 3, ADMIN)
        let.set()
    assert done.skipped == "late"
    assert done.order == ((0, None), (1, None), (2, None))
    assert skipped(corpus, "late") == 1


async def test_the_loop_does_not_notice_a_reranker_that_blocks(corpus: Corpus) -> None:
    """It goes on while the scores hold their thread, which only the loop lets go."""
    entered, let = threading.Event(), threading.Event()

    def blocking(question: str, texts: Sequence[str]) -> list[float]:
        entered.set()
        assert let.wait(PATIENCE_S)
        return bm25(question, texts)

    async with reranker(corpus, word_scores=blocking) as made, asyncio.TaskGroup() as group:
        asked = service(corpus, made).rerank("spool", [Candidate("pool"), Candidate("spool")], 2, ADMIN)
        reranking = group.create_task(asked)
        assert await asyncio.to_thread(entered.wait, PATIENCE_S)
        let.set()
        done = await reranking
    assert [place for place, _ in done.order] == [1, 0]


async def test_a_queue_that_is_full_is_not_waited_for(corpus: Corpus) -> None:
    go = threading.Event()

    def held(question: str, texts: Sequence[str]) -> list[float]:
        go.wait(60)
        return bm25(question, texts)

    async with reranker(corpus, word_scores=held) as made:
        one = [Candidate("a")]
        others = [asyncio.ensure_future(made.score("q", one, ADMIN)) for _ in range(WAITING + 1)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = await service(corpus, made).rerank("q", one, 1, ADMIN)
        assert (done.order, done.skipped) == (((0, None),), "busy")
        go.set()
        await asyncio.gather(*others)
    assert skipped(corpus, "busy") == 1


async def test_an_embedder_that_fails_costs_the_order_only(corpus: Corpus) -> None:
    class Failing:
        async def embed_query(self, _text: str) -> Vector:
            raise EmbeddingUnavailable("HTTP 500")

    corpus.embedder = Failing()  # type: ignore[assignment]
    async with reranker(corpus) as made:
        done = await service(corpus, made).rerank("q", [Candidate("a"), Candidate("b")], 1, ADMIN)
        assert (done.order, done.skipped) == (((0, None),), "failed")
        with pytest.raises(RerankFailed):
            await made.score("q", [Candidate("a")], ADMIN)


async def test_no_reranker_and_no_candidates_are_no_failures(corpus: Corpus) -> None:
    off = await service(corpus, None).rerank("q", [Candidate("a"), Candidate("b")], 5, ADMIN)
    assert (off.order, off.skipped) == (((0, None), (1, None)), "off")
    assert (await service(corpus, None).rerank("q", [], 5, ADMIN)).order == ()
