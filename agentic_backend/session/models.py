"""What a session is, and the records of it that are handed to storage."""

import secrets
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentic_backend.events import ChatMessage, utc_now
from backend_kit.wire import dumps

Durability = Literal["spool", "db", "none"]
"""What stands behind a finished turn when its `final` is sent (DESIGN §4)."""


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of one user with one agent (CONTRACT SessionSchema). `version` grows with each change."""

    id: str
    user_id: str
    agent_id: str
    title: str
    updated_at: str
    next_rank: int = 0
    preferences: dict[str, Any] = field(default_factory=dict)
    version: int = 0

    @classmethod
    def new(cls, user_id: str, agent_id: str, title: str) -> "Session":
        """A session with an id of the server's making: 11 url-safe characters, 64 bits of randomness."""
        return cls(secrets.token_urlsafe(8), user_id, agent_id, title, utc_now())

    def advanced(self, next_rank: int, title: str) -> "Session":
        """This session after one more turn."""
        return replace(self, next_rank=next_rank, title=title, updated_at=utc_now(), version=self.version + 1)

    def wire(self) -> dict[str, Any]:
        """SessionSchema as JSON-ready dict."""
        return {
            "id": self.id,
            "user_id": self.user_id,
            "agent_id": self.agent_id,
            "title": self.title,
            "updated_at": self.updated_at,
            "next_rank": self.next_rank,
            "preferences": self.preferences,
        }


@dataclass(frozen=True, slots=True)
class AskRecord:
    """That a turn has begun. Written unawaited before the model is called; a crash leaves an interrupted turn."""

    session: Session
    user_message: ChatMessage


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A finished turn: the session after it and every message of the exchange, user's first, ascending rank."""

    session: Session
    exchange_id: str
    messages: tuple[ChatMessage, ...]

    def encode(self) -> bytes:
        """One JSON object that joins the messages' own bytes; nothing is encoded a second time.

        Shape: `{"op":"turn","schema":1,"exchange_id":…,"session":{…,"version":n},"messages":[ChatMessage…]}`.
        """
        session = {**self.session.wire(), "version": self.session.version}
        head = dumps({"op": "turn", "schema": 1, "exchange_id": self.exchange_id, "session": session})
        return head[:-1] + b',"messages":[' + b",".join(message.json for message in self.messages) + b"]}"


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """A window over a session's messages counted from the newest: skip `offset`, take `limit` (None: all)."""

    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Remembered:
    """One earlier message as an agent sees it."""

    role: Literal["user", "assistant"]
    text: str
