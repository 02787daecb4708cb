"""Searching and reranking for one caller: admission, limits, deadline, and one embedding for the two."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from backend_kit.aio import FairGate, GateRules
from backend_kit.aio.retry import QuietLog
from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import admitted
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.errors import (
    DocumentsUnavailable,
    IndexUnavailable,
    MessageTooLong,
    Overloaded,
    RateLimited,
)
from knowledge_flow_backend.index import ChunkHit, ChunkIndex, IndexQuery, Policy, Reader, Vector
from knowledge_flow_backend.index.reads import SharedReads
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Candidate, Reranked, RerankService
from knowledge_flow_backend.rerank.local import QuestionVectors
from knowledge_flow_backend.search.wire import Provenance, RerankRequest, SearchRequest, move_hit

logger = logging.getLogger(__name__)

SEARCH_PHASE: Final = "vector_search"
"""A search in the index, with the vector of its question and without its rerank."""


@dataclass(frozen=True, slots=True)
class SearchRules:
    """Limits of a search: how many run and wait, of all and of one reader. Seconds for a whole search, with its wait
    and its rerank."""

    candidates: int
    admission: GateRules
    max_question_chars: int
    deadline_s: float
    index_name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Hits as they go over the wire, best first, and what became of their rerank.

    `skipped`: they are in the order of retrieval. None: no rerank was asked for.
    """

    hits: list[dict[str, Any]] = field(default_factory=list)
    rerank: Literal["done", "skipped"] | None = None


class SearchService:
    """Search and rerank, without HTTP."""

    def __init__(
        self,
        *,
        index: ChunkIndex,
        embedder: Embedder,
        vectors: QuestionVectors,
        reranking: RerankService,
        reads: SharedReads,
        rules: SearchRules,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
    ) -> None:
        self._index = index
        self._embedder = embedder
        self._vectors = vectors
        self._reranking = reranking
        self._reads = reads
        self._rules = rules
        self._metrics = metrics
        self.kpi = kpi
        self.gate = FairGate(rules.admission)
        self._log = QuietLog(logger)

    @property
    def running(self) -> int:
        """Calls that run now."""
        return self.gate.running

    async def search(self, request: SearchRequest, reader: Reader) -> Answer:
        """The hits, reranked where the request says so; a rerank that fails is skipped.

        Raises `MessageTooLong`, `RateLimited`, `Overloaded`, `SchemaMismatch`, `DocumentsUnavailable`.
        """
        ends_at = asyncio.get_running_loop().time() + self._rules.deadline_s
        async with self._admitted("search", reader, ends_at):
            self._check(request.question)
            query = self._query(request, reader)
            if not query.corpus and query.session_id is None:
                return Answer() if request.rerank is None else Answer(rerank="done")
            provenance = Provenance(
                embedding_model=self._embedder.model,
                vector_index=self._rules.index_name,
                session_id=request.session_id,
            )
            try:
                with self.kpi.phase(SEARCH_PHASE):
                    async with asyncio.timeout_at(ends_at):
                        found = await self._index.search(query, lambda: self._embed(request))
            except TimeoutError:
                raise IndexUnavailable("the search took longer than its deadline") from None
            if not found:
                self._metrics.empty_searches.inc()
            self._reads.of_hits(reader, found)
            if reader.libraries is not None:
                found = [_without_names(hit, reader.libraries) for hit in found]
            hits = [provenance.hit(hit, rank) for rank, hit in enumerate(found, start=1)]
            if request.rerank is None:
                return Answer(hits)
            candidates = [Candidate(hit.content, hit.chunk_uid, hit.cosine) for hit in found]
            with self.kpi.phase("vector_rerank"):
                left_s = ends_at - asyncio.get_running_loop().time()
                done = await self._reranking.rerank(
                    request.question, candidates, request.rerank.top_r, reader, within_s=left_s
                )
            return _answer(hits.__getitem__, done)

    async def rerank(self, request: RerankRequest, reader: Reader) -> Answer:
        """The best hits in their new order. Raises `MessageTooLong`, `RateLimited`, `Overloaded`; never for a reranker
        that fails."""
        ends_at = asyncio.get_running_loop().time() + self._rules.deadline_s
        async with self._admitted("rerank", reader, ends_at):
            self._check(request.question)
            hits = request.documents
            candidates = [Candidate(hit.content, hit.chunk_uid) for hit in hits]
            with self.kpi.phase("vector_rerank"):
                done = await self._reranking.rerank(request.question, candidates, request.top_r, reader)
            return _answer(lambda place: hits[place].model_dump(), done)

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
            libraries=reader.within(libraries or None),
            documents=tuple(documents) if documents else None,
            session_id=request.session_id if request.include_session_scope else None,
        )

    async def _embed(self, request: SearchRequest) -> Vector:
        with self.kpi.phase("embed_query"):
            vector = await self._embedder.embed_query(request.question)
        if request.rerank is None:
            self._vectors.leave(request.question, vector)
        return vector

    def _check(self, question: str) -> None:
        if len(question) > self._rules.max_question_chars:
            raise MessageTooLong(field="question")

    @asynccontextmanager
    async def _admitted(
        self, route: Literal["search", "rerank"], reader: Reader, ends_at: float
    ) -> AsyncIterator[None]:
        """Wait for the reader's turn until `ends_at`; count and time a call, however it ends."""
        begun = time.perf_counter()
        status = "error"
        try:
            async with admitted(self.gate, reader.user_id, "search", self._metrics, ends_at=ends_at):
                self._metrics.searches_running.set(self.gate.running)
                yield
            status = "ok"
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        except (MessageTooLong, RateLimited, Overloaded):
            status = "rejected"
            raise
        except DocumentsUnavailable as failure:
            self._log_failure(route, failure)
            raise
        finally:
            self._metrics.searches_running.set(self.gate.running)
            self._metrics.request(route, status).observe(time.perf_counter() - begun)

    def _log_failure(self, route: str, failure: DocumentsUnavailable) -> None:
        self._log.warning(route, "%s failed: %s", route, failure)


def _without_names(hit: ChunkHit, libraries: frozenset[str]) -> ChunkHit:
    """The hit without the libraries of its document that the reader's key does not include."""
    places = [at for at, id_ in enumerate(hit.tag_ids) if id_ in libraries]
    kept = (tuple(names[at] for at in places) for names in (hit.tag_ids, hit.tag_names, hit.tag_full_paths))
    tag_ids, tag_names, tag_full_paths = kept
    return replace(hit, tag_ids=tag_ids, tag_names=tag_names, tag_full_paths=tag_full_paths)


def _answer(hit_at: Callable[[int], dict[str, Any]], done: Reranked) -> Answer:
    """What was reranked in its new order; what was not, as it was retrieved. `hit_at` gives the hit of a place."""
    best = []
    for rank, (place, score) in enumerate(done.order, start=1):
        hit = hit_at(place)
        if score is not None:
            move_hit(hit, rank, score)
        best.append(hit)
    return Answer(best, "done" if done.skipped is None else "skipped")
