"""An OpenAI-compatible endpoint as embedder: `POST {base_url}/embeddings`, batched, retried, with deadlines."""

import asyncio
import base64
import binascii
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

from backend_kit.aio import TaskRegistry
from backend_kit.wire import InvalidJson, dumps, loads
from knowledge_flow_backend.embed.batcher import BatchRules, MicroBatcher
from knowledge_flow_backend.embed.port import unit_vectors
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index.models import Vector
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

DEFAULT_BASE_URL = "https://api.openai.com/v1"
MAX_ANSWER_BYTES = 32 * 1024 * 1024
_RETRY_AFTER_MAX_S = 10.0
_FIRST_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class EmbeddingEndpoint:
    """Where the model is and how patiently it is asked. Seconds; `max_retries` further attempts after the first."""

    base_url: str
    model: str
    api_key: SecretStr | None
    connect_s: float
    read_s: float
    max_retries: int
    max_connections: int
    keepalive_s: float


class _Failed(Exception):
    """One attempt came to nothing. `wait_s` is what the endpoint asked for, None where it asked for nothing."""

    def __init__(self, reason: str, *, retry: bool, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry = retry
        self.wait_s = wait_s


class OpenAiEmbedder:
    """The `Embedder` over HTTP. Built on the running loop, closed by `aclose`."""

    def __init__(
        self, endpoint: EmbeddingEndpoint, rules: BatchRules, *, metrics: KnowledgeFlowMetrics, tasks: TaskRegistry
    ) -> None:
        self.model = endpoint.model
        self._endpoint = endpoint
        self._url = f"{endpoint.base_url}/embeddings"
        self._batcher = MicroBatcher(self._compute, rules, metrics=metrics, tasks=tasks)
        self._length: int | None = None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=endpoint.max_connections, keepalive_timeout=endpoint.keepalive_s, ttl_dns_cache=60
            ),
            timeout=aiohttp.ClientTimeout(
                total=endpoint.connect_s + endpoint.read_s, sock_connect=endpoint.connect_s, sock_read=endpoint.read_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "turnwise", "Content-Type": "application/json"},
            trace_configs=[_pool_wait(metrics)],
        )

    @property
    def state(self) -> str:
        """Always `ready`: whether the endpoint answers is known when it is asked."""
        return "ready"

    async def embed_query(self, text: str) -> Vector:
        """See `Embedder`."""
        return await self._batcher.embed_query(text)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        return await self._batcher.embed_documents(texts)

    async def aclose(self) -> None:
        """Close the session and its connections. Calls that still run fail."""
        await self._session.close()

    async def _compute(self, texts: list[str]) -> list[Vector]:
        attempt = 0
        while True:
            try:
                return self._checked(await self._ask(texts), len(texts))
            except _Failed as failure:
                if not failure.retry or attempt >= self._endpoint.max_retries:
                    logger.warning("embedding model %s: %s", self.model, failure)
                    raise EmbeddingUnavailable(str(failure), retry_after_s=failure.wait_s or 1.0) from None
                wait_s = failure.wait_s or _FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                attempt += 1
                await asyncio.sleep(wait_s)

    async def _ask(self, texts: list[str]) -> Any:
        """One request; its decoded answer. Raises `_Failed`, whose text never holds an input."""
        body = dumps({"model": self.model, "input": texts, "encoding_format": "base64"})
        key = self._endpoint.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status != 200:
                    raise _of_status(response)
                if (response.content_length or 0) > MAX_ANSWER_BYTES:
                    raise _Failed("the answer is too large", retry=False)
                return loads(await _read(response))
        except InvalidJson:
            raise _Failed("the answer is not JSON", retry=False) from None
        except TimeoutError:
            raise _Failed("no answer in time", retry=True) from None
        except (aiohttp.ClientError, OSError) as error:
            retry = not isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL)
            raise _Failed(f"no answer: {type(error).__name__}", retry=retry) from None

    def _checked(self, answer: Any, texts: int) -> list[Vector]:
        try:
            entries = answer["data"]
            rows = [_numbers(entry["embedding"]) for entry in sorted(entries, key=_index)]
            indices = [_index(entry) for entry in entries]
        except (TypeError, KeyError, ValueError, binascii.Error):
            raise _Failed("the answer holds no vectors", retry=False) from None
        if sorted(indices) != list(range(texts)):
            raise _Failed(f"{len(rows)} vectors for {texts} texts", retry=False)
        lengths = {len(row) for row in rows} | ({self._length} if self._length is not None else set())
        if len(lengths) != 1 or 0 in lengths:
            raise _Failed("vectors of different lengths", retry=False)
        self._length = lengths.pop()
        return unit_vectors(np.stack(rows))


def _pool_wait(metrics: KnowledgeFlowMetrics) -> aiohttp.TraceConfig:
    """Reports how long a batch waited for a connection; says nothing of those that did not wait."""

    async def queued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.queued_at = time.perf_counter()

    async def unqueued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        metrics.embed_pool_wait.observe(time.perf_counter() - context.queued_at)

    config = aiohttp.TraceConfig()
    config.on_connection_queued_start.append(queued)
    config.on_connection_queued_end.append(unqueued)
    return config


def _of_status(response: aiohttp.ClientResponse) -> _Failed:
    wait_s: float | None = None
    asked = response.headers.get("Retry-After", "")
    if asked.isdecimal():
        wait_s = min(float(asked), _RETRY_AFTER_MAX_S)
    # The body is never looked at: it may repeat the question.
    return _Failed(f"HTTP {response.status}", retry=response.status == 429 or response.status >= 500, wait_s=wait_s)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, up to the limit whatever its head declares."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_ANSWER_BYTES:
            raise _Failed("the answer is too large", retry=False)
    return bytes(body)


def _index(entry: Any) -> int:
    index = entry["index"]
    if not isinstance(index, int):
        raise TypeError("index is not a number")
    return index


def _numbers(embedding: Any) -> "NDArray[np.float32]":
    """A vector in either of its two encodings: base64 of little-endian float32, or a list of numbers."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4")
    row = np.asarray(embedding, dtype=np.float32)
    if row.ndim != 1:
        raise ValueError("not a list of numbers")
    return row
