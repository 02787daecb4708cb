"""The micro-batcher: texts that arrive while the model is busy are embedded together as soon as it is free."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from backend_kit.aio import TaskRegistry
from knowledge_flow_backend.errors import EmbeddingUnavailable, SchemaMismatch
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

Outcome = Vector | EmbeddingUnavailable
"""The outcome of one text: its vector, or why this text alone has none."""
Compute = Callable[[list[str]], Awaitable[Sequence[Outcome]]]
"""Embeds one batch: one outcome per text. Raises `EmbeddingUnavailable`, `SchemaMismatch` for all."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """How texts are batched.

    `slots` batches run at once. A batch holds up to `queries` questions, or up to `documents` passages; passages take
    at most half of the slots (one where there is only one), so that a question waits for one of their batches at
    most. `waiting` questions may wait; further ones are refused.
    """

    slots: int
    queries: int
    documents: int
    waiting: int


@dataclass(slots=True)
class _Item:
    text: str
    future: "asyncio.Future[Vector]"
    arrived: float = field(default_factory=time.perf_counter)


class MicroBatcher:
    """Bounded, without a timer: an idle model gets a text at once, a busy one gets what has piled up."""

    def __init__(
        self, compute: Compute, rules: BatchRules, *, metrics: KnowledgeFlowMetrics, tasks: TaskRegistry
    ) -> None:
        self._compute = compute
        self._rules = rules
        self._metrics = metrics
        self._tasks = tasks
        self._queries: deque[_Item] = deque()
        self._documents: deque[_Item] = deque()
        self._running = 0
        self._running_documents = 0

    @property
    def waiting(self) -> int:
        """Texts that wait for a batch."""
        return len(self._queries) + len(self._documents)

    async def embed_query(self, text: str) -> Vector:
        """The vector of one question. Raises `EmbeddingUnavailable`, at once where too many wait."""
        if len(self._queries) >= self._rules.waiting:
            raise EmbeddingUnavailable("too many questions wait for the model")
        item = self._enter(self._queries, text)
        self._pump()
        return await item.future

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of many passages. Only a few batches of one call wait at a time. Raises as `embed_query`."""
        step = self._rules.documents * self._rules.slots
        vectors: list[Vector] = []
        for start in range(0, len(texts), step):
            items = [self._enter(self._documents, text) for text in texts[start : start + step]]
            self._pump()
            try:
                vectors += await asyncio.gather(*(item.future for item in items))
            finally:
                for item in items:
                    item.future.cancel()
        return vectors

    def _enter(self, queue: deque[_Item], text: str) -> _Item:
        item = _Item(text, asyncio.get_running_loop().create_future())
        queue.append(item)
        return item

    def _pump(self) -> None:
        rules = self._rules
        while self._running < rules.slots:
            if batch := _take(self._queries, rules.queries):
                self._start(batch, documents=False)
            elif self._running_documents < max(1, rules.slots // 2) and (
                batch := _take(self._documents, rules.documents)
            ):
                self._start(batch, documents=True)
            else:
                return

    def _start(self, batch: list[_Item], *, documents: bool) -> None:
        self._running += 1
        self._running_documents += documents
        self._tasks.spawn("embed-batch", lambda: self._run(batch, documents=documents))

    async def _run(self, batch: list[_Item], *, documents: bool) -> None:
        begun = time.perf_counter()
        for item in batch:
            self._metrics.embed_queue.observe(begun - item.arrived)
        self._metrics.embed_batch_size.observe(len(batch))
        failure: EmbeddingUnavailable | SchemaMismatch = EmbeddingUnavailable("the model failed")
        try:
            outcomes = await self._compute([item.text for item in batch])
            for item, outcome in zip(batch, outcomes, strict=True):
                _settle(item, outcome)
        except (EmbeddingUnavailable, SchemaMismatch) as error:
            failure = error
        finally:
            # Also after an unexpected error, which the task registry logs: no caller is left waiting.
            for item in batch:
                _settle(item, failure)
            self._metrics.embed.observe(time.perf_counter() - begun)
            self._running -= 1
            self._running_documents -= documents
            self._pump()


def _settle(item: _Item, outcome: Outcome | SchemaMismatch) -> None:
    """Hand a caller who still waits the outcome of the text."""
    if item.future.done():
        return
    if isinstance(outcome, EmbeddingUnavailable | SchemaMismatch):
        item.future.set_exception(outcome)
    else:
        item.future.set_result(outcome)


def _take(queue: deque[_Item], most: int) -> list[_Item]:
    """The first texts whose callers still wait."""
    batch: list[_Item] = []
    while queue and len(batch) < most:
        item = queue.popleft()
        if not item.future.done():
            batch.append(item)
    return batch
