"""Feedback in Postgres. Only its author waits for it, so it is written immediately and not through the spool."""

from typing import Final

from sqlalchemy import text

from agentic_backend.persist.queries import Queries
from agentic_backend.session.store import Feedback
from agentic_backend.spool.pending import Pending

# Locking the session's row keeps it from being deleted before the feedback is stored.
PUT_FEEDBACK: Final = text("""
INSERT INTO feedbacks (id, session_id, message_id, user_id, agent_name, rating, comment, created_at)
SELECT :id, session_id, :message_id, user_id, :agent_name, :rating, :comment, CAST(:created_at AS timestamptz)
FROM session WHERE session_id = :session_id AND user_id = :user_id FOR KEY SHARE
ON CONFLICT (session_id, user_id, message_id) DO UPDATE SET agent_name = excluded.agent_name,
    rating = excluded.rating, comment = excluded.comment, created_at = excluded.created_at
RETURNING id
""")

LIST_FEEDBACK: Final = text("""
SELECT id, session_id, user_id, message_id, agent_name, rating, comment,
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
FROM feedbacks WHERE user_id = :user_id AND session_id = coalesce(CAST(:session_id AS text), session_id)
    AND session_id <> ALL(:deleted)
ORDER BY feedbacks.created_at DESC, id LIMIT :limit OFFSET :offset
""")

DELETE_FEEDBACK: Final = text("DELETE FROM feedbacks WHERE id = :id AND user_id = :user_id RETURNING id")


class PostgresFeedback:
    """Implements `FeedbackStore`."""

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def put(self, feedback: Feedback) -> bool:
        """See `FeedbackStore`."""
        if self._pending.deletion((feedback.session_id, feedback.user_id)) is not None:
            return False
        parameters = {name: getattr(feedback, name) for name in Feedback.__slots__}
        return bool(await self._queries.fetch("put_feedback", PUT_FEEDBACK, parameters))

    async def of_user(self, user_id: str, session_id: str | None, limit: int, offset: int) -> list[Feedback]:
        """See `FeedbackStore`."""
        _, deleted = self._pending.of_user(user_id)
        parameters = {
            "user_id": user_id,
            "session_id": session_id,
            "deleted": sorted(deleted),
            "limit": limit,
            "offset": offset,
        }
        rows = await self._queries.fetch("list_feedback", LIST_FEEDBACK, parameters)
        return [Feedback(**row._mapping) for row in rows]

    async def delete(self, feedback_id: str, user_id: str) -> bool:
        """See `FeedbackStore`."""
        return bool(
            await self._queries.fetch("delete_feedback", DELETE_FEEDBACK, {"id": feedback_id, "user_id": user_id})
        )
