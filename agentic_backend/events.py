"""What a turn emits: the messages of an exchange and the events with which an agent produces them.

An agent emits `Delta`, `Step` and `Sources` through the `Emit` callable in its run's context. The session assigns
ranks and sequence numbers; chat renders the events for each protocol.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from backend_kit.wire import dumps, loads

Role = Literal["user", "assistant", "tool", "system"]
Channel = Literal["final", "plan", "thought", "observation", "tool_call", "tool_result", "error", "system_note"]
Part = dict[str, Any]
"""One part of a message in its wire format: `{"type": "text", "text": …}` and the other shapes of
docs/protocol.md."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A fragment of text that the agent has just produced; never the text so far."""

    text: str
    channel: Channel = "final"


@dataclass(frozen=True, slots=True)
class Step:
    """A whole message other than the answer: tool_call, tool_result, thought."""

    role: Role
    channel: Channel
    parts: list[Part]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sources:
    """The passages that the answer may cite, at most once per turn, each a VectorSearchHit as JSON-ready dict."""

    hits: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Thought:
    """A fragment of what a model says while it reasons, before or between its text; never the text so far."""

    text: str


@dataclass(frozen=True, slots=True)
class Custom:
    """What an agent's code tells its clients beside the answer: any JSON value."""

    data: Any


@dataclass(frozen=True, slots=True)
class TextEnds:
    """The text so far was not the answer, although no step follows it: it becomes a thought."""


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What LangGraph's stream says of a hosted graph's run in one of its modes, `values` or `updates`, as JSON; only
    where the ask wants it. `namespace` is that of a subgraph, empty for the graph itself."""

    mode: str
    namespace: tuple[str, ...]
    json: bytes


@dataclass(frozen=True, slots=True)
class Speaks:
    """The text that follows belongs to a message of a hosted graph: the message's id there, and the node and step that
    it comes from. Sent again with another id if the message gets its id only later."""

    message_id: str
    node: str = ""
    step: int = 0
    namespace: tuple[str, ...] = ()


AgentEvent = Delta | TextEnds | Thought | Step | Sources | Custom | GraphOutput | Speaks
Emit = Callable[[AgentEvent], None]
"""Hands an event to the turn. Never waits for a slow socket, and never raises."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a session (docs/protocol.md#messages). `json` is its encoding, built once, used everywhere.

    Parts and metadata are not kept beside it: ended turns stay in memory for a while, and would be kept twice.
    """

    session_id: str
    exchange_id: str
    rank: int
    timestamp: str
    role: Role
    channel: Channel
    json: bytes

    @classmethod
    def build(
        cls,
        *,
        session_id: str,
        exchange_id: str,
        rank: int,
        role: Role,
        channel: Channel,
        parts: list[Part],
        metadata: dict[str, Any] | None = None,
        timestamp: str | None = None,
    ) -> "ChatMessage":
        """Make a message and encode it. `timestamp` is now (UTC) where absent."""
        stamp = timestamp or utc_now()
        body = {
            "session_id": session_id,
            "exchange_id": exchange_id,
            "rank": rank,
            "timestamp": stamp,
            "role": role,
            "channel": channel,
            "parts": parts,
            "metadata": metadata or {},
        }
        return cls(session_id, exchange_id, rank, stamp, role, channel, dumps(body))

    @classmethod
    def decode(cls, encoded: bytes) -> "ChatMessage":
        """The message of an encoding by `build`."""
        fields = loads(encoded)
        del fields["parts"], fields["metadata"]
        return cls(**fields, json=encoded)

    @property
    def parts(self) -> list[Part]:
        """The parts of the message, decoded at each call."""
        parts: list[Part] = loads(self.json)["parts"]
        return parts

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the message, decoded at each call."""
        metadata: dict[str, Any] = loads(self.json)["metadata"]
        return metadata

    @property
    def text(self) -> str:
        """The text of its parts."""
        return text_of(self.parts)

    @property
    def images(self) -> tuple[str, ...]:
        """Of a question the ids of the attachments that it shows."""
        return asked_images(self.parts) if b'"image_url"' in self.json else ()


def text_of(parts: list[Part]) -> str:
    """The text parts joined, for an agent's prompt."""
    return "\n".join(part["text"] for part in parts if part.get("type") == "text")


def text_part(text: str) -> Part:
    """A text part."""
    return {"type": "text", "text": text}


_IMAGE_URL: Final = ("chatbot/upload/", "/image")


def image_part(attachment_id: str, name: str) -> Part:
    """The part of an image that its user asks about. Its URL is relative to the service's base path."""
    return {"type": "image_url", "url": attachment_id.join(_IMAGE_URL), "alt": name}


def asked_images(parts: list[Part]) -> tuple[str, ...]:
    """The ids of the attachments that a question's image parts name, in their order."""
    before, after = _IMAGE_URL
    urls = [part["url"] for part in parts if part.get("type") == "image_url"]
    return tuple(url.removeprefix(before).removesuffix(after) for url in urls if url.startswith(before))


_UNREADABLE: Final = "unreadable"


def call_part(call_id: str, name: str, arguments: dict[str, Any] | None, written: str) -> Part:
    """The part of a tool call. Arguments that are no JSON object are kept as they were `written`."""
    args = arguments if arguments is not None else {_UNREADABLE: written}
    return {"type": "tool_call", "call_id": call_id, "name": name, "args": args}


def result_part(call_id: str, content: str) -> Part:
    """The part of what a client's tool gave back; whether it worked, and how long it took, only the client knows."""
    return {"type": "tool_result", "call_id": call_id, "ok": None, "latency_ms": None, "content": content}


def arguments_of(part: Part) -> str:
    """The arguments of a `call_part` as text: JSON, or what the model wrote where that was none."""
    args = part["args"]
    written = args.get(_UNREADABLE)
    if len(args) == 1 and isinstance(written, str):
        return written
    return dumps(args).decode()


def utc_now() -> str:
    """Now as ISO 8601 with microseconds and `Z`."""
    return iso_z(datetime.now(UTC))


def iso_z(moment: datetime) -> str:
    """An aware datetime as ISO 8601 in UTC, always with microseconds, so that equal moments are equal bytes."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
