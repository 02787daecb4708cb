"""Deleting attachments: documents of one session, which nobody but their owner sees or deletes."""

from sqlalchemy import text

from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.library.store import Statements

# Contents and chunks go with the document (ON DELETE CASCADE).
_DELETE = text(
    """DELETE FROM documents WHERE uid = :uid AND owner_id = :user AND session_id IS NOT NULL
    AND session_id = coalesce(CAST(:session AS text), session_id) RETURNING uid"""
)
_DELETE_SESSION = text("DELETE FROM documents WHERE session_id = :session AND owner_id = :user RETURNING uid")


class Attachments:
    """Both methods raise `IndexUnavailable` where Postgres is away."""

    def __init__(self, database: IndexDatabase) -> None:
        self._statements = Statements(database)

    async def delete(self, reader: Reader, uid: str, session_id: str | None) -> bool:
        """Delete one of the reader's own; False where it is not there, another's, or of another session."""
        values = {"uid": uid, "user": reader.user_id, "session": session_id}
        return bool(await self._statements.rows("delete_attachment", _DELETE, values))

    async def delete_session(self, reader: Reader, session_id: str) -> int:
        """Delete all that the reader has in a session; returns how many."""
        values = {"user": reader.user_id, "session": session_id}
        return len(await self._statements.rows("delete_attachments", _DELETE_SESSION, values))
