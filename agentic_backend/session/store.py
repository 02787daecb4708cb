"""The ports through which turns reach storage. `persist` implements them; only `app` wires the two."""

from typing import Any, Final, Protocol

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


class SessionStore(Protocol):
    """Reads and small writes of sessions. Every method may raise `HistoryUnavailable`; none waits over 2 s for a slot.

    `user_id` is part of every look-up: another user's session is an unknown one.
    """

    async def create(self, session: Session, most: int = 0) -> bool:
        """Store a new session where the user has fewer than `most` (0: any number). True once it is committed."""

    async def get(self, session_id: str, user_id: str) -> Session | None:
        """The session, with what is still on its way to the database, or None."""

    async def touch(self, session_id: str, user_id: str) -> bool:
        """Store that a session is used again after a long time, so that no retention takes it. False: it is gone."""

    async def list_for(self, user_id: str, wanted: SessionsWanted = ALL_SESSIONS) -> list[Session]:
        """The user's sessions, newest first, in one query, what is on its way included."""

    async def delete(self, session_id: str, user_id: str) -> bool:
        """Delete the session and all that hangs on it, in order after its turns. False where it is unknown."""

    async def history(self, session_id: str, user_id: str, window: HistoryWindow) -> list[bytes]:
        """Encoded ChatMessages of the window, ascending rank, pending ones included."""

    async def message(self, session_id: str, user_id: str, rank: int) -> bytes | None:
        """One encoded ChatMessage, or None."""

    async def remembered(self, session_id: str, user_id: str, max_exchanges: int) -> list[Remembered]:
        """User texts and answers of the last exchanges, oldest first: what an agent is reminded of."""

    async def exchange_ids(self, session_id: str, user_id: str, most: int) -> set[str]:
        """Ids of the session's exchanges, pending ones included; where there are more than `most`, any so many."""

    async def exchange(self, session_id: str, user_id: str, exchange_id: str) -> list[bytes]:
        """Encoded ChatMessages of one exchange, ascending rank, pending ones included; none where it is unknown.

        Raises `StorageFull` where it has ended and nothing stands behind it yet (`TurnLog.append`).
        """

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
