"""Documents in a real index, put there by the writer that ships, and searched through the port."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterRules
from knowledge_flow_backend.engines.opensearch.follow import Follower
from knowledge_flow_backend.engines.opensearch.index import OpenSearchChunks, OpenSearchRules
from knowledge_flow_backend.engines.opensearch.writer import OpenSearchWriter
from knowledge_flow_backend.engines.pgvector.index import PgVectorIndex
from knowledge_flow_backend.engines.pgvector.word_counts import WordCounter
from knowledge_flow_backend.engines.pgvector.writer import PgVectorWriter
from knowledge_flow_backend.index import (
    Chunk,
    ChunkHit,
    Document,
    DocumentContent,
    IndexQuery,
    Policy,
    Reader,
    Vector,
    chunk_uid,
)
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from knowledge_flow_backend.settings import OpenSearch
from tests.support.opensearch import OpenSearchIndex
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from ws_bench.fakes.embedding import embed

INDEX = "turnwise-chunks"
MODEL = "mock"
ADMIN = Reader("admin")
POLICIES = [*Policy]

SPOOL = "A finished turn is appended to the spool before the final event is sent."
POOL = "The pool waits for a free connection and times the wait."
DRAIN = "At SIGTERM the service drains: running turns end, new ones are refused."


def vector(text: str) -> Vector:
    """The vector that the mock model gives for a text."""
    return np.array(embed(text), dtype=np.float32)


class HashEmbedder:
    """The mock model without its server; keeps the questions that it was asked, and the texts of documents."""

    model = MODEL
    state = "ready"

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.texts: list[str] = []

    async def embed_query(self, text: str) -> Vector:
        self.questions.append(text)
        return vector(text)

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        self.texts.extend(texts)
        return [vector(text) for text in texts]


@dataclass(slots=True)
class Corpus:
    """An index and what a test does with it.

    `follower`: brings OpenSearch up to date before each search; None where nothing does, and with pgvector.
    """

    dsn: str
    database: IndexDatabase
    index: PgVectorIndex | OpenSearchChunks
    writer: PgVectorWriter | OpenSearchWriter
    embedder: HashEmbedder
    kpi: Kpi
    metrics: KnowledgeFlowMetrics
    cluster: Cluster | None = None
    follower: Follower | None = None

    @classmethod
    @asynccontextmanager
    async def on(cls, where: Database, *, index: str = INDEX, model: str = MODEL) -> AsyncIterator["Corpus"]:
        """In Postgres with pgvector."""
        async with _database(where, index) as (kpi, metrics, database):
            chunks = PgVectorIndex(database, model=model, kpi=kpi)
            writer = PgVectorWriter(database, model=model, bulk_size=3)
            yield cls(where.dsn, database, chunks, writer, HashEmbedder(), kpi, metrics)

    @classmethod
    @asynccontextmanager
    async def on_opensearch(
        cls, where: Database, node: OpenSearchIndex, *, model: str = MODEL, follow: bool = True, **rules: Any
    ) -> AsyncIterator["Corpus"]:
        """In OpenSearch. `follow` False: what is noted for it stays undone, as right after each change."""
        async with _database(where, node.name) as (kpi, metrics, database):
            cluster = Cluster(OpenSearch.model_validate(node.settings()), ClusterRules(search_s=PATIENCE_S))
            try:
                chunks = OpenSearchChunks(database, cluster, model=model, kpi=kpi, rules=OpenSearchRules(**rules))
                writer = OpenSearchWriter(database, cluster, model=model, bulk_size=3)
                follower = Follower(database, cluster, metrics) if follow else None
                yield cls(where.dsn, database, chunks, writer, HashEmbedder(), kpi, metrics, cluster, follower)
            finally:
                await cluster.aclose()

    def stand_on(self, cluster: Cluster) -> None:
        """Ask and write another way to OpenSearch from now on, by the rules of the service."""
        model = self.embedder.model
        self.cluster = cluster
        self.index = OpenSearchChunks(self.database, cluster, model=model, kpi=self.kpi)
        self.writer = OpenSearchWriter(self.database, cluster, model=model, bulk_size=3)

    async def put(self, uid: str, *texts: str, owner: str = "admin", **fields: Any) -> int:
        """Store a document of one chunk per text; its version."""
        whole = "\n\n".join(texts)
        title = fields.pop("title", f"Title of {uid}")
        document = Document(uid, owner, title, f"{uid}.md", "text/markdown", f"hash of {whole}", len(whole), **fields)
        chunks = [
            Chunk(chunk_uid(uid, "", ordinal), ordinal, text, 0, len(text), section="Part > One", page=ordinal + 1)
            for ordinal, text in enumerate(texts)
        ]
        vectors = [vector(text) for text in texts]
        return await self.writer.replace_document(document, DocumentContent(whole, whole.encode()), chunks, vectors)

    def add_library(self, tag_id: str, *, owner: str = "admin", name: str | None = None, **columns: Any) -> None:
        """Add a library; `everyone`, `reader_users`, `reader_groups`, `path` as columns."""
        row = {"id": tag_id, "name": name or tag_id, "owner_id": owner, **columns}
        names, places = ", ".join(row), ", ".join(f"%({column})s" for column in row)
        self.sql(f"INSERT INTO tags ({names}) VALUES ({places})", row)  # noqa: S608 - columns that the test names

    async def search(self, question: str, policy: Policy | str = Policy.HYBRID, **query: Any) -> list[ChunkHit]:
        """Search as `admin` for up to 10 hits, unless `query` says otherwise."""
        fields = {"reader": ADMIN, "limit": 10, "candidates": 50, **query}
        asked = IndexQuery(question=question, policy=Policy(policy), **fields)
        await self.follow()
        return await self.index.search(asked, lambda: self.embedder.embed_query(question))

    async def follow(self) -> None:
        """Count the words of what was written, and bring OpenSearch up to date, where that is the test's wish."""
        while await WordCounter(self.database).count():
            pass
        while self.follower is not None and await self.follower.follow():
            pass

    def sql(self, statement: str, parameters: Any = None) -> list[Any]:
        """Look into the index past the service, or change it."""
        with psycopg.connect(
            self.dsn, autocommit=True, options=f'-c search_path="{self.database.index}",public'
        ) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []


@asynccontextmanager
async def _database(where: Database, index: str) -> AsyncIterator[tuple[Kpi, KnowledgeFlowMetrics, IndexDatabase]]:
    kpi = Kpi(CollectorRegistry(), service="knowledge flow", phases=PHASES)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    database = IndexDatabase(Postgres.model_validate(where.settings()), index, metrics)
    try:
        await database.connect_until_ready()
        yield kpi, metrics, database
    finally:
        await database.aclose()


async def filled(corpus: Corpus) -> None:
    """Three documents of one chunk."""
    await corpus.put("spool", SPOOL)
    await corpus.put("pool", POOL)
    await corpus.put("drain", DRAIN)


def found(hits: Sequence[ChunkHit]) -> list[str]:
    """The documents of the hits, in order."""
    return [hit.document_uid for hit in hits]
