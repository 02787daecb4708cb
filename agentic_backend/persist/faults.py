"""What a database error means: try again, or give up on a record; how long to wait, how often to say so."""

import logging
import random
import time
from enum import StrEnum

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

DatabaseFault = (DBAPIError, PoolTimeout)
"""What a statement may raise: everything that came from the driver, and no free connection within pool_timeout."""

_LOG_INTERVAL_S = 1.0


class Cause(StrEnum):
    """Why a statement failed. A closed set, because it is the label of a metric."""

    POISON = "poison"
    """The data itself is refused: it will be refused for ever."""
    CONNECTION = "connection"
    SHUTDOWN = "shutdown"
    POOL = "pool"
    TIMEOUT = "timeout"
    SERIALIZATION = "serialization"
    DEADLOCK = "deadlock"
    RESOURCES = "resources"
    READ_ONLY = "read_only"
    UNCLAIMED = "unclaimed"
    """The claim on the database does not stand: another process may be writing to it."""
    CONCURRENT = "concurrent"
    """Another writer stored the same ranks meanwhile; the next attempt sees them."""
    STATEMENT = "statement"
    """The statement does not fit the schema or the role's rights: an operator must act."""
    SPOOL = "spool"
    """What waits cannot be read back from the spool's disk."""
    OTHER = "other"


# Longest prefix first; https://www.postgresql.org/docs/current/errcodes-appendix.html
_BY_SQLSTATE = (
    ("40P01", Cause.DEADLOCK),
    ("57014", Cause.TIMEOUT),
    ("55P03", Cause.TIMEOUT),
    ("57P", Cause.SHUTDOWN),
    ("08", Cause.CONNECTION),
    ("22", Cause.POISON),
    ("23", Cause.POISON),
    ("25", Cause.READ_ONLY),
    ("28", Cause.CONNECTION),
    ("3D", Cause.CONNECTION),
    ("3F", Cause.STATEMENT),
    ("40", Cause.SERIALIZATION),
    ("42", Cause.STATEMENT),
    ("53", Cause.RESOURCES),
    ("54", Cause.POISON),
)


def cause_of(error: DBAPIError | PoolTimeout) -> Cause:
    """The class of a failure, by SQLSTATE; by exception type where the server never answered."""
    if isinstance(error, PoolTimeout):
        return Cause.POOL
    sqlstate = sqlstate_of(error)
    if sqlstate is None:
        return _without_sqlstate(error.orig)
    return next((cause for prefix, cause in _BY_SQLSTATE if sqlstate.startswith(prefix)), Cause.OTHER)


def sqlstate_of(error: DBAPIError | PoolTimeout) -> str | None:
    """The five characters that Postgres gave, or None where the failure is the driver's or the network's."""
    original = getattr(error, "orig", None)
    return original.sqlstate if isinstance(original, psycopg.Error) else None


def _without_sqlstate(original: BaseException | None) -> Cause:
    if isinstance(original, psycopg.DataError | psycopg.IntegrityError):
        return Cause.POISON
    if isinstance(original, psycopg.OperationalError | psycopg.InterfaceError):
        return Cause.CONNECTION
    if isinstance(original, psycopg.ProgrammingError):
        return Cause.STATEMENT
    return Cause.OTHER


class Backoff:
    """Waits that double from `first_s` to `longest_s`, each with full jitter: uniform between 0 and the bound."""

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.bound_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait = random.uniform(0.0, self.bound_s)  # noqa: S311 - not for secrets
        self.bound_s = min(self.bound_s * 2, self._longest_s)
        return wait

    def reset(self) -> None:
        """Begin again at `first_s`, after a success."""
        self.bound_s = self._first_s


class QuietLog:
    """A logger that says the same cause at most once a second, and then how often it was silent.

    An outage makes every reader fail; hundreds of equal lines would bury the one that matters (TRUST G7).
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def warning(self, cause: str, message: str, *args: object) -> None:
        """Log `message` under `cause`, a word of a small set."""
        now = time.perf_counter()
        if now - self._said.get(cause, float("-inf")) < _LOG_INTERVAL_S:
            self._silent[cause] = self._silent.get(cause, 0) + 1
            return
        self._said[cause] = now
        silent = self._silent.pop(cause, 0)
        text = f"{message} (%d more like this not logged)" if silent else message
        self._logger.warning(text, *args, *([silent] if silent else []))
