"""The manual as chunks with vectors, made by the product's own parsers, chunker and model; vectors are kept on disk."""

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from knowledge_flow_backend.embed.local import MODEL_NAME, LocalModel, is_made, model_file
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, Vector
from knowledge_flow_backend.ingest.chunks import ChunkRules
from knowledge_flow_backend.ingest.staging import Folder
from knowledge_flow_backend.ingest.steps import embedded_text, read_content
from knowledge_flow_backend.ingest.stored import StoredChunks
from knowledge_flow_backend.ingest.work import Job, run
from tests.eval.manual import Page

OWNER: Final = "eval"
_TOGETHER: Final = 64


@dataclass(frozen=True, slots=True)
class Divided:
    """One document as ingestion makes it."""

    document: Document
    content: DocumentContent
    chunks: tuple[Chunk, ...]

    def texts(self) -> list[str]:
        """What is embedded for each chunk."""
        return [embedded_text(self.document.title, chunk) for chunk in self.chunks]


def divide(pages: Sequence[Page], rules: ChunkRules) -> list[Divided]:
    """Parse and divide every page. A page without text is left out."""
    divided = []
    for page in pages:
        with tempfile.TemporaryDirectory() as directory:
            folder = Folder(Path(directory))
            folder.raw.write_bytes(page.data)
            job = Job(
                source=str(folder.raw), format="html", name=page.path, content=str(folder.content),
                chunks=str(folder.chunks), size=rules.size, overlap=rules.overlap,
            )  # fmt: skip
            told = run(job)
            if "refused" in told:
                continue
            uid = document_uid(page.path)
            chunks = tuple(StoredChunks(folder.chunks, uid))
            divided.append(Divided(_document(page, uid, told["title"]), read_content(folder), chunks))
    return divided


def document_uid(path: str) -> str:
    """The uid of a page, the same in every run."""
    return hashlib.sha256(path.encode()).hexdigest()[:32]


def _document(page: Page, uid: str, title: str) -> Document:
    return Document(
        uid=uid,
        owner_id=OWNER,
        title=title,
        file_name=page.path.rpartition("/")[2],
        file_path=page.path,
        mime_type="text/html",
        type="html",
        content_hash=hashlib.sha256(page.data).hexdigest(),
        size_bytes=len(page.data),
    )


class CachedEmbedder:
    """The local model as `Embedder`, with the vectors of texts it has seen in a file. One thread computes."""

    def __init__(self, home: Path) -> None:
        """`home` is the directory where the product keeps its model file; the vectors go below it."""
        self.model = MODEL_NAME
        self._file = model_file(home)
        self._model: LocalModel | None = None
        directory = home / "eval"
        directory.mkdir(parents=True, exist_ok=True)
        self._vectors = sqlite3.connect(directory / f"{self._file.stem}.sqlite", check_same_thread=False)
        self._vectors.execute("CREATE TABLE IF NOT EXISTS vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID")
        self.computed = 0

    @property
    def state(self) -> str:
        """See `Embedder`."""
        return "ready"

    async def embed_query(self, text: str) -> Vector:
        """See `Embedder`."""
        return (await self.embed_documents([text]))[0]

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder`."""
        vectors: list[Vector] = []
        for start in range(0, len(texts), _TOGETHER):
            vectors += await asyncio.to_thread(self._some, texts[start : start + _TOGETHER])
        return vectors

    def close(self) -> None:
        """Close the file of vectors."""
        self._vectors.close()

    def _some(self, texts: Sequence[str]) -> list[Vector]:
        keys = [hashlib.sha256(text.encode()).digest() for text in texts]
        known = [self._known(key) for key in keys]
        missing = [place for place, vector in enumerate(known) if vector is None]
        if missing:
            self._model = self._model or self._load()
            made = self._model.encode([texts[place] for place in missing])
            rows = [(keys[place], vector.tobytes()) for place, vector in zip(missing, made, strict=True)]
            with self._vectors:
                self._vectors.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)
            self.computed += len(missing)
            for place, vector in zip(missing, made, strict=True):
                known[place] = vector
        return [vector for vector in known if vector is not None]

    def _load(self) -> LocalModel:
        if not is_made(self._file):
            subprocess.run([sys.executable, "-m", "knowledge_flow_backend.embed.build", str(self._file)], check=True)
        return LocalModel(self._file)

    def _known(self, key: bytes) -> Vector | None:
        row = self._vectors.execute("SELECT vector FROM vectors WHERE text = ?", (key,)).fetchone()
        return None if row is None else np.frombuffer(row[0], dtype=np.float32)
