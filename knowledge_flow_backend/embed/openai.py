"""An OpenAI-compatible endpoint as embedder: `POST {base_url}/embeddings`, batched, paced, retried, with deadlines."""

import asyncio
import base64
import binascii
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend_kit.aio import Breaker, TaskRegistry
from backend_kit.client.json_client import CallFailed, guarded
from knowledge_flow_backend.embed import unit_vectors
from knowledge_flow_backend.embed.batcher import BatchRules, MicroBatcher, Outcome
from knowledge_flow_backend.embed.model_server import ModelCalls, ModelServer, sendable
from knowledge_flow_backend.errors import EmbeddingUnavailable, SchemaMismatch
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

CHARS_A_TOKEN = 4
"""Roughly, for English; where it is off, the endpoint answers 429."""
logger = logging.getLogger(__name__)
DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_MAX_CHARS = 100_000
"""Of one text; no model reads so far."""
_BUDGET_S = 4.0
"""No further attempt after this: the search that waits for a question's vector ends at 4.5 s."""
_HOLD_MAX_S = 60.0
"""The longest that is waited after a 429."""
_PATIENCE_S = 2.0
"""How long a question waits for an endpoint that wants to be left alone; it is refused where that is longer."""
_CONTENT = frozenset({400, 413, 422})
"""What an endpoint answers to a batch with a text that it does not take: mostly one that is too long."""
_REFUSALS = 16
"""After this many, a batch is given up: the fault is in the request, not in one of its texts."""
_SHORT_CHARS = 500
"""A refused text is cut in halves down to this length, which every model reads."""


class RateLimit:
    """An even rate without bursts. `requests` and `tokens` a minute; 0 = no limit.

    Questions are counted too, and passages wait longer for them.
    """

    def __init__(
        self,
        requests: int,
        tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._request_s = 60.0 / requests if requests else 0.0
        self._token_s = 60.0 / tokens if tokens else 0.0
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._held_until = clock()

    @property
    def held_s(self) -> float:
        """Seconds that the endpoint still asks its clients to wait; 0 where it does not."""
        return max(0.0, self._held_until - self._clock())

    def hold(self, seconds: float) -> None:
        """Note that the endpoint asks its clients to wait this long."""
        self._held_until = max(self._held_until, self._clock() + seconds)
        self._free_at = max(self._free_at, self._held_until)

    def count(self, requests: int, texts: Sequence[str]) -> None:
        """Note requests that go out now."""
        tokens = sum(map(len, texts)) // CHARS_A_TOKEN
        used_s = max(requests * self._request_s, tokens * self._token_s)
        self._free_at = max(self._free_at, self._clock()) + used_s

    async def turn(self, requests: int, texts: Sequence[str]) -> None:
        """Wait until the time for everything counted so far has passed, then count these."""
        while (wait_s := self._free_at - self._clock()) > 0:
            await self._sleep(wait_s)
        self.count(requests, texts)


@dataclass(frozen=True, slots=True)
class EmbeddingRules:
    """The model asked for; `dimensions` to ask of it, None = its own; limits a minute, 0 = none."""

    model: str
    dimensions: int | None = None
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


class OpenAiEmbedder:
    """The `Embedder` over HTTP. Built on the running loop, closed by `aclose`."""

    def __init__(
        self,
        server: ModelServer,
        embedding: EmbeddingRules,
        rules: BatchRules,
        *,
        metrics: KnowledgeFlowMetrics,
        tasks: TaskRegistry,
    ) -> None:
        self.model = embedding.model
        self._rules = rules
        self._calls = ModelCalls(server, pool_wait=metrics.embed_pool_wait.observe, room_bytes=MAX_ANSWER_BYTES)
        self._breaker = Breaker(
            time.perf_counter, lambda wait_s: EmbeddingUnavailable("circuit open", retry_after_s=wait_s)
        )
        self._batcher = MicroBatcher(self._compute, rules, metrics=metrics, tasks=tasks)
        self._rate_limit = RateLimit(embedding.requests_per_minute, embedding.tokens_per_minute)
        self._asked = embedding.dimensions
        self._length = embedding.dimensions

    @property
    def state(self) -> str:
        """`unknown` before the endpoint has answered, `ready`, or `down` while it is not asked for its failures."""
        told = self._breaker.health
        return "ready" if told == "up" else told

    async def dimension(self) -> int:
        """How many numbers a vector has; the endpoint is asked where it has not answered yet.

        Raises `EmbeddingUnavailable`, `SchemaMismatch`.
        """
        return len(await self.embed_query("dimension"))

    async def embed_query(self, text: str) -> Vector:
        """See `Embedder`. Also raises `SchemaMismatch`, as `embed_documents`."""
        held_s = self._rate_limit.held_s
        if held_s > _PATIENCE_S:
            raise EmbeddingUnavailable("the endpoint's rate limit", retry_after_s=held_s)
        if held_s:
            await asyncio.sleep(held_s)
        self._rate_limit.count(1, [text])
        return await self._batcher.embed_query(text)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`. Waits for the configured rate, and as long as a 429 asked for.

        Raises `SchemaMismatch` where the endpoint's vectors have another length than before: it has another model.
        """
        step = self._rules.documents * self._rules.slots
        vectors: list[Vector] = []
        for start in range(0, len(texts), step):
            some = texts[start : start + step]
            await self._rate_limit.turn(-(-len(some) // self._rules.documents), some)
            vectors += await self._batcher.embed_documents(some)
        return vectors

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._calls.aclose()

    async def _compute(self, texts: list[str]) -> list[Outcome]:
        try:
            with guarded(self._breaker):
                return await self._divided([sendable(text, _MAX_CHARS) for text in texts], [_REFUSALS])
        except CallFailed as failure:
            raise self._failed(failure) from None

    async def _divided(self, texts: list[str], refusals: list[int]) -> list[Outcome]:
        """The batch's vectors. Where the endpoint refuses it, its halves', so that a text it does not take fails alone.

        `refusals` holds how many more may come. Raises `CallFailed`, `SchemaMismatch`.
        """
        try:
            return list(await self._vectors(texts))
        except CallFailed as failure:
            refusals[0] -= 1
            if failure.status not in _CONTENT or refusals[0] <= 0:
                raise
        if len(texts) > 1:
            middle = len(texts) // 2
            return [
                *await self._divided(texts[:middle], refusals),
                *await self._divided(texts[middle:], refusals),
            ]
        if len(texts[0]) > _SHORT_CHARS:
            # As the local model does: what a model cannot read is found by its beginning.
            return await self._divided([texts[0][: max(len(texts[0]) // 2, _SHORT_CHARS)]], refusals)
        return [EmbeddingUnavailable("the endpoint refuses a text", retry_after_s=None)]

    async def _vectors(self, texts: list[str]) -> list[Vector]:
        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "base64"}
        if self._asked is not None:
            body["dimensions"] = self._asked
        return self._checked(await self._calls.ask(body, budget_s=_BUDGET_S), len(texts))

    def _failed(self, failure: CallFailed) -> EmbeddingUnavailable:
        logger.warning("embedding model %s: %s", self.model, failure)
        wait_s = min(failure.wait_s or 1.0, _HOLD_MAX_S)
        if failure.kind == "busy":
            self._rate_limit.hold(wait_s)
        return EmbeddingUnavailable(str(failure), retry_after_s=wait_s)

    def _checked(self, answer: Any, texts: int) -> list[Vector]:
        try:
            entries = answer["data"]
            rows = [_numbers(entry["embedding"]) for entry in sorted(entries, key=_index)]
            indices = [_index(entry) for entry in entries]
        except (TypeError, KeyError, ValueError, binascii.Error):
            raise CallFailed("the answer holds no vectors", "broken") from None
        if sorted(indices) != list(range(texts)):
            raise CallFailed(f"{len(rows)} vectors for {texts} texts", "broken")
        lengths = {len(row) for row in rows}
        if len(lengths) != 1 or 0 in lengths:
            raise CallFailed("vectors of different lengths", "broken")
        length = lengths.pop()
        if self._length is not None and length != self._length:
            raise SchemaMismatch(f"{self.model} gave vectors of {length} numbers instead of {self._length}")
        vectors = unit_vectors(np.stack(rows))
        self._length = length
        return vectors


def _index(entry: Any) -> int:
    index = entry["index"]
    if not isinstance(index, int):
        raise TypeError("index is not a number")
    return index


def _numbers(embedding: Any) -> "NDArray[np.float32]":
    """A vector in either of its two encodings: base64 of little-endian float32, or a list of numbers."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    # A number beyond float32 becomes infinite, which has no direction and is refused as that.
    with np.errstate(over="ignore"):
        row = np.asarray(embedding, dtype=np.float32)
    if row.ndim != 1:
        raise ValueError("not a list of numbers")
    return row
