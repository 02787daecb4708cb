"""Who searches when many do: users in turn, within bounds that are refused by name and the search's deadline."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import GateRules
from backend_kit.kpi import Kpi
from backend_kit.wire import CODES, ServiceError
from knowledge_flow_backend.errors import Overloaded, RateLimited
from knowledge_flow_backend.index import ChunkHit, IndexQuery, Reader, Similarity, Vector
from knowledge_flow_backend.index.models import Embed
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import RerankService
from knowledge_flow_backend.rerank.local import QuestionVectors
from knowledge_flow_backend.search.service import SearchRules, SearchService
from knowledge_flow_backend.search.wire import RerankRequest, SearchRequest
from tests.knowledge_flow_backend.ingest.ingestion import unheard
from tests.support.patience import PATIENCE_S


class HeldIndex:
    """An index that keeps each search until it is let go, and finds nothing."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._held: dict[str, asyncio.Event] = {}

    async def search(self, query: IndexQuery, _embed: Embed) -> list[ChunkHit]:
        self.begun.append(query.question)
        self._held[query.question] = asyncio.Event()
        await self._held[query.question].wait()
        return []

    async def similarities(self, _uids: Sequence[str], _vector: Vector, _reader: Reader) -> list[Similarity]:
        return []

    async def go(self, *questions: str) -> None:
        for question in questions:
            self._held[question].set()
            await ticks()


class Embedder:
    """One vector for all."""

    model = "fixed"
    state = "ready"

    async def embed_query(self, _text: str) -> Vector:
        return np.ones(1, dtype=np.float32)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        return [await self.embed_query(text) for text in texts]


class Searches:
    """A service with these rules, and the searches that were begun: the first letter of a question is its user."""

    def __init__(self, deadline_s: float = PATIENCE_S, **rules: int) -> None:
        self.index = HeldIndex()
        self.kpi = Kpi(CollectorRegistry(), service="test", phases=PHASES)
        self.metrics = KnowledgeFlowMetrics(self.kpi.registry, self.kpi)
        self.service = SearchService(
            index=self.index,
            embedder=Embedder(),
            vectors=QuestionVectors(),
            reranking=RerankService(None, metrics=self.metrics, kpi=self.kpi),
            rules=SearchRules(10, GateRules(**rules), 1000, deadline_s, "test"),
            reads=unheard(),
            metrics=self.metrics,
            kpi=self.kpi,
        )
        self.asked: dict[str, asyncio.Task[object]] = {}

    async def ask(self, *questions: str) -> None:
        for question in questions:
            search = self.service.search(SearchRequest(question=question), Reader(question[0]))
            self.asked[question] = asyncio.ensure_future(search)
            await ticks()

    def refusal(self, question: str) -> BaseException | None:
        return self.asked[question].exception() if self.asked[question].done() else None

    def refused(self, bound: str) -> float:
        labels = {"class": "search", "bound": bound}
        return self.kpi.registry.get_sample_value("app_kf_refused_total", labels) or 0.0

    async def end(self) -> None:
        for task in self.asked.values():
            task.cancel()
        await asyncio.gather(*self.asked.values(), return_exceptions=True)
        assert self.service.running == self.service.gate.waiting == 0


async def ticks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_search_of_another_user_begins_beside_and_between_those_of_a_flood() -> None:
    searches = Searches(places=3, per_user=2)
    await searches.ask(*(f"a{number}" for number in range(9)), "b0", "b1", "b2", "c0")
    assert searches.index.begun == ["a0", "a1", "b0"]

    await searches.index.go("a0", "a1", "b0")
    assert searches.index.begun[3:] == ["a2", "b1", "c0"]
    await searches.end()


async def test_a_rerank_waits_with_the_searches_of_its_user() -> None:
    searches = Searches(places=4, per_user=1)
    await searches.ask("a0")
    reranking = asyncio.ensure_future(searches.service.rerank(RerankRequest(question="a1", documents=[]), Reader("a")))
    await ticks()
    assert not reranking.done()
    assert (await searches.service.rerank(RerankRequest(question="b0", documents=[]), Reader("b"))).hits == []

    await searches.index.go("a0")
    assert (await reranking).hits == []
    await searches.end()


@pytest.mark.parametrize(
    ("rules", "bound", "kind", "status"),
    [
        ({"waiting_per_user": 1}, "per_user", RateLimited, 429),
        ({"waiting": 1}, "overall", Overloaded, 503),
    ],
)
async def test_beyond_the_bounds_of_waiting_a_search_is_refused_with_a_time_to_return(
    rules: dict[str, int], bound: str, kind: type[ServiceError], status: int
) -> None:
    searches = Searches(places=1, **rules)
    await searches.ask("a0", "a1", "a2")

    refusal = searches.refusal("a2")
    assert isinstance(refusal, kind)
    assert (CODES[refusal.code].status, refusal.retry_after_s) == (status, 1.0)
    assert searches.refused(bound) == 1
    await searches.index.go("a0")
    assert searches.index.begun == ["a0", "a1"]
    await searches.end()


async def test_the_wait_counts_in_the_deadline_of_the_search() -> None:
    searches = Searches(deadline_s=0.001, places=1)
    await searches.service.gate.enter("a")
    with pytest.raises(Overloaded):
        await searches.service.search(SearchRequest(question="b0"), Reader("b"))

    assert searches.index.begun == []
    assert searches.refused("late") == 1
    searches.service.gate.leave("a")
    await searches.end()


async def test_who_waited_in_vain_behind_their_own_is_told_so() -> None:
    """429: a client that counts 5xx would take the service for down."""
    searches = Searches(deadline_s=0.001, places=2, per_user=1)
    await searches.service.gate.enter("a")
    with pytest.raises(RateLimited):
        await searches.service.search(SearchRequest(question="a1"), Reader("a"))
    searches.service.gate.leave("a")
    await searches.end()


async def test_who_waited_in_vain_for_everybody_is_not_told_that_it_was_their_own() -> None:
    searches = Searches(deadline_s=0.001, places=2)  # as where all callers are one user
    for _ in range(2):
        await searches.service.gate.enter("a")
    with pytest.raises(Overloaded):
        await searches.service.search(SearchRequest(question="a2"), Reader("a"))
    for _ in range(2):
        searches.service.gate.leave("a")
    await searches.end()
