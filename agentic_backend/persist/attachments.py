"""Attachments in Postgres. The uploader waits, so they are written immediately and not through the spool."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from agentic_backend.persist.database import Queries
from agentic_backend.session.attachments import Attachment, Leftover, Verdict
from agentic_backend.session.images import Image
from agentic_backend.spool.pending import Pending
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import events_parameter, with_events
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps

ATTACHMENTS_HELD: Final = text("""
SELECT count(*) AS held, coalesce(bool_or(session_id = :session_id AND name = :name), false) AS named
FROM session_attachments WHERE user_id = :user_id
""")

KEEP_ATTACHMENT: Final = text("SELECT keep_attachment(CAST(:attachment AS jsonb), :most) AS verdict")

KEEP_IMAGE: Final = text("""
WITH kept AS MATERIALIZED (SELECT keep_attachment(CAST(:attachment AS jsonb), :most) AS verdict),
stored AS (
    INSERT INTO attachment_image (attachment_id, width, height, content)
    SELECT :id, :width, :height, CAST(:content AS bytea) FROM kept WHERE verdict = 'kept' ON CONFLICT DO NOTHING)
SELECT verdict FROM kept
""")

FIND_IMAGES: Final = text("""
SELECT a.attachment_id, a.session_id, a.name, a.mime, i.width, i.height, i.content
FROM session_attachments AS a JOIN attachment_image AS i ON i.attachment_id = a.attachment_id
WHERE a.attachment_id = ANY(:ids) AND a.user_id = :user_id
    AND a.session_id = coalesce(CAST(:session_id AS text), a.session_id)
""")

READ_IMAGE: Final = text("""
SELECT substring(content FROM CAST(:start AS integer) FOR CAST(:size AS integer)) AS part
FROM attachment_image WHERE attachment_id = :id
""")

FIND_ATTACHMENT: Final = text("""
SELECT attachment_id, session_id, user_id, name, coalesce(mime, '') AS mime, size_bytes, summary_md,
    document_uid
FROM session_attachments WHERE attachment_id = :id AND user_id = :user_id
    AND session_id = coalesce(CAST(:session_id AS text), session_id)
""")

DELETE_ATTACHMENT: Final = with_events("""
DELETE FROM session_attachments WHERE attachment_id = :id AND user_id = :user_id
    AND session_id = coalesce(CAST(:session_id AS text), session_id) RETURNING attachment_id
""")

LEAVE: Final = text("""
INSERT INTO attachment_leftover (document_uid, user_id, attached_to) VALUES (:uid, :user_id, :session_id)
ON CONFLICT DO NOTHING
""")

LEFTOVERS: Final = text("""
SELECT document_uid, l.user_id, attached_to AS session_id, s.session_id IS NULL AS with_session
FROM attachment_leftover AS l LEFT JOIN session AS s ON s.session_id = attached_to
WHERE l.user_id = ANY(:user_ids) ORDER BY left_at LIMIT 500
""")

FORGET_LEFTOVERS: Final = text("DELETE FROM attachment_leftover WHERE document_uid = ANY(:uids)")


class PostgresAttachments:
    """Implements `AttachmentStore`. A session whose deletion is pending has no attachments."""

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def verdict(self, user_id: str, session_id: str, name: str, most: int) -> Verdict:
        """See `AttachmentStore`; it does not check that the session exists."""
        parameters = {"user_id": user_id, "session_id": session_id, "name": name}
        (row,) = await self._queries.fetch("attachments_held", ATTACHMENTS_HELD, parameters)
        if row.named:
            return "duplicate"
        return "limit" if row.held >= most else "kept"

    async def keep(self, attachment: Attachment, most: int, image: Image | None = None) -> Verdict:
        """See `AttachmentStore`."""
        if self._deletion_pending(attachment.session_id, attachment.user_id):
            return "gone"
        body = dumps({name: getattr(attachment, name) for name in Attachment.__slots__}).decode()
        parameters: dict[str, object] = {"attachment": body, "most": most}
        if image is None:
            (row,) = await self._queries.fetch("keep_attachment", KEEP_ATTACHMENT, parameters)
        else:
            drawn = {"id": attachment.attachment_id, "width": image.width, "height": image.height}
            parameters |= {**drawn, "content": image.content}
            (row,) = await self._queries.fetch("keep_image", KEEP_IMAGE, parameters)
        verdict: Verdict = row.verdict
        return verdict

    async def images(self, user_id: str, session_id: str | None, attachment_ids: Sequence[str]) -> dict[str, Image]:
        """See `ImageStore`."""
        key = {"ids": list(attachment_ids), "user_id": user_id, "session_id": session_id}
        rows = await self._queries.fetch("find_images", FIND_IMAGES, key)
        return {
            row.attachment_id: Image(row.attachment_id, row.name, row.mime, row.width, row.height, bytes(row.content))
            for row in rows
            if not self._deletion_pending(row.session_id, user_id)
        }

    async def image_part(self, image: Attachment, start: int, size: int) -> bytes:
        """See `AttachmentStore`."""
        if self._deletion_pending(image.session_id, image.user_id):
            return b""
        key = {"id": image.attachment_id, "start": start + 1, "size": size}
        rows = await self._queries.fetch("read_image", READ_IMAGE, key)
        return bytes(rows[0].part) if rows else b""

    async def find(self, attachment_id: str, user_id: str, session_id: str | None) -> Attachment | None:
        """See `AttachmentStore`."""
        rows = await self._queries.fetch("find_attachment", FIND_ATTACHMENT, _key(attachment_id, user_id, session_id))
        if not rows or self._deletion_pending(rows[0].session_id, user_id):
            return None
        return _attachment(rows[0])

    async def delete(self, attachment_id: str, user_id: str, session_id: str | None, event: AuditEvent) -> bool:
        """See `AttachmentStore`."""
        key = {**_key(attachment_id, user_id, session_id), "audit": events_parameter(event)}
        return bool(await self._queries.fetch("delete_attachment", DELETE_ATTACHMENT, key))

    async def leave(self, attachment: Attachment) -> None:
        """See `AttachmentStore`."""
        if attachment.document_uid is None:
            return
        parameters = {
            "uid": attachment.document_uid,
            "user_id": attachment.user_id,
            "session_id": attachment.session_id,
        }
        await self._queries.fetch("leave_attachment", LEAVE, parameters)

    async def leftovers(self, user_ids: list[str]) -> list[Leftover]:
        """See `AttachmentStore`."""
        rows = await self._queries.fetch("leftovers", LEFTOVERS, {"user_ids": user_ids})
        return [Leftover(**row._mapping) for row in rows]

    async def forget_leftovers(self, document_uids: list[str]) -> None:
        """See `AttachmentStore`."""
        await self._queries.fetch("forget_leftovers", FORGET_LEFTOVERS, {"uids": document_uids})

    def _deletion_pending(self, session_id: str, user_id: str) -> bool:
        return self._pending.deletion((session_id, user_id)) is not None


def _key(attachment_id: str, user_id: str, session_id: str | None) -> dict[str, object]:
    return {"id": attachment_id, "user_id": user_id, "session_id": session_id}


def _attachment(row: AnyRow) -> Attachment:
    return Attachment(**row._mapping)
