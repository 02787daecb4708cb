"""The port of rerankers, and reranking under a deadline: late or failed, the order of retrieval is the answer."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from backend_kit.aio.retry import QuietLog
from backend_kit.kpi import Kpi
from knowledge_flow_backend.index.models import Reader
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)


class RerankFailed(Exception):
    """The candidates could not be scored; `cause` is `failed` or `busy`. The order of retrieval stands."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text to score; `chunk_uid` where it says which chunk of the index it is (a claim of the caller's); `cosine`
    between it and the question where its search has compared them."""

    text: str
    chunk_uid: str | None = None
    cosine: float | None = None


class Reranker(Protocol):
    """Scores texts for a question without blocking the event loop."""

    async def score(self, question: str, candidates: Sequence[Candidate], reader: Reader) -> list[float]:
        """One score per candidate, in their order; higher is better, comparable within this call. At least one
        candidate is given. Raises `RerankFailed`, or TimeoutError at its deadline."""
        ...


@dataclass(frozen=True, slots=True)
class Reranked:
    """Which candidates come back, best first, as (place in the question's list, score).

    `skipped` says why there are no new scores (`late`, `failed`, `busy`, `off`): then the order is that of the list
    and the scores are None. It is None where the candidates were reranked.
    """

    order: tuple[tuple[int, float | None], ...]
    skipped: str | None = None


class RerankService:
    """One reranker, or none. Its failure is never an error of the answer."""

    def __init__(self, reranker: Reranker | None, *, metrics: KnowledgeFlowMetrics, kpi: Kpi) -> None:
        self._reranker = reranker
        self._metrics = metrics
        self._kpi = kpi
        self._log = QuietLog(logger)

    async def rerank(
        self,
        question: str,
        candidates: Sequence[Candidate],
        top_r: int,
        reader: Reader,
        *,
        within_s: float | None = None,
    ) -> Reranked:
        """The best `top_r` candidates. Equal scores keep the order of retrieval.

        `within_s` is what the call has left, where that may be less than the reranker's own deadline.
        """
        if not candidates:
            return Reranked(())
        try:
            scores = await self._score(question, candidates, reader, within_s)
        except TimeoutError:
            return self._as_retrieved(len(candidates), top_r, "late")
        except RerankFailed as failure:
            return self._as_retrieved(len(candidates), top_r, failure.cause)
        places = sorted(range(len(candidates)), key=lambda place: -scores[place])
        return Reranked(tuple((place, scores[place]) for place in places[:top_r]))

    async def _score(
        self, question: str, candidates: Sequence[Candidate], reader: Reader, within_s: float | None
    ) -> list[float]:
        if self._reranker is None:
            raise RerankFailed("off")
        with self._kpi.phase("rerank"):
            async with asyncio.timeout(within_s):
                return await self._reranker.score(question, candidates, reader)

    def _as_retrieved(self, candidates: int, top_r: int, cause: str) -> Reranked:
        self._metrics.rerank_skipped(cause).inc()
        if cause != "off":
            self._log.warning(cause, "rerank: skipped (%s)", cause)
        return Reranked(tuple((place, None) for place in range(min(candidates, top_r))), cause)
