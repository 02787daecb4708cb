"""Writing documents to the index in Postgres: each whole, in one transaction."""

import logging
from collections.abc import Callable, Sequence

from sqlalchemy import text

from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.engines.pgvector.rows import (
    DocumentWriter,
    IndexOrigin,
    is_shapeless,
    put_rows,
    remember,
)
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.models import Chunk, Document, DocumentContent, Vector

logger = logging.getLogger(__name__)

ENGINE = "pgvector"
MAX_DIMENSIONS = 2000
"""pgvector's limit for a graph over float32 vectors."""

MAX_COVERED_DIMENSIONS = 640
"""Postgres takes 2,704 bytes a row in a B-tree: the vector's, and up to 120 for the document's uid and the rest."""

_GRAPH = text("CREATE INDEX chunks_embedding ON chunks USING hnsw (embedding vector_cosine_ops)")
VECTORS_ALONE = "CREATE INDEX chunks_vectors ON chunks (document_uid) INCLUDE (id, embedding)"
"""Comparing each vector reads a third of the pages that the chunks have."""
_VECTORS_ALONE = text(VECTORS_ALONE)


class PgVectorWriter(DocumentWriter):
    """The `IndexWriter` on Postgres with pgvector."""

    def __init__(
        self, database: IndexDatabase, *, model: str, bulk_size: int = 500, wake: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(database, model, bulk_size, wake)

    async def _replace(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        async with self._database.writes.connection() as connection:
            if chunks:
                await self._fit(connection, len(vectors[0]))
            version = await put_rows(connection, document, content, chunks, vectors, bulk_size=self._bulk_size)
            await connection.commit()
        return version

    async def _fit(self, connection: TimedConnection, dimension: int) -> None:
        """Refuse vectors that are not of the index's model; the first ones ever give the index its length."""
        wanted = IndexOrigin(self._model, dimension, ENGINE)
        if not await is_shapeless(connection, self._database.index, wanted, MAX_DIMENSIONS):
            return
        await remember(connection, wanted)
        await connection.execute("shape", _GRAPH)
        if dimension <= MAX_COVERED_DIMENSIONS:
            await connection.execute("shape", _VECTORS_ALONE)
        logger.info("index %r holds vectors of %s, %d numbers", self._database.index, self._model, dimension)
