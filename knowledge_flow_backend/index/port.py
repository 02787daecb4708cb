"""The ports over the index: what search reads through, and what ingestion writes through."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from knowledge_flow_backend.index.models import (
    Chunk,
    ChunkHit,
    Document,
    DocumentContent,
    IndexQuery,
    Reader,
    Similarity,
    Vector,
)

Embed = Callable[[], Awaitable[Vector]]
"""Gives the vector of the question when it is needed; what does not need it runs meanwhile."""


class ChunkIndex(Protocol):
    """Finds chunks. Every method sees only what its reader may read; that is decided inside the query."""

    async def search(self, query: IndexQuery, embed: Embed) -> list[ChunkHit]:
        """The best hits, best first. `embed` is called at most once, and not for `strict` or an empty index.

        Raises `IndexUnavailable`, `SchemaMismatch`, and what `embed` raises.
        """
        ...

    async def similarities(self, chunk_uids: Sequence[str], vector: Vector, reader: Reader) -> list[Similarity]:
        """The cosine of each of these chunks that exists and that the reader may read, in no order.

        Raises `IndexUnavailable`, `SchemaMismatch`.
        """
        ...


class IndexWriter(Protocol):
    """Writes documents with their chunks. A reader sees a document's old chunks or its new ones, never a mixture."""

    async def replace_document(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        """Store a document whole, with one unit vector per chunk, in place of what its uid held; status `ready`.

        One transaction: on any failure everything is as it was. Returns the document's version (1 for a new one).
        Raises ValueError where chunks and vectors differ in number, `SchemaMismatch` where the vectors are not those of
        the index, `Conflict` where the document's claim no longer holds, `IndexUnavailable`.
        """
        ...

    async def delete_document(self, document_uid: str) -> bool:
        """Delete a document, its content and its chunks; False where there was none. Raises `IndexUnavailable`."""
        ...
