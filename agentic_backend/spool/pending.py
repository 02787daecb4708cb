"""Operations that are not committed yet: the batcher's queue, and what readers see on top of Postgres."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.events import ChatMessage
from agentic_backend.session.branches import Fork, forks_in, line_forks, line_of
from agentic_backend.session.models import Session, TurnRecord
from agentic_backend.session.threads import ThreadState, left_by
from agentic_backend.spool.spoolrows import Kind, Row
from backend_kit.auth import AuditEvent
from backend_kit.wire import dumps, loads

Key = tuple[str, str]
"""(session id, user id): different users have different keys, so nobody sees or hides another user's sessions."""

RANK_LIMIT: Final = 2**31 - 1

ReadRows = Callable[[list[int]], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Change:
    """A title, preferences, a pin, or several of these, set outside a turn.

    A title that a person gave (`named`) takes precedence over one that is not.
    """

    key: Key
    updated_at: str
    title: str | None = None
    preferences: dict[str, Any] | None = None
    pinned: bool | None = None
    named: bool | None = None

    def encode(self) -> bytes:
        """Shape: `{"op":"change","schema":1,"session_id":…,"user_id":…,"updated_at":…,"data":{…},"marks":{…}}`; older
        programs pass over the marks."""
        data = {"title": self.title, "preferences": self.preferences}
        marks = {"pinned": self.pinned, "named": self.named}
        return dumps(
            {
                "op": "change",
                "schema": 1,
                "session_id": self.key[0],
                "user_id": self.key[1],
                "updated_at": self.updated_at,
                "data": {name: value for name, value in data.items() if value is not None},
                "marks": {name: value for name, value in marks.items() if value is not None},
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> "Change":
        """The reverse of `encode`."""
        fields = loads(body)
        given = {**fields["data"], **fields.get("marks", {})}
        return cls((fields["session_id"], fields["user_id"]), fields["updated_at"], **given)

    def of(self, session: Session) -> Session:
        """The session with this change."""
        gives_way = self.title is None or (session.named and not self.named)
        return replace(
            session,
            title=session.title if gives_way else self.title or "",
            preferences=session.preferences if self.preferences is None else self.preferences,
            pinned=session.pinned if self.pinned is None else self.pinned,
            named=session.named if self.named is None else self.named,
            # Both in one format and zone, so that they sort as text.
            updated_at=max(session.updated_at, self.updated_at),
        )


@dataclass(slots=True, eq=False)
class Op:
    """A pending operation. `body` is None if only the spool has it.

    `id` is its number in the spool, 0 without one; `size` the bytes of its body; `at` perf_counter() when it was
    enqueued. `after` is the session as a turn leaves it, if known, `state` that of its thread, and `told_at` when its
    newest message was written; `change` the content of a change. `committed` is
    set by the commit to whether it found its session, or to False if it was given up; `on_disk` is done once the spool
    has it. Without `committed`, nobody waits for either. `refused_as` says why Postgres will never have it.
    """

    kind: Kind
    key: Key
    exchange_id: str
    size: int
    body: bytes | None
    after: Session | None = None
    state: ThreadState = "idle"
    told_at: str = ""
    change: Change | None = None
    id: int = 0
    at: float = field(default_factory=time.perf_counter)
    committed: "asyncio.Future[bool] | None" = None
    on_disk: "asyncio.Future[None] | None" = None
    found: bool = False
    refused_as: str = ""

    @classmethod
    def turn(cls, record: TurnRecord) -> "Op":
        """A finished turn."""
        body = record.encode()
        session = record.session
        return cls("turn", (session.id, session.user_id), record.exchange_id, len(body), body, *left_by(record))

    @classmethod
    def delete(cls, key: Key, event: AuditEvent | None = None) -> "Op":
        """The delete of a session. The event goes with it, so that neither outlives a crash without the other."""
        told = {} if event is None else {"audit": event.json()}
        body = dumps({"op": "delete", "schema": 1, "session_id": key[0], "user_id": key[1], **told})
        return cls("delete", key, "", len(body), body)

    @classmethod
    def of_change(cls, change: Change) -> "Op":
        """A change outside a turn."""
        body = change.encode()
        return cls("change", change.key, "", len(body), body, change=change)

    @property
    def kept(self) -> bool:
        """Whether the spool has it, which is enough for a caller while the operation is pending."""
        return self.committed is None or (self.on_disk is not None and self.on_disk.done())

    def settled(self, *, found: bool) -> None:
        """Notify those who wait for the commit."""
        if self.committed is not None and not self.committed.done():
            self.committed.set_result(found)


def event_of(body: bytes) -> AuditEvent | None:
    """The event in the body of a delete; None where nobody asked for it, or an older version did."""
    told = loads(body).get("audit")
    return None if told is None else AuditEvent.of_json(told)


class Pending:
    """Operations in the order of their arrival, and by session. For one event loop.

    Above `keep_bytes` in total, bodies in the spool are dropped from memory and read from there when needed.
    """

    def __init__(self, read_rows: ReadRows | None = None, *, keep_bytes: int = 16 * 1024 * 1024) -> None:
        self._ops: deque[Op] = deque()
        self._by_key: dict[Key, deque[Op]] = {}
        self._deletes: dict[Key, Op] = {}
        self._read_rows = read_rows
        self._keep_bytes = keep_bytes
        self._kept_bytes = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def deletes(self) -> int:
        """How many deletes are pending; a person waits for each."""
        return len(self._deletes)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest operation in seconds; 0 where there is none."""
        return time.perf_counter() - self._ops[0].at if self._ops else 0.0

    def push(self, op: Op, on_disk: "asyncio.Future[None] | None" = None) -> None:
        """Append an operation. `on_disk` is done once the spool has it."""
        op.on_disk = on_disk
        self._ops.append(op)
        self.bytes += op.size
        self._by_key.setdefault(op.key, deque()).append(op)
        if op.kind == "delete":
            self._deletes[op.key] = op
        if op.body is not None:
            self._kept_bytes += op.size
            if self._kept_bytes > self._keep_bytes and on_disk is not None:
                on_disk.add_done_callback(lambda landed: None if landed.cancelled() else self._let_go(op))

    def head(self, max_records: int, max_bytes: int) -> list[Op]:
        """The oldest operations: at most `max_records` and `max_bytes`, but at least one unless it is empty."""
        chosen: list[Op] = []
        size = 0
        for op in self._ops:
            size += op.size
            if chosen and (len(chosen) == max_records or size > max_bytes):
                break
            chosen.append(op)
        return chosen

    async def bodies(self, ops: Iterable[Op]) -> dict[Op, bytes]:
        """The bodies of operations, from memory or the spool.

        Omits those that the spool no longer has (committed meanwhile, so in Postgres) and those damaged there.
        """
        found = {op: op.body for op in ops if op.body is not None}
        absent = {op.id: op for op in ops if op.body is None}
        if absent and self._read_rows is not None:
            for row in await self._read_rows(list(absent)):
                if row.sound:
                    found[absent[row.id]] = row.body
        return found

    async def read(self, ops: Iterable[Op]) -> dict[Op, bytes]:
        """`bodies` for a reader. Raises `HistoryUnavailable` where the spool cannot be read."""
        try:
            return await self.bodies(ops)
        except sqlite3.Error:
            raise HistoryUnavailable("the spool cannot be read") from None

    def settle(self, ops: list[Op]) -> None:
        """Remove the oldest operations, which are committed or given up. `ops` must be the head of the queue."""
        for op in ops:
            oldest = self._ops.popleft()
            assert oldest is op, "operations are settled in their order"
            self.bytes -= op.size
            self._let_go(op)
            same = self._by_key[op.key]
            same.popleft()
            if not same:
                del self._by_key[op.key]
            if self._deletes.get(op.key) is op:
                del self._deletes[op.key]

    def _let_go(self, op: Op) -> None:
        if op.body is not None:
            op.body = None
            self._kept_bytes -= op.size

    def holds(self, key: Key) -> bool:
        """Whether the session has pending operations."""
        return key in self._by_key

    def turns(self, key: Key) -> list[Op]:
        """The session's pending turns, oldest first; none once its delete is pending."""
        if key in self._deletes:
            return []
        return [op for op in self._by_key.get(key, ()) if op.kind == "turn"]

    def exchange_ids(self) -> list[str]:
        """Those of all pending turns."""
        return [op.exchange_id for op in self._ops if op.kind == "turn"]

    async def records(self, key: Key) -> list[TurnRecord]:
        """The session's pending turns, oldest first.

        Read Postgres after this, not before: then a turn that is committed in between is in at least one of the two.
        Raises `HistoryUnavailable`.
        """
        ops = self.turns(key)
        bodies = await self.read(ops)
        records = {}
        for op in ops:
            if op in bodies:
                # An exchange that was interrupted and ran again replaces its earlier record.
                records[op.exchange_id] = TurnRecord.decode(bodies[op])
        return list(records.values())

    async def messages(self, key: Key) -> list[ChatMessage]:
        """The messages of the session's pending turns, ascending rank."""
        return [message for record in await self.records(key) for message in record.messages]

    def ops(self, key: Key) -> list[Op]:
        """The session's pending operations, oldest first."""
        return list(self._by_key.get(key, ()))

    def of_user(self, user_id: str) -> tuple[dict[str, list[Op]], set[str]]:
        """The user's sessions with pending operations by id, and the ids of those whose delete is pending."""
        ops = {key[0]: list(ops) for key, ops in self._by_key.items() if key[1] == user_id}
        return ops, {key[0] for key in self._deletes if key[1] == user_id}

    def deletions(self) -> list[Key]:
        """The sessions whose delete is pending."""
        return list(self._deletes)

    def deletion(self, key: Key) -> Op | None:
        """The pending delete of the session."""
        return self._deletes.get(key)


@dataclass(frozen=True, slots=True)
class PendingLine:
    """What is pending of a session's line: its `messages`, ascending rank, and the `forks` among all pending ones that
    are on it. `below` bounds the ranks of the line."""

    messages: list[ChatMessage]
    forks: list[Fork]
    below: int

    @classmethod
    def of(cls, messages: Sequence[ChatMessage], up_to: int | None = None) -> "PendingLine":
        """That of all pending messages of a session: of its live line, or of the line that ends at `up_to`."""
        below = RANK_LIMIT if up_to is None else up_to + 1
        return cls(line_of(messages, up_to), line_forks(forks_in(messages), up_to), below)

    def stored(self) -> dict[str, object]:
        """The parameters of a statement that reads what is stored of the line."""
        return {"below": self.below, **superseded_ranks(self.forks, self.below)}


def superseded_ranks(forks: Sequence[Fork], below: int) -> dict[str, object]:
    """The parameters by which a statement knows what is superseded: by these pending forks on the line, newest first,
    and by those stored below a rank that are on it, too."""
    ranges = ",".join(f"[{fork.after_rank + 1},{fork.rank})" for fork in forks)
    return {"superseded": f"{{{ranges}}}", "forks_below": min([below, *(fork.after_rank + 1 for fork in forks[-1:])])}


def overlaid(stored: Session | None, ops: Iterable[Op]) -> Session | None:
    """A session after operations in their order. A turn changes neither preferences and pin nor an existing title."""
    session = stored
    for op in ops:
        if op.change is not None and session is not None:
            session = op.change.of(session)
        if op.after is None or (session is not None and op.after.version <= session.version):
            continue
        if session is None:
            session = op.after
        else:
            session = replace(
                op.after,
                title=session.title or op.after.title,
                preferences=session.preferences,
                pinned=session.pinned,
                named=session.named,
            )
    return session
