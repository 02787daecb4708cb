"""What a database error means: try again, or give up on the data."""

from enum import StrEnum
from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

DatabaseFault: Final = (DBAPIError, PoolTimeout, psycopg.Error)
"""What a statement may raise: everything that came from the driver, and no free connection within pool_timeout."""

AnyFault = DBAPIError | PoolTimeout | psycopg.Error


class Cause(StrEnum):
    """Why a statement failed. A closed set, because it is the label of a metric."""

    POISON = "poison"
    """The data itself is refused, now and at every later attempt."""
    CONNECTION = "connection"
    SHUTDOWN = "shutdown"
    POOL = "pool"
    TIMEOUT = "timeout"
    SERIALIZATION = "serialization"
    DEADLOCK = "deadlock"
    RESOURCES = "resources"
    READ_ONLY = "read_only"
    UNCLAIMED = "unclaimed"
    """This process does not have the claim on the database: another process may be writing to it."""
    CONCURRENT = "concurrent"
    """Another writer stored the same ranks meanwhile; the next attempt sees them."""
    STATEMENT = "statement"
    """The statement does not fit the schema or the role's rights: an operator must act."""
    SPOOL = "spool"
    """Pending records cannot be read back from the spool's disk."""
    OTHER = "other"


# Longest prefix first; https://www.postgresql.org/docs/current/errcodes-appendix.html
_BY_SQLSTATE = (
    ("40P01", Cause.DEADLOCK),
    ("57014", Cause.TIMEOUT),
    ("55P03", Cause.TIMEOUT),
    ("25P03", Cause.TIMEOUT),  # a transaction in which we said nothing for too long
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


def cause_of(error: AnyFault) -> Cause:
    """The class of a failure, by SQLSTATE; by exception type where the server never answered."""
    if isinstance(error, PoolTimeout):
        return Cause.POOL
    sqlstate = sqlstate_of(error)
    if sqlstate is None:
        return _without_sqlstate(driver_error(error))
    return next((cause for prefix, cause in _BY_SQLSTATE if sqlstate.startswith(prefix)), Cause.OTHER)


def driver_error(error: AnyFault) -> BaseException | None:
    """What the driver raised, None where it raised nothing."""
    return error if isinstance(error, psycopg.Error) else getattr(error, "orig", None)


def sqlstate_of(error: AnyFault) -> str | None:
    """The five characters that Postgres gave, or None where the failure is the driver's or the network's."""
    original = driver_error(error)
    return original.sqlstate if isinstance(original, psycopg.Error) else None


def _without_sqlstate(original: BaseException | None) -> Cause:
    if isinstance(original, psycopg.DataError | psycopg.IntegrityError):
        return Cause.POISON
    if isinstance(original, psycopg.OperationalError | psycopg.InterfaceError):
        return Cause.CONNECTION
    if isinstance(original, psycopg.ProgrammingError):
        return Cause.STATEMENT
    return Cause.OTHER
