"""The claim of a process on its database: an advisory lock of Postgres, held by a connection that does nothing else."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psycopg

from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.connection import Connection, connect
from agentic_backend.spool.pooler import require_session
from agentic_backend.spool.spooldir import SpoolLock, SpoolTaken
from backend_kit.settings import Postgres

T = TypeVar("T")

EXIT_TAKEN = 3
"""The exit code of a process whose spool directory or database is in use by another."""
LOCK_KEY = 0x7475_726E_6F77_6E73
"""The advisory lock of owners: "turnowns" in ASCII. Postgres keeps advisory locks apart by database."""
WAIT_S = 10.0
"""Seconds that a claim waits for another holder: the connection of a killed process may linger."""
_AGAIN_S = 0.2
_EMPTIED_S = 60.0
"""More than one attempt of `Persistence.write_out` takes."""

_TRY = {
    False: "SELECT pg_try_advisory_lock(%s)",
    True: "SELECT pg_try_advisory_lock_shared(%s)",
}
_HOLDER = """
SELECT activity.application_name FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (held.classid::bigint << 32) | held.objid::bigint = %s
ORDER BY activity.backend_start LIMIT 1
"""


class DatabaseTaken(Exception):
    """Another process has the claim on the database. `str()` is one line for the operator."""


def attempt(settings: Postgres, *, shared: bool) -> Connection:
    """Try once to claim the database; the claim lasts for as long as the returned connection.

    A `shared` claim (`replicas: many`) is compatible with other shared ones, but not with that of a sole owner.
    Blocks for up to 2 s to connect, twice, and 5 s a statement. Raises `DatabaseTaken`, `PoolerUnusable`, or
    psycopg.Error if Postgres is away.
    """
    with ExitStack() as undo:
        connection = undo.enter_context(closing(connect(settings, "owner")))
        with closing(connect(settings, "probe")) as other:
            # Before the lock: that of a pooled session would stay with the pooler after our end.
            require_session(settings, connection, other)
        if connection.execute(_TRY[shared], (LOCK_KEY,)).fetchone() == (True,):
            undo.pop_all()
            return connection
        holder = connection.execute(_HOLDER, (LOCK_KEY,)).fetchone()
    raise DatabaseTaken(_taken_text(settings, holder))


def claim_at_start(settings: Postgres, *, shared: bool, wait_s: float = WAIT_S) -> Connection | None:
    """The claim, or None if Postgres is away: then `Owner` claims at the first contact.

    Blocks while another process holds the database, at most `wait_s`; then raises `DatabaseTaken`. Raises
    `PoolerUnusable` at once.
    """
    try:
        return _while_taken(lambda: attempt(settings, shared=shared), DatabaseTaken, wait_s)
    except psycopg.Error:
        return None


@dataclass(frozen=True, slots=True)
class Possessions:
    """What the process locked for itself before it started to serve: its spool directory and its database.

    A field is None if it is not needed, or could not be locked yet because Postgres is away.
    """

    spool: SpoolLock | None = None
    database: Connection | None = None


def take(settings: AgenticSettings) -> Possessions:
    """Lock what no other process may use at the same time. Blocks for up to 10 s if another has the database, and of
    several workers for up to 60 s while a sibling empties the spool of this one.

    Raises `SpoolTaken`, `SpoolUnusable`, `DatabaseTaken` or `PoolerUnusable`.
    """
    chosen = settings.persistence
    wait_s = 0.0 if settings.app.worker is None else _EMPTIED_S
    lock = partial(SpoolLock, Path(chosen.spool_dir))
    spool = _while_taken(lock, SpoolTaken, wait_s) if chosen.ack == "spool" else None
    return Possessions(spool, claim_at_start(settings.storage.postgres, shared=chosen.replicas == "many"))


def _while_taken(take_one: Callable[[], T], taken: type[Exception], wait_s: float) -> T:
    """What `take_one` returns, tried again for `wait_s` while it raises `taken`, and then raising that. Blocks."""
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            return take_one()
        except taken:
            if time.monotonic() >= give_up_at:
                raise
        time.sleep(_AGAIN_S)


def _taken_text(settings: Postgres, holder: tuple[object, ...] | None) -> str:
    who = f" ({holder[0]})" if holder is not None and holder[0] else ""
    return (
        f"another process{who} holds the database {settings.database} at {settings.host}:{settings.port}: "
        "end it first, or let each process say persistence.replicas: many"
    )
