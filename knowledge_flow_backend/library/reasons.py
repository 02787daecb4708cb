"""Why a file was not ingested: a closed list of words, each with its sentence for a person. Never an exception text."""

from enum import StrEnum


class Reason(StrEnum):
    """One word that clients may depend on."""

    UNSUPPORTED_TYPE = "unsupported_type"
    EMPTY = "empty"
    NO_TEXT = "no_text"
    NOT_TEXT = "not_text"
    UNKNOWN_CHARSET = "unknown_charset"
    UNREADABLE = "unreadable"
    ENCRYPTED = "encrypted"
    TOO_COMPLEX = "too_complex"
    UNPACKS_TOO_LARGE = "unpacks_too_large"
    NOT_AN_IMAGE = "not_an_image"
    TOO_MANY_PIXELS = "too_many_pixels"
    TOO_LARGE = "too_large"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    PARSER_DIED = "parser_died"
    AMBIGUOUS = "ambiguous"
    SUPERSEDED = "superseded"
    SCHEMA_MISMATCH = "schema_mismatch"
    EMBEDDING_FAILED = "embedding_failed"
    INDEX_FAILED = "index_failed"
    STORAGE_FAILED = "storage_failed"
    INTERRUPTED = "interrupted"
    INTERNAL = "internal"


SENTENCES: dict[Reason, str] = {
    Reason.UNSUPPORTED_TYPE: "Files of this type are not supported.",
    Reason.EMPTY: "The file is empty.",
    Reason.NO_TEXT: "The file holds no text: it may consist of images.",
    Reason.NOT_TEXT: "The file does not hold text, whatever its name says.",
    Reason.UNKNOWN_CHARSET: "The character set of the file could not be recognised.",
    Reason.UNREADABLE: "The file is damaged, or not of the type that its name says.",
    Reason.ENCRYPTED: "The file is protected by a password.",
    Reason.TOO_COMPLEX: "The file is too deeply nested or has too many parts or pages.",
    Reason.UNPACKS_TOO_LARGE: "The file unpacks to far more than its size.",
    Reason.NOT_AN_IMAGE: "The file is no whole PNG, JPEG or WebP image, whatever its name says.",
    Reason.TOO_MANY_PIXELS: "The image has more than 40 million pixels.",
    Reason.TOO_LARGE: "The file is larger than allowed.",
    Reason.TIMED_OUT: "Reading the file took too long.",
    Reason.OUT_OF_MEMORY: "Reading the file took too much memory.",
    Reason.PARSER_DIED: "Reading the file failed.",
    Reason.AMBIGUOUS: "These libraries hold different documents of this name. Upload it to one of them at a time.",
    Reason.SUPERSEDED: "The document was deleted or uploaded again while this upload was read.",
    Reason.SCHEMA_MISMATCH: "The index was made with another embedding model.",
    Reason.EMBEDDING_FAILED: "The embedding model did not answer. Try again.",
    Reason.INDEX_FAILED: "The index did not answer. Try again.",
    Reason.STORAGE_FAILED: "The file could not be stored. Try again later.",
    Reason.INTERRUPTED: "The service ended while it read the file. It goes on with it when it is back.",
    Reason.INTERNAL: "Something went wrong on our side.",
}


class Refused(Exception):
    """A file that is not ingested, and why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason
