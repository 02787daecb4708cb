"""Sessions as threads of LangGraph's clients: with the client's metadata, and a state."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, Protocol

from agentic_backend.errors import TooLarge
from agentic_backend.events import ChatMessage
from agentic_backend.session.models import Session, TurnRecord
from agentic_backend.session.past_exchanges import AWAITING
from backend_kit.wire import dumps

MAX_METADATA_BYTES: Final = 16 * 1024
"""Bytes of a thread's metadata as JSON: a list contains that of every thread."""

ThreadState = Literal["idle", "interrupted", "error"]
"""What the newest answer leaves: nothing to wait for, a question to a person, or a failure."""
SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
SortOrder = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Thread:
    """A session as a thread. `busy`: a turn runs in it, or waits to, at any instance; `session.agent_id` is then that
    of its agent. `state_at` is when its newest message was written, `created_at` where there is none (ISO 8601)."""

    session: Session
    metadata: dict[str, Any]
    created_at: str
    state_at: str
    state: ThreadState
    busy: bool

    @classmethod
    def new(cls, session: Session, metadata: dict[str, Any]) -> "Thread":
        """A thread that has just been created."""
        return cls(session, metadata, session.updated_at, session.updated_at, "idle", busy=False)

    @property
    def has_run(self) -> bool:
        """Whether a turn has begun in it."""
        return self.busy or self.session.next_rank > 0


@dataclass(frozen=True, slots=True)
class ThreadsWanted:
    """Which of a user's threads: those with all of `metadata`, of `ids` (None: of any), in the status `status` (None:
    in any; `busy` or a `ThreadState`).

    `agents` are, by key of the metadata, the agents from which its value follows: a thread in which a turn of one of
    them has run is found by the key, unless it has another value of its own.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    agents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ids: tuple[str, ...] | None = None
    status: str | None = None
    limit: int = 10
    offset: int = 0
    sort_by: SortBy = "updated_at"
    sort_order: SortOrder = "desc"


class ThreadStore(Protocol):
    """Reads and writes of threads. Every method may raise `HistoryUnavailable`; another user's thread is unknown."""

    async def get(self, session_id: str, user_id: str) -> Thread | None:
        """The thread including pending operations, or None."""

    async def create(
        self, session: Session, metadata: dict[str, Any], most: int = 0
    ) -> Literal["made", "there"] | None:
        """Store a new session with its metadata, as `SessionStore.create`. Raises `TooLarge`."""

    async def merge(self, session_id: str, user_id: str, metadata: dict[str, Any]) -> bool:
        """Set these keys of the metadata, and keep the others. False if the thread is unknown. Raises `TooLarge`."""

    async def search(self, user_id: str, wanted: ThreadsWanted) -> tuple[list[Thread], int]:
        """The threads, including pending operations, and how many there are without `limit` and `offset`."""

    async def count(self, user_id: str, wanted: ThreadsWanted) -> int:
        """How many there are without `limit` and `offset`."""

    async def copy(self, session_id: str, user_id: str, copy_id: str, most: int = 0) -> Literal["made", "there"] | None:
        """Store a copy of a thread, of its history, whose exchanges get ids of their own, and of its graphs' states, if
        the user has fewer than `most` (0: no limit), else None. Attachments and feedback stay with the original.

        Raises `SessionNotFound`, or `SessionBusy` while a turn runs in it.
        """


class LeftByTurn(NamedTuple):
    """The session after a turn, the state of its thread, and when its newest message was written (ISO 8601)."""

    session: Session
    state: ThreadState
    told_at: str


def left_by(record: TurnRecord) -> LeftByTurn:
    """The state in which a turn leaves its thread."""
    if not record.messages:
        return LeftByTurn(record.session, "idle", record.session.updated_at)
    newest = record.messages[-1]
    return LeftByTurn(record.session, _state_in(newest), newest.timestamp)


def _state_in(newest: ChatMessage) -> ThreadState:
    # This is asked of each turn that ends. Most have neither word, and need not be decoded.
    if b'"error"' not in newest.json and AWAITING.encode() not in newest.json:
        return "idle"
    extras = newest.metadata.get("extras")
    if isinstance(extras, dict):
        if extras.get("status") == AWAITING:
            return "interrupted"
        if extras.get("error") is not None:
            return "error"
    return "idle"


def expect_fitting(metadata: dict[str, Any]) -> None:
    """Raise `TooLarge` for metadata above 16 KiB, with numbers as storage writes them: without exponents."""
    written_out = sum(len(f"{Decimal(repr(number)):f}") for number in _floats(metadata))
    if len(dumps(metadata)) + written_out > MAX_METADATA_BYTES:
        raise TooLarge(field="metadata")


def _floats(value: Any) -> Iterator[float]:
    """The numbers that have an exponent."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _floats(item)
    elif isinstance(value, float) and "e" in repr(value):
        yield value
