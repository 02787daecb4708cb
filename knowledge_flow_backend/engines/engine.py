"""The engine that the configuration names: what finds and writes chunks, and the work beside it."""

import asyncio
import logging
from typing import Final, Protocol

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterRules
from knowledge_flow_backend.engines.opensearch.follow import Follower
from knowledge_flow_backend.engines.opensearch.index import OpenSearchChunks, OpenSearchRules
from knowledge_flow_backend.engines.opensearch.writer import OpenSearchWriter
from knowledge_flow_backend.engines.pgvector.index import PgVectorIndex, PgVectorRules
from knowledge_flow_backend.engines.pgvector.word_counts import WordCounter
from knowledge_flow_backend.engines.pgvector.writer import PgVectorWriter
from knowledge_flow_backend.errors import DocumentsUnavailable, SchemaMismatch
from knowledge_flow_backend.index import ChunkIndex, IndexWriter
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.settings import KnowledgeFlowSettings

logger = logging.getLogger(__name__)

_WORDS_S: Final = 60.0


class Engine(Protocol):
    """What the service needs to know of an engine, beyond the two ports."""

    @property
    def index(self) -> ChunkIndex:
        """What searches read."""
        ...

    @property
    def writer(self) -> IndexWriter:
        """What ingestion writes."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a search may be tried. It stays true through later outages."""
        ...

    def dependencies(self) -> dict[str, str]:
        """The state of each server it needs beside Postgres, by its name."""
        ...

    async def check(self, dimension: int | None = None) -> None:
        """Check that the index fits the embedder. Raises `SchemaMismatch`, `IndexUnavailable`."""
        ...

    def spawn(self, tasks: TaskRegistry) -> None:
        """Start the background tasks."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class PgVectorEngine:
    """Everything in Postgres."""

    def __init__(self, settings: KnowledgeFlowSettings, database: IndexDatabase, *, model: str, kpi: Kpi) -> None:
        search = settings.search
        rules = PgVectorRules(search.word_share, search.attachment_hits, search.parallel)
        self._database = database
        self.index = PgVectorIndex(database, model=model, kpi=kpi, rules=rules)
        self._counter = WordCounter(database)
        self.writer = PgVectorWriter(
            database, model=model, bulk_size=settings.storage.vector_store.bulk_size, wake=self._counter.wake
        )
        self.ready = True

    def dependencies(self) -> dict[str, str]:
        """See `Engine`."""
        return {}

    async def check(self, dimension: int | None = None) -> None:
        """See `Engine`."""
        await self.index.check(dimension)

    def spawn(self, tasks: TaskRegistry) -> None:
        """See `Engine`."""
        tasks.spawn("word-counts", self._counter.follow_writes, restart=True)
        tasks.spawn("common-words", self._count_words, restart=True)

    async def aclose(self) -> None:
        """See `Engine`."""

    async def _count_words(self) -> None:
        """Keep the common words close to Postgres' statistics; until then a search does without them."""
        await self._database.wait_ready()
        while True:
            try:
                await self.index.count_common_words()
            except DocumentsUnavailable as failure:
                logger.info("the common words were not refreshed: %s", failure)
            await asyncio.sleep(_WORDS_S)


class OpenSearchEngine:
    """Chunks and vectors in OpenSearch, documents and rights in Postgres.

    Raises RuntimeError where `storage.opensearch` is missing.
    """

    def __init__(
        self,
        settings: KnowledgeFlowSettings,
        database: IndexDatabase,
        metrics: KnowledgeFlowMetrics,
        *,
        model: str,
        kpi: Kpi,
    ) -> None:
        where = settings.storage.opensearch
        if where is None:
            raise RuntimeError("storage.vector_store.type opensearch without storage.opensearch")
        search = settings.search
        rules = OpenSearchRules(search.word_share, search.attachment_hits, search.parallel)
        # What the cluster leaves of the deadline is for the question's vector before it and the rows after it.
        search_s = settings.deadlines.search_s * 2 / 3
        self._cluster = Cluster(where, ClusterRules(connections=where.max_connections, search_s=search_s))
        self._follower = Follower(database, self._cluster, metrics)
        self._counter = WordCounter(database)
        self.index = OpenSearchChunks(database, self._cluster, model=model, kpi=kpi, rules=rules)
        self.writer = OpenSearchWriter(
            database,
            self._cluster,
            model=model,
            bulk_size=settings.storage.vector_store.bulk_size,
            wake=self._written,
        )
        self._state = "connecting"

    @property
    def ready(self) -> bool:
        """See `Engine`."""
        return self._state == "ready"

    def dependencies(self) -> dict[str, str]:
        """See `Engine`."""
        return {"opensearch": self._state}

    async def check(self, dimension: int | None = None) -> None:
        """See `Engine`."""
        try:
            await self.index.check(dimension)
        except SchemaMismatch:
            self._state = "refused"
            raise
        self._state = "ready"

    def spawn(self, tasks: TaskRegistry) -> None:
        """See `Engine`."""
        tasks.spawn("opensearch-follower", self._follower.follow_writes, restart=True, essential=True)
        tasks.spawn("word-counts", self._counter.follow_writes, restart=True)

    async def aclose(self) -> None:
        """See `Engine`."""
        await self._cluster.aclose()

    def _written(self) -> None:
        self._follower.wake()
        self._counter.wake()


def make_engine(
    settings: KnowledgeFlowSettings, database: IndexDatabase, metrics: KnowledgeFlowMetrics, *, model: str, kpi: Kpi
) -> Engine:
    """The engine of `storage.vector_store.type`. Opens nothing yet."""
    if settings.storage.vector_store.type == "opensearch":
        return OpenSearchEngine(settings, database, metrics, model=model, kpi=kpi)
    return PgVectorEngine(settings, database, model=model, kpi=kpi)
