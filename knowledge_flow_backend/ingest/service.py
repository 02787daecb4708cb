"""Takes received files to the index, stage by stage: read, embed, write; each ends in the index or with its reason."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from backend_kit.wire import ServiceError, loads
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.errors import (
    Conflict,
    Draining,
    EmbeddingUnavailable,
    SchemaMismatch,
    UploadProcessingFailed,
)
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, IndexWriter, Reader, Vector
from knowledge_flow_backend.ingest.chunks import chunk_uid
from knowledge_flow_backend.ingest.names import base_name, format_of, suffix
from knowledge_flow_backend.ingest.pool import Outline, ParserPool
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.staging import Folder, Staging
from knowledge_flow_backend.ingest.work import Job
from knowledge_flow_backend.library.intake import Arrival, Claim, Intake
from knowledge_flow_backend.library.reasons import SENTENCES, Reason, Refused
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

Stage = Literal["parse", "embed", "index"]
_PHASES: dict[Stage, str] = {"parse": "ingest_parse", "embed": "ingest_embed", "index": "ingest_write"}

PARSERS_REVISION = 2
"""Counts changes of parsers and of the division into chunks that are worth reading unchanged files again for."""
_EMBED_TEXTS = 64
_EMBED_TRIES = 3
_EMBED_RETRY_S = 2.0
_CHARS_A_TOKEN = 4
"""Of English prose; good enough to say how long a chunk is. What is cut is counted by the model itself."""


@dataclass(frozen=True, slots=True)
class IngestRules:
    """Sizes in characters, times in seconds. `files` are worked on at once; others wait in order.

    `loading_s` is how long a file waits for an embedder that is loading.
    """

    chunk_size: int
    chunk_overlap: int
    files: int
    loading_s: float = 120.0

    @property
    def pipeline(self) -> str:
        """Names everything that decides which chunks the same bytes become."""
        return f"{PARSERS_REVISION}:{self.chunk_size}:{self.chunk_overlap}"


@dataclass(frozen=True, slots=True)
class Destination:
    """Whose the documents are to be, and where they are to stand."""

    reader: Reader
    tags: tuple[str, ...]
    source_tag: str | None


Line = dict[str, Any]
"""One line of progress: `{step, filename, status, error?, code?, document_uid?}`.

`step` is parse, embed or index (`status` in_progress or success; `cut` says what of the file was not read), then
`finished` (success, unchanged or error) for the file; `error` is a sentence and `code` its word.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a file ended: `reason` None is success. `uid` None: there is no document."""

    reason: Reason | None = None
    uid: str | None = None
    unchanged: bool = False

    @property
    def status(self) -> str:
        """ok or error, as the metrics name it."""
        return "ok" if self.reason is None else "error"


class _Upload:
    """The files of one request that are not done yet, and who is told."""

    def __init__(self, files: list[ReceivedFile], where: Destination, tell: Callable[[Line | None], None]) -> None:
        self.waiting = files
        self.where = where
        self.tell = tell
        self.ended = asyncio.Event()
        self._total = len(files)
        self._failed = 0

    def finish(self, name: str, outcome: Outcome) -> None:
        """Tell the end of a file."""
        line: Line = {"step": "finished", "filename": name, "document_uid": outcome.uid}
        if outcome.reason is not None:
            self._failed += 1
            line |= {"status": "error", "error": SENTENCES[outcome.reason], "code": outcome.reason.value}
        else:
            line["status"] = "unchanged" if outcome.unchanged else "success"
        self.tell(line)

    def end(self) -> None:
        """Tell the end of all."""
        status = "success" if not self._failed else "partial" if self._failed < self._total else "error"
        counts = {"total": self._total, "succeeded": self._total - self._failed, "failed": self._failed}
        self.tell({"step": "done", "filename": "", "status": status, **counts})
        self.tell(None)
        self.ended.set()


@dataclass(slots=True)
class _Work:
    """One file on its way. `claim` is set once there is a row for it."""

    file: ReceivedFile
    upload: _Upload
    claim: Claim | None = None

    def say(self, stage: Stage, status: str, **more: int | str) -> None:
        """Tell of a stage."""
        uid = self.claim.uid if self.claim is not None else None
        self.upload.tell({"step": stage, "filename": self.file.name, "status": status, "document_uid": uid, **more})


class IngestService:
    """Works on uploads in tasks of its own: a client that goes away does not stop what it has sent."""

    def __init__(
        self,
        *,
        pool: ParserPool,
        staging: Staging,
        intake: Intake,
        writer: IndexWriter,
        embedder: Embedder,
        rules: IngestRules,
        metrics: KnowledgeFlowMetrics,
        kpi: Kpi,
        tasks: TaskRegistry,
    ) -> None:
        self._pool = pool
        self._staging = staging
        self._intake = intake
        self._writer = writer
        self._embedder = embedder
        self._rules = rules
        self._metrics = metrics
        self._kpi = kpi
        self._tasks = tasks
        self._slots = asyncio.Semaphore(rules.files)
        self._uploads: set[asyncio.Event] = set()
        self._draining = False

    @property
    def running(self) -> int:
        """Uploads that are being worked on."""
        return len(self._uploads)

    def require_open(self) -> None:
        """Raise `Draining` once the end has begun."""
        if self._draining:
            raise Draining

    async def drain(self, deadline_s: float) -> int:
        """Refuse new uploads and wait for those that run; returns how many are left at the deadline."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for ended in list(self._uploads):
                    await ended.wait()
        return len(self._uploads)

    def ingest(self, files: Sequence[ReceivedFile], where: Destination) -> AsyncIterator[Line]:
        """Start on files that have been received, in their order, and follow it line by line.

        The folders of the files are the service's from here on. Every file has exactly one `finished` line; the last
        line of all is `{"step": "done", "status": success|partial|error, "total", "succeeded", "failed"}`.
        """
        self.require_open()
        lines: asyncio.Queue[Line | None] = asyncio.Queue()
        upload = _Upload(list(files), where, lines.put_nowait)
        self._uploads.add(upload.ended)
        self._tasks.spawn("ingest", lambda: self._run(upload))
        return _follow(lines)

    async def _run(self, upload: _Upload) -> None:
        try:
            while upload.waiting:
                file = upload.waiting[0]
                async with self._slots:
                    self._metrics.ingest_running.inc()
                    try:
                        outcome = await self._file(file, upload)
                    finally:
                        self._metrics.ingest_running.dec()
                upload.waiting.pop(0)
                self._finish(upload, file, outcome)
                await self._staging.drop(file.folder)
        finally:
            # Something is left where the service ends, or where one file met a mistake of ours.
            left, upload.waiting = upload.waiting, []
            for file in left:
                self._finish(upload, file, Outcome(Reason.INTERRUPTED if self._draining else Reason.INTERNAL))
            upload.end()
            self._uploads.discard(upload.ended)
            for file in left:
                await self._staging.drop(file.folder)

    def _finish(self, upload: _Upload, file: ReceivedFile, outcome: Outcome) -> None:
        upload.finish(file.name, outcome)
        self._metrics.ingested_documents(outcome.status).inc()
        if outcome.reason is not None:
            logger.info("a file was not ingested: %s", outcome.reason.value)

    async def _file(self, file: ReceivedFile, upload: _Upload) -> Outcome:
        """Take one file to its end; what goes wrong with it is in the outcome."""
        work = _Work(file, upload)
        reason: Reason | None = Reason.INTERNAL
        unchanged = False
        try:
            unchanged = await self._take(work)
            reason = None
        except Refused as refused:
            reason = refused.reason
        except ServiceError as failure:
            reason = _reason_of(failure)
        except OSError:
            logger.exception("an upload could not be read back from the staging directory")
            reason = Reason.STORAGE_FAILED
        except asyncio.CancelledError:
            reason = Reason.INTERRUPTED
            raise
        finally:
            if reason is not None and work.claim is not None:
                await self._write_down(work.claim, reason)
        uid = work.claim.uid if work.claim is not None else None
        return Outcome(reason, uid, unchanged=unchanged)

    async def _write_down(self, claim: Claim, reason: Reason) -> None:
        try:
            await self._intake.fail(claim, reason)
        except ServiceError:
            # Postgres is away as well: the next upload of the file finds the row as it is and takes it over.
            logger.warning("that a document failed could not be written down: %s", reason.value)

    async def _take(self, work: _Work) -> bool:
        """The stages of one file; True where the index holds these bytes already."""
        file, where = work.file, work.upload.where
        kind = format_of(file.name)
        if kind is None:
            raise Refused(Reason.UNSUPPORTED_TYPE)
        if file.size == 0:
            raise Refused(Reason.EMPTY)
        arrival = Arrival(
            path=file.name,
            name=base_name(file.name),
            mime=kind.mime,
            type=suffix(file.name) or "txt",
            sha256=file.sha256,
            size=file.size,
            tags=where.tags,
            source_tag=where.source_tag,
            pipeline=self._rules.pipeline,
        )
        work.claim, changed = await self._intake.claim(where.reader, arrival)
        if not changed:
            return True
        async with self._stage(work, "parse") as found:
            outline = await self._pool.read(job_of(file, kind.parser, self._rules))
            if outline.cut:
                found["cut"] = outline.cut
            chunks = await asyncio.to_thread(read_chunks, file.folder, work.claim.uid)
        async with self._stage(work, "embed"):
            vectors = await self._embed(outline.title, chunks, work)
        async with self._stage(work, "index"):
            await self._write(work.claim, arrival, where, outline, chunks, vectors, file.folder)
        await self._intake.note(work.claim)
        return False

    @asynccontextmanager
    async def _stage(self, work: _Work, stage: Stage) -> AsyncIterator[dict[str, Any]]:
        """Time a stage, say that it begins and has ended, and write it down beside the document, with what the block
        puts into the dictionary it is given."""
        claim = work.claim
        assert claim is not None
        claim.stages[stage] = {"status": "running"}
        await self._intake.note(claim)
        work.say(stage, "in_progress")
        began = perf_counter()
        found: dict[str, Any] = {}
        status = "error"
        try:
            with self._kpi.phase(_PHASES[stage]):
                yield found
            status = "ok"
        finally:
            seconds = perf_counter() - began
            self._metrics.ingest_stage(stage, status).observe(seconds)
            ended = {"status": "done" if status == "ok" else "failed", "ms": round(seconds * 1e3, 3)}
            claim.stages[stage] = {**ended, **found}
        work.say(stage, "success", **found)

    async def _embed(self, title: str, chunks: Sequence[Chunk], work: _Work) -> list[Vector]:
        vectors: list[Vector] = []
        for start in range(0, len(chunks), _EMBED_TEXTS):
            texts = [embedded_text(title, chunk) for chunk in chunks[start : start + _EMBED_TEXTS]]
            vectors += await self._embed_some(texts)
            work.say("embed", "in_progress", done=len(vectors), of=len(chunks))
        return vectors

    async def _embed_some(self, texts: Sequence[str]) -> list[Vector]:
        """Embed, and try again: an ingestion has no caller who would rather do without."""
        began = asyncio.get_running_loop().time()
        tries = 0
        while True:
            loading = self._embedder.state == "loading"
            try:
                return await self._embedder.embed_documents(texts)
            except EmbeddingUnavailable as failure:
                tries += not loading
                waited = asyncio.get_running_loop().time() - began
                if tries >= _EMBED_TRIES or (loading and waited >= self._rules.loading_s):
                    raise
                await asyncio.sleep(min(_EMBED_RETRY_S, failure.retry_after_s or _EMBED_RETRY_S))

    async def _write(
        self,
        claim: Claim,
        arrival: Arrival,
        where: Destination,
        outline: Outline,
        chunks: Sequence[Chunk],
        vectors: Sequence[Vector],
        folder: Folder,
    ) -> None:
        content = await asyncio.to_thread(read_content, folder)
        document = Document(
            uid=claim.uid,
            owner_id=where.reader.user_id,
            title=outline.title,
            file_name=arrival.name,
            file_path=arrival.path,
            mime_type=arrival.mime,
            type=arrival.type,
            source_tag=arrival.source_tag,
            content_hash=arrival.sha256,
            size_bytes=arrival.size,
            tag_ids=arrival.tags,
        )
        # Deleted or uploaded again since: what is read here must not come back.
        await self._intake.note(claim)
        await self._writer.replace_document(document, content, chunks, vectors)
        self._metrics.ingested_chunks.inc(len(chunks))


def job_of(file: ReceivedFile, parser: str, rules: IngestRules, *, max_chars: int | None = None) -> Job:
    """What a parsing child is told of a file."""
    folder = file.folder
    return Job(
        source=str(folder.raw),
        format=parser,
        name=file.name,
        content=str(folder.content),
        chunks=str(folder.chunks),
        size=rules.chunk_size,
        overlap=rules.chunk_overlap,
        max_chars=max_chars,
    )


def embedded_text(title: str, chunk: Chunk) -> str:
    """What is embedded for a chunk: a passage by itself often does not name what it is about."""
    above = " > ".join(part for part in (title, chunk.section) if part)
    return f"{above}\n\n{chunk.content}"


def read_chunks(folder: Folder, document_uid: str) -> list[Chunk]:
    """The chunks that the child wrote; runs in a thread."""
    chunks = []
    with folder.chunks.open("rb") as lines:
        for line in lines:
            for ordinal, start, end, section, page, text in loads(line):
                chunks.append(
                    Chunk(
                        uid=chunk_uid(document_uid, ordinal, text),
                        ordinal=ordinal,
                        content=text,
                        start=start,
                        end=end,
                        section=" > ".join(section),
                        page=page,
                        token_count=-(-len(text) // _CHARS_A_TOKEN),
                    )
                )
    return chunks


def read_content(folder: Folder) -> DocumentContent:
    """The canonical text and the raw bytes; runs in a thread."""
    return DocumentContent(markdown=folder.content.read_bytes().decode(), raw=folder.raw.read_bytes())


def _reason_of(failure: ServiceError) -> Reason:
    match failure:
        case EmbeddingUnavailable():
            return Reason.EMBEDDING_FAILED
        case SchemaMismatch():
            return Reason.SCHEMA_MISMATCH
        case UploadProcessingFailed():
            return Reason.UNREADABLE
        case Conflict():
            return Reason.SUPERSEDED
    return Reason.INDEX_FAILED


async def _follow(lines: "asyncio.Queue[Line | None]") -> AsyncIterator[Line]:
    while (line := await lines.get()) is not None:
        yield line
