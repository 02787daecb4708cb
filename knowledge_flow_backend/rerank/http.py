"""A rerank server as reranker: `POST {base_url}/rerank` in one of the five shapes that such servers have."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from backend_kit.aio import Breaker
from backend_kit.aio.retry import QuietLog
from backend_kit.client.json_client import CallFailed, guarded
from knowledge_flow_backend.embed.model_server import ModelCalls, ModelServer, sendable
from knowledge_flow_backend.index.models import Reader
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.rerank.service import Candidate, RerankFailed
from knowledge_flow_backend.rerank.shapes import BadScores, Shape, request_of, scores_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpRerankRules:
    """`batch_texts` documents go into one request, each cut to `text_chars` characters.

    `deadline_s` is for a whole call: an answer that is not there by then is the server's fault, while one that the
    caller does not wait for says nothing of it.
    """

    shape: Shape
    model: str
    batch_texts: int
    text_chars: int
    deadline_s: float


def default_batch(shape: Shape) -> int:
    """Documents of a request where nothing is configured: what `tei` takes unless told otherwise, or what `cohere`
    charges as one search."""
    return 32 if shape == "tei" else 100


class HttpReranker:
    """The `Reranker` over HTTP. Built on the running loop, closed by `aclose`.

    It sends the texts that it is given and the question; who asks, and what the texts are of, stays here.
    """

    def __init__(self, server: ModelServer, rules: HttpRerankRules, *, metrics: KnowledgeFlowMetrics) -> None:
        self._rules = rules
        self._calls = ModelCalls(server, pool_wait=metrics.rerank_pool_wait.observe)
        self._breaker = Breaker(time.perf_counter, lambda _wait_s: RerankFailed("failed"))
        self._log = QuietLog(logger)

    async def score(self, question: str, candidates: Sequence[Candidate], reader: Reader) -> list[float]:  # noqa: ARG002 - the texts are the caller's own
        """See `Reranker`."""
        try:
            with guarded(self._breaker):
                async with asyncio.timeout(self._rules.deadline_s):
                    return await self._scores(question, candidates)
        except BadScores as failure:
            raise self._log_failure("failed", f"the answer makes no sense: {failure}") from None
        except CallFailed as failure:
            raise self._log_failure("busy" if failure.kind == "busy" else "failed", str(failure)) from None

    async def aclose(self) -> None:
        """Close the connections. Reranks that still run fail."""
        await self._calls.aclose()

    async def _scores(self, question: str, candidates: Sequence[Candidate]) -> list[float]:
        limit, step = self._rules.text_chars, self._rules.batch_texts
        asked = sendable(question, limit)
        texts = [sendable(candidate.text, limit) for candidate in candidates]
        batches = [texts[start : start + step] for start in range(0, len(texts), step)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._batch(asked, batch)) for batch in batches]
        except BaseExceptionGroup as failures:
            # One batch less is another order: the first failure ends the others.
            raise failures.exceptions[0] from None
        return [score for task in tasks for score in task.result()]

    async def _batch(self, question: str, texts: list[str]) -> list[float]:
        body = request_of(self._rules.shape, self._rules.model, question, texts)
        answer = await self._calls.ask(body, budget_s=self._rules.deadline_s)
        return scores_of(answer, len(texts))

    def _log_failure(self, cause: str, reason: str) -> RerankFailed:
        """Log a failure, at most once a second and reason, and return the error to raise for it."""
        self._log.warning(reason, "reranker %s: %s", self._rules.model, reason)
        return RerankFailed(cause)
