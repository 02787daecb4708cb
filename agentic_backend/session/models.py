"""Sessions, and the records of them that are handed to storage."""

import secrets
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from agentic_backend.agent.people import run_of
from agentic_backend.events import ChatMessage, text_part, utc_now
from backend_kit.wire import dumps, loads

Durability = Literal["spool", "db", "none"]
"""How durable a finished turn is when its `final` is sent."""


class ListedFile(NamedTuple):
    """A file that is attached to a session, as lists of sessions show it. `attached_at` is a UTC time."""

    id: str
    name: str
    size_bytes: int
    attached_at: str
    mime: str = ""

    def wire(self) -> dict[str, Any]:
        """It in an answer."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of one user with one agent (docs/contract.md#messages-and-sessions). `version` grows with each
    change. `agent_id` is "" until the first turn of one that was created without an agent."""

    id: str
    user_id: str
    agent_id: str
    title: str
    updated_at: str
    next_rank: int = 0
    preferences: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    attachments: tuple["ListedFile", ...] = ()
    """Set only in lists of sessions."""
    rested: bool = False
    """Whether it was unused for 12 hours, by the clock of the storage from which it was read."""
    pinned: bool = False
    """Whether its user has pinned it above the others."""
    named: bool = False
    """Whether a person gave it its title: a model's never replaces that."""
    found: "Found | None" = None
    """Where its words were found; set only in answers to a search."""

    @classmethod
    def new(cls, user_id: str, agent_id: str, title: str) -> "Session":
        """A session with a new id: 11 url-safe characters, 64 bits of randomness."""
        return cls(secrets.token_urlsafe(8), user_id, agent_id, title, utc_now())

    @classmethod
    def with_id(cls, session_id: str, user_id: str, agent_id: str, title: str) -> "Session":
        """A session with an id chosen by its client."""
        return cls(session_id, user_id, agent_id, title, utc_now())

    def advanced(self, next_rank: int, title: str) -> "Session":
        """This session after one more turn."""
        return replace(self, next_rank=next_rank, title=title, updated_at=utc_now(), version=self.version + 1)

    def with_agent(self, agent_id: str) -> "Session":
        """This session as one with an agent: this one, if it has none."""
        return self if self.agent_id else replace(self, agent_id=agent_id)

    def preferring(self, preferences: dict[str, Any] | None) -> "Session":
        """This session with other preferences; None keeps the present ones."""
        return self if preferences is None else replace(self, preferences=preferences)

    def titled(self, title: str | None) -> "Session":
        """This session with another title; None keeps the present one."""
        return self if title is None else replace(self, title=title)

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

    def listed(self) -> dict[str, Any]:
        """The same with what lists and notifications add: whether it is pinned."""
        return {**self.wire(), "pinned": self.pinned}

    def stored(self) -> dict[str, Any]:
        """The fields that a record stores, by name: a turn neither pins a session nor knows who named it."""
        return {**self.wire(), "version": self.version}


@dataclass(frozen=True, slots=True)
class Found:
    """The message in which a search found its words: a piece of its text around the first of them, plain."""

    text: str
    rank: int
    exchange_id: str

    def wire(self) -> dict[str, Any]:
        """As JSON-ready dict."""
        return {"text": self.text, "rank": self.rank, "exchange_id": self.exchange_id}


MAX_RESTARTS: Final = 1
"""How often the service restarts a turn: one that kills its process must not do so endlessly."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a turn needs in addition to its question to be restarted by the service. Never credentials.

    `model` is the id of the model that answers, `human` what a person had answered when the run continued (text or
    object; None where it began with the question). `restarts` is how often the service has begun to run it again.
    """

    agent_id: str
    model: str | None = None
    runtime_context: dict[str, Any] = field(default_factory=dict)
    language: str | None = None
    request_id: str = ""
    human: Any = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class DoorRerun(Rerun):
    """The same of an ask with what only doors send: `given` is its conversation (`HistoryItem.stored`), None where the
    stored one counts."""

    given: list[dict[str, Any]] | None = None
    client_tools: tuple[dict[str, Any], ...] = ()
    turn_s: float | None = None

    @classmethod
    def decode(cls, fields: dict[str, Any]) -> Rerun:
        """That of a record: one of its own where the record has more than `Rerun` knows."""
        if "graph" in fields:
            return GraphRerun(**fields)
        return cls(**fields) if "given" in fields else Rerun(**fields)


@dataclass(frozen=True, slots=True)
class GraphRerun(DoorRerun):
    """The same of an ask by LangGraph's own API: `graph` is what it asked for (`GraphInput.stored`)."""

    graph: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AskRecord:
    """Records that a turn has begun. Written without waiting before the model is called; after a crash the next process
    restarts the turn if it has a `rerun`, else it becomes an interrupted turn. `earlier` is the messages between
    question and answer if the run continues after a person was asked, else None. `agent_id` is who was asked, where no
    `rerun` says so; records of older programs leave it open.
    """

    session: Session
    user_message: ChatMessage
    earlier: tuple[ChatMessage, ...] | None = None
    rerun: Rerun | None = None
    agent_id: str = ""

    def encode(self) -> bytes:
        """Shape: `{"op":"ask","schema":1,"session":{…,"version":n},"rerun":{…},"message":ChatMessage,
        "earlier":[ChatMessage…]}`; no `rerun` and no `earlier` where there is none, as in records of older programs;
        without `rerun` an `agent_id`."""
        fields: dict[str, Any] = {"op": "ask", "schema": 1, "session": self.session.stored()}
        if self.rerun is not None:
            fields["rerun"] = self.rerun  # orjson knows dataclasses: `asdict` would take nine times as long
        elif self.agent_id:
            fields["agent_id"] = self.agent_id
        head = dumps(fields)
        body = head[:-1] + b',"message":' + self.user_message.json
        if self.earlier is not None:
            body += b',"earlier":[' + b",".join(message.json for message in self.earlier) + b"]"
        return body + b"}"

    @classmethod
    def decode(cls, body: bytes) -> "AskRecord":
        """The reverse of `encode`."""
        fields = loads(body)
        earlier, rerun = fields.get("earlier"), fields.get("rerun")
        return cls(
            Session(**fields["session"]),
            ChatMessage.build(**fields["message"]),
            None if earlier is None else tuple(ChatMessage.build(**message) for message in earlier),
            None if rerun is None else DoorRerun.decode(rerun),
            fields.get("agent_id", ""),
        )

    def begun_again(self) -> "AskRecord":
        """The record of the run that the service begins now."""
        assert self.rerun is not None
        return replace(self, rerun=replace(self.rerun, restarts=self.rerun.restarts + 1))

    def interrupted(self, *, by_restart: bool = True) -> "TurnRecord":
        """The turn as it is stored if it is not run again: the question, and an answer without text.

        Its user may ask it again in its place if the end of a process cut it off (`by_restart`), not if they stopped
        it. Nor does one that a person had allowed to continue run again: what they allowed may have been done.
        """
        asked = self.user_message
        before = (asked, *(self.earlier or ()))
        again = by_restart and self.earlier is None
        extras = {"status": "interrupted"} | ({"interrupted_by": "restart"} if again else {})
        answer = ChatMessage.build(
            session_id=asked.session_id,
            exchange_id=asked.exchange_id,
            rank=before[-1].rank + 1,
            role="assistant",
            channel="final",
            parts=[text_part("")],
            metadata={
                "agent_id": self.agent_id or self.session.agent_id,
                "finish_reason": "cancelled",
                "extras": extras,
            },
        )
        after = self.session.advanced(answer.rank + 1, self.session.title)
        return TurnRecord(after, asked.exchange_id, (*before, answer))


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A finished turn: the session after it and every message of the exchange, user's first, ascending rank.

    `fence` is that of the lease it was run under; None where this process alone runs the turns of its sessions.
    """

    session: Session
    exchange_id: str
    messages: tuple[ChatMessage, ...]
    fence: int | None = None

    def encode(self) -> bytes:
        """One JSON object that joins the messages' own bytes; nothing is encoded a second time.

        Shape: `{"op":"turn","schema":1,"exchange_id":…,"fence":n,"session":{…,"version":n},"messages":[ChatMessage…]}`;
        no `fence` where there is none.
        """
        fields: dict[str, Any] = {"op": "turn", "schema": 1, "exchange_id": self.exchange_id}
        if self.fence is not None:
            fields["fence"] = self.fence
        head = dumps({**fields, "session": self.session.stored()})
        return head[:-1] + b',"messages":[' + b",".join(message.json for message in self.messages) + b"]}"

    @classmethod
    def decode(cls, body: bytes) -> "TurnRecord":
        """The reverse of `encode`. Its messages keep the same encoded bytes."""
        fields = loads(body)
        messages = tuple(ChatMessage.build(**message) for message in fields["messages"])
        return cls(Session(**fields["session"]), fields["exchange_id"], messages, fields.get("fence"))


def checkpoint_of(message: ChatMessage, agent_id: str) -> str:
    """The checkpoint that an answer of the agent names: the state with which a hosted graph ended. "" for any other
    message; an answer that failed or was stopped names none."""
    if (message.role, message.channel) != ("assistant", "final"):
        return ""
    metadata = message.metadata
    extras = metadata.get("extras")
    if metadata.get("agent_id") != agent_id or not isinstance(extras, dict):
        return ""
    return str(extras.get("checkpoint", ""))


def graph_state_of(message: ChatMessage, agent_id: str) -> str:
    """The state of a hosted graph that a message names: that of an answer of the agent, or of a run of it that waits
    for a person; "" for any other message. An agent of ours that waits names a run, which is no state
    (`HostedAgent.state_ref`)."""
    if named := checkpoint_of(message, agent_id):
        return named
    metadata = message.metadata if (message.role, message.channel) == ("assistant", "final") else {}
    extras = metadata.get("extras")
    if metadata.get("agent_id") != agent_id or not isinstance(extras, dict) or "awaiting" not in extras:
        return ""
    return run_of(extras["awaiting"]["payload"])


def cut_texts(message: bytes, window: "HistoryWindow") -> bytes:
    """An encoded ChatMessage with each of its texts cut to a window of characters, counted from the first."""
    body = loads(message)
    end = None if window.limit is None else window.offset + window.limit
    for part in body["parts"]:
        if part.get("type") == "text":
            part["text"] = part["text"][window.offset : end]
    return dumps(body)


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """A window over a session's messages counted from the newest: skip `offset`, take `limit` (None: all).

    Those of the live line, or with `branches` superseded ones, too, each of which then says so. With `up_to` the
    session is seen as it was when the message of that rank was its newest: the line that ends there.
    """

    limit: int | None = None
    offset: int = 0
    branches: bool = False
    up_to: int | None = None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Some encoded ChatMessages, ascending rank, or the rank of one that is `large`: it is read in pieces. `last`: no
    page follows; the last one of a window need not say so."""

    messages: list[bytes]
    large: int | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class ListPlace:
    """A position in a list of sessions: after one that was last used then. `session_id` tells apart those of the same
    moment; without it all of that moment are before the position."""

    updated_at: datetime
    pinned: bool = False
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class SessionsWanted:
    """Which of a user's sessions, pinned ones first, then newest first: those with all `words`, skip `offset`, take
    `limit` (None: all).

    With `snippets` a search says where it found its words. `begun` leaves out what has neither a message, a title nor a
    file. `behind` is the place after which the list begins, `session_id` the only one that is wanted.
    """

    words: str = ""
    limit: int | None = None
    offset: int = 0
    snippets: bool = False
    begun: bool = False
    behind: ListPlace | None = None
    session_id: str | None = None
