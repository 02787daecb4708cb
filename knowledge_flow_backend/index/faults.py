"""What a database error means here: the index is away for now, or what was given to it does not fit."""

import random

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from knowledge_flow_backend.errors import IndexUnavailable, SchemaMismatch, UploadProcessingFailed

DatabaseFault = (DBAPIError, PoolTimeout, psycopg.Error)
"""What a statement may raise: what came from the driver, and no free connection within pool_timeout."""

_DIMENSIONS = "22000"
"""pgvector's SQLSTATE for two vectors of different lengths, or one that is not as long as its column."""


_REFUSED = ("22", "23", "54")
"""Classes of SQLSTATE for data that will be refused for ever: a NUL in a text, a text that is too long."""


def failure_of(
    error: DBAPIError | PoolTimeout | psycopg.Error,
) -> IndexUnavailable | SchemaMismatch | UploadProcessingFailed:
    """The failure that a caller is told. The text names the SQLSTATE only: the server's own may quote the question."""
    if isinstance(error, PoolTimeout):
        return IndexUnavailable("no free connection")
    sqlstate = sqlstate_of(error)
    if sqlstate == _DIMENSIONS:
        return SchemaMismatch("the vector does not have the length of the index")
    # The driver refuses a NUL by itself, without a SQLSTATE.
    if isinstance(_original(error), psycopg.DataError) or (sqlstate or "").startswith(_REFUSED):
        return UploadProcessingFailed(f"sqlstate={sqlstate}")
    return IndexUnavailable(f"sqlstate={sqlstate}")


def sqlstate_of(error: DBAPIError | PoolTimeout | psycopg.Error) -> str | None:
    """The five characters that Postgres gave, or None where the failure is the driver's or the network's."""
    original = _original(error)
    return original.sqlstate if isinstance(original, psycopg.Error) else None


def _original(error: DBAPIError | PoolTimeout | psycopg.Error) -> object:
    return error if isinstance(error, psycopg.Error) else getattr(error, "orig", None)


class Backoff:
    """Waits that double from `first_s` to `longest_s`, each with full jitter: uniform between 0 and the bound."""

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self._longest_s = longest_s
        self._bound_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait = random.uniform(0.0, self._bound_s)  # noqa: S311 - not for secrets
        self._bound_s = min(self._bound_s * 2, self._longest_s)
        return wait
