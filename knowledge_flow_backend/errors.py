"""Failures of the knowledge-flow service.

ServiceError (backend_kit.wire)
├── BadRequest, MessageTooLong, TooLarge             the caller's body
├── Forbidden, Conflict
├── RateLimited                                      the caller has too many requests under way
├── Overloaded, Draining
├── SchemaMismatch                                   the index was made with another embedder
├── DocumentsUnavailable                             something behind the service did not answer in time
│   ├── IndexUnavailable
│   └── EmbeddingUnavailable
│       └── EmbeddingPreparing                       not yet: the first start fetches the model
├── DiskRefuses                                      what an upload is written to before it is read
└── AttachmentLimitReached, MissingFilename, UploadProcessingFailed          uploads

Unknown documents and libraries are a 404 of their routers (`backend_kit.http` leaves 404 to FastAPI).
"""

from typing import ClassVar

from backend_kit.wire import Code, ServiceError


class BadRequest(ServiceError):
    """A body of the wrong shape."""

    code: ClassVar[Code] = Code.BAD_REQUEST


class MessageTooLong(ServiceError):
    """A question above `limits.max_question_chars`."""

    code: ClassVar[Code] = Code.MESSAGE_TOO_LONG


class TooLarge(ServiceError):
    """A body or a file above its limit in bytes."""

    code: ClassVar[Code] = Code.TOO_LARGE


class Forbidden(ServiceError):
    """Known caller, not allowed."""

    code: ClassVar[Code] = Code.FORBIDDEN


class Conflict(ServiceError):
    """The request contradicts what is stored: a name that is taken, a document that is being written."""

    code: ClassVar[Code] = Code.CONFLICT


class RateLimited(ServiceError):
    """Too many requests of this caller wait already."""

    code: ClassVar[Code] = Code.RATE_LIMITED


class Overloaded(ServiceError):
    """Too many requests of all callers wait already, or this one has waited too long."""

    code: ClassVar[Code] = Code.OVERLOADED


class Draining(ServiceError):
    """The process is about to end and takes no new work."""

    code: ClassVar[Code] = Code.DRAINING


class SchemaMismatch(ServiceError):
    """The index holds vectors of another model or another length. Its text, for the log, says of which."""

    code: ClassVar[Code] = Code.SCHEMA_MISMATCH


class DocumentsUnavailable(ServiceError):
    """A search or a write could not be done now; the same request may succeed later."""

    code: ClassVar[Code] = Code.KF_UNAVAILABLE

    def __init__(self, reason: str = "", *, retry_after_s: float | None = 1.0) -> None:
        super().__init__(reason, retry_after_s=retry_after_s)


class IndexUnavailable(DocumentsUnavailable):
    """The database or the index did not answer in time."""


class EmbeddingUnavailable(DocumentsUnavailable):
    """The embedding model did not answer in time, or not with vectors."""


class EmbeddingPreparing(EmbeddingUnavailable):
    """The local model is being fetched, built or loaded: the first start of a machine, or the first seconds of any."""

    cause: ClassVar[str] = "model_preparing"


class AttachmentLimitReached(ServiceError):
    """The user has `limits.max_attachments_per_user` already, those that are being uploaded included."""

    code: ClassVar[Code] = Code.ATTACHMENT_LIMIT_REACHED


class MissingFilename(ServiceError):
    """An uploaded file without a name."""

    code: ClassVar[Code] = Code.MISSING_FILENAME


class UploadProcessingFailed(ServiceError):
    """An upload that could not be read as one."""

    code: ClassVar[Code] = Code.UPLOAD_PROCESSING_FAILED


class DiskRefuses(ServiceError):
    """The disk of received files is full or failing: nothing that is wrong with the file."""

    code: ClassVar[Code] = Code.STORAGE_FULL
