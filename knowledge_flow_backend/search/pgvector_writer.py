"""Writing documents to the index in Postgres: each whole, in one transaction."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import islice

from sqlalchemy import text

from backend_kit.wire import dumps
from knowledge_flow_backend.errors import Conflict, SchemaMismatch
from knowledge_flow_backend.index.database import Database
from knowledge_flow_backend.index.engines import TimedConnection
from knowledge_flow_backend.index.faults import DatabaseFault, failure_of
from knowledge_flow_backend.index.models import Chunk, Document, DocumentContent, Vector
from knowledge_flow_backend.index.schema import LOCK_KEY

logger = logging.getLogger(__name__)

INLINE_DIMENSIONS = 1024
"""Vectors up to this length stay in their row (4 KB of an 8 KB page): reading one is no second look-up."""
MAX_DIMENSIONS = 2000
"""pgvector's limit for a graph over float32 vectors."""

_COLUMNS = (
    "uid", "owner_id", "session_id", "title", "file_name", "file_path", "mime_type", "type", "source_tag", "author",
    "language", "license", "repository", "pull_location", "confidential", "created", "modified", "content_hash",
    "size_bytes", "chunk_count", "token_count",
)  # fmt: skip

_INFO = text("SELECT embedding_model, dimension FROM index_info")
_LOCK = text(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
_REMEMBER = text("INSERT INTO index_info (embedding_model, dimension) VALUES (:model, :dimension)")
_PUT_DOCUMENT = text(
    f"""INSERT INTO documents ({", ".join(_COLUMNS)}, version, status)
    VALUES ({", ".join(f":{name}" for name in _COLUMNS)}, 1, 'ready')
    ON CONFLICT (uid) DO UPDATE SET
        ({", ".join(_COLUMNS[2:])}) = ({", ".join(f"excluded.{name}" for name in _COLUMNS[2:])}),
        version = documents.version + 1, status = 'ready', error = NULL, updated_at = now()
    WHERE documents.owner_id = excluded.owner_id
    RETURNING version"""  # noqa: S608 - the names of our own columns
)
_PUT_CONTENT = text(
    """INSERT INTO document_contents (document_uid, markdown, raw) VALUES (:uid, :markdown, :raw)
    ON CONFLICT (document_uid) DO UPDATE SET markdown = excluded.markdown, raw = excluded.raw"""
)
# A library that was deleted meanwhile is left out; the document is stored all the same.
_PUT_TAGS = text(
    """INSERT INTO document_tags (document_uid, tag_id)
    SELECT :uid, id FROM tags WHERE id = ANY(CAST(:tag_ids AS text[])) ON CONFLICT DO NOTHING"""
)
_DROP_CHUNKS = text("DELETE FROM chunks WHERE document_uid = :uid")
_COPY_CHUNKS = (
    "COPY chunks (uid, document_uid, version, ordinal, title, section, content, page, char_start, char_end,"
    " token_count, embedding) FROM STDIN"
)
_DELETE = text("DELETE FROM documents WHERE uid = :uid RETURNING uid")
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class PgVectorWriter:
    """The `IndexWriter` on Postgres with pgvector. `model` is the embedder whose vectors it is given."""

    def __init__(self, database: Database, *, model: str, bulk_size: int = 500) -> None:
        self._database = database
        self._model = model
        self._bulk_size = bulk_size

    async def replace_document(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        """See `IndexWriter`. Raises `Conflict` for a uid that is another owner's, `UploadProcessingFailed` for texts
        that Postgres will never take (a NUL)."""
        if len(chunks) != len(vectors):
            raise ValueError(f"{len(chunks)} chunks with {len(vectors)} vectors")
        self._database.require_ready()
        try:
            async with self._database.ingest.connection() as connection:
                if chunks:
                    await self._fit(connection, len(vectors[0]))
                version = await self._put_document(connection, document, content, chunks)
                await connection.execute("drop_chunks", _DROP_CHUNKS, {"uid": document.uid})
                await self._copy(connection, document, version, zip(chunks, vectors, strict=True))
                await connection.commit()
        except DatabaseFault as error:
            raise failure_of(error) from error
        return version

    async def delete_document(self, document_uid: str) -> bool:
        """See `IndexWriter`."""
        self._database.require_ready()
        try:
            async with self._database.ingest.connection() as connection:
                rows = await connection.execute("delete_document", _DELETE, {"uid": document_uid})
                await connection.commit()
        except DatabaseFault as error:
            raise failure_of(error) from error
        return bool(rows)

    async def _fit(self, connection: TimedConnection, dimension: int) -> None:
        """Refuse vectors that are not of the index's model; the first ones ever give the index its length."""
        rows = await connection.execute("index_info", _INFO)
        if not rows:
            await connection.execute("lock", _LOCK)
            rows = await connection.execute("index_info", _INFO)
        if not rows:
            await self._shape(connection, dimension)
            return
        check_model(self._database.index, (rows[0][0], rows[0][1]), (self._model, dimension))

    async def _shape(self, connection: TimedConnection, dimension: int) -> None:
        if not 0 < dimension <= MAX_DIMENSIONS:
            raise SchemaMismatch(f"vectors of {dimension} numbers cannot be indexed (at most {MAX_DIMENSIONS})")
        # Statements of DDL take no parameters; `dimension` is a checked int.
        await connection.execute(
            "shape", text(f"ALTER TABLE chunks ALTER COLUMN embedding TYPE vector({int(dimension)})")
        )
        if dimension <= INLINE_DIMENSIONS:
            await connection.execute("shape", text("ALTER TABLE chunks ALTER COLUMN embedding SET STORAGE PLAIN"))
        await connection.execute(
            "shape", text("CREATE INDEX chunks_embedding ON chunks USING hnsw (embedding vector_cosine_ops)")
        )
        await connection.execute("shape", _REMEMBER, {"model": self._model, "dimension": dimension})
        logger.info("index %r holds vectors of %s, %d numbers", self._database.index, self._model, dimension)

    async def _put_document(
        self, connection: TimedConnection, document: Document, content: DocumentContent, chunks: Sequence[Chunk]
    ) -> int:
        values = {
            **asdict(document),
            "chunk_count": len(chunks),
            "token_count": sum(chunk.token_count for chunk in chunks),
        }
        rows = await connection.execute("put_document", _PUT_DOCUMENT, {name: values[name] for name in _COLUMNS})
        if not rows:
            raise Conflict("the document is another owner's")
        body = {"uid": document.uid, "markdown": content.markdown, "raw": content.raw}
        await connection.execute("put_content", _PUT_CONTENT, body)
        if document.tag_ids:
            tags = {"uid": document.uid, "tag_ids": list(document.tag_ids)}
            await connection.execute("put_tags", _PUT_TAGS, tags)
        return int(rows[0][0])

    async def _copy(
        self, connection: TimedConnection, document: Document, version: int, pairs: Iterable[tuple[Chunk, Vector]]
    ) -> None:
        pairs = iter(pairs)
        while batch := list(islice(pairs, self._bulk_size)):
            # 50 µs a chunk: a large document would hold the loop for seconds.
            rows = await asyncio.to_thread(_rows, document, version, batch)
            await connection.copy("copy_chunks", _COPY_CHUNKS, rows)


def check_model(index: str, holds: tuple[str, int], given: tuple[str, int]) -> None:
    """Raise `SchemaMismatch` where (model, length) of an index are not those of the embedder."""
    if holds != given:
        raise SchemaMismatch(
            f"index {index!r} holds vectors of {holds[0]} ({holds[1]} numbers), the configured embedder makes those of "
            f"{given[0]} ({given[1]}): name another storage.vector_store.index and ingest again"
        )


def vector_text(vector: Vector) -> str:
    """A vector as pgvector reads it, which is a JSON list."""
    return dumps(vector.tolist()).decode()


def _rows(document: Document, version: int, batch: Sequence[tuple[Chunk, Vector]]) -> bytes:
    """Lines of Postgres' COPY text format."""
    return "".join(
        "\t".join(
            (
                chunk.uid.translate(_ESCAPES),
                document.uid.translate(_ESCAPES),
                str(version),
                str(chunk.ordinal),
                document.title.translate(_ESCAPES),
                chunk.section.translate(_ESCAPES),
                chunk.content.translate(_ESCAPES),
                "\\N" if chunk.page is None else str(chunk.page),
                str(chunk.start),
                str(chunk.end),
                str(chunk.token_count),
                vector_text(vector),
            )
        )
        + "\n"
        for chunk, vector in batch
    ).encode()
