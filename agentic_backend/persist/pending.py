"""What has been handed over and is not committed yet: the batcher's queue, and what readers see on top of Postgres."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from agentic_backend.events import ChatMessage
from agentic_backend.session.models import Session, TurnRecord

Key = tuple[str, str]
"""(session id, user id): another user's id is another key, so nobody sees or hides what is not theirs."""


@dataclass(slots=True, eq=False)
class TurnOp:
    """A finished turn on its way. `at` is perf_counter() of the hand-over, `size` the bytes of its messages."""

    record: TurnRecord
    at: float = field(default_factory=time.perf_counter)
    size: int = 0

    def __post_init__(self) -> None:
        self.size = sum(len(message.json) for message in self.record.messages)

    @property
    def key(self) -> Key:
        """Whose session it is."""
        return (self.record.session.id, self.record.session.user_id)


@dataclass(slots=True, eq=False)
class DeleteOp:
    """The delete of a session on its way. `done` says after the commit whether there was one to delete."""

    key: Key
    done: "asyncio.Future[bool]"
    found: bool = False
    at: float = field(default_factory=time.perf_counter)
    size: int = 64


Op = TurnOp | DeleteOp


class Pending:
    """Operations in the order of their hand-over, and by session. One event loop; nothing here waits."""

    def __init__(self) -> None:
        self._ops: deque[Op] = deque()
        self._turns: dict[Key, deque[TurnRecord]] = {}
        self._deletes: dict[Key, DeleteOp] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def deletes(self) -> int:
        """How many deletes wait: a person waits behind each."""
        return len(self._deletes)

    @property
    def oldest_s(self) -> float:
        """Age of the oldest operation in seconds; 0 where there is none."""
        return time.perf_counter() - self._ops[0].at if self._ops else 0.0

    def push(self, op: Op) -> None:
        """Put an operation at the end."""
        self._ops.append(op)
        self.bytes += op.size
        if isinstance(op, TurnOp):
            self._turns.setdefault(op.key, deque()).append(op.record)
        else:
            self._deletes[op.key] = op

    def head(self, max_records: int, max_bytes: int) -> list[Op]:
        """The oldest operations, at most so many and so large, but at least one where there is one."""
        chosen: list[Op] = []
        size = 0
        for op in self._ops:
            size += op.size
            if chosen and (len(chosen) == max_records or size > max_bytes):
                break
            chosen.append(op)
        return chosen

    def settle(self, ops: list[Op]) -> None:
        """Take the oldest operations out: they are committed or given up. `ops` is the head of the queue."""
        for op in ops:
            oldest = self._ops.popleft()
            assert oldest is op, "operations are settled in their order"
            self.bytes -= op.size
            if isinstance(op, TurnOp):
                turns = self._turns[op.key]
                turns.popleft()
                if not turns:
                    del self._turns[op.key]
            else:
                self._deletes.pop(op.key, None)

    def turns(self, key: Key) -> list[TurnRecord]:
        """The session's pending turns, oldest first; none once its delete is pending."""
        return [] if key in self._deletes else list(self._turns.get(key, ()))

    def messages(self, key: Key) -> list[ChatMessage]:
        """The messages of the session's pending turns, ascending rank."""
        return [message for record in self.turns(key) for message in record.messages]

    def session(self, key: Key) -> Session | None:
        """The session as its newest pending turn leaves it."""
        turns = self.turns(key)
        return turns[-1].session if turns else None

    def of_user(self, user_id: str) -> tuple[dict[str, Session], set[str]]:
        """The user's sessions with pending turns by id, and the ids of those whose delete is pending."""
        turns = {key[0]: records[-1].session for key, records in self._turns.items() if key[1] == user_id}
        return turns, {key[0] for key in self._deletes if key[1] == user_id}

    def deletion(self, key: Key) -> DeleteOp | None:
        """The pending delete of the session."""
        return self._deletes.get(key)
