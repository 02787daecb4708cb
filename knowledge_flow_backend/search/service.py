"""Searching and reranking for one caller: admission, limits, deadline, and one embedding for the two."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from backend_kit.aio.retry import QuietLog
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.errors import DocumentsUnavailable, IndexUnavailable, MessageTooLong, Overloaded
from knowledge_flow_backend.index import ChunkIndex, IndexQuery, Policy, Reader, Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Candidate, RerankService
from knowledge_flow_backend.rerank.local import QuestionVectors
from knowledge_flow_backend.search.wire import Provenance, RerankRequest, SearchRequest, reranked_hit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchRules:
    """Limits of a search. `max_running` 0 = off. Seconds for a whole search."""

    candidates: int
    max_running: int
    max_question_chars: int
    deadline_s: float
    index_name: str


class SearchService:
    """Search and rerank, without HTTP."""

    def __init__(
        self,
        *,
        index: ChunkIndex,
        embedder: Embedder,
        vectors: QuestionVectors,
        reranking: RerankService,
        rules: SearchRules,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._vectors = vectors
        self._reranking = reranking
        self._rules = rules
        self._metrics = metrics
        self.kpi = kpi
        self._running = 0
        self._log = QuietLog(logger)

    @property
    def running(self) -> int:
        """Calls that run now."""
        return self._running

    async def search(self, request: SearchRequest, reader: Reader) -> list[dict[str, Any]]:
        """The hits, best first. Raises `MessageTooLong`, `Overloaded`, `SchemaMismatch`, `DocumentsUnavailable`."""
        with self._admitted("search"):
            self._check(request.question)
            query = self._query(request, reader)
            if not query.corpus and query.session_id is None:
                return []
            provenance = Provenance(
                embedding_model=self._embedder.model,
                vector_index=self._rules.index_name,
                session_id=request.session_id,
            )
            try:
                async with asyncio.timeout(self._rules.deadline_s):
                    hits = await self._index.search(query, lambda: self._embed(request.question))
            except TimeoutError:
                raise IndexUnavailable("the search took longer than its deadline") from None
            if not hits:
                self._metrics.empty_searches.inc()
            return [provenance.hit(hit, rank) for rank, hit in enumerate(hits, start=1)]

    async def rerank(self, request: RerankRequest, reader: Reader) -> tuple[list[dict[str, Any]], str | None]:
        """The best hits in their new order, and why they were not reranked, where they were not (`late`, …).

        Raises `MessageTooLong`, `Overloaded`; never for a reranker that fails.
        """
        with self._admitted("rerank"):
            self._check(request.question)
            hits = request.documents
            candidates = [Candidate(hit.content, hit.chunk_uid) for hit in hits]
            done = await self._reranking.rerank(request.question, candidates, request.top_r, reader)
            if done.skipped is not None:
                return [hits[place].model_dump() for place, _ in done.order], done.skipped
            ranked = [
                reranked_hit(hits[place], rank, score)
                for rank, (place, score) in enumerate(done.order, start=1)
                if score is not None
            ]
            return ranked, None

    def _query(self, request: SearchRequest, reader: Reader) -> IndexQuery:
        libraries, documents = request.document_library_tags_ids, request.document_uids
        return IndexQuery(
            question=request.question,
            policy=request.search_policy or Policy.HYBRID,
            reader=reader,
            limit=request.top_k,
            candidates=self._rules.candidates,
            corpus=request.include_corpus_scope,
            # An empty list selects nothing in particular, as the clients that send it mean.
            libraries=tuple(libraries) if libraries else None,
            documents=tuple(documents) if documents else None,
            session_id=request.session_id if request.include_session_scope else None,
        )

    async def _embed(self, question: str) -> Vector:
        with self.kpi.phase("embed_query"):
            vector = await self._embedder.embed_query(question)
        self._vectors.leave(question, vector)
        return vector

    def _check(self, question: str) -> None:
        if len(question) > self._rules.max_question_chars:
            raise MessageTooLong

    @contextmanager
    def _admitted(self, route: Literal["search", "rerank"]) -> Iterator[None]:
        """Count, time and bound a call, however it ends."""
        begun = time.perf_counter()
        status = "error"
        if self._rules.max_running and self._running >= self._rules.max_running:
            self._metrics.request(route, "rejected").observe(0.0)
            raise Overloaded(retry_after_s=1.0)
        self._enter(1)
        try:
            yield
            status = "ok"
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except MessageTooLong:
            status = "rejected"
            raise
        except DocumentsUnavailable as failure:
            self._say(route, failure)
            raise
        finally:
            self._enter(-1)
            self._metrics.request(route, status).observe(time.perf_counter() - begun)

    def _enter(self, change: int) -> None:
        self._running += change
        self._metrics.searches_running.set(self._running)

    def _say(self, route: str, failure: DocumentsUnavailable) -> None:
        self._log.warning(route, "%s failed: %s", route, failure)
