"""Failures of the agentic service.

ServiceError (backend_kit.wire)
├── BadRequest, UnknownType, MessageTooLong, TooLarge      the client's frame or body
├── SessionNotFound, AgentNotFound, ExchangeNotFound, MessageNotFound, ShareNotFound
├── Unauthenticated, Forbidden
├── AgentRefused                                 an agent with values that are not allowed
├── SessionLimitReached, ShareLimitReached
├── SessionBusy, SessionRecovering, TooManyTurns, RateLimited, Overloaded, Draining, Conflict
├── AttachmentsDisabled, AttachmentLimitReached, AttachmentTooLarge, AttachmentDuplicate, AttachmentNotFound
├── MissingFilename, UploadProcessingFailed      uploads
├── ModelWithoutVision                           a question with images
├── NotAwaiting                                  a person's answer to no open question
├── StorageFull, HistoryUnavailable              persistence
└── TurnFailed                                   a turn that began and could not end well
    ├── LlmUnavailable, LlmRateLimited, LlmTimeout, LlmProtocol
    ├── KfUnavailable
    ├── InputRefused                             what a client gave a graph, and the graph cannot take
    ├── NotKept
    └── TurnDeadline
"""

from typing import ClassVar

from backend_kit.wire import Code, ServiceError


class BadRequest(ServiceError):
    """A frame or body that does not have the shape it must have."""

    code: ClassVar[Code] = Code.BAD_REQUEST


class UnknownType(ServiceError):
    """A frame whose `type` this protocol does not know."""

    code: ClassVar[Code] = Code.UNKNOWN_TYPE


class MessageTooLong(ServiceError):
    """An ask above `limits.max_message_chars`."""

    code: ClassVar[Code] = Code.MESSAGE_TOO_LONG


class TooLarge(ServiceError):
    """Preferences above 16 KiB."""

    code: ClassVar[Code] = Code.TOO_LARGE


class SessionNotFound(ServiceError):
    """An unknown session, or another user's; the client cannot distinguish the two."""

    code: ClassVar[Code] = Code.SESSION_NOT_FOUND


class AgentNotFound(ServiceError):
    """An agent id that is not in the catalog, or a disabled agent."""

    code: ClassVar[Code] = Code.AGENT_NOT_FOUND


class ExchangeNotFound(ServiceError):
    """A turn that no longer runs, never did, or is another user's."""

    code: ClassVar[Code] = Code.EXCHANGE_NOT_FOUND


class MessageNotFound(ServiceError):
    """No message of that rank in the session."""

    code: ClassVar[Code] = Code.MESSAGE_NOT_FOUND


class ShareNotFound(ServiceError):
    """A link that was never made, is revoked or expired, or whose session is deleted; nobody can distinguish these."""

    code: ClassVar[Code] = Code.SHARE_NOT_FOUND


class ShareLimitReached(ServiceError):
    """The session has as many links as a session may have."""

    code: ClassVar[Code] = Code.SHARE_LIMIT_REACHED


class Unauthenticated(ServiceError):
    """No credentials, or credentials that do not verify."""

    code: ClassVar[Code] = Code.UNAUTHENTICATED


class Forbidden(ServiceError):
    """Known caller, not allowed."""

    code: ClassVar[Code] = Code.FORBIDDEN


class AgentRefused(ServiceError):
    """An agent with values that are not allowed. `sentence` tells a person why; of the request it quotes only names of
    keys."""

    code: ClassVar[Code] = Code.BAD_REQUEST

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(field=field)
        self.sentence = sentence


class SessionLimitReached(ServiceError):
    """The user has as many sessions as `ai.max_concurrent_sessions_per_user` allows: `most`."""

    code: ClassVar[Code] = Code.FORBIDDEN

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most


class SessionBusy(ServiceError):
    """The session is in a turn and the ask has `if_busy: reject`, or its queue is full."""

    code: ClassVar[Code] = Code.SESSION_BUSY


class SessionRecovering(ServiceError):
    """The instance that ran the session's newest turn is gone, and its end may be in that instance's spool alone."""

    code: ClassVar[Code] = Code.SESSION_RECOVERING


class TooManyTurns(ServiceError):
    """The user's `limits.per_user.turns` are all running."""

    code: ClassVar[Code] = Code.TOO_MANY_TURNS


class RateLimited(ServiceError):
    """The user's `limits.per_user.asks_per_min` is used up."""

    code: ClassVar[Code] = Code.RATE_LIMITED


class Overloaded(ServiceError):
    """`limits.max_turns` run and no slot came free within `limits.queue_deadline_s`."""

    code: ClassVar[Code] = Code.OVERLOADED


class Draining(ServiceError):
    """The process is about to end and takes no new turn."""

    code: ClassVar[Code] = Code.DRAINING


class Conflict(ServiceError):
    """The same exchange id with another text."""

    code: ClassVar[Code] = Code.CONFLICT


class NotAwaiting(ServiceError):
    """An answer to a question that was never asked, was answered already, or is no longer the newest of its session."""

    code: ClassVar[Code] = Code.NOT_AWAITING


class AttachmentsDisabled(ServiceError):
    """`ai.max_attached_files_per_user` is 0."""

    code: ClassVar[Code] = Code.ATTACHMENTS_DISABLED


class AttachmentLimitReached(ServiceError):
    """The user has `ai.max_attached_files_per_user` already."""

    code: ClassVar[Code] = Code.ATTACHMENT_LIMIT_REACHED


class AttachmentTooLarge(ServiceError):
    """A file above `ai.max_attached_file_size_mb`."""

    code: ClassVar[Code] = Code.ATTACHMENT_TOO_LARGE


class AttachmentDuplicate(ServiceError):
    """The session has a file of that name."""

    code: ClassVar[Code] = Code.ATTACHMENT_DUPLICATE


class AttachmentNotFound(ServiceError):
    """No such attachment, or another user's, or of another session; the client cannot distinguish these."""

    code: ClassVar[Code] = Code.ATTACHMENT_NOT_FOUND


class MissingFilename(ServiceError):
    """An uploaded file without a name."""

    code: ClassVar[Code] = Code.MISSING_FILENAME


class UploadProcessingFailed(ServiceError):
    """A file that could not be read. `sentence` tells a person why; "" if unknown."""

    code: ClassVar[Code] = Code.UPLOAD_PROCESSING_FAILED

    def __init__(self, sentence: str = "") -> None:
        super().__init__()
        self.sentence = sentence


class ModelWithoutVision(ServiceError):
    """A question with images to an agent, or a model, that takes none."""

    code: ClassVar[Code] = Code.MODEL_WITHOUT_VISION


class StorageFull(ServiceError):
    """The queue or spool of finished turns has no room: refused before the model is called."""

    code: ClassVar[Code] = Code.STORAGE_FULL


class HistoryUnavailable(ServiceError):
    """The database did not answer in time, and the session is not in memory."""

    code: ClassVar[Code] = Code.HISTORY_UNAVAILABLE


class TurnFailed(ServiceError):
    """A turn that was accepted and could not end with an answer."""


class InputRefused(TurnFailed):
    """A graph cannot take what a client gave it, which only its run could tell; `field` says what."""

    code: ClassVar[Code] = Code.BAD_REQUEST


class LlmUnavailable(TurnFailed):
    """The model refused the connection or answered 5xx, after the retries."""

    code: ClassVar[Code] = Code.LLM_UNAVAILABLE


class LlmRateLimited(TurnFailed):
    """The model answered 429, after the retries."""

    code: ClassVar[Code] = Code.LLM_RATE_LIMITED


class LlmTimeout(TurnFailed):
    """No first token, or no next token, within its deadline."""

    code: ClassVar[Code] = Code.LLM_TIMEOUT


class LlmProtocol(TurnFailed):
    """The model's stream was not what the protocol allows: garbage, cut, or of the wrong type."""

    code: ClassVar[Code] = Code.LLM_PROTOCOL


class KfUnavailable(TurnFailed):
    """Knowledge flow did not answer, and the agent's policy requires documents."""

    code: ClassVar[Code] = Code.KF_UNAVAILABLE


class KfPreparing(KfUnavailable):
    """Knowledge flow is up, but its embedding model is still being fetched or loaded."""


class NotKept(TurnFailed):
    """The state of a run that would wait for a person could not be stored."""

    code: ClassVar[Code] = Code.HISTORY_UNAVAILABLE


class TurnDeadline(TurnFailed):
    """The turn as a whole took longer than `deadlines.turn_s`."""

    code: ClassVar[Code] = Code.TURN_DEADLINE
