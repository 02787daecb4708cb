"""The ports through which turns reach storage. `persist` implements them; only `app` wires the two."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, get_args

from agentic_backend.errors import SessionNotFound
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.branches import Standing
from agentic_backend.session.models import (
    AskRecord,
    Durability,
    HistoryPage,
    HistoryWindow,
    Session,
    SessionsWanted,
    TurnRecord,
)
from agentic_backend.session.stream import Turn
from backend_kit.auth import AuditEvent

ALL_SESSIONS: Final = SessionsWanted()


class TurnStore(Protocol):
    """What a turn reads from its session. Every method may raise `HistoryUnavailable`; none waits over 2 s for a
    connection.

    `user_id` is part of every look-up: another user's session counts as unknown.
    """

    async def get(self, session_id: str, user_id: str) -> Session | None:
        """The session including pending operations, or None."""

    async def touch(self, session_id: str, user_id: str) -> bool:
        """Store that a session is used again after a long time, so that retention keeps it. False if it is gone."""

    async def remembered(
        self, session_id: str, user_id: str, max_exchanges: int, up_to: int | None = None
    ) -> list[HistoryItem]:
        """User texts and answers of the last exchanges of the live line, oldest first, as context for an agent. With
        `up_to`, the rank of a message of that line, those up to there."""

    async def newest_checkpoint(self, session_id: str, user_id: str, agent_id: str, up_to: int | None = None) -> str:
        """The newest checkpoint that an answer of the agent names (`models.checkpoint_of`), however long ago, pending
        ones included, on the live line or the line that ends at `up_to`; "" if none does. Reads the session back to
        there, all of it if none does."""

    async def standing(self, session_id: str, user_id: str, rank: int) -> Standing | None:
        """How the message of a rank stands in the session, pending ones included; None if there is no such message."""

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        """Ids of the session's exchanges, pending ones included; an arbitrary `most` of them if it has more."""

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        """Encoded ChatMessages of one exchange, ascending rank, pending ones included; none if it is unknown.

        Raises `StorageFull` if it has ended but is not durable yet (`TurnLog.append`).
        """


class SessionStore(TurnStore, Protocol):
    """All reads and small writes of sessions, which raise as those of `TurnStore`."""

    async def create(self, session: Session, most: int = 0) -> Literal["made", "there"] | None:
        """Store a new session if the user has fewer than `most` (0: no limit), else None; returns once it is committed.

        `there`: a session of this id was there before, which may be another user's.
        """

    async def list_for(self, user_id: str, wanted: SessionsWanted = ALL_SESSIONS) -> list[Session]:
        """The user's sessions including pending operations, newest first, in one query."""

    async def delete(self, session_id: str, user_id: str, event: AuditEvent | None = None) -> bool:
        """Delete the session and all that belongs to it, in order after its turns, and store the event of it. False if
        it is unknown."""

    def pages(self, session_id: str, user_id: str, window: HistoryWindow) -> AsyncIterator[HistoryPage]:
        """The messages of the window, ascending rank, pending ones included. Nothing is held between two pages.

        Without `window.branches` the live line: what a later exchange has superseded is left out.
        """

    def message(
        self, session_id: str, user_id: str, rank: int, text: HistoryWindow | None = None
    ) -> AsyncIterator[bytes]:
        """One encoded ChatMessage, in pieces; no piece if it does not exist. With `text` each of its texts is cut to
        that window of characters, counted from the first. A superseded one names the exchange that superseded it."""

    async def change(
        self,
        session_id: str,
        user_id: str,
        *,
        title: str | None = None,
        preferences: dict[str, Any] | None = None,
        pinned: bool | None = None,
        by_person: bool = False,
    ) -> Session | None:
        """Set title, preferences, the pin, or several, in order among the session's turns; returns the changed session.

        None if it is unknown. No later turn overwrites any, and a title `by_person` no later title that is not. What a
        person changes so leaves `updated_at` as it was. May raise `StorageFull`.
        """


async def load_owned(store: TurnStore, session_id: str, user_id: str) -> Session:
    """The session, if it is this user's. Raises `SessionNotFound` for an unknown one and for another user's alike.

    May also raise `HistoryUnavailable`. What belongs to a session (messages, exchanges, attachments, feedback) is
    always looked up by user as well, whether or not this function was called before.
    """
    session = await store.get(session_id, user_id)
    if session is None:
        raise SessionNotFound
    return session


async def newest_message(store: SessionStore, session_id: str, user_id: str) -> bytes | None:
    """The encoded ChatMessage of the highest rank; None without one, or where it is large: no question to a person is.

    May raise `HistoryUnavailable`.
    """
    async for page in store.pages(session_id, user_id, HistoryWindow(1)):
        return page.messages[-1] if page.messages else None
    return None


class HeldElsewhere(Exception):
    """Another instance runs a turn of the session: that of `exchange_id`."""

    def __init__(self, exchange_id: str) -> None:
        super().__init__("another instance runs a turn of the session")
        self.exchange_id = exchange_id


class LeaseLost(Exception):
    """Another instance has the session, or may have it: this one may do nothing more for the turn."""


class SessionAwaited(Exception):
    """A turn that was taken over must run in the session before this one, which waits for the session's lease."""


class Lease(Protocol):
    """The right of this instance to run turns of a session. Whatever is written under it carries `fence`."""

    @property
    def fence(self) -> int:
        """A number that grows whenever another instance gets the session: writes with an older one are refused."""

    @property
    def fresh(self) -> bool:
        """Whether no other instance has had it since this one read the session."""

    @property
    def term(self) -> int:
        """How often this instance had lost all its leases when it got this one."""


class Leases(Protocol):
    """Decides which instance runs turns of a session, if several share the database. A lease stays with its holder
    between turns."""

    async def acquire(self, session_id: str, user_id: str) -> Lease:
        """Take the session, if this instance does not have it.

        The caller must ensure that this instance runs one turn of a session at a time. Raises `HeldElsewhere` while
        another one runs a turn of it, `SessionRecovering`, `SessionNotFound`, or `HistoryUnavailable`.
        """

    async def record(self, lease: Lease, record: AskRecord) -> None:
        """Store the question of a turn that begins, so that another instance can go on with it if this one dies.

        Raises `LeaseLost` if another instance has the session by now: then nothing that was remembered of it is valid.
        Raises `HistoryUnavailable`. If it raises or is cancelled, the question is withdrawn.
        """

    def withdraw(self, fence: int, key: tuple[str, str], exchange_id: str) -> None:
        """Take back the question of a turn that will not run under its lease. Never waits, never raises."""

    def expect_valid(self, lease: Lease) -> None:
        """Raise `LeaseLost` if other instances may have taken what runs under a lease, even if this one has renewed
        since. It only reads a clock."""


@dataclass(frozen=True, slots=True)
class NewestElsewhere:
    """What another instance runs in a session now (`exchange_id`, None: nothing), and the rank of its next message."""

    session_id: str
    user_id: str
    exchange_id: str | None
    next_rank: int


class Elsewhere(Protocol):
    """The turns that other instances run."""

    async def mirror(self, turn: Turn) -> bool:
        """Publish the events of the turn's exchange, from its last number on, as the instance that has it does. If its
        user has stopped it here, it is stopped there.

        Returns after its end, or when nobody follows it any more: True; or False if none has it: its end is in history,
        or there is no such exchange. Raises `HistoryUnavailable`, or `StorageFull` where its end waits for Postgres.
        """

    async def find(self, exchange_id: str, user_id: str) -> AskRecord | None:
        """What another instance runs now under this id; None if none does. Raises `HistoryUnavailable`."""

    async def newest(self, sessions: Sequence[tuple[str, str]]) -> Sequence[NewestElsewhere]:
        """Of these sessions (session id, user id) those whose last turn another instance has, or had. Raises
        `HistoryUnavailable`."""

    async def stop(self, exchange_id: str, user_id: str) -> bool:
        """Cancel an exchange that another instance runs; False if none does. Raises `HistoryUnavailable`."""

    async def forget(self, session_id: str, user_id: str) -> None:
        """Have all others stop the session's turns and drop its state; waits a while for a turn that runs."""

    async def has_takers(self) -> bool:
        """Whether another instance would continue what this one leaves. Never raises."""

    async def hand_over(self, session_id: str, user_id: str, exchange_id: str) -> None:
        """Have another instance continue a turn that this one has released. Never raises: if it fails, others find the
        turn when this instance has left."""

    async def publish_change(self, session_id: str, user_id: str) -> None:
        """Have all instances take over a title or preferences that were stored: a read after this, at any instance,
        finds them. Never raises; on a failure the others may learn of it late."""


class TurnLog(Protocol):
    """Takes finished turns. Fire-and-forget for the turn: no method waits for Postgres unless `ack` is `db`."""

    def has_room(self) -> bool:
        """False when a new turn must be refused with `storage_full` before the model is called."""

    def begin(self, record: AskRecord) -> None:
        """Note that a turn has begun. Never waits, never raises."""

    async def append(self, record: TurnRecord) -> Durability:
        """Hand over a finished turn; returns how durable it is by then.

        Raises `StorageFull` if it is not durable in time: then it must not be reported as `final`, but it is kept
        and storing it is still attempted. Raises `LeaseLost` if another instance has the session by now.
        """


class CutOffTurns(Protocol):
    """Turns that an earlier process had begun and not ended, and that the service may restart."""

    def take_over(self) -> Sequence[AskRecord]:
        """Those that this process found, in the order in which they had begun; a second call finds none.

        Each must be ended by `TurnLog.append`, or by `give_up` or `drop`.
        """

    def has_room(self) -> bool:
        """As that of `TurnLog`."""

    async def begin_again(self, record: AskRecord) -> AskRecord:
        """Count one more run, on the disk before this returns: if it kills the process, the next one knows.

        Returns the record with the count. Raises `StorageFull` if the disk does not take it within 5 s.
        """

    def give_up(self, record: TurnRecord) -> None:
        """Store what an interrupted turn is without another run. Never waits, never raises."""

    def drop(self, record: AskRecord) -> None:
        """Forget one that has ended after all, if it is there. Never waits, never raises."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A user's rating of one message, 1 to 5. `message_id` is its rank, or the exchange whose answer it is; `reason`
    one of a short list, by its name; `created_at` ISO 8601."""

    id: str
    session_id: str
    user_id: str
    message_id: str
    agent_name: str
    rating: int
    reason: str | None
    comment: str | None
    created_at: str

    def wire(self) -> dict[str, Any]:
        """The feedback as JSON-ready dict."""
        return {
            "id": self.id,
            "rating": self.rating,
            "reason": self.reason,
            "comment": self.comment,
            "messageId": self.message_id,
            "sessionId": self.session_id,
            "agentName": self.agent_name,
            "createdAt": self.created_at,
        }


@dataclass(frozen=True, slots=True)
class ReadFeedback:
    """Feedback as operators read it: without its author. `exchange_id` is None while the rated message is not
    stored."""

    id: str
    agent_name: str
    rating: int
    reason: str | None
    comment: str | None
    exchange_id: str | None
    created_at: str

    def wire(self) -> dict[str, Any]:
        """The feedback as JSON-ready dict."""
        return {
            "id": self.id,
            "rating": self.rating,
            "reason": self.reason,
            "comment": self.comment,
            "exchangeId": self.exchange_id,
            "agentName": self.agent_name,
            "createdAt": self.created_at,
        }


@dataclass(frozen=True, slots=True)
class FeedbackWanted:
    """Which feedback to read: of one agent, or with one rating, or all; `limit` after the `offset` newest."""

    agent_name: str | None
    rating: int | None
    limit: int
    offset: int


FeedbackVerdict = Literal["kept", "no_session", "no_message"]


class FeedbackStore(Protocol):
    """Feedback of users on their own sessions, deleted with them. Each method may raise `HistoryUnavailable`."""

    async def put(self, feedback: Feedback) -> FeedbackVerdict:
        """Store it, replacing an earlier one of the same message: only of a message that there is, pending or stored,
        in a session of the user's."""

    async def of_user(self, user_id: str, session_id: str | None, limit: int, offset: int) -> list[Feedback]:
        """The user's, newest first, of one session or all."""

    async def of_everybody(self, wanted: FeedbackWanted) -> list[ReadFeedback]:
        """That of all users, newest first."""

    async def delete(self, feedback_id: str, user_id: str) -> bool:
        """Delete one of the user's. False if it does not exist."""


Precision = Literal["sec", "min", "minute", "hour", "day", "month"]
Field = Literal["latency_ms", "input_tokens", "output_tokens", "total_tokens"]
Operation = Literal["count", "sum", "avg", "min", "max", "p50", "p95"]
Group = Literal["agent_id", "model", "finish_reason"]

FIELDS: Final[tuple[Field, ...]] = get_args(Field)
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
SECONDS: Final[dict[Precision, int]] = {
    "sec": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86_400, "month": 31 * 86_400
}  # fmt: skip
"""The longest that one step lasts."""


@dataclass(frozen=True, slots=True)
class ConversationTotals:
    """Counts of a user's stored sessions, of the agents in them, and of their attachments."""

    sessions_total: int
    agents_active_total: int
    attachments_total: int
    attachments_sessions: int
    max_attachments_per_session: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The answers of one time step in one group. `values` is keyed by (field, operation)."""

    at: str
    group: dict[Group, str | None]
    values: dict[tuple[Field, Operation], float | None]


UsedBy = Literal["day", "agent_id", "model", "user_id"]


@dataclass(frozen=True, slots=True)
class UsedFor:
    """What the answers of one day, agent, model or person used (`by`; None: all of them), `name` that of which: of a
    day its number from 1, None where the answers do not say it. `cost` is in the currency of the price table."""

    by: UsedBy | None
    name: str | None = None
    turns: int = 0
    input_tokens: float = 0
    output_tokens: float = 0
    cost: float = 0.0


class ChatFigures(Protocol):
    """Figures over committed data. Every method may raise `HistoryUnavailable`."""

    async def summary(self, user_id: str) -> ConversationTotals:
        """The user's sessions, agents and attachments."""

    async def buckets(
        self, user_id: str, start: datetime, end: datetime, precision: Precision, groups: Sequence[Group], limit: int
    ) -> list[Bucket]:
        """The user's answers from `start` on and before `end`, by steps of time (UTC) and groups, the earliest first.

        At most `limit` of them. Steps without an answer are left out.
        """

    async def usage(self, user_id: str | None, edges: Sequence[datetime], limit: int) -> list[UsedFor]:
        """What the user's answers used, None: those of everybody, from the first of the `edges` on and before the last.

        All together, by day (from one edge to the next, in their order), and by agent, model and person: at most
        `limit` of each, those with most answers first. What Postgres has: no deleted conversation, no failed turn.
        """
