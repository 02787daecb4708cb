"""Feedback in Postgres. Only its author waits for it, so it is written immediately and not through the spool."""

from typing import Final

from sqlalchemy import text

from agentic_backend.events import ChatMessage
from agentic_backend.persist.database import Queries
from agentic_backend.session.store import Feedback, FeedbackVerdict, FeedbackWanted, ReadFeedback
from agentic_backend.spool.pending import Pending

_MAX_RANK_DIGITS: Final = 10

# Locking the session's row keeps it from being deleted before the feedback is stored. A message is named by its rank,
# an answer by its exchange too: what was given under the `other` name is replaced. A pending one names itself.
PUT_FEEDBACK: Final = text("""
WITH own AS MATERIALIZED (
    SELECT session_id, user_id FROM session WHERE session_id = :session_id AND user_id = :user_id FOR KEY SHARE
), named AS MATERIALIZED (
    SELECT CAST(:other AS text) AS other WHERE CAST(:pending AS boolean)
    UNION ALL
    SELECT CASE WHEN h.role = 'assistant' AND h.channel = 'final' THEN h.exchange_id END
    FROM own JOIN session_history AS h USING (session_id, user_id)
    WHERE NOT CAST(:pending AS boolean) AND h.rank = CAST(:rank AS integer)
    UNION ALL
    SELECT answer.rank::text FROM own JOIN session_history AS question USING (session_id, user_id), LATERAL (
        SELECT rank FROM session_history AS h
        WHERE (h.session_id, h.user_id, h.exchange_id) = (own.session_id, own.user_id, question.exchange_id)
            AND h.role = 'assistant' AND h.channel = 'final' AND h.rank > question.rank ORDER BY rank LIMIT 1) AS answer
    WHERE NOT CAST(:pending AS boolean) AND question.exchange_id = :message_id
        AND question.role = 'user' AND question.channel = 'final'
), replaced AS (
    DELETE FROM feedbacks AS f USING own, named
    WHERE (f.session_id, f.user_id, f.message_id) = (own.session_id, own.user_id, named.other)
), kept AS (
    INSERT INTO feedbacks (id, session_id, message_id, user_id, agent_name, rating, reason, comment, created_at)
    SELECT :id, session_id, :message_id, user_id, :agent_name, :rating, :reason, :comment,
        CAST(:created_at AS timestamptz)
    FROM own WHERE EXISTS (SELECT FROM named)
    ON CONFLICT (session_id, user_id, message_id) DO UPDATE SET agent_name = excluded.agent_name,
        rating = excluded.rating, reason = excluded.reason, comment = excluded.comment,
        created_at = excluded.created_at
    RETURNING id
)
SELECT EXISTS (SELECT FROM own) AS owned, EXISTS (SELECT FROM kept) AS kept
""")

LIST_FEEDBACK: Final = text("""
SELECT id, session_id, user_id, message_id, agent_name, rating, reason, comment,
    to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
FROM feedbacks WHERE user_id = :user_id AND session_id = coalesce(CAST(:session_id AS text), session_id)
    AND session_id <> ALL(:deleted)
ORDER BY feedbacks.created_at DESC, id LIMIT :limit OFFSET :offset
""")

# A message that is named by its rank gets its exchange from history, where it is stored by now.
READ_FEEDBACK: Final = text("""
SELECT f.id, f.agent_name, f.rating, f.reason, f.comment,
    CASE WHEN f.rank IS NULL THEN f.message_id ELSE h.exchange_id END AS exchange_id,
    to_char(f.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
FROM (
    SELECT *, CASE WHEN message_id ~ '^(0|[1-9][0-9]{0,8})$' THEN message_id::integer END AS rank FROM feedbacks
    WHERE agent_name = coalesce(CAST(:agent AS text), agent_name)
        AND rating = coalesce(CAST(:rating AS smallint), rating) AND session_id <> ALL(:deleted)
    ORDER BY feedbacks.created_at DESC, id LIMIT :limit OFFSET :offset
) AS f LEFT JOIN session_history AS h ON (h.session_id, h.user_id, h.rank) = (f.session_id, f.user_id, f.rank)
ORDER BY f.created_at DESC, f.id
""")

DELETE_FEEDBACK: Final = text("DELETE FROM feedbacks WHERE id = :id AND user_id = :user_id RETURNING id")


class PostgresFeedback:
    """Implements `FeedbackStore`."""

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def put(self, feedback: Feedback) -> FeedbackVerdict:
        """See `FeedbackStore`."""
        key = (feedback.session_id, feedback.user_id)
        if self._pending.deletion(key) is not None:
            return "no_session"
        rank = _rank(feedback.message_id)
        waiting = [one for one in await self._pending.messages(key) if _is_named(one, rank, feedback.message_id)]
        other = None
        if waiting and _is_answer(waiting[0]):
            other = str(waiting[0].rank) if rank is None else waiting[0].exchange_id
        parameters = {name: getattr(feedback, name) for name in Feedback.__slots__}
        parameters |= {"rank": rank, "pending": bool(waiting), "other": other}
        (row,) = await self._queries.fetch("put_feedback", PUT_FEEDBACK, parameters)
        if not row.owned:
            return "no_session"
        return "kept" if row.kept else "no_message"

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

    async def of_everybody(self, wanted: FeedbackWanted) -> list[ReadFeedback]:
        """See `FeedbackStore`."""
        parameters = {
            "agent": wanted.agent_name,
            "rating": wanted.rating,
            "deleted": sorted({session_id for session_id, _ in self._pending.deletions()}),
            "limit": wanted.limit,
            "offset": wanted.offset,
        }
        rows = await self._queries.fetch("read_feedback", READ_FEEDBACK, parameters)
        return [ReadFeedback(**row._mapping) for row in rows]

    async def delete(self, feedback_id: str, user_id: str) -> bool:
        """See `FeedbackStore`."""
        return bool(
            await self._queries.fetch("delete_feedback", DELETE_FEEDBACK, {"id": feedback_id, "user_id": user_id})
        )


def _rank(message_id: str) -> int | None:
    """The rank that a message is named by, None for another name."""
    if not (message_id.isascii() and message_id.isdecimal() and len(message_id) <= _MAX_RANK_DIGITS):
        return None
    rank = int(message_id)
    return rank if str(rank) == message_id and rank < 2**31 else None


def _is_answer(message: ChatMessage) -> bool:
    return (message.role, message.channel) == ("assistant", "final")


def _is_named(message: ChatMessage, rank: int | None, message_id: str) -> bool:
    return message.rank == rank or (message.exchange_id == message_id and _is_answer(message))
