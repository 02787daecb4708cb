"""What a database error means here: the index is away for now, or what was given to it does not fit."""

from backend_kit.db.faults import AnyFault, Cause, cause_of, sqlstate_of
from knowledge_flow_backend.errors import IndexUnavailable, SchemaMismatch, UploadProcessingFailed

_DIMENSIONS = "22000"
"""pgvector's SQLSTATE for two vectors of different lengths, or one that is not as long as its column."""


def failure_of(error: AnyFault) -> IndexUnavailable | SchemaMismatch | UploadProcessingFailed:
    """The failure to raise for a database error. Its text names the SQLSTATE only: the server's may quote the
    question."""
    sqlstate, cause = sqlstate_of(error), cause_of(error)
    if sqlstate == _DIMENSIONS:
        return SchemaMismatch("the vector does not have the length of the index")
    if cause is Cause.POISON:
        return UploadProcessingFailed(f"sqlstate={sqlstate}")
    return IndexUnavailable("no free connection" if cause is Cause.POOL else f"sqlstate={sqlstate}")
