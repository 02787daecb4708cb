"""The ports through which turns reach storage. `persist` implements them; only `app` wires the two."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, get_args

from agentic_backend.errors import SessionNotFound
from agentic_backend.session.models import (
    AskRecord,
    Durability,
    HistoryWindow,
    Remembered,
    Session,
    SessionsWanted,
    TurnRecord,
)

ALL_SESSIONS: Final = SessionsWanted()


class TurnStore(Protocol):
    """What a turn reads of its session. Every method may raise `HistoryUnavailable`; none waits over 2 s for a slot.

    `user_id` is part of every look-up: another user's session is an unknown one.
    """

    async def get(self, session_id: str, user_id: str) -> Session | None:
        """The session, with what is still on its way to the database, or None."""

    async def touch(self, session_id: str, user_id: str) -> bool:
        """Store that a session is used again after a long time, so that no retention takes it. False: it is gone."""

    async def remembered(self, session_id: str, user_id: str, max_exchanges: int) -> list[Remembered]:
        """User texts and answers of the last exchanges, oldest first: what an agent is reminded of."""

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        """Ids of the session's exchanges, pending ones included; where there are more than `most`, any so many."""

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        """Encoded ChatMessages of one exchange, ascending rank, pending ones included; none where it is unknown.

        Raises `StorageFull` where it has ended and nothing stands behind it yet (`TurnLog.append`).
        """


class SessionStore(TurnStore, Protocol):
    """The same, with the other reads and the small writes of sessions, which raise as those do."""

    async def create(self, session: Session, most: int = 0) -> bool:
        """Store a new session where the user has fewer than `most` (0: any number). True once it is committed."""

    async def list_for(self, user_id: str, wanted: SessionsWanted = ALL_SESSIONS) -> list[Session]:
        """The user's sessions, newest first, in one query, what is on its way included."""

    async def delete(self, session_id: str, user_id: str) -> bool:
        """Delete the session and all that hangs on it, in order after its turns. False where it is unknown."""

    async def history(self, session_id: str, user_id: str, window: HistoryWindow) -> list[bytes]:
        """Encoded ChatMessages of the window, ascending rank, pending ones included."""

    async def message(self, session_id: str, user_id: str, rank: int) -> bytes | None:
        """One encoded ChatMessage, or None."""

    async def change(
        self,
        session_id: str,
        user_id: str,
        *,
        title: str | None = None,
        preferences: dict[str, Any] | None = None,
    ) -> Session | None:
        """Set the title, the preferences or both, in order among the session's turns; the session after it.

        None where it is unknown. No later turn overwrites either. May raise `StorageFull`.
        """


async def load_owned(store: TurnStore, session_id: str, user_id: str) -> Session:
    """The session, where it is this user's. Raises `SessionNotFound`: another's is answered as one that is not there.

    May raise `HistoryUnavailable` too, for either. What hangs on a session (messages, exchanges, attachments, feedback)
    is looked up by user as well, whether this was asked before or not.
    """
    session = await store.get(session_id, user_id)
    if session is None:
        raise SessionNotFound
    return session


class Lease(Protocol):
    """The right of this instance to run a turn of a session. `fence` goes with what is written under it."""

    @property
    def fence(self) -> int:
        """Grows whenever another instance gets the session: what is written under an older one is refused."""

    async def release(self) -> None:
        """Let other instances run turns of the session. Never raises; a second call does nothing."""


class Leases(Protocol):
    """Which instance runs turns of a session, where several share the database."""

    async def acquire(self, session_id: str, user_id: str) -> Lease:
        """Take the session for one turn. What is read of it from now on stays true until the release.

        Raises `SessionBusy` where another instance has it, `SessionNotFound`, or `HistoryUnavailable`. Where it is
        cancelled nothing is held.
        """


class TurnLog(Protocol):
    """Where finished turns go. Fire-and-forget for the turn: no method waits for Postgres unless ack is `db`."""

    def has_room(self) -> bool:
        """False when a new turn must be refused with `storage_full` before the model is called."""

    def begin(self, record: AskRecord) -> None:
        """Note that a turn has begun. Never waits, never raises."""

    async def append(self, record: TurnRecord) -> Durability:
        """Hand over a finished turn; says what stands behind it when it returns.

        Raises `StorageFull` where nothing does within 5 s: it may not be called a `final` then, but is still kept and
        tried on.
        """


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


Precision = Literal["sec", "min", "hour", "day"]
Field = Literal["latency_ms", "input_tokens", "output_tokens", "total_tokens"]
Operation = Literal["count", "sum", "avg", "min", "max", "p50", "p95"]
Group = Literal["agent_id", "model", "finish_reason"]

FIELDS: Final[tuple[Field, ...]] = get_args(Field)
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
SECONDS: Final[dict[Precision, int]] = {"sec": 1, "min": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class ConversationTotals:
    """How much there is of it. Sessions and agents are those of stored sessions, attachments those of them."""

    sessions_total: int
    agents_active_total: int
    attachments_total: int
    attachments_sessions: int
    max_attachments_per_session: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The answers that began their step of time in one group. `values` is keyed by (field, operation)."""

    at: str
    group: dict[Group, str | None]
    values: dict[tuple[Field, Operation], float | None]


class ChatFigures(Protocol):
    """Counts in what is committed. Every method may raise `HistoryUnavailable`."""

    async def summary(self, user_id: str) -> ConversationTotals:
        """The user's sessions, agents and attachments."""

    async def buckets(
        self, user_id: str, start: datetime, end: datetime, precision: Precision, groups: Sequence[Group], limit: int
    ) -> list[Bucket]:
        """The user's answers from `start` on and before `end`, by steps of time (UTC) and groups, the earliest first.

        At most `limit` of them. Steps without an answer are left out.
        """
