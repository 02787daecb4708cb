"""Takes received files to the index, stage by stage: read, embed, write; each ends in the index or with its reason."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from backend_kit.wire import ServiceError
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.errors import (
    Conflict,
    Draining,
    EmbeddingUnavailable,
    SchemaMismatch,
    UploadProcessingFailed,
)
from knowledge_flow_backend.index import Chunk, Document, DocumentContent, IndexWriter, Reader, Vector
from knowledge_flow_backend.ingest.names import Format, base_name, format_of, suffix
from knowledge_flow_backend.ingest.pool import Outline, ParserPool
from knowledge_flow_backend.ingest.progress import Destination, Line, Outcome, Stage, UploadProgress, Work
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.room import Room
from knowledge_flow_backend.ingest.staging import Folder, Staging
from knowledge_flow_backend.ingest.stored import StoredChunks, StoredVectors
from knowledge_flow_backend.ingest.work import Job
from knowledge_flow_backend.library.intake import Arrival, Claim, Intake
from knowledge_flow_backend.library.reasons import Reason, Refused
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

_PHASES: dict[Stage, str] = {"parse": "ingest_parse", "embed": "ingest_embed", "index": "ingest_write"}

PARSERS_REVISION = 2
"""Counts changes of parsers and of the division into chunks that are worth reading unchanged files again for."""
MAX_DEATHS = 3
"""Processes that may die over a file, before it is taken for the cause."""
HELD_BYTES = 64 * 1024 * 1024
"""Of files whose text and bytes are in memory at a time, while they are written."""
_EMBED_TRIES = 3
_EMBED_RETRY_S = 2.0


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


class IngestService:
    """Works on uploads in tasks of its own: a client that goes away does not stop what it has sent.

    What was received is durable before it is worked on: `keep_leases` and `take_up`, two tasks that run as long as the
    service does, hold this process's jobs and take up those that another one left.
    """

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
        self._room = Room(HELD_BYTES)
        self._uploads: set[asyncio.Event] = set()
        self._held: dict[str, Claim] = {}
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

    async def ingest(self, files: Sequence[ReceivedFile], where: Destination) -> AsyncIterator[Line]:
        """Start on files that have been received, in their order, and follow it line by line.

        Returns once each file is durable, or refused. The folders of the files are the service's from here on. Every
        file has exactly one `finished` line; the last line of all is `{"step": "done", "status":
        success|partial|error, "total", "succeeded", "failed"}` with the upload's `Figures`.
        """
        self.require_open()
        lines: asyncio.Queue[Line | None] = asyncio.Queue()
        upload = UploadProgress(list(files), where, lines.put_nowait)
        self._uploads.add(upload.ended)
        self._tasks.spawn("ingest", lambda: self._run(upload))
        await upload.stored.wait()
        return _follow(lines)

    async def keep_leases(self) -> None:
        """Renew the leases of this process's jobs, for ever."""
        while True:
            await asyncio.sleep(self._intake.lease_s / 3)
            if not self._held:
                continue
            try:
                await self._intake.renew(list(self._held))
            except ServiceError as failure:
                logger.warning("leases of files were not renewed: %s", failure)

    async def take_up(self) -> None:
        """Ingest what dead processes left, until the end begins."""
        while not self._draining:
            try:
                found = await self.take_up_one()
            except ServiceError as failure:
                found = False
                logger.debug("no files were taken up: %s", failure)
            if not found:
                await asyncio.sleep(self._intake.lease_s / 3)

    async def take_up_one(self) -> bool:
        """Take up the oldest file that was left, and see it through; False where there is none or no room for it."""
        if self._slots.locked():
            return False
        left = await self._intake.take(self._rules.pipeline, list(self._held))
        if left is None:
            return False
        self._held[left.claim.mark] = left.claim
        logger.info("a file that a process left is taken up: %d bytes, deaths=%d", left.size, left.deaths)
        where = Destination(Reader(left.owner_id), left.tags, left.source_tag)
        file = ReceivedFile(left.label, self._staging.unmade(), left.size, left.sha256)
        upload = UploadProgress([file], where, lambda _line: None)
        upload.waiting[0].take_over(left)
        self._uploads.add(upload.ended)
        await self._run(upload)
        return True

    async def _run(self, upload: UploadProgress) -> None:
        try:
            for work in upload.waiting:
                if work.claim is None:
                    await self._store(work)
            upload.stored.set()
            while upload.waiting:
                work = upload.waiting[0]
                async with self._slots:
                    self._metrics.ingest_running.inc()
                    try:
                        outcome = work.outcome or await self._file(work)
                    finally:
                        self._metrics.ingest_running.dec()
                upload.waiting.pop(0)
                self._finish(work, outcome)
                await self._staging.drop(work.file.folder)
        finally:
            # Something is left where the service ends, or where one file met a mistake of ours.
            left, upload.waiting = upload.waiting, []
            for work in left:
                self._finish(work, work.outcome or _left_over(work))
            upload.end()
            self._uploads.discard(upload.ended)
            for work in left:
                if work.claim is not None:
                    await self._end(work.claim, None)
                await self._staging.drop(work.file.folder)

    async def _store(self, work: Work) -> None:
        """Make a file durable, with its claim on a document; or say at once how it ends."""
        began = perf_counter()
        status = "error"
        try:
            arrival = arrival_of(work, self._rules)
            claim, changed = await self._intake.claim(
                work.upload.where.reader, arrival, self._staging.pieces(work.file.folder)
            )
            if changed:
                self._held[claim.mark] = work.claim = claim
            else:
                work.outcome = Outcome(uid=claim.uid, unchanged=True)
            status = "ok"
        except Refused as refused:
            work.outcome = Outcome(refused.reason)
        except ServiceError as failure:
            work.outcome = Outcome(_reason_of(failure))
        except OSError:
            logger.exception("an upload could not be read back from the staging directory")
            work.outcome = Outcome(Reason.STORAGE_FAILED)
        finally:
            self._observe(work, "store", status, perf_counter() - began)

    def _observe(self, work: Work, stage: Stage, status: str, seconds: float) -> None:
        self._metrics.ingest_stage(stage, status).observe(seconds)
        work.upload.figures.stages[stage] += seconds

    def _finish(self, work: Work, outcome: Outcome) -> None:
        work.upload.finish(work.file.name, outcome)
        self._metrics.ingested_documents(outcome.status).inc()
        if outcome.reason is not None:
            logger.info("a file was not ingested: %s", outcome.reason.value)

    async def _file(self, work: Work) -> Outcome:
        """Take one stored file to its end; what goes wrong with it is in the outcome."""
        claim = work.claim
        assert claim is not None
        reason: Reason | None = Reason.INTERNAL
        try:
            await self._take(work, claim)
            reason = None
        except Refused as refused:
            reason = refused.reason
        except ServiceError as failure:
            reason = _reason_of(failure)
        except OSError:
            logger.exception("an upload could not be read back from the staging directory")
            reason = Reason.STORAGE_FAILED
        except asyncio.CancelledError:
            reason = None  # it is left to another process
            raise
        finally:
            if reason is not None:
                work.claim, work.outcome = None, Outcome(reason, claim.uid)
                await self._end(claim, reason)
        self._held.pop(claim.mark, None)
        return Outcome(reason, claim.uid)

    async def _end(self, claim: Claim, reason: Reason | None) -> None:
        """Give a job up: for good, with the reason of its failure, or None for another process to take."""
        self._held.pop(claim.mark, None)
        try:
            if reason is None:
                await self._intake.release(claim)
            else:
                await self._intake.fail(claim, reason)
        except ServiceError:
            # Postgres is away as well: once its lease has run out the job is taken up again.
            logger.warning("that a file was given up could not be written down: %s", reason or "interrupted")

    async def _take(self, work: Work, claim: Claim) -> None:
        """The stages of one file."""
        file, arrival, left = work.file, arrival_of(work, self._rules), work.left
        if left is not None and left.written:
            for stage in claim.stages.values():
                stage["status"] = "done"
            await self._intake.finish(claim)
            return
        if left is not None:
            if left.deaths >= MAX_DEATHS:
                raise Refused(Reason.INTERNAL)
            file.folder = await self._staging.folder()
            await self._staging.restore(file.folder, self._intake.pieces(claim))
        async with self._stage(work, claim, "parse") as found:
            outline = await self._pool.read(job_of(file, self._rules))
            if outline.cut:
                found["cut"] = outline.cut
            chunks = await asyncio.to_thread(StoredChunks, file.folder.chunks, claim.uid)
        async with self._stage(work, claim, "embed"):
            vectors = await self._embed(outline.title, chunks, work)
        async with self._stage(work, claim, "index"), self._room.of(arrival.size):
            await self._write(claim, arrival, work, outline, chunks, vectors)
        await self._intake.finish(claim)
        work.upload.figures.size += file.size
        work.upload.figures.chunks += len(chunks)

    @asynccontextmanager
    async def _stage(self, work: Work, claim: Claim, stage: Stage) -> AsyncIterator[dict[str, Any]]:
        """Time a stage, say that it begins and has ended, and write it down beside the document, with what the block
        puts into the dictionary it is given."""
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
            self._observe(work, stage, status, seconds)
            ended = {"status": "done" if status == "ok" else "failed", "ms": round(seconds * 1e3, 3)}
            claim.stages[stage] = {**ended, **found}
        work.say(stage, "success", **found)

    async def _embed(self, title: str, chunks: StoredChunks, work: Work) -> StoredVectors:
        vectors = StoredVectors(work.file.folder.vectors)
        batches = chunks.batches()
        while batch := await asyncio.to_thread(next, batches, None):
            some = await self._embed_some([embedded_text(title, chunk) for chunk in batch])
            await asyncio.to_thread(vectors.extend, some)
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
        work: Work,
        outline: Outline,
        chunks: Sequence[Chunk],
        vectors: Sequence[Vector],
    ) -> None:
        content = await asyncio.to_thread(read_content, work.file.folder)
        document = Document(
            uid=claim.uid,
            owner_id=work.upload.where.reader.user_id,
            title=outline.title,
            file_name=arrival.name,
            file_path=arrival.path,
            mime_type=arrival.mime,
            type=arrival.type,
            source_tag=arrival.source_tag,
            content_hash=arrival.sha256,
            size_bytes=arrival.size,
            tag_ids=arrival.tags,
            claim=claim.mark,
        )
        await self._writer.replace_document(document, content, chunks, vectors)
        self._metrics.ingested_chunks.inc(len(chunks))


def arrival_of(work: Work, rules: IngestRules) -> Arrival:
    """What is written of a file that came. Raises `Refused` for one that is empty, or of a type that is not read."""
    file, where = work.file, work.upload.where
    kind = kind_of(file)
    return Arrival(
        path=file.name,
        name=base_name(file.name),
        mime=kind.mime,
        type=suffix(file.name) or "txt",
        sha256=file.sha256,
        size=file.size,
        tags=where.tags,
        source_tag=where.source_tag,
        pipeline=rules.pipeline,
    )


def kind_of(file: ReceivedFile) -> Format:
    """How a file is read. Raises `Refused` for one that is empty, or of a type that is not read."""
    kind = format_of(file.name)
    if kind is None:
        raise Refused(Reason.UNSUPPORTED_TYPE)
    if file.size == 0:
        raise Refused(Reason.EMPTY)
    return kind


def job_of(file: ReceivedFile, rules: IngestRules, *, max_chars: int | None = None) -> Job:
    """What a parsing child is told of a file. Raises as `kind_of`."""
    folder = file.folder
    return Job(
        source=str(folder.raw),
        format=kind_of(file).parser,
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


def _left_over(work: Work) -> Outcome:
    """How a file ends that nobody has looked at yet, or that the end of the service has stopped."""
    if work.claim is None:
        return Outcome(Reason.STORAGE_FAILED)
    return Outcome(Reason.INTERRUPTED, work.claim.uid)


async def _follow(lines: "asyncio.Queue[Line | None]") -> AsyncIterator[Line]:
    while (line := await lines.get()) is not None:
        yield line
