"""Reads one file at once while its sender waits: as text, or into the index as an attachment of a session."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.index import Chunk, Document, IndexWriter, Reader, Vector
from knowledge_flow_backend.ingest.names import base_name, suffix
from knowledge_flow_backend.ingest.pool import Outline, ParserPool
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.room import Room
from knowledge_flow_backend.ingest.service import HELD_BYTES, IngestRules, embedded_text, job_of, kind_of, read_content
from knowledge_flow_backend.ingest.stored import StoredChunks
from knowledge_flow_backend.library.reasons import Reason, Refused
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

PREVIEW_CHARS: Final = 2000
"""Of the text of an attachment, what the answer to its upload repeats."""
_EMBED_TEXTS: Final = 64


@dataclass(frozen=True, slots=True)
class _Read:
    """A file that was read: what the child said. The text and the raw bytes stay on disk until they are needed."""

    outline: Outline
    mime: str

    def wire(self, file: ReceivedFile, max_chars: int) -> dict[str, Any]:
        return {
            "file_name": base_name(file.name),
            "mime_type": self.mime,
            "title": self.outline.title,
            "total_chars": self.outline.chars,
            "truncated": self.outline.chars > max_chars,
        }


class FastIngest:
    """One file, one answer. Of a text longer than `max_chars` the beginning is taken, and the answer says so.

    Both methods raise `Refused` with the reason, or `DocumentsUnavailable`; the folder of the file stays the caller's.
    """

    def __init__(
        self,
        *,
        pool: ParserPool,
        writer: IndexWriter,
        embedder: Embedder,
        rules: IngestRules,
        max_chars: int,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        """`held_bytes`: of files that are written at once, what is in memory."""
        self._pool = pool
        self._writer = writer
        self._embedder = embedder
        self._rules = rules
        self._max_chars = max_chars
        self._metrics = metrics
        self._kpi = kpi
        self._room = Room(held_bytes)

    async def text(self, file: ReceivedFile) -> dict[str, Any]:
        """`{file_name, mime_type, title, text, total_chars, truncated}`; nothing is kept."""
        read = await self._read(file)
        content = await asyncio.to_thread(file.folder.content.read_bytes)
        return {**read.wire(file, self._max_chars), "text": content.decode()}

    async def ingest(self, file: ReceivedFile, session_id: str, reader: Reader) -> dict[str, Any]:
        """Make the file an attachment of a session of the reader's, a new document each time.

        `{document_uid, chunks, total_chars, truncated, scope, file_name, mime_type, title, preview}`.
        """
        status = "error"
        self._metrics.ingest_running.inc()
        try:
            read = await self._read(file)
            document = _attachment(file, read, session_id, reader)
            chunks = await asyncio.to_thread(StoredChunks, file.folder.chunks, document.uid)
            with self._stage("embed"):
                vectors = await self._embed(read.outline.title, chunks)
            async with self._room.of(file.size):
                content = await asyncio.to_thread(read_content, file.folder)
                with self._stage("write"):
                    await self._writer.replace_document(document, content, chunks, vectors)
            status = "ok"
        finally:
            self._metrics.ingest_running.dec()
            self._metrics.ingested_documents(status).inc()
        self._metrics.ingested_chunks.inc(len(chunks))
        return {
            "document_uid": document.uid,
            "chunks": len(chunks),
            "scope": "session",
            **read.wire(file, self._max_chars),
            "preview": content.markdown[:PREVIEW_CHARS],
        }

    async def _read(self, file: ReceivedFile) -> _Read:
        kind = kind_of(file)
        with self._stage("parse"):
            outline = await self._pool.read(job_of(file, self._rules, max_chars=self._max_chars))
        if not outline.chunks:
            raise Refused(Reason.NO_TEXT)
        return _Read(outline, kind.mime)

    async def _embed(self, title: str, chunks: Sequence[Chunk]) -> list[Vector]:
        vectors: list[Vector] = []
        for start in range(0, len(chunks), _EMBED_TEXTS):
            some = chunks[start : start + _EMBED_TEXTS]
            vectors += await self._embedder.embed_documents([embedded_text(title, chunk) for chunk in some])
        return vectors

    @contextmanager
    def _stage(self, stage: str) -> Iterator[None]:
        began = perf_counter()
        status = "error"
        try:
            with self._kpi.phase(f"ingest_{stage}"):
                yield
            status = "ok"
        finally:
            self._metrics.ingest_stage("index" if stage == "write" else stage, status).observe(perf_counter() - began)


def _attachment(file: ReceivedFile, read: _Read, session_id: str, reader: Reader) -> Document:
    return Document(
        uid=secrets.token_hex(16),
        owner_id=reader.user_id,
        title=read.outline.title,
        file_name=base_name(file.name),
        mime_type=read.mime,
        content_hash=file.sha256,
        size_bytes=file.size,
        session_id=session_id,
        type=suffix(file.name) or "txt",
    )
