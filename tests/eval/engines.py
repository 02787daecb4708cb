"""The product's indexes, filled with the manual and asked as the service asks them."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import psycopg
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from deploy.local.postgres import USER, EmbeddedPostgres
from knowledge_flow_backend.embed.handover import QuestionVectors
from knowledge_flow_backend.index import ChunkHit, ChunkIndex, IndexQuery, IndexWriter, Policy, Reader
from knowledge_flow_backend.index.database import Database
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.rerank import Candidate
from knowledge_flow_backend.rerank.local import LocalReranker
from knowledge_flow_backend.search.pgvector import PgVectorIndex, PgVectorRules
from knowledge_flow_backend.search.pgvector_writer import PgVectorWriter
from knowledge_flow_backend.settings import Search
from tests.eval.corpus import OWNER, CachedEmbedder, Divided
from tests.eval.scores import DEEP
from tests.support.ports import free_port
from tests.support.postgres import public_directory

READER = Reader(OWNER)
INDEX = "turnwise-eval"
RERANKED = 30
"""Best hits of a hybrid search that are reranked; the others keep their places behind them."""


@dataclass(slots=True)
class Engine:
    """An index that holds the manual. `name` as in `storage.vector_store.type`."""

    name: str
    index: ChunkIndex
    embedder: CachedEmbedder
    reranker: LocalReranker
    search: Search

    async def hits(self, question: str, policy: Policy) -> list[ChunkHit]:
        """The best 50 hits of a question, by the product's defaults."""
        query = IndexQuery(question, policy, READER, limit=DEEP, candidates=self.search.candidates)
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
async def pgvector(embedder: CachedEmbedder, divided: Sequence[Divided]) -> AsyncIterator[Engine]:
    """A throw-away Postgres with the manual in it."""
    async with AsyncExitStack() as stack:
        directory = public_directory("turnwise-eval-pg-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        server = EmbeddedPostgres(directory, free_port(), durable=False)
        await asyncio.to_thread(server.start)
        stack.callback(server.stop)
        kpi = Kpi(CollectorRegistry(), service="eval", phases=PHASES)
        metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
        where = {"host": server.host, "port": server.port, "username": USER, "database": "turnwise"}
        database = Database(Postgres.model_validate(where), INDEX, metrics)
        stack.push_async_callback(database.aclose)
        await database.connect_until_ready()
        search = Search()
        rules = PgVectorRules(search.rrf_k, search.attachment_hits)
        index = PgVectorIndex(database, model=embedder.model, kpi=kpi, rules=rules)
        await _fill(PgVectorWriter(database, model=embedder.model), embedder, divided)
        # As autovacuum and the service do by the minute: the planner knows the tables, the index the common words.
        await asyncio.to_thread(_analyse, server)
        await index.count_common_words()
        reranker = LocalReranker(embedder, index, QuestionVectors(), threads=1, metrics=metrics, kpi=kpi)
        stack.callback(reranker.close)
        yield Engine("pgvector", index, embedder, reranker, search)


async def _fill(writer: IndexWriter, embedder: CachedEmbedder, divided: Sequence[Divided]) -> None:
    for one in divided:
        vectors = await embedder.embed_documents(one.texts())
        await writer.replace_document(one.document, one.content, one.chunks, vectors)


def _analyse(server: EmbeddedPostgres) -> None:
    options = f'-c search_path="{INDEX}",public'
    with psycopg.connect(server.dsn, autocommit=True, options=options) as connection:
        connection.execute("VACUUM ANALYZE chunks, documents")
