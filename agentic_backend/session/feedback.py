"""What users say of answers, and the port through which it is stored."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Feedback:
    """A user's rating of one message, 1 to 5. `message_id` is the client's own name for it; `created_at` ISO 8601."""

    id: str
    session_id: str
    user_id: str
    message_id: str
    agent_name: str
    rating: int
    comment: str | None
    created_at: str

    def wire(self) -> dict[str, Any]:
        """As it stands in an answer."""
        return {
            "id": self.id,
            "rating": self.rating,
            "comment": self.comment,
            "messageId": self.message_id,
            "sessionId": self.session_id,
            "agentName": self.agent_name,
            "createdAt": self.created_at,
        }


class FeedbackStore(Protocol):
    """Feedback of users on their own sessions; it goes with its session. Each method may raise `HistoryUnavailable`."""

    async def put(self, feedback: Feedback) -> bool:
        """Store it, in the place of an earlier one of the same message. False where the session is not the user's."""

    async def of_user(self, user_id: str, session_id: str | None, limit: int, offset: int) -> list[Feedback]:
        """The user's, newest first, of one session or all."""

    async def delete(self, feedback_id: str, user_id: str) -> bool:
        """Delete one of the user's. False where there is none."""
