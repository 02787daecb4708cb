"""What is embedded together, what waits for what, and what becomes of those who go."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed.batcher import BatchRules, MicroBatcher
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from tests.knowledge_flow_backend.corpus import vector


class Gate:
    """A model that takes batches and keeps each until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.taken = asyncio.Event()
        self.go = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def compute(self, texts: list[str]) -> list[Vector]:
        self.batches.append(texts)
        self.taken.set()
        await self.go.acquire()
        if self.failure is not None:
            raise self.failure
        return [vector(text) for text in texts]

    def open(self) -> None:
        """Let every batch through."""
        for _ in range(1000):
            self.go.release()


class GatedModel:
    def __init__(self, tasks: TaskRegistry) -> None:
        self.tasks = tasks
        self.gate = Gate()
        kpi = Kpi(CollectorRegistry(), service="kf")
        self.registry = kpi.registry
        self.metrics = KnowledgeFlowMetrics(kpi.registry, kpi)

    def batcher(self, *, slots: int = 1, queries: int = 4, documents: int = 2, waiting: int = 100) -> MicroBatcher:
        rules = BatchRules(slots=slots, queries=queries, documents=documents, waiting=waiting)
        return MicroBatcher(self.gate.compute, rules, metrics=self.metrics, tasks=self.tasks)


@pytest.fixture
async def gated_model() -> AsyncIterator[GatedModel]:
    tasks = TaskRegistry()
    yield GatedModel(tasks)
    await tasks.aclose()


async def turns(count: int = 10) -> None:
    """Let every task run as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_idle_model_gets_a_text_at_once_and_a_busy_one_what_piled_up(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher()
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(batcher.embed_query(f"q{number}")) for number in range(7)]
        await turns()
        assert gated_model.gate.batches == [["q0"]]
        assert batcher.waiting == 6
        gated_model.gate.open()
    assert gated_model.gate.batches == [["q0"], ["q1", "q2", "q3", "q4"], ["q5", "q6"]]
    for number, task in enumerate(asked):
        assert (task.result() == vector(f"q{number}")).all()
    assert gated_model.registry.get_sample_value("app_embed_batch_size_count") == 3
    assert gated_model.registry.get_sample_value("app_embed_batch_size_sum") == 7
    assert gated_model.registry.get_sample_value("app_embed_queue_seconds_count") == 7
    assert gated_model.registry.get_sample_value("app_embed_seconds_count") == 3


async def test_a_question_overtakes_passages(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher()
    async with asyncio.TaskGroup() as group:
        passages = group.create_task(batcher.embed_documents([f"p{number}" for number in range(6)]))
        await turns()
        group.create_task(batcher.embed_query("q"))
        await turns()
        gated_model.gate.open()
    assert gated_model.gate.batches == [["p0", "p1"], ["q"], ["p2", "p3"], ["p4", "p5"]]
    assert len(passages.result()) == 6


async def test_passages_leave_half_of_the_slots_to_questions(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher(slots=4)
    async with asyncio.TaskGroup() as group:
        group.create_task(batcher.embed_documents([f"p{number}" for number in range(8)]))
        await turns()
        assert len(gated_model.gate.batches) == 2
        group.create_task(batcher.embed_query("q"))
        await turns()
        assert gated_model.gate.batches[2] == ["q"]
        gated_model.gate.open()


async def test_a_full_queue_refuses_at_once(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher(waiting=2)
    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(batcher.embed_query(f"q{number}"))
        await turns()
        with pytest.raises(EmbeddingUnavailable, match="too many"):
            await batcher.embed_query("one too many")
        gated_model.gate.open()


async def test_who_has_gone_is_not_embedded(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher()
    async with asyncio.TaskGroup() as group:
        group.create_task(batcher.embed_query("first"))
        gone = group.create_task(batcher.embed_query("gone"))
        stays = group.create_task(batcher.embed_query("stays"))
        await turns()
        gone.cancel()
        await turns()
        gated_model.gate.open()
        await stays
    assert gated_model.gate.batches == [["first"], ["stays"]]


async def test_a_document_that_is_given_up_takes_its_passages_out_of_the_queue(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher(slots=2, documents=2)
    async with asyncio.TaskGroup() as group:
        document = group.create_task(batcher.embed_documents([f"p{number}" for number in range(9)]))
        await turns()
        document.cancel()
        await turns()
        gated_model.gate.open()
        await batcher.embed_query("q")
    assert gated_model.gate.batches == [["p0", "p1"], ["q"]]


async def test_a_batch_that_fails_fails_for_its_callers_only(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher()
    gated_model.gate.failure = EmbeddingUnavailable("HTTP 500")
    gated_model.gate.open()
    with pytest.raises(EmbeddingUnavailable, match="HTTP 500"):
        await batcher.embed_query("q")
    with pytest.raises(EmbeddingUnavailable):
        await batcher.embed_documents(["p0", "p1", "p2"])
    gated_model.gate.failure = None
    assert (await batcher.embed_query("again") == vector("again")).all()


async def test_a_mistake_in_the_model_leaves_nobody_waiting(gated_model: GatedModel) -> None:
    batcher = gated_model.batcher()
    gated_model.gate.failure = KeyError("a mistake of ours")
    gated_model.gate.open()
    with pytest.raises(EmbeddingUnavailable, match="the model failed"):
        await batcher.embed_query("q")
    await turns()
    assert gated_model.tasks.failures == {"embed-batch": 1}


async def test_no_text_is_no_batch(gated_model: GatedModel) -> None:
    assert await gated_model.batcher().embed_documents([]) == []
    assert gated_model.gate.batches == []
