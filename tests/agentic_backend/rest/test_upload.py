"""What becomes of an uploaded file that is not kept after all."""

from dataclasses import dataclass, field
from typing import IO

import pytest

from agentic_backend.errors import KfUnavailable, SessionNotFound, Unauthenticated
from agentic_backend.knowledge import Caller, Ingested, Redrawn
from agentic_backend.rest.attachments import ATTACHED_FILES, AttachmentServices, _keep
from agentic_backend.session.attachments import Attachment, Verdict
from agentic_backend.session.images import Image
from backend_kit.aio import FairGate
from backend_kit.wire import ServiceError

FILE = Attachment("a1", "s1", "ann", "notes.md", "text/markdown", 5, "notes", "d1")


@dataclass
class Gone:
    """A store whose session was deleted while the file was read."""

    left: list[Attachment] = field(default_factory=list)

    async def keep(self, _attachment: Attachment, _most: int, _image: Image | None) -> Verdict:
        return "gone"

    async def leave(self, attachment: Attachment) -> None:
        self.left.append(attachment)


@dataclass
class Knowledge:
    """Deletes a document, or fails so."""

    failure: ServiceError | None
    deleted: list[str] = field(default_factory=list)

    async def ingest(self, _file: IO[bytes], _name: str, _session_id: str, _caller: Caller) -> Ingested:
        raise NotImplementedError

    async def redraw(self, _file: IO[bytes], _name: str, _caller: Caller) -> Redrawn:
        raise NotImplementedError

    async def delete(self, document_uid: str, _session_id: str, _caller: Caller) -> None:
        if self.failure is not None:
            raise self.failure
        self.deleted.append(document_uid)


@pytest.mark.parametrize("failure", [None, KfUnavailable(), Unauthenticated()], ids=["deleted", "away", "late token"])
async def test_a_document_that_is_not_kept_is_deleted_now_or_later(failure: ServiceError | None) -> None:
    store, documents = Gone(), Knowledge(failure)
    services = AttachmentServices(
        store=store,  # type: ignore[arg-type] # what keeping needs of it
        sessions=None,  # type: ignore[arg-type]
        documents=documents,
        leftovers=None,  # type: ignore[arg-type]
        most=5,
        max_bytes=100,
        limit_hit=lambda _name: None,
        gate=FairGate(ATTACHED_FILES),
    )
    with pytest.raises(SessionNotFound):
        await _keep(services, FILE, Caller(None))
    assert (documents.deleted, store.left) == ((["d1"], []) if failure is None else ([], [FILE]))
