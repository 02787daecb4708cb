"""Writing documents to the index in Postgres: each whole, in one transaction."""

import logging
from collections.abc import Callable, Sequence

from sqlalchemy import text

from backend_kit.db.faults import DatabaseFault
from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.engines.pgvector.rows import (
    Made,
    check_made,
    delete_rows,
    made_by,
    made_by_alone,
    put_rows,
    remember,
)
from knowledge_flow_backend.errors import SchemaMismatch
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.faults import failure_of
from knowledge_flow_backend.index.models import Chunk, Document, DocumentContent, Vector

logger = logging.getLogger(__name__)

ENGINE = "pgvector"
MAX_DIMENSIONS = 2000
"""pgvector's limit for a graph over float32 vectors."""

_GRAPH = text("CREATE INDEX chunks_embedding ON chunks USING hnsw (embedding vector_cosine_ops)")


class PgVectorWriter:
    """The `IndexWriter` on Postgres with pgvector. `model` is the embedder whose vectors it is given; `wake` is called
    after each write."""

    def __init__(
        self, database: IndexDatabase, *, model: str, bulk_size: int = 500, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._database = database
        self._model = model
        self._bulk_size = bulk_size
        self._wake = wake

    async def replace_document(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        """See `IndexWriter`. Also raises `Conflict` for another owner's uid, `UploadProcessingFailed` for texts that
        Postgres cannot store (a NUL)."""
        if len(chunks) != len(vectors):
            raise ValueError(f"{len(chunks)} chunks with {len(vectors)} vectors")
        self._database.require_ready()
        try:
            async with self._database.writes.connection() as connection:
                if chunks:
                    await self._fit(connection, len(vectors[0]))
                version = await put_rows(connection, document, content, chunks, vectors, bulk_size=self._bulk_size)
                await connection.commit()
        except DatabaseFault as error:
            raise failure_of(error) from error
        self._wake()
        return version

    async def delete_document(self, document_uid: str) -> bool:
        """See `IndexWriter`."""
        deleted = await delete_rows(self._database, document_uid)
        self._wake()
        return deleted

    async def _fit(self, connection: TimedConnection, dimension: int) -> None:
        """Refuse vectors that are not of the index's model; the first ones ever give the index its length."""
        wanted = Made(self._model, dimension, ENGINE)
        holds = await made_by(connection) or await made_by_alone(connection)
        if holds is not None:
            check_made(self._database.index, holds, wanted)
            return
        if not 0 < dimension <= MAX_DIMENSIONS:
            raise SchemaMismatch(f"vectors of {dimension} numbers cannot be indexed (at most {MAX_DIMENSIONS})")
        await remember(connection, wanted)
        await connection.execute("shape", _GRAPH)
        logger.info("index %r holds vectors of %s, %d numbers", self._database.index, self._model, dimension)
