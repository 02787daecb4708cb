"""What is written to the index and what comes out of it, and the ports for both. No database here."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from backend_kit.auth import AuditEvent, Identity

Vector = NDArray[np.float32]
"""A unit vector of the embedder: one dimension, float32."""
READS_LIBRARY: Final = """(t.owner_id = :reader OR t.everyone OR :reader = ANY(t.reader_users)
        OR t.reader_groups && CAST(:groups AS text[]))"""
"""Takes `reader` (text) and `groups` (list of text), both of a verified identity."""
Embed = Callable[[], Awaitable[Vector]]
"""Gives the vector of the question when it is needed; what does not need it runs meanwhile."""


class Policy(StrEnum):
    """How chunks are found (docs/search.md#policies)."""

    HYBRID = "hybrid"
    """Both of the following, fused by reciprocal rank."""
    STRICT = "strict"
    """By the words of the question."""
    SEMANTIC = "semantic"
    """By the vector of the question."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The caller who reads: only what they may see leaves the index. Built from a verified identity, never from a
    body."""

    user_id: str
    groups: tuple[str, ...] = ()
    libraries: frozenset[str] | None = None
    """The libraries to which the caller's key is limited, None without such a limit."""
    key_id: str = field(default="", compare=False)
    request_id: str = field(default="", compare=False)

    @property
    def uid(self) -> str:
        """The caller, as one who acts (`Actor`)."""
        return self.user_id

    @classmethod
    def of(cls, identity: Identity) -> "Reader":
        """The reader that a caller is."""
        within = None if identity.grant is None else identity.grant.libraries
        return cls(identity.uid, identity.groups, within, identity.key_id, identity.request_id)

    def within(self, libraries: Sequence[str] | None) -> tuple[str, ...] | None:
        """Those of the named libraries that the limit leaves; None: wherever they may read. Empty: nowhere."""
        if self.libraries is None:
            return None if libraries is None else tuple(libraries)
        return tuple(sorted(self.libraries.intersection(self.libraries if libraries is None else libraries)))


@dataclass(frozen=True, slots=True)
class Document:
    """A document as it is stored. Times are aware.

    `session_id` set: an attachment, seen in that session by its owner alone and by no library. `tag_ids` are the
    libraries that a write puts it in; it stays in those it is in already. `created` and `modified` are the file's own.
    `claim` is the mark of the upload that it came with: once another upload has claimed the document, or it was
    deleted, it is not written.
    """

    uid: str
    owner_id: str
    title: str
    file_name: str
    mime_type: str
    content_hash: str
    size_bytes: int
    session_id: str | None = None
    file_path: str | None = None
    type: str | None = None
    source_tag: str | None = None
    author: str | None = None
    language: str | None = None
    license: str | None = None
    repository: str | None = None
    pull_location: str | None = None
    confidential: bool = False
    created: datetime | None = None
    modified: datetime | None = None
    tag_ids: tuple[str, ...] = ()
    claim: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentContent:
    """What a citation opens: the canonical text that chunk offsets count in, and the file as it came."""

    markdown: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """A passage of a document: `markdown[start:end]`, counted in code points.

    `section` is the path of headings, outermost first, joined by " > ", "" where there is none; `page` counts from 1.
    `uid` is unique in the whole index (see `chunk_uid`).
    """

    uid: str
    ordinal: int
    content: str
    start: int
    end: int
    section: str = ""
    page: int | None = None
    token_count: int = 0


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A search, as the index sees it. `libraries` and `documents` narrow the corpus; empty: nothing is found there.

    `session_id` None: no attachments are searched. `limit` is how many hits come back, `candidates` how many each
    half of a hybrid search hands to the fusion.
    """

    question: str
    policy: Policy
    reader: Reader
    limit: int
    candidates: int
    corpus: bool = True
    libraries: tuple[str, ...] | None = None
    documents: tuple[str, ...] | None = None
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkHit:
    """A chunk that was found, with what its document says of it. A higher `score` is better, within one search.

    `cosine` is between the chunk and the question, None where the search made no vector of the question.
    """

    chunk_uid: str
    document_uid: str
    content: str
    score: float
    cosine: float | None
    title: str
    section: str
    page: int | None
    token_count: int
    file_name: str
    file_path: str | None
    mime_type: str
    type: str | None
    author: str | None
    created: datetime | None
    modified: datetime | None
    language: str | None
    license: str | None
    repository: str | None
    pull_location: str | None
    confidential: bool
    session_id: str | None
    tag_ids: tuple[str, ...]
    tag_names: tuple[str, ...]
    tag_full_paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Similarity:
    """Cosine between a stored chunk and a question's vector, -1 to 1."""

    chunk_uid: str
    cosine: float


def chunk_uid(document_uid: str, content_hash: str, ordinal: int) -> str:
    """The uid of a chunk: the same bytes give the same one, so that citations outlive a repeated ingestion."""
    return hashlib.sha256(f"{document_uid}\0{content_hash}\0{ordinal}".encode()).hexdigest()[:24]


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

    async def delete_document(self, document_uid: str, event: AuditEvent | None = None) -> bool:
        """Delete a document, its content and its chunks, and store the event; False where there was none. Raises
        `IndexUnavailable`."""
        ...
