"""Uploads as jobs with leases: each received file ends in the index or with its reason, also after its process died."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any

from backend_kit.aio import FairGate, GateRules, TaskRegistry
from backend_kit.wire import ServiceError
from knowledge_flow_backend.concurrency import enter_gate
from knowledge_flow_backend.errors import (
    Conflict,
    Draining,
    EmbeddingUnavailable,
    SchemaMismatch,
    UploadProcessingFailed,
)
from knowledge_flow_backend.index import Document, Reader
from knowledge_flow_backend.ingest.names import base_name, suffix
from knowledge_flow_backend.ingest.progress import Destination, Line, Outcome, Stage, UploadProgress, Work
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.ingest.steps import IngestRules, IngestSteps, kind_of
from knowledge_flow_backend.library.intake import Arrival, Claim, Intake, Left
from knowledge_flow_backend.library.reasons import Reason, Refused

logger = logging.getLogger(__name__)

MAX_DEATHS = 3
"""Processes that may die over a file, before it is taken for the cause."""


class IngestService:
    """Works on uploads in tasks of its own: a client that goes away does not stop what it has sent.

    What was received is durable before it is worked on: `keep_leases` and `take_up`, two tasks that run as long as the
    service does, hold this process's jobs and take up those that another one left.
    """

    def __init__(
        self, steps: IngestSteps, staging: Staging, intake: Intake, tasks: TaskRegistry, admission: GateRules
    ) -> None:
        """`admission`: uploads that are received or worked on, of all and of one user."""
        self.gate = FairGate(admission)
        self._steps = steps
        self._staging = staging
        self._intake = intake
        self._tasks = tasks
        self._rules = steps.rules
        self._metrics = steps.metrics
        self._slots = FairGate(steps.rules.admission)
        self._uploads: set[asyncio.Event] = set()
        self._held: dict[str, Claim] = {}
        self._draining = False

    @property
    def running(self) -> int:
        """Uploads that are being worked on."""
        return len(self._uploads)

    @property
    def parsing(self) -> FairGate:
        """Where files wait for a parsing child."""
        return self._steps.parsing

    def require_open(self) -> None:
        """Raise `Draining` once the end has begun."""
        if self._draining:
            raise Draining

    async def enter(self, user_id: str) -> None:
        """Wait until an upload of the user may be received. Raises `RateLimited`, `Overloaded` where too many wait.

        What was entered is ended by `leave`, or given to `ingest` with its files.
        """
        await enter_gate(self.gate, user_id, "upload", self._metrics)

    def leave(self, user_id: str) -> None:
        """An upload that was entered has not been received."""
        self.gate.leave(user_id)

    async def drain(self, deadline_s: float) -> int:
        """Refuse new uploads and wait for those that run; returns how many are left at the deadline."""
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for ended in list(self._uploads):
                    await ended.wait()
        return len(self._uploads)

    async def ingest(self, files: Sequence[ReceivedFile], where: Destination) -> AsyncIterator[Line]:
        """Start on the files of an upload that was entered, in their order, and follow it line by line.

        Returns once each file is durable, or refused. The folders of the files are the service's from here on. Every
        file has exactly one `finished` line; the last line of all is `{"step": "done", "status":
        success|partial|error, "total", "succeeded", "failed"}` with the upload's `Figures`.
        """
        self.require_open()
        lines: asyncio.Queue[Line | None] = asyncio.Queue()
        upload = UploadProgress(list(files), where, lines.put_nowait, entered=True)
        self._uploads.add(upload.ended)
        self._tasks.spawn("ingest", lambda: self._run(upload))
        await upload.stored.wait()
        return _follow(lines)

    async def again(self, reader: Reader, uid: str) -> AsyncIterator[Line] | None:
        """Start to read the kept file of the reader's document again, for an upload that was entered, and follow it as
        in `ingest`; None, and it stays entered, where there is no such document. Raises as `Intake.again`.

        Until the new passages take the place of the old ones, and where that fails, the old ones are found.
        """
        self.require_open()
        left = await self._intake.again(reader, uid, self._rules.pipeline)
        if left is None:
            return None
        lines: asyncio.Queue[Line | None] = asyncio.Queue()
        upload = self._taken(left, lines.put_nowait, entered=True)
        self._tasks.spawn("ingest", lambda: self._run(upload))
        return _follow(lines)

    async def keep_leases(self) -> None:
        """Renew the leases of this process's jobs until cancelled."""
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
        if self._slots.running >= self._rules.files:
            return False
        left = await self._intake.take(self._rules.pipeline, list(self._held))
        if left is None:
            return False
        logger.info("a file that a process left is taken up: %d bytes, deaths=%d", left.size, left.deaths)
        await self._run(self._taken(left, lambda _line: None, entered=False))
        return True

    def _taken(self, left: Left, tell: Callable[[Line | None], None], *, entered: bool) -> UploadProgress:
        """The upload that a job is whose bytes are in Postgres."""
        self._held[left.claim.mark] = left.claim
        where = Destination(Reader(left.owner_id), left.tags, left.source_tag)
        file = ReceivedFile(left.label, self._staging.unmade(), left.size, left.sha256)
        upload = UploadProgress([file], where, tell, entered=entered)
        upload.waiting[0].take_over(left)
        self._uploads.add(upload.ended)
        return upload

    async def _run(self, upload: UploadProgress) -> None:
        try:
            for work in upload.waiting:
                if work.claim is None:
                    await self._store(work)
            upload.stored.set()
            while upload.waiting:
                work = upload.waiting[0]
                async with self._slots.place(upload.where.reader.user_id):
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
            if upload.entered:
                self.leave(upload.where.reader.user_id)
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
            seconds = perf_counter() - began
            self._metrics.ingest_stage("store", status).observe(seconds)
            work.upload.figures.stages["store"] += seconds

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
        user_id = work.upload.where.reader.user_id
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
            outline = await self._steps.read(file, user_id)
            if outline.cut:
                found["cut"] = outline.cut
            chunks = await self._steps.chunks(file, claim.uid)
        async with self._stage(work, claim, "embed"):

            def embedded(count: int) -> None:
                work.report("embed", "in_progress", done=count, of=len(chunks))

            vectors = await self._steps.embed(outline.title, chunks, file, user_id, patient=True, embedded=embedded)
        async with self._stage(work, claim, "index"):
            document = _document(claim, arrival, work, outline.title)
            await self._steps.store(document, file, chunks, vectors)
        await self._intake.finish(claim)
        work.upload.figures.size += file.size
        work.upload.figures.chunks += len(chunks)

    @asynccontextmanager
    async def _stage(self, work: Work, claim: Claim, stage: Stage) -> AsyncIterator[dict[str, Any]]:
        """Time a stage, say that it begins and has ended, and write it down beside the document, with what the block
        puts into the dictionary it is given."""
        claim.stages[stage] = {"status": "running"}
        await self._intake.note(claim)
        work.report(stage, "in_progress")
        found: dict[str, Any] = {}
        began = perf_counter()
        status = "failed"
        try:
            with self._steps.timed(stage):
                yield found
            status = "done"
        finally:
            seconds = perf_counter() - began
            work.upload.figures.stages[stage] += seconds
            claim.stages[stage] = {"status": status, "ms": round(seconds * 1e3, 3), **found}
        work.report(stage, "success", **found)


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


def _document(claim: Claim, arrival: Arrival, work: Work, title: str) -> Document:
    return Document(
        uid=claim.uid,
        owner_id=work.upload.where.reader.user_id,
        title=title,
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
