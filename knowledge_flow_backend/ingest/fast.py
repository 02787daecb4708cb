"""Reads one file at once while its sender waits: as text, as an image, or into the index as an attachment."""

import asyncio
import secrets
from typing import Any, Final

from knowledge_flow_backend.index import Document, Reader
from knowledge_flow_backend.ingest.names import base_name, suffix
from knowledge_flow_backend.ingest.pool import DrawnImage, Outline
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.staging import Folder
from knowledge_flow_backend.ingest.steps import IngestSteps, kind_of
from knowledge_flow_backend.library.reasons import Reason, Refused

PREVIEW_CHARS: Final = 2000
"""Of the text of an attachment, what the answer to its upload repeats."""


class FastIngest:
    """One file, one answer. Of a text longer than `max_chars` the beginning is taken, and the answer says so.

    Each method raises `Refused` with the reason, or `DocumentsUnavailable`; the folder of the file stays the caller's.
    """

    def __init__(self, steps: IngestSteps, *, max_chars: int) -> None:
        self._steps = steps
        self._max_chars = max_chars

    async def text(self, file: ReceivedFile, reader: Reader) -> dict[str, Any]:
        """`{file_name, mime_type, title, text, total_chars, truncated}`; nothing is kept."""
        outline = await self._read(file, reader)
        return {**self._described(file, outline), "text": await asyncio.to_thread(_beginning, file.folder)}

    async def image(self, file: ReceivedFile, reader: Reader) -> tuple[DrawnImage, bytes]:
        """The image of the file without what else it says, at most 2,048 pixels a side; nothing is kept."""
        if file.size == 0:
            raise Refused(Reason.EMPTY)
        with self._steps.timed("parse"):
            drawn = await self._steps.redraw(file, reader.user_id)
        return drawn, await asyncio.to_thread(file.folder.content.read_bytes)

    async def ingest(self, file: ReceivedFile, session_id: str, reader: Reader) -> dict[str, Any]:
        """Make the file an attachment of a session of the reader's, a new document each time.

        `{document_uid, chunks, total_chars, truncated, scope, file_name, mime_type, title, preview}`.
        """
        metrics, status = self._steps.metrics, "error"
        metrics.ingest_running.inc()
        try:
            outline = await self._read(file, reader)
            document = _attachment(file, outline, session_id, reader)
            chunks = await self._steps.chunks(file, document.uid)
            with self._steps.timed("embed"):
                vectors = await self._steps.embed(outline.title, chunks, file, reader.user_id)
            preview = await asyncio.to_thread(_beginning, file.folder, PREVIEW_CHARS)
            with self._steps.timed("index"):
                await self._steps.store(document, file, chunks, vectors)
            status = "ok"
        finally:
            metrics.ingest_running.dec()
            metrics.ingested_documents(status).inc()
        return {
            "document_uid": document.uid,
            "chunks": len(chunks),
            "scope": "session",
            **self._described(file, outline),
            "preview": preview,
        }

    async def _read(self, file: ReceivedFile, reader: Reader) -> Outline:
        with self._steps.timed("parse"):
            outline = await self._steps.read(file, reader.user_id, max_chars=self._max_chars)
        if not outline.chunks:
            raise Refused(Reason.NO_TEXT)
        return outline

    def _described(self, file: ReceivedFile, outline: Outline) -> dict[str, Any]:
        return {
            "file_name": base_name(file.name),
            "mime_type": kind_of(file).mime,
            "title": outline.title,
            "total_chars": outline.chars,
            "truncated": outline.chars > self._max_chars,
        }


def _attachment(file: ReceivedFile, outline: Outline, session_id: str, reader: Reader) -> Document:
    return Document(
        uid=secrets.token_hex(16),
        owner_id=reader.user_id,
        title=outline.title,
        file_name=base_name(file.name),
        mime_type=kind_of(file).mime,
        content_hash=file.sha256,
        size_bytes=file.size,
        session_id=session_id,
        type=suffix(file.name) or "txt",
    )


def _beginning(folder: Folder, chars: int = -1) -> str:
    """The first `chars` code points of the canonical text, by default all; runs in a thread."""
    with folder.content.open(encoding="utf-8", newline="") as text:
        return text.read(chars)
