"""The local default: half cosine, half BM25 over the candidates, without a model of its own.

It keeps a question's vector from its search to the rerank that follows, so that it is embedded once for both.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from backend_kit.aio import Crowded, FairGate, GateRules
from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import ThreadsBusy, WorkerThreads, gather_pair
from knowledge_flow_backend.embed import Embedder, Passages
from knowledge_flow_backend.errors import DocumentsUnavailable, SchemaMismatch
from knowledge_flow_backend.index import ChunkIndex, Reader, Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.rerank.bm25 import bm25
from knowledge_flow_backend.rerank.service import Candidate, RerankFailed

logger = logging.getLogger(__name__)

KEPT = 1024
KEPT_S = 30.0
WAITING = 64
"""Reranks that may wait for a thread; one takes a millisecond, and a caller past its deadline has gone."""
WordScores = Callable[[str, Sequence[str]], list[float]]


class QuestionVectors:
    """Left by a search, taken once by a rerank. No search ever reads it, so it is no cache of results.

    Holds the newest 1,024 questions for 30 s (1.5 MB at 384 numbers). With several processes the rerank may come to
    another one: then the question is embedded again there.
    """

    def __init__(self, *, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._left: OrderedDict[str, tuple[float, Vector]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def leave(self, question: str, vector: Vector) -> None:
        """Keep a question's vector for the next `take`."""
        self._left[question] = (time.perf_counter(), vector)
        self._left.move_to_end(question)
        if len(self._left) > KEPT:
            self._left.popitem(last=False)

    def take(self, question: str) -> Vector | None:
        """Remove and return the vector of exactly this text; None where there is none, or it is too old."""
        left, vector = self._left.pop(question, (0.0, None))
        return vector if time.perf_counter() - left <= self._kept_s else None


class LocalReranker:
    """The `Reranker` of the embedded start.

    The cosines are those of the search where it has just found the candidates. Otherwise they come from the index, for
    the chunks that the reader may read; a text that is no such chunk is embedded here. The question's vector is the one
    its search left behind, where it did.
    """

    def __init__(
        self,
        embedder: Embedder,
        index: ChunkIndex,
        vectors: QuestionVectors,
        *,
        passages: Passages,
        threads: int,
        deadline_s: float,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
        word_scores: WordScores = bm25,
    ) -> None:
        self._embedder = embedder
        self._index = index
        self._passages = passages
        self._vectors = vectors
        self._kpi = kpi
        self._word_scores = word_scores
        self._deadline_s = deadline_s
        self._waited = metrics.rerank_queue.observe
        self._turns = FairGate(GateRules(threads, waiting=WAITING, waiting_per_user=WAITING))
        # Calls past their deadline give their turn back, and keep their thread.
        self._threads = WorkerThreads("rerank", threads, WAITING)

    async def score(self, question: str, candidates: Sequence[Candidate], reader: Reader) -> list[float]:
        """See `Reranker`. Scores are between 0 and 1. Raises `RerankFailed`."""
        texts = [candidate.text for candidate in candidates]
        try:
            async with asyncio.timeout(self._deadline_s):
                by_vector, by_words = await gather_pair(
                    self._cosines(question, candidates, reader),
                    self._by_words(question, texts, reader),
                )
        except (Crowded, ThreadsBusy):
            raise RerankFailed("busy") from None
        except (DocumentsUnavailable, SchemaMismatch) as failure:
            logger.warning("rerank failed: %s", failure)
            raise RerankFailed("failed") from None
        halves = zip(normalised(by_vector), normalised(by_words), strict=True)
        return [(cosine + words) / 2 for cosine, words in halves]

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def _by_words(self, question: str, texts: Sequence[str], reader: Reader) -> list[float]:
        began = time.perf_counter()
        async with self._turns.place(reader.user_id):
            self._waited(time.perf_counter() - began)
            return await self._threads.run_in_thread(lambda: self._word_scores(question, texts))

    async def _cosines(self, question: str, candidates: Sequence[Candidate], reader: Reader) -> list[float]:
        compared = [candidate.cosine for candidate in candidates if candidate.cosine is not None]
        if len(compared) == len(candidates):
            return compared
        vector = await self._vector(question)
        uids = [candidate.chunk_uid for candidate in candidates if candidate.chunk_uid is not None]
        stored = await self._index.similarities(uids, vector, reader) if uids else []
        known = {found.chunk_uid: found.cosine for found in stored}
        # The others are no chunks of the index, or none that this reader may know of: they are texts like any other.
        unknown = [place for place, candidate in enumerate(candidates) if candidate.chunk_uid not in known]
        made = await self._passages.embed(reader.user_id, [candidates[place].text for place in unknown])
        others = {place: float(vector @ own) for place, own in zip(unknown, made, strict=True)}
        return [
            others.get(place, known.get(candidate.chunk_uid or "", 0.0)) for place, candidate in enumerate(candidates)
        ]

    async def _vector(self, question: str) -> Vector:
        vector = self._vectors.take(question)
        if vector is not None:
            return vector
        with self._kpi.phase("embed_query"):
            return await self._embedder.embed_query(question)


def normalised(scores: Sequence[float]) -> list[float]:
    """The scores spread over 0 to 1; all 0 where they are equal, so that such a half decides nothing."""
    lowest, span = min(scores), max(scores) - min(scores)
    return [(score - lowest) / span if span > 0 else 0.0 for score in scores]
