"""Leases of sessions, where several instances share a database: one of them runs turns of a session at a time."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence

from sqlalchemy import TextClause, text
from sqlalchemy.exc import DBAPIError

from agentic_backend.errors import HistoryUnavailable, SessionBusy, SessionNotFound
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.pending import Key, Pending
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database
from backend_kit.db.faults import Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import AnyRow

logger = logging.getLogger(__name__)

_MARGIN_S = 15.0
"""Seconds that a lease lasts beyond a turn's limit: to read the session before it and commit the turn after it."""
_RETRY_AFTER_S = 1.0

# Only the server's clock is used: those of the instances may differ. A holder that takes its own lease again (it could
# not release it) keeps the fence, because what it still has to write is in order with what it will write.
ACQUIRE_LEASE = text("""
WITH owned AS (
    SELECT session_id FROM session WHERE session_id = :session_id AND user_id = :user_id
), taken AS (
    INSERT INTO session_lease AS lease (session_id, holder, fence, expires_at)
    SELECT session_id, :holder, 1, now() + make_interval(secs => :length_s) FROM owned
    ON CONFLICT (session_id) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at,
        fence = lease.fence + CASE WHEN lease.holder = excluded.holder THEN 0 ELSE 1 END
    WHERE lease.expires_at <= now() OR lease.holder = excluded.holder
    RETURNING fence
)
SELECT (SELECT fence FROM taken) AS fence FROM owned
""")

RELEASE_LEASE = text("""
UPDATE session_lease SET expires_at = '-infinity' WHERE session_id = :session_id AND holder = :holder
""")

RELEASE_LEASES = text("""
UPDATE session_lease SET expires_at = '-infinity' WHERE holder = :holder AND expires_at > now()
""")


def lease_s(settings: AgenticSettings) -> float:
    """Seconds that a lease lasts: longer than any turn, its wait for a slot included, so that none is renewed."""
    return settings.limits.queue_deadline_s + settings.deadlines.turn_s + _MARGIN_S


class SessionLease:
    """Implements `Lease`. Every record that is written under it carries `fence`."""

    def __init__(self, leases: "SessionLeases", key: Key, fence: int) -> None:
        self.fence = fence
        self._leases = leases
        self._key = key
        self._released = False

    async def release(self) -> None:
        """Let other instances run turns of the session. Never raises; a second call does nothing."""
        if not self._released:
            self._released = True
            await self._leases.release(self._key)


class SessionLeases:
    """Implements `Leases` for one instance; `holder` is its name, new with each start.

    `length_s` is as `lease_s` says. A lease that ended without a release
    (the instance was killed, or Postgres was away) can be taken by others when it expires, by its holder immediately.
    """

    def __init__(self, database: Database, pending: Pending, *, length_s: float) -> None:
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._database = database
        self._pending = pending
        self._length_s = length_s
        self._log = QuietLog(logger)

    async def acquire(self, session_id: str, user_id: str) -> SessionLease:
        """Take the session for one turn. Until the release no other instance changes it.

        The caller must ensure that this instance acquires a session for one turn at a time. Raises `SessionBusy` if
        another instance has it, `SessionNotFound`, or `HistoryUnavailable`. After a cancellation nothing is held.
        """
        key = (session_id, user_id)
        if not (session_id.isascii() and session_id.isprintable()):
            raise SessionNotFound
        parameters = {"session_id": session_id, "user_id": user_id, "holder": self.holder, "length_s": self._length_s}
        try:
            rows = await self._run("acquire_lease", ACQUIRE_LEASE, parameters)
        except asyncio.CancelledError:
            # The server may have granted it already.
            await self.release(key)
            raise
        if not rows:
            raise SessionNotFound
        if rows[0].fence is None:
            raise SessionBusy(retry_after_s=_RETRY_AFTER_S)
        return SessionLease(self, key, rows[0].fence)

    async def release(self, key: Key) -> None:
        """Release a session, unless a turn of it still waits for Postgres: then its lease expires. Never raises."""
        if self._pending.turns(key):
            return
        try:
            await self._run("release_lease", RELEASE_LEASE, {"session_id": key[0], "holder": self.holder})
        except (HistoryUnavailable, SessionNotFound):
            self._log.warning("release", "leases could not be released: they expire in %.0f s", self._length_s)

    async def aclose(self) -> None:
        """Release all leases of this instance, after its last write. Never raises."""
        try:
            await self._run("release_lease", RELEASE_LEASES, {"holder": self.holder})
        except (HistoryUnavailable, SessionNotFound):
            self._log.warning("release", "leases could not be released: they expire in %.0f s", self._length_s)

    async def _run(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[AnyRow]:
        """Run one statement, again if the connection had died while idle: each may be run twice."""
        if not self._database.ready:
            raise HistoryUnavailable("the schema has not been seen yet")
        try:
            try:
                return await self._execute(op, statement, parameters)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return await self._execute(op, statement, parameters)
        except DatabaseFault as error:
            cause = cause_of(error)
            if cause is Cause.POISON:
                # The session was deleted at the same moment, and the lease refers to it.
                raise SessionNotFound from None
            self._log.warning(cause, "%s failed: cause=%s sqlstate=%s", op, cause.value, sqlstate_of(error))
            raise HistoryUnavailable(f"{op}: {cause.value}") from None

    async def _execute(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[AnyRow]:
        async with self._database.main.connection() as connection:
            return await connection.execute(op, statement, parameters)
