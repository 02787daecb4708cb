"""What the client of knowledge flow tells about its calls, and how `AgenticMetrics` takes it."""

from typing import Protocol

from agentic_backend.metrics import AgenticMetrics


class KnowledgeObserver(Protocol):
    """Called on the event loop, a few times a call. Must not block or raise."""

    def kf_searched(self, hits: int) -> None:
        """A search was answered."""

    def kf_pool_wait(self, seconds: float) -> None:
        """A call had to wait for a connection."""


class Metered:
    """Calls become the `rag_*` counters and `app_http_pool_wait_seconds{pool="kf"}`."""

    def __init__(self, metrics: AgenticMetrics) -> None:
        self._metrics = metrics
        self._pool_wait = metrics.http_pool_wait("kf")

    def kf_searched(self, hits: int) -> None:
        self._metrics.rag_searches.inc()
        if not hits:
            self._metrics.rag_empty_searches.inc()

    def kf_pool_wait(self, seconds: float) -> None:
        self._pool_wait.observe(seconds)


class Unobserved:
    """An observer for where nobody looks."""

    def kf_searched(self, hits: int) -> None:
        pass

    def kf_pool_wait(self, seconds: float) -> None:
        pass
