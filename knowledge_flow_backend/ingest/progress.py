"""The progress that an upload reports while it runs, and its figures at the end."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Literal

from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.ingest.receive import ReceivedFile
from knowledge_flow_backend.library.intake import Claim, Left
from knowledge_flow_backend.library.reasons import SENTENCES, Reason

logger = logging.getLogger(__name__)

Stage = Literal["store", "parse", "embed", "index"]
STAGES: tuple[Stage, ...] = ("store", "parse", "embed", "index")

Line = dict[str, Any]
"""One line of progress: `{step, filename, status, error?, code?, document_uid?}`.

`step` is parse, embed or index (`status` in_progress or success; `cut` says what of the file was not read), then
`finished` (success, unchanged or error) for the file; `error` is a sentence and `code` its word.
"""


@dataclass(frozen=True, slots=True)
class Destination:
    """The owner of new documents, and the libraries that they go to."""

    reader: Reader
    tags: tuple[str, ...]
    source_tag: str | None


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


@dataclass(slots=True)
class Figures:
    """Totals of an upload: files, bytes and chunks that were read, and the seconds of each stage, summed over its
    files."""

    began: float = field(default_factory=perf_counter)
    files: int = 0
    failed: int = 0
    size: int = 0
    chunks: int = 0
    stages: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def wire(self) -> Line:
        """For the last line: `{bytes, chunks, seconds, chunks_per_s, stages: {store, parse, embed, index}}`."""
        seconds = perf_counter() - self.began
        return {
            "bytes": self.size,
            "chunks": self.chunks,
            "seconds": round(seconds, 3),
            "chunks_per_s": round(self.chunks / seconds, 1) if seconds else 0.0,
            "stages": {stage: round(spent, 3) for stage, spent in self.stages.items()},
        }

    def report(self) -> None:
        """One line in the log."""
        told = self.wire()
        stages = " ".join(f"{stage}_s={spent}" for stage, spent in told.pop("stages").items())
        figures = " ".join(f"{name}={value}" for name, value in told.items())
        logger.info("upload: files=%d failed=%d %s %s", self.files, self.failed, figures, stages)


class UploadProgress:
    """The files of one request that are not done yet, and where their progress is reported."""

    def __init__(
        self, files: list[ReceivedFile], where: Destination, send: Callable[[Line | None], None], *, entered: bool
    ) -> None:
        """`entered`: it has a place among the uploads, to be given back at its end."""
        self.entered = entered
        self.waiting = [Work(file, self) for file in files]
        self.where = where
        self.send = send
        self.figures = Figures()
        self.stored = asyncio.Event()
        """Set once every file is durable or has its outcome."""
        self.ended = asyncio.Event()

    def finish(self, name: str, outcome: Outcome) -> None:
        """Report the end of a file."""
        self.figures.files += 1
        line: Line = {"step": "finished", "filename": name, "document_uid": outcome.uid}
        if outcome.reason is not None:
            self.figures.failed += 1
            line |= {"status": "error", "error": SENTENCES[outcome.reason], "code": outcome.reason.value}
        else:
            line["status"] = "unchanged" if outcome.unchanged else "success"
        self.send(line)

    def end(self) -> None:
        """Report the end of the upload."""
        total, failed = self.figures.files, self.figures.failed
        status = "success" if not failed else "partial" if failed < total else "error"
        counts = {"total": total, "succeeded": total - failed, "failed": failed}
        self.send({"step": "done", "filename": "", "status": status, **counts, **self.figures.wire()})
        self.send(None)
        self.figures.report()
        self.stored.set()
        self.ended.set()


@dataclass(slots=True)
class Work:
    """One file that is being ingested. `claim` is set once it is stored, `outcome` where it has ended, `left` where a
    process that died had it before: then its bytes are in Postgres and not on this machine."""

    file: ReceivedFile
    upload: UploadProgress
    claim: Claim | None = None
    outcome: Outcome | None = None
    left: Left | None = None

    def take_over(self, left: Left) -> None:
        """Continue a job that a dead process left."""
        self.claim, self.left = left.claim, left

    def report(self, stage: Stage, status: str, **more: int | str) -> None:
        """Report a stage."""
        uid = self.claim.uid if self.claim is not None else None
        self.upload.send({"step": stage, "filename": self.file.name, "status": status, "document_uid": uid, **more})
