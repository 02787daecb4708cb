"""Where documents, libraries and chunks are: the models, the ports over the index, the database and its schema.

Other packages build on `models`; `database`, `faults`, `rights` and `migrations` are about Postgres.
"""

from knowledge_flow_backend.index.models import (
    Chunk,
    ChunkHit,
    ChunkIndex,
    Document,
    DocumentContent,
    IndexQuery,
    IndexWriter,
    Policy,
    Reader,
    Similarity,
    Vector,
    chunk_uid,
)

__all__ = [
    "Chunk",
    "ChunkHit",
    "ChunkIndex",
    "Document",
    "DocumentContent",
    "IndexQuery",
    "IndexWriter",
    "Policy",
    "Reader",
    "Similarity",
    "Vector",
    "chunk_uid",
]
