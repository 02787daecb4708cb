"""The closed list of failure codes with the text, HTTP status and retry advice of each (see docs/protocol.md).

Also where in a request a fault is, by names of the protocol alone: an answer about it says both.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TYPES: Final = frozenset({"str", "int", "float", "bool", "list", "dict", "none"})
"""What pydantic calls the members of a union in a place."""
_BY_CLIENT: Final = "extra_forbidden"


class Code(StrEnum):
    """The kind of failure, as one word that clients may depend on. A new code is a protocol change."""

    BAD_REQUEST = "bad_request"
    UNKNOWN_TYPE = "unknown_type"
    MESSAGE_TOO_LONG = "message_too_long"
    SESSION_NOT_FOUND = "session_not_found"
    AGENT_NOT_FOUND = "agent_not_found"
    EXCHANGE_NOT_FOUND = "exchange_not_found"
    MESSAGE_NOT_FOUND = "message_not_found"
    SHARE_NOT_FOUND = "share_not_found"
    SHARE_LIMIT_REACHED = "share_limit_reached"
    NOT_AWAITING = "not_awaiting"
    CONFLICT = "conflict"
    SESSION_BUSY = "session_busy"
    SESSION_RECOVERING = "session_recovering"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_TURNS = "too_many_turns"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    LLM_UNAVAILABLE = "llm_unavailable"
    LLM_RATE_LIMITED = "llm_rate_limited"
    LLM_TIMEOUT = "llm_timeout"
    LLM_PROTOCOL = "llm_protocol"
    TURN_DEADLINE = "turn_deadline"
    KF_UNAVAILABLE = "kf_unavailable"
    HISTORY_UNAVAILABLE = "history_unavailable"
    STORAGE_FULL = "storage_full"
    SCHEMA_MISMATCH = "schema_mismatch"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too_large"
    ATTACHMENTS_DISABLED = "attachments_disabled"
    ATTACHMENT_LIMIT_REACHED = "attachment_limit_reached"
    ATTACHMENT_TOO_LARGE = "attachment_too_large"
    ATTACHMENT_DUPLICATE = "attachment_duplicate"
    ATTACHMENT_NOT_FOUND = "attachment_not_found"
    MISSING_FILENAME = "missing_filename"
    UPLOAD_PROCESSING_FAILED = "upload_processing_failed"
    MODEL_WITHOUT_VISION = "model_without_vision"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """How one code is rendered: HTTP status on REST, whether a retry may succeed, the text per language."""

    status: int
    retryable: bool
    en: str
    fr: str


CODES: dict[Code, CodeInfo] = {
    Code.BAD_REQUEST: CodeInfo(422, False, "The request could not be read.", "La requête est illisible."),
    Code.UNKNOWN_TYPE: CodeInfo(422, False, "Unknown message type.", "Type de message inconnu."),
    Code.MESSAGE_TOO_LONG: CodeInfo(422, False, "The message is too long.", "Le message est trop long."),
    Code.SESSION_NOT_FOUND: CodeInfo(403, False, "Session not found.", "Session introuvable."),
    Code.AGENT_NOT_FOUND: CodeInfo(404, False, "Agent not found.", "Agent introuvable."),
    Code.EXCHANGE_NOT_FOUND: CodeInfo(404, False, "Exchange not found.", "Échange introuvable."),
    Code.MESSAGE_NOT_FOUND: CodeInfo(404, False, "Message not found.", "Message introuvable."),
    Code.SHARE_NOT_FOUND: CodeInfo(404, False, "This link leads nowhere.", "Ce lien ne mène nulle part."),
    Code.SHARE_LIMIT_REACHED: CodeInfo(409, False, "Too many links.", "Trop de liens."),
    Code.NOT_AWAITING: CodeInfo(409, False, "No answer is awaited here.", "Aucune réponse n'est attendue ici."),
    Code.CONFLICT: CodeInfo(409, False, "This conflicts with an earlier request.", "Conflit avec une requête passée."),
    Code.SESSION_BUSY: CodeInfo(409, True, "The session is answering.", "La session est en train de répondre."),
    Code.SESSION_RECOVERING: CodeInfo(
        503, True, "The session is being recovered. Try again.", "La session est en cours de récupération. Réessayez."
    ),
    Code.RATE_LIMITED: CodeInfo(429, True, "Too many requests. Slow down.", "Trop de requêtes. Ralentissez."),
    Code.TOO_MANY_TURNS: CodeInfo(429, True, "Too many questions at once.", "Trop de questions à la fois."),
    Code.OVERLOADED: CodeInfo(503, True, "The service is overloaded. Try again.", "Service surchargé. Réessayez."),
    Code.DRAINING: CodeInfo(503, True, "The service is restarting. Try again.", "Redémarrage en cours. Réessayez."),
    Code.LLM_UNAVAILABLE: CodeInfo(
        503, True, "The model is unavailable. Try again.", "Modèle indisponible. Réessayez."
    ),
    Code.LLM_RATE_LIMITED: CodeInfo(503, True, "The model is busy. Try again.", "Le modèle est occupé. Réessayez."),
    Code.LLM_TIMEOUT: CodeInfo(504, True, "The model did not answer in time.", "Le modèle n'a pas répondu à temps."),
    Code.LLM_PROTOCOL: CodeInfo(502, True, "The model's answer was broken.", "La réponse du modèle est corrompue."),
    Code.TURN_DEADLINE: CodeInfo(504, True, "The answer took too long.", "La réponse a pris trop de temps."),
    Code.KF_UNAVAILABLE: CodeInfo(503, True, "Documents are unavailable. Try again.", "Documents indisponibles."),
    Code.HISTORY_UNAVAILABLE: CodeInfo(503, True, "History is unavailable. Try again.", "Historique indisponible."),
    Code.STORAGE_FULL: CodeInfo(503, True, "Storage is full. Try again later.", "Stockage plein. Réessayez plus tard."),
    Code.SCHEMA_MISMATCH: CodeInfo(409, False, "The index does not fit the model.", "L'index ne va pas au modèle."),
    Code.UNAUTHENTICATED: CodeInfo(401, False, "Authentication is required.", "Authentification requise."),
    Code.FORBIDDEN: CodeInfo(403, False, "Not allowed.", "Non autorisé."),
    Code.TOO_LARGE: CodeInfo(413, False, "The request is too large.", "La requête est trop volumineuse."),
    Code.ATTACHMENTS_DISABLED: CodeInfo(501, False, "Attachments are disabled.", "Pièces jointes désactivées."),
    Code.ATTACHMENT_LIMIT_REACHED: CodeInfo(400, False, "Too many attachments.", "Trop de pièces jointes."),
    Code.ATTACHMENT_TOO_LARGE: CodeInfo(400, False, "The attachment is too large.", "Pièce jointe trop volumineuse."),
    Code.ATTACHMENT_DUPLICATE: CodeInfo(409, False, "The attachment is there already.", "Pièce jointe déjà présente."),
    Code.ATTACHMENT_NOT_FOUND: CodeInfo(404, False, "Attachment not found.", "Pièce jointe introuvable."),
    Code.MISSING_FILENAME: CodeInfo(400, False, "The file has no name.", "Le fichier n'a pas de nom."),
    Code.UPLOAD_PROCESSING_FAILED: CodeInfo(400, False, "The file could not be read.", "Fichier illisible."),
    Code.MODEL_WITHOUT_VISION: CodeInfo(
        422, False, "This model does not see images.", "Ce modèle ne voit pas les images."
    ),
    Code.INTERNAL: CodeInfo(500, False, "Something went wrong on our side.", "Une erreur interne est survenue."),
}


def message_for(code: Code, language: str | None = None) -> str:
    """The fixed text of a code; French where `language` starts with `fr`, else English."""
    info = CODES[code]
    return info.fr if language is not None and language.lower().startswith("fr") else info.en


class ServiceError(Exception):
    """A failure with a wire code. Subclasses set `code`; its `str()` is for logs and contains no input value.

    `field` is where in the request the fault is, by names of the protocol alone, if that is known.
    """

    code: ClassVar[Code] = Code.INTERNAL
    cause: ClassVar[str] = ""
    """Which of several causes with this code it is, for another service: header `X-Cause`."""

    def __init__(self, reason: str = "", *, retry_after_s: float | None = None, field: str | None = None) -> None:
        super().__init__(reason or self.code.value)
        self.retry_after_s = retry_after_s
        self.field = field

    @property
    def status(self) -> int:
        """The HTTP status of this failure on REST."""
        return CODES[self.code].status

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return CODES[self.code].retryable


def field_of(problems: Iterable[Mapping[str, Any]], *, skip: int = 0) -> str | None:
    """The field of the first of pydantic's problems that has one, such as `runtime_context.model` or `tags[2]`.

    `skip` leading parts of a place are no fields: a union's tag, or whether it is in the body. An unknown key is the
    client's own, and is never repeated: its place is the object that has it. None where nothing is known.
    """
    places = (_named(problem["loc"][skip:], problem["type"]) for problem in problems)
    return next((place for place in places if place), None)


def _named(place: tuple[int | str, ...], kind: str) -> str:
    """The place as text, as far as it consists of names and indices."""
    if kind == "json_invalid":
        return ""  # then it is a position in the text
    named = ""
    for part in place[:-1] if kind == _BY_CLIENT else place:
        if isinstance(part, int):
            named += f"[{part}]"
        elif not _NAME.fullmatch(part) or (named and part in _TYPES):
            break
        else:
            named += f".{part}" if named else part
    return named
