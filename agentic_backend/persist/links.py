"""Share links in Postgres. They are not cached: a link that one instance revokes is gone for all at once."""

from typing import Final

from sqlalchemy import text

from agentic_backend.persist.database import Queries
from agentic_backend.session.links import LinkWanted, ShareLink
from agentic_backend.spool.pending import Pending
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import events_parameter, with_events
from backend_kit.db.pool import AnyRow

# ruff: noqa: S608 - constants of this module

_TIME: Final = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
_COLUMNS: Final = f"""id, session_id, user_id, audience, up_to,
    {_TIME.format("created_at")} AS created_at, {_TIME.format("expires_at")} AS expires_at"""

# Idempotent, as the statement may run twice: a second run finds the row of the first. Two at once may both be the last.
MAKE_LINK: Final = with_events(
    f"""INSERT INTO share_link (id, digest, session_id, user_id, audience, up_to, expires_at)
    SELECT :id, CAST(:digest AS bytea), s.session_id, s.user_id, :audience, CAST(:up_to AS integer),
        now() + make_interval(days => CAST(:days AS integer))
    FROM session s WHERE s.session_id = :session_id AND s.user_id = :user_id AND CAST(:most AS integer) > (
        SELECT count(*) FROM share_link l WHERE l.session_id = s.session_id AND l.id <> :id)
    ON CONFLICT (id) DO UPDATE SET audience = excluded.audience RETURNING {_COLUMNS}"""
)
LIST_LINKS: Final = text(
    f"""SELECT {_COLUMNS} FROM share_link AS l WHERE session_id = :session_id AND user_id = :user_id
    ORDER BY l.created_at DESC, id"""
)
REVOKE_LINK: Final = with_events(
    """DELETE FROM share_link WHERE id = :id AND session_id = :session_id AND user_id = :user_id RETURNING id"""
)
FIND_LINK: Final = text(
    f"""SELECT {_COLUMNS} FROM share_link AS l WHERE digest = CAST(:digest AS bytea)
    AND (l.expires_at IS NULL OR l.expires_at > now())"""
)


class PostgresLinks:
    """Implements `LinkStore`. A session whose deletion is pending has no links."""

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def make(
        self, link_id: str, digest: bytes, wanted: LinkWanted, most: int, event: AuditEvent
    ) -> ShareLink | None:
        """See `LinkStore`."""
        if self._deletion_pending(wanted.session_id, wanted.user_id):
            return None
        named = {name: getattr(wanted, name) for name in LinkWanted.__slots__}
        values = {**named, "id": link_id, "digest": digest, "most": most, "audit": events_parameter(event)}
        rows = await self._queries.fetch("make_link", MAKE_LINK, values)
        return _link(rows[0]) if rows else None

    async def of_session(self, session_id: str, user_id: str) -> list[ShareLink]:
        """See `LinkStore`."""
        key = {"session_id": session_id, "user_id": user_id}
        return [_link(row) for row in await self._queries.fetch("list_links", LIST_LINKS, key)]

    async def revoke(self, link_id: str, session_id: str, user_id: str, event: AuditEvent) -> bool:
        """See `LinkStore`."""
        key = {"id": link_id, "session_id": session_id, "user_id": user_id, "audit": events_parameter(event)}
        return bool(await self._queries.fetch("revoke_link", REVOKE_LINK, key))

    async def find(self, digest: bytes) -> ShareLink | None:
        """See `LinkStore`."""
        rows = await self._queries.fetch("find_link", FIND_LINK, {"digest": digest})
        if not rows or self._deletion_pending(rows[0].session_id, rows[0].user_id):
            return None
        return _link(rows[0])

    def _deletion_pending(self, session_id: str, user_id: str) -> bool:
        return self._pending.deletion((session_id, user_id)) is not None


def _link(row: AnyRow) -> ShareLink:
    return ShareLink(**row._mapping)
