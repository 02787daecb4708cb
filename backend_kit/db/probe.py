"""What a server of Postgres says of itself, for an examination: on a connection of its own, which no pool has."""

import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import psycopg
from psycopg import sql

from backend_kit.db.libpq import connect_args, server_args
from backend_kit.db.schema import WORKS_FROM_TABLE
from backend_kit.settings import Postgres

OURS: Final = "turnwise-"
"""How each connection of ours calls itself."""
_ROUNDS: Final = 5

# What others may open is theirs already: those that they have now. Without a database are Postgres' own processes.
_LIMITS: Final = """
SELECT current_setting('max_connections')::int,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true)::int, 0),
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
    (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
    (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL AND application_name NOT LIKE %s)::int
"""
_VECTOR: Final = """
SELECT installed_version IS NOT NULL FROM pg_available_extensions WHERE name = 'vector'
"""


class NoConnection(Enum):
    """Why no connection was to be had."""

    REFUSED = auto()
    """The role, its password or the database is not accepted."""
    FULL = auto()
    """It has no connection left."""
    POOLED = auto()
    """A pooler refuses our connections as they come."""
    READ_ONLY = auto()
    """No host takes writes."""
    AWAY = auto()


class ServerUnanswered(Exception):
    """Postgres cannot be asked, and `why`."""

    def __init__(self, why: NoConnection) -> None:
        super().__init__(why.name)
        self.why = why


_SAID: Final = (
    ("unsupported startup parameter", NoConnection.POOLED),
    ("read-only", NoConnection.READ_ONLY),
    ("in recovery", NoConnection.READ_ONLY),
    ("too many", NoConnection.FULL),
    ("connection slots", NoConnection.FULL),
    ("starting up", NoConnection.AWAY),
    ("shutting down", NoConnection.AWAY),
    ("FATAL", NoConnection.REFUSED),
    ("password", NoConnection.REFUSED),
    ("permission denied", NoConnection.REFUSED),
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server as one connection saw it. Milliseconds to connect, and of the median round trip; seconds by which this
    machine's clock is ahead of its own. `version` is Postgres' number: 160004. `role_limit` and `database_limit` are
    -1 without one; `others` are the connections of other programs. `revision` is that of a schema, None before its
    first migration, and `works_from` the one from which on programs work with it, None where nobody said. `vector` says
    whether pgvector is there: None where it cannot be had."""

    connect_ms: float
    round_trip_ms: float
    ahead_s: float
    version: int
    max_connections: int
    reserved: int
    role_limit: int
    database_limit: int
    others: int
    revision: str | None
    works_from: str | None
    vector: bool | None

    @property
    def room(self) -> int:
        """Connections that we may have, all processes together."""
        limits = [limit for limit in (self.role_limit, self.database_limit) if limit >= 0]
        return min(self.max_connections - self.reserved - self.others, *limits, self.max_connections)


def look_at_server(settings: Postgres, name: str, schema: str | None = None) -> ServerFacts:
    """Connect as `name`, and ask. `schema` has the service's own tables, None: those of the search path. Blocks for up
    to `postgres.connect_timeout` and 5 s a statement. Raises `ServerUnanswered`."""
    try:
        return _asked(settings, name, schema)
    except psycopg.Error as error:
        raise ServerUnanswered(no_connection(error)) from None


def _asked(settings: Postgres, name: str, schema: str | None) -> ServerFacts:
    begun = time.perf_counter()
    arguments = {**connect_args(name, settings.connect_timeout), **server_args(settings)}
    with psycopg.connect(**arguments, autocommit=True) as connection:
        connected = time.perf_counter()
        rounds = sorted(_round_trip(connection) for _ in range(_ROUNDS))
        asked = time.time()
        (told,) = _row(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
        answered = time.time()
        most, reserved, role_limit, database_limit, others = _row(connection, _LIMITS, (f"{OURS}%",))
        vector = connection.execute(_VECTOR).fetchone()
        return ServerFacts(
            connect_ms=(connected - begun) * 1e3,
            round_trip_ms=rounds[_ROUNDS // 2] * 1e3,
            ahead_s=(asked + answered) / 2 - told,
            version=connection.info.server_version,
            max_connections=most,
            reserved=reserved,
            role_limit=role_limit,
            database_limit=database_limit,
            others=others,
            revision=_only(connection, schema, "alembic_version", "version_num"),
            works_from=_only(connection, schema, WORKS_FROM_TABLE, "revision"),
            vector=None if vector is None else bool(vector[0]),
        )


def no_connection(error: psycopg.Error) -> NoConnection:
    """Why a connection was not to be had."""
    # libpq hands on no SQLSTATE of a failed connect, only text: that of the server begins with FATAL, its reasons may
    # be translated.
    text = str(error)
    return next((why for word, why in _SAID if word in text), NoConnection.AWAY)


def _round_trip(connection: "psycopg.Connection[Any]") -> float:
    begun = time.perf_counter()
    connection.execute("SELECT 1")
    return time.perf_counter() - begun


def _row(connection: "psycopg.Connection[Any]", statement: Any, parameters: tuple[str, ...] = ()) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(statement, parameters or None).fetchone()
    assert row is not None
    return row


def _only(connection: "psycopg.Connection[Any]", schema: str | None, name: str, column: str) -> str | None:
    """What the only row of a table says; None where there is none."""
    table = sql.Identifier(*([schema] if schema else []), name)
    (there,) = _row(connection, "SELECT to_regclass(%s)::text", (table.as_string(connection),))
    if there is None:
        return None
    found = connection.execute(sql.SQL("SELECT {} FROM {}").format(sql.Identifier(column), table)).fetchone()
    return None if found is None else str(found[0])
