"""The steps from a received file to the index, which jobs and attachments share: read, chunk, embed, store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from backend_kit.aio import FairGate, GateRules
from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import UNBOUNDED
from knowledge_flow_backend.embed import Embedder, Passages
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, IndexWriter, Vector
from knowledge_flow_backend.ingest.names import Format, format_of
from knowledge_flow_backend.ingest.pool import DrawnImage, Outline, ParserPool
from knowledge_flow_backend.ingest.progress import Stage
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.staging import Folder
from knowledge_flow_backend.ingest.stored import StoredChunks, StoredVectors
from knowledge_flow_backend.ingest.work import IMAGE, Job
from knowledge_flow_backend.library.reasons import Reason, Refused
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics


class ByteBudget:
    """A semaphore that counts bytes. Who needs more than there are in all waits until all of them are free."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes for the block."""
        needed = min(size, self._size)
        async with self._changed:
            await self._changed.wait_for(lambda: self._free >= needed)
            self._free -= needed
        try:
            yield
        finally:
            self._free += needed
            async with self._changed:
                self._changed.notify_all()


PARSERS_REVISION = 2
"""Counts changes of parsers and of the division into chunks that are worth reading unchanged files again for."""
HELD_BYTES: Final = 64 * 1024 * 1024
"""Of files whose text and bytes are in memory at a time, while they are written."""
_PHASES: Final[dict[Stage, str]] = {"parse": "ingest_parse", "embed": "ingest_embed", "index": "ingest_write"}
_EMBED_TRIES = 3
_EMBED_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class IngestRules:
    """Sizes in characters, times in seconds. `files` are worked on at once, the last `reserve` of them for users who
    have none; others wait, users in turn.

    `loading_s` is how long a file waits for an embedder that is loading.
    """

    chunk_size: int
    chunk_overlap: int
    files: int
    reserve: int = 0
    loading_s: float = 120.0

    @property
    def admission(self) -> GateRules:
        """Of files that are worked on, and of those that are written."""
        return GateRules(self.files, reserve=self.reserve, waiting=UNBOUNDED, waiting_per_user=UNBOUNDED)

    @property
    def pipeline(self) -> str:
        """Names everything that decides which chunks the same bytes become."""
        return f"{PARSERS_REVISION}:{self.chunk_size}:{self.chunk_overlap}"


class IngestSteps:
    """One for the process: all that write files to the index share its bound of memory."""

    def __init__(
        self,
        *,
        pool: ParserPool,
        writer: IndexWriter,
        embedder: Embedder,
        passages: Passages,
        rules: IngestRules,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        """`held_bytes`: of all files that are written at once, what is in memory."""
        self.rules = rules
        self.metrics = metrics
        self._pool = pool
        self._writer = writer
        self._embedder = embedder
        self._passages = passages
        self._kpi = kpi
        self._writing = FairGate(rules.admission)
        self._memory = ByteBudget(held_bytes)

    @property
    def parsing(self) -> FairGate:
        """Where files wait for a parsing child."""
        return self._pool.gate

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Observe the block as this stage of a file, however it ends."""
        began = perf_counter()
        status = "error"
        try:
            with self._kpi.phase(_PHASES[stage]):
                yield
            status = "ok"
        finally:
            self.metrics.ingest_stage(stage, status).observe(perf_counter() - began)

    async def read(self, file: ReceivedFile, user_id: str, *, max_chars: int | None = None) -> Outline:
        """Parse a user's file, or the beginning of its text: text and chunks are in its folder then.

        Raises `Refused` with the reason, or OSError where the staging directory fails.
        """
        folder = file.folder
        job = Job(
            source=str(folder.raw),
            format=kind_of(file).parser,
            name=file.name,
            content=str(folder.content),
            chunks=str(folder.chunks),
            size=self.rules.chunk_size,
            overlap=self.rules.chunk_overlap,
            max_chars=max_chars,
        )
        return await self._pool.read(job, user_id, file.size)

    async def redraw(self, file: ReceivedFile, user_id: str) -> DrawnImage:
        """Re-encode a user's image: it is then the `content` of its folder. Raises as `read` does."""
        folder = file.folder
        job = Job(str(folder.raw), IMAGE, file.name, str(folder.content), str(folder.chunks), size=0, overlap=0)
        return await self._pool.redraw(job, user_id, file.size)

    async def chunks(self, file: ReceivedFile, uid: str) -> StoredChunks:
        """The chunks of a file that has been read, as those of the document `uid`. Raises OSError."""
        return await asyncio.to_thread(StoredChunks, file.folder.chunks, uid)

    async def embed(
        self,
        title: str,
        chunks: StoredChunks,
        file: ReceivedFile,
        user_id: str,
        *,
        patient: bool = False,
        embedded: Callable[[int], None] = lambda _count: None,
    ) -> StoredVectors:
        """The vectors of the chunks of a user's file, kept in its folder; `embedded` gets their number at each batch.

        Raises `EmbeddingUnavailable`: at once, or, `patient`, after some tries and once a model has had time to load.
        """
        vectors = StoredVectors(file.folder.vectors)
        batches = chunks.batches()
        while batch := await asyncio.to_thread(next, batches, None):
            texts = [embedded_text(title, chunk) for chunk in batch]
            some = await (self._embed_patiently(user_id, texts) if patient else self._passages.embed(user_id, texts))
            await asyncio.to_thread(vectors.extend, some)
            embedded(len(vectors))
        return vectors

    async def store(
        self, document: Document, file: ReceivedFile, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> None:
        """Put a document into the index in place of an older one; waits until there is memory for the file.

        Raises what the writer raises, and OSError.
        """
        async with self._writing.place(document.owner_id), self._memory.hold(file.size):
            content = await asyncio.to_thread(read_content, file.folder)
            await self._writer.replace_document(document, content, chunks, vectors)
        self.metrics.ingested_chunks.inc(len(chunks))

    async def _embed_patiently(self, user_id: str, texts: Sequence[str]) -> list[Vector]:
        """Embed, and try again: a job has no caller who would rather do without."""
        began = asyncio.get_running_loop().time()
        tries = 0
        while True:
            loading = self._embedder.state == "loading"
            try:
                return await self._passages.embed(user_id, texts)
            except EmbeddingUnavailable as failure:
                tries += not loading
                waited = asyncio.get_running_loop().time() - began
                if tries >= _EMBED_TRIES or (loading and waited >= self.rules.loading_s):
                    raise
                await asyncio.sleep(min(_EMBED_RETRY_S, failure.retry_after_s or _EMBED_RETRY_S))


def kind_of(file: ReceivedFile) -> Format:
    """How a file is read. Raises `Refused` for one that is empty, or of a type that is not read."""
    kind = format_of(file.name)
    if kind is None:
        raise Refused(Reason.UNSUPPORTED_TYPE)
    if file.size == 0:
        raise Refused(Reason.EMPTY)
    return kind


def embedded_text(title: str, chunk: Chunk) -> str:
    """What is embedded for a chunk: a passage alone often does not name what it is about."""
    above = " > ".join(part for part in (title, chunk.section) if part)
    return f"{above}\n\n{chunk.content}"


def read_content(folder: Folder) -> DocumentContent:
    """The canonical text and the raw bytes; runs in a thread."""
    return DocumentContent(markdown=folder.content.read_bytes().decode(), raw=folder.raw.read_bytes())
