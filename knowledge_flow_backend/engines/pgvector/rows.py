"""The rows of a document as every engine writes them: the document, its content, its libraries, its chunks."""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice

from sqlalchemy import text

from backend_kit.auth import AuditEvent
from backend_kit.db.audit import add_events
from backend_kit.db.pool import TimedConnection
from backend_kit.wire import dumps
from knowledge_flow_backend.engines.pgvector.statements import INFO
from knowledge_flow_backend.engines.scheduling import WriteThrottle
from knowledge_flow_backend.errors import Conflict, SchemaMismatch
from knowledge_flow_backend.index.database import LOCK_KEY, IndexDatabase
from knowledge_flow_backend.index.models import Chunk, Document, DocumentContent, Vector

INLINE_DIMENSIONS = 1024
"""Vectors up to this length stay in their row (4 KB of an 8 KB page): reading one is no second look-up."""

_COLUMNS = (
    "uid", "owner_id", "session_id", "title", "file_name", "file_path", "mime_type", "type", "source_tag", "author",
    "language", "license", "repository", "pull_location", "confidential", "created", "modified", "content_hash",
    "size_bytes", "chunk_count", "token_count",
)  # fmt: skip

_LOCK = text(f"SELECT pg_advisory_xact_lock({LOCK_KEY})")
_REMEMBER = text("INSERT INTO index_info (embedding_model, dimension, engine) VALUES (:model, :dimension, :engine)")
# Locked: from here to the end of the transaction nobody deletes or claims it.
_HOLD_CLAIM = text("SELECT uid FROM documents WHERE uid = :uid AND stages->>'claim' = :claim FOR UPDATE")
_PUT_DOCUMENT = text(
    f"""INSERT INTO documents ({", ".join(_COLUMNS)}, version, status)
    VALUES ({", ".join(f":{name}" for name in _COLUMNS)}, 1, 'ready')
    ON CONFLICT (uid) DO UPDATE SET
        ({", ".join(_COLUMNS[2:])}) = ({", ".join(f"excluded.{name}" for name in _COLUMNS[2:])}),
        version = documents.version + 1, status = 'ready', error = NULL, updated_at = now()
    WHERE documents.owner_id = excluded.owner_id
    RETURNING version"""  # noqa: S608 - the names of our own columns
)
_DROP_CONTENT = text("DELETE FROM document_contents WHERE document_uid = :uid")
_COPY_CONTENT = "COPY document_contents (document_uid, markdown, raw) FROM STDIN (FORMAT binary)"
# Of COPY's binary format: the signature, no flags, no extension; what ends it.
_BINARY_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_BINARY_END = struct.pack("!h", -1)
# A library that was deleted meanwhile is left out; the document is stored all the same.
_PUT_TAGS = text(
    """INSERT INTO document_tags (document_uid, tag_id)
    SELECT :uid, id FROM tags WHERE id = ANY(CAST(:tag_ids AS text[])) ON CONFLICT DO NOTHING"""
)
_DELETE = text("DELETE FROM documents WHERE uid = :uid RETURNING uid")
_DROP_CHUNKS = text("DELETE FROM chunks WHERE document_uid = :uid")
_COPY_CHUNKS = (
    "COPY chunks (uid, document_uid, version, ordinal, title, section, content, page, char_start, char_end,"
    " token_count, embedding) FROM STDIN"
)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class IndexOrigin:
    """What writes an index: the embedder, the length of its vectors, the engine that searches them."""

    model: str
    dimension: int
    engine: str


async def origin_of(connection: TimedConnection) -> IndexOrigin | None:
    """What wrote the index; None while it is empty."""
    rows = await connection.execute("index_info", INFO)
    return IndexOrigin(*rows[0]) if rows else None


async def is_shapeless(connection: TimedConnection, index: str, wanted: IndexOrigin, most: int) -> bool:
    """Whether the index is still without a shape, which until the transaction ends nobody else gives it.

    Raises `SchemaMismatch` where it was not written as `wanted`, or would get vectors of more than `most` numbers.
    """
    holds = await origin_of(connection)
    if holds is None:
        await connection.execute("lock", _LOCK)
        holds = await origin_of(connection)
    if holds is not None:
        check_origin(index, holds, wanted)
        return False
    if not 0 < wanted.dimension <= most:
        raise SchemaMismatch(f"vectors of {wanted.dimension} numbers cannot be indexed (at most {most})")
    return True


async def remember(connection: TimedConnection, made: IndexOrigin) -> None:
    """Give the index its shape: the length of its vectors, and what writes them."""
    # Statements of DDL take no parameters; `dimension` is a checked int.
    await connection.execute(
        "shape", text(f"ALTER TABLE chunks ALTER COLUMN embedding TYPE vector({int(made.dimension)})")
    )
    if made.dimension <= INLINE_DIMENSIONS:
        await connection.execute("shape", text("ALTER TABLE chunks ALTER COLUMN embedding SET STORAGE PLAIN"))
    await connection.execute("shape", _REMEMBER, asdict(made))


def check_origin(index: str, holds: IndexOrigin, wanted: IndexOrigin) -> None:
    """Raises `SchemaMismatch` where an index was not written as this service writes it."""
    if holds.engine != wanted.engine:
        raise SchemaMismatch(
            f"index {index!r} was written with storage.vector_store.type: {holds.engine}, the configuration says "
            f"{wanted.engine}: name another storage.vector_store.index and ingest again"
        )
    if holds != wanted:
        raise SchemaMismatch(
            f"index {index!r} holds vectors of {holds.model} ({holds.dimension} numbers), the configured embedder "
            f"makes those of {wanted.model} ({wanted.dimension}): name another storage.vector_store.index and ingest "
            "again"
        )


async def put_rows(
    connection: TimedConnection,
    document: Document,
    content: DocumentContent,
    chunks: Sequence[Chunk],
    vectors: Sequence[Vector],
    *,
    bulk_size: int,
    throttle: WriteThrottle | None = None,
) -> int:
    """Put all rows of a document in place of what its uid held, in the transaction of the connection; its version.

    `throttle` slows the chunks down where searches are to come first.

    Raises `Conflict` where the uid is another owner's or its claim another upload's, and `DatabaseFault`s.
    """
    if document.claim is not None:
        mark = {"uid": document.uid, "claim": document.claim}
        if not await connection.execute("hold_claim", _HOLD_CLAIM, mark):
            raise Conflict("the document was deleted or uploaded again")
    version = await _put_document(connection, document, content, chunks)
    await connection.execute("drop_chunks", _DROP_CHUNKS, {"uid": document.uid})
    await _copy(connection, document, version, zip(chunks, vectors, strict=True), bulk_size, throttle)
    return version


async def delete_rows(database: IndexDatabase, document_uid: str, event: AuditEvent | None = None) -> bool:
    """Delete a document with all its rows, and store the event; False where there was none.

    Raises `IndexUnavailable`.
    """
    with database.guarded():
        async with database.writes.connection() as connection:
            rows = await connection.execute("delete_document", _DELETE, {"uid": document_uid})
            if rows and event is not None:
                await add_events(connection, event)
            await connection.commit()
    return bool(rows)


def vector_text(vector: Vector) -> str:
    """A vector as pgvector reads it, which is a JSON list."""
    return dumps(vector.tolist()).decode()


async def _put_document(
    connection: TimedConnection, document: Document, content: DocumentContent, chunks: Sequence[Chunk]
) -> int:
    values = {
        **asdict(document),
        "chunk_count": len(chunks),
        # Chunks of a large document are read from disk as they are looked at.
        "token_count": await asyncio.to_thread(lambda: sum(chunk.token_count for chunk in chunks)),
    }
    rows = await connection.execute("put_document", _PUT_DOCUMENT, {name: values[name] for name in _COLUMNS})
    if not rows:
        raise Conflict("the document is another owner's")
    await connection.execute("drop_content", _DROP_CONTENT, {"uid": document.uid})
    await connection.copy("put_content", _COPY_CONTENT, *await asyncio.to_thread(_content, document.uid, content))
    if document.tag_ids:
        await connection.execute("put_tags", _PUT_TAGS, {"uid": document.uid, "tag_ids": list(document.tag_ids)})
    return int(rows[0][0])


async def _copy(
    connection: TimedConnection,
    document: Document,
    version: int,
    pairs: Iterable[tuple[Chunk, Vector]],
    bulk_size: int,
    throttle: WriteThrottle | None,
) -> None:
    pairs = iter(pairs)
    while True:
        most = throttle.piece(bulk_size) if throttle is not None else bulk_size
        # In a thread, 50 µs a chunk: a large document would hold the loop for seconds.
        rows = await asyncio.to_thread(_rows, document, version, islice(pairs, most))
        if not rows:
            return
        async with throttle.write() if throttle is not None else nullcontext():
            await connection.copy("copy_chunks", _COPY_CHUNKS, rows)


def _content(uid: str, content: DocumentContent) -> list[bytes]:
    """The row of a content in COPY's binary format: the number of fields, and each with its length before it."""
    fields = (uid.encode(), content.markdown.encode(), content.raw)
    parts = [_BINARY_HEAD, struct.pack("!h", len(fields))]
    for value in fields:
        parts += (struct.pack("!i", len(value)), value)
    return [*parts, _BINARY_END]


def _rows(document: Document, version: int, batch: Iterable[tuple[Chunk, Vector]]) -> bytes:
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


class DocumentWriter(ABC):
    """The part of an `IndexWriter` that every engine shares; `_replace` writes a document and its chunks.

    `model` is the embedder whose vectors it is given; `wake` is called after each write, for the work that follows it.
    """

    def __init__(self, database: IndexDatabase, model: str, bulk_size: int, wake: Callable[[], None]) -> None:
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
        with self._database.guarded():
            version = await self._replace(document, content, chunks, vectors)
        self._wake()
        return version

    async def delete_document(self, document_uid: str, event: AuditEvent | None = None) -> bool:
        """See `IndexWriter`. No search finds it when this returns; OpenSearch forgets it soon after."""
        deleted = await delete_rows(self._database, document_uid, event)
        self._wake()
        return deleted

    @abstractmethod
    async def _replace(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        """Write the document in place of its earlier version; returns the new one. Raises `DatabaseFault` too."""
