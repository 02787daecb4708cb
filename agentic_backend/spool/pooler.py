"""Whether a pooler in front of Postgres lets us keep a session of the server: locks and LISTEN belong to a session."""

import secrets
import select
import time

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from backend_kit.settings import Postgres

EXIT_POOLED = 2
"""The exit code of a process whose connection to Postgres is unusable because of configuration."""

_Connection = psycopg.Connection[tuple[object, ...]]

_REFUSED = "unsupported startup parameter"
"""How PgBouncer and similar poolers refuse `options`, in which we set deadlines and durability."""


class PoolerUnusable(Exception):
    """There is a pooler before Postgres that cannot serve us. `str()` is one line for the operator."""


def refusal_at_connect(settings: Postgres, error: psycopg.OperationalError) -> PoolerUnusable | None:
    """What a failure to connect says where a pooler refused the options of our connections, else None."""
    # libpq passes on no SQLSTATE of a failed connect, only text, in which the pooler's message is not translated.
    _, refused, which = str(error).partition(_REFUSED)
    if not refused:
        return None
    said = refused + which.partition("\n")[0]
    return PoolerUnusable(
        f"the pooler at {settings.host}:{settings.port} refuses our connections ({said}): connect to Postgres "
        "directly, or let it pool by session and ignore that parameter (PgBouncer: pool_mode = session, "
        "ignore_startup_parameters = options)"
    )


def require_session(
    settings: Postgres, connection: _Connection, other: _Connection, *, idle_s: float = 1.0, answer_s: float = 5.0
) -> None:
    """Raise `PoolerUnusable` if `connection` has its session of the server only for a transaction.

    It listens, `other` (to the same address) notifies. A connection that is pooled by transaction hears nothing while
    it is idle, since it has no session then; often the other one has even got that session. A session hears it at the
    latest with the answer to its next statement, so none is refused, however slow the server is; `idle_s` (seconds)
    only gives a pooler's session the time to deliver the notification to somebody else. Costs 5 round trips, and
    `idle_s` where it raises.

    Blocks for up to `answer_s` (seconds) until the other one is served, and raises `TooManyConnections` then: a pooler
    may have no session left. Raises psycopg.Error if Postgres is away.
    """
    channel = f"turnwise_probe_{secrets.token_hex(8)}"
    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
    backend = _backend(connection)
    heard = _notify(other, channel, answer_s) != backend and _hears(connection, backend, idle_s)
    # If a pooler has given our session to others, this leaves little behind in it.
    connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
    if not heard:
        raise PoolerUnusable(
            f"a pooler at {settings.host}:{settings.port} pools by transaction: connect to Postgres directly, or let "
            "it pool by session (PgBouncer: pool_mode = session)"
        )


def _hears(connection: _Connection, backend: int, idle_s: float) -> bool:
    """Whether the notification has come, and the session is still that of `backend`."""
    heard = len(list(connection.notifies(timeout=idle_s, stop_after=1)))
    # Postgres sends pending notifications before it is ready for the next statement: this answer comes after them.
    still = _backend(connection) == backend
    return still and heard + len(list(connection.notifies(timeout=0))) > 0


def _backend(connection: _Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    assert isinstance(row[0], int)
    return row[0]


def _notify(connection: _Connection, channel: str, within_s: float) -> int:
    """Notify, and return the process id of the server that did."""
    # By hand, since psycopg's own calls wait indefinitely for what a pooler keeps queued.
    libpq = connection.pgconn
    libpq.send_query(f"SELECT pg_backend_pid(), pg_notify('{channel}', '')".encode())
    libpq.flush()
    give_up_at = time.monotonic() + within_s
    result = _result(libpq, give_up_at)
    while _result(libpq, give_up_at) is not None:
        pass  # up to the end of the answer, so that another statement may follow
    if result is None or result.status != ExecStatus.TUPLES_OK:
        raise psycopg.OperationalError(libpq.get_error_message())
    backend = result.get_value(0, 0)
    assert backend is not None
    return int(backend)


def _result(libpq: PGconn, give_up_at: float) -> PGresult | None:
    poll = select.poll()
    poll.register(libpq.socket, select.POLLIN)
    while libpq.is_busy():
        if not poll.poll(1000 * max(0.0, give_up_at - time.monotonic())):
            raise psycopg.errors.TooManyConnections("no session is left for another connection")
        libpq.consume_input()
    return libpq.get_result()
