"""What an audit event says: who did what to which object, in ids alone, never in anybody's words."""

import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol
from uuid import uuid4

MAX_CHARS: Final = 256
"""Of each id in an event; a longer one is cut."""
_REMEMBERED: Final = 100_000


class AuditAction(StrEnum):
    """All that is noted. A new one is a line of docs/operations.md#audit-log."""

    SIGNED_IN = "signed_in"
    KEY_MADE = "key_made"
    KEY_REVOKED = "key_revoked"
    AGENT_CREATED = "agent_created"
    AGENT_CHANGED = "agent_changed"
    AGENT_DELETED = "agent_deleted"
    AGENT_SHARED = "agent_shared"
    AGENT_UNSHARED = "agent_unshared"
    PERSON_ANSWERED = "person_answered"
    SESSION_DELETED = "session_deleted"
    SESSION_SHARED = "session_shared"
    SESSION_UNSHARED = "session_unshared"
    ATTACHMENT_DELETED = "attachment_deleted"
    LIBRARY_SHARED = "library_shared"
    LIBRARY_UNSHARED = "library_unshared"
    LIBRARY_DELETED = "library_deleted"
    DOCUMENT_PLACED = "document_placed"
    DOCUMENT_DELETED = "document_deleted"
    READ_BY_SHARE = "read_by_share"
    AUDIT_EXPORTED = "audit_exported"


AuditKind = Literal["user", "key", "agent", "session", "attachment", "exchange", "library", "document", "audit"]
"""What the id of an event's object is the id of."""
Outcome = Literal["done", "approved", "refused", "answered"]
"""`done`: it took effect. The others say how a person answered an agent."""


class Actor(Protocol):
    """Who acts: an `Identity`, or what a service made of one."""

    @property
    def uid(self) -> str:
        """The user."""

    @property
    def key_id(self) -> str:
        """The API key that they came with, "" for a token."""

    @property
    def request_id(self) -> str:
        """The request that they came with, "" where none is known."""


def this_instance() -> str:
    """Which process acts: `host:pid`."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One act. `subject` is with whom something is shared: `user:…`, `group:…`, `role:…` or
    `everyone`, of an agent behind the relation: `use user:…`; of a conversation the link: `link:…`. `at`: seconds since
    the epoch, by the clock of the host. `id` makes it one event, however often it is written."""

    action: AuditAction
    kind: AuditKind
    object_id: str
    actor: str
    key_id: str = ""
    request_id: str = ""
    subject: str = ""
    outcome: Outcome = "done"
    instance: str = field(default_factory=this_instance)
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: str(uuid4()))

    @classmethod
    def by(
        cls,
        actor: Actor,
        action: AuditAction,
        kind: AuditKind,
        object_id: str,
        *,
        subject: str = "",
        outcome: Outcome = "done",
    ) -> "AuditEvent":
        """An act of this caller."""
        return cls(action, kind, object_id, actor.uid, actor.key_id, actor.request_id, subject, outcome)

    def json(self) -> dict[str, Any]:
        """As it is stored: the ids cut to `MAX_CHARS`, and without NUL, which Postgres does not take."""
        return {
            name: value[:MAX_CHARS].replace("\0", "") if isinstance(value, str) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "AuditEvent":
        """The reverse of `json`."""
        return cls(**{**stored, "action": AuditAction(stored["action"])})


NoteEvent = Callable[[AuditEvent], None]
"""Takes an event that is to be written soon. Never waits and never raises."""


class Lately:
    """Which acts are repetitions: `is_new` is true once in `every_s` for each of them, in this process.

    At most 100,000 are remembered; beyond that the oldest are forgotten, and may be noted once more.
    """

    def __init__(self, every_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._begun: OrderedDict[Hashable, float] = OrderedDict()

    def is_new(self, act: Hashable) -> bool:
        """Whether this act did not happen within the interval that its first one began."""
        now = self._clock()
        begun = self._begun.get(act)
        if begun is not None and now - begun < self._every_s:
            return False
        self._begun[act] = now
        self._begun.move_to_end(act)
        if len(self._begun) > _REMEMBERED:
            self._begun.popitem(last=False)
        return True
