"""The product's engines, filled with the manual and asked as the service asks them."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi
from deploy.opensearch.node import OpenSearchNode
from knowledge_flow_backend.embed import Passages
from knowledge_flow_backend.embed.local import DOCUMENTS_A_BATCH
from knowledge_flow_backend.engines.engine import PgVectorEngine, make_engine
from knowledge_flow_backend.engines.pgvector.word_counts import WordCounter
from knowledge_flow_backend.index import ChunkHit, ChunkIndex, IndexQuery, IndexWriter, Policy, Reader
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Candidate
from knowledge_flow_backend.rerank.local import LocalReranker, QuestionVectors
from knowledge_flow_backend.settings import KnowledgeFlowSettings
from tests.eval.corpus import OWNER, CachedEmbedder, Divided
from tests.eval.scores import DEEP
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from turnwise.postgres import USER, EmbeddedPostgres

NAMES: Final = ("pgvector", "opensearch")
READER: Final = Reader(OWNER)
INDEX: Final = "turnwise-eval"
RERANKED: Final = 30
"""Best hits of a search that are reranked; the others keep their places behind them."""
_DEADLINE_S: Final = 60.0
"""Of a rerank: how long one takes is not judged here."""
_CHECKOUT: Final = Path(__file__).parents[2]


@dataclass(slots=True)
class FilledEngine:
    """An engine that holds the manual. `name` as in `storage.vector_store.type`; `dsn` is its Postgres."""

    name: str
    index: ChunkIndex
    embedder: CachedEmbedder
    reranker: LocalReranker
    candidates: int
    dsn: str

    async def hits(self, question: str, policy: Policy) -> list[ChunkHit]:
        """The best 50 hits of a question, by the product's defaults."""
        query = IndexQuery(question, policy, READER, limit=DEEP, candidates=self.candidates)
        return await self.index.search(query, lambda: self.embedder.embed_query(question))

    async def reranked(self, question: str, hits: Sequence[ChunkHit]) -> list[ChunkHit]:
        """The hits, the best of them in the order of the local reranker."""
        best, rest = list(hits[:RERANKED]), list(hits[RERANKED:])
        if not best:
            return []
        candidates = [Candidate(hit.content, hit.chunk_uid) for hit in best]
        weighed = await self.reranker.score(question, candidates, READER)
        return [best[place] for place in sorted(range(len(best)), key=lambda place: -weighed[place])] + rest


@asynccontextmanager
async def filled(
    name: str, embedder: CachedEmbedder, divided: Sequence[Divided], search: dict[str, Any] | None = None
) -> AsyncIterator[FilledEngine]:
    """A throw-away server with the manual in it. `search` is laid over the defaults of that section."""
    async with AsyncExitStack() as stack:
        server = await _postgres(stack)
        where = {"host": server.host, "port": server.port, "username": USER, "database": "turnwise"}
        storage: dict[str, Any] = {"postgres": where, "vector_store": {"type": name, "index": INDEX}}
        if name == "opensearch":
            storage["opensearch"] = {"host": (await _node(stack)).url, "secure": False}
        sections = {"storage": storage, "search": search or {}, "security": {"user": {"enabled": False}}}
        settings = KnowledgeFlowSettings.model_validate(sections)
        kpi = Kpi(CollectorRegistry(), service="eval", phases=PHASES)
        metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
        database = IndexDatabase(settings.storage.postgres, INDEX, metrics)
        stack.push_async_callback(database.aclose)
        await database.connect_until_ready()
        engine = make_engine(settings, database, model=embedder.model, kpi=kpi, metrics=metrics)
        stack.push_async_callback(engine.aclose)
        await _fill(engine.writer, embedder, divided)
        while await WordCounter(database).count():
            pass
        # As autovacuum and the service do by the minute: the planner knows the tables, the index the common words.
        await asyncio.to_thread(_analyse, server.dsn)
        if isinstance(engine, PgVectorEngine):
            await engine.index.count_common_words()
        reranker = LocalReranker(
            embedder,
            engine.index,
            QuestionVectors(),
            passages=Passages(embedder, step=DOCUMENTS_A_BATCH),
            threads=1,
            deadline_s=_DEADLINE_S,
            metrics=metrics,
            kpi=kpi,
        )
        stack.callback(reranker.close)
        yield FilledEngine(name, engine.index, embedder, reranker, settings.search.candidates, server.dsn)


async def _postgres(stack: AsyncExitStack) -> EmbeddedPostgres:
    directory = public_directory("turnwise-eval-pg-")
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    server = EmbeddedPostgres(directory, free_port(), durable=False)
    await asyncio.to_thread(server.start)
    stack.callback(server.stop)
    return server


async def _node(stack: AsyncExitStack) -> OpenSearchNode:
    directory = Path(tempfile.mkdtemp(prefix="turnwise-eval-os-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    node = OpenSearchNode(_CHECKOUT, directory, free_port())
    await asyncio.to_thread(node.start)
    stack.callback(node.stop)
    return node


async def _fill(writer: IndexWriter, embedder: CachedEmbedder, divided: Sequence[Divided]) -> None:
    for one in divided:
        vectors = await embedder.embed_documents(one.texts())
        await writer.replace_document(one.document, one.content, one.chunks, vectors)


def _analyse(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True, options=f'-c search_path="{INDEX}",public') as connection:
        connection.execute("VACUUM ANALYZE chunks, documents")
