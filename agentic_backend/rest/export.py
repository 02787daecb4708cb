"""REST of a whole conversation as a file: markdown to read, JSON to keep."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol
from urllib.parse import quote

from fastapi import APIRouter, Response

from agentic_backend.rest.answers import Answers, PagedAnswer, Parts
from agentic_backend.rest.messages import MessageReader, enclosed
from agentic_backend.rest.preferences import SessionId
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.store import SessionStore, load_owned
from backend_kit.wire import dumps, loads, normalized

Format = Literal["md", "json"]

_MEDIA_TYPES: Final[dict[Format, str]] = {"md": "text/markdown; charset=utf-8", "json": "application/json"}
_MAX_NAME_CHARS: Final = 60
_FENCE: Final = re.compile(r"`{3,}")


class ExportServices(Protocol):
    """What the route needs."""

    @property
    def store(self) -> SessionStore:
        """Where conversations are."""

    @property
    def answers(self) -> Answers:
        """The limits of long responses."""


def add_export(router: APIRouter, services: Callable[[], ExportServices], caller: Any) -> None:
    """Add the route. `services()` is called at each request: its result exists once the app runs."""

    file = {"description": "A file", "content": {"text/markdown": {}, "application/json": {}}}

    @router.get("/chatbot/session/{session_id}/export", response_class=Response, responses={200: file})
    async def export(session_id: SessionId, identity: caller, format: Format = "md") -> Response:  # noqa: A002 - its name on the wire
        """The whole conversation as a file: `md` to read, `json` to keep."""
        state = services()
        session = await load_owned(state.store, session_id, identity.uid)
        reader = MessageReader(state.store, session_id, identity.uid)
        headers = {
            "Content-Disposition": disposition(session, format),
            "Cache-Control": "private, no-store",
            "X-Content-Type-Options": "nosniff",
        }
        parts = as_json(session, reader) if format == "json" else as_markdown(session, reader)
        return PagedAnswer(state.answers, identity.uid, parts, media_type=_MEDIA_TYPES[format], headers=headers)


def as_json(session: Session, messages: MessageReader) -> Parts:
    """`{"session": SessionSchema, "messages": [ChatMessage…]}`, the messages byte for byte as in history."""
    head = b'{"session":' + dumps(session.wire()) + b',"messages":['
    return enclosed(head, messages.json(HistoryWindow()), b"]}")


def as_markdown(session: Session, messages: MessageReader) -> Parts:
    """The conversation as markdown, as `markdown` writes it."""
    return enclosed(markdown_head(session), messages.written(markdown, _large), b"")


def markdown_head(session: Session) -> bytes:
    """The head before the messages: title, id and time."""
    title = " ".join(session.title.split()) or "Conversation"
    return f"# {title}\n\nConversation {session.id}, last used {session.updated_at}\n".encode()


def markdown(messages: Sequence[bytes]) -> bytes:
    """Messages as markdown: a heading for each, sources as a list, tool calls as code."""
    return "".join(f"\n{block}\n" for encoded in messages for block in _message(loads(encoded))).encode()


def _large(rank: int) -> bytes:
    return f"\n## Message {rank}\n\n*Too large for this format: the export as JSON has it.*\n".encode()


def disposition(session: Session, format: Format) -> str:  # noqa: A002 - as on the wire
    """A Content-Disposition whose names contain only letters, digits and hyphens of the title (RFC 6266)."""
    words = re.findall(r"[^\W_]+", normalized("NFC", session.title))
    name = _file_name("-".join(words), format)
    plain = _file_name("-".join(re.findall(r"[A-Za-z0-9]+", normalized("NFKD", session.title))), format)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name)}"


def _file_name(words: str, format: Format) -> str:  # noqa: A002 - as on the wire
    # The leading word prevents a device name, a hidden file or a command-line option.
    return "-".join(filter(None, ("conversation", words[:_MAX_NAME_CHARS].strip("-")))) + f".{format}"


def _message(message: dict[str, Any]) -> list[str]:
    metadata = message["metadata"]
    blocks = [f"## {_who(message)}", f"*{message['timestamp']}*"]
    blocks += [words for part in message["parts"] if (words := _part(part))]
    if code := metadata.get("extras", {}).get("error"):
        blocks.append(f"*Failed: {code}*")
    elif metadata.get("finish_reason") == "cancelled":
        blocks.append("*Stopped.*")
    if sources := [f"{place}. {_source(hit)}" for place, hit in enumerate(metadata.get("sources") or (), 1)]:
        blocks += ["Sources:", "\n".join(sources)]
    return blocks


def _who(message: dict[str, Any]) -> str:
    if message["role"] == "user":
        return "Question"
    if message["channel"] == "final":
        agent = message["metadata"].get("agent_id")
        return f"Answer of {agent}" if agent else "Answer"
    return str(message["channel"]).replace("_", " ").capitalize()


def _part(part: dict[str, Any]) -> str:
    """One part as markdown; "" for a citation, because the sources follow."""
    match part.get("type"):
        case "text":
            return str(part["text"])
        case "code":
            return _fenced(str(part.get("code", "")), str(part.get("language") or ""))
        case "tool_call":
            return f"`{part.get('name')}`\n\n{_fenced(dumps(part.get('args')).decode(), 'json')}"
        case "tool_result":
            return _fenced(str(part.get("content", "")))
        case "link" if part.get("kind") != "citation":
            return f"[{part.get('title') or part.get('href')}](<{part.get('href')}>)"
        case "image_url":
            return f"[{part.get('alt') or 'image'}](<{part.get('url')}>)"
        case "geo":
            return _fenced(dumps(part.get("geojson")).decode(), "json")
        case _:
            return ""


def _fenced(code: str, language: str = "") -> str:
    """A block of code whose fence is longer than any in it."""
    longest = max((len(fence) for fence in _FENCE.findall(code)), default=2)
    fence = "`" * (longest + 1)
    word = language if re.fullmatch(r"[\w+#.-]{0,40}", language) else ""
    return f"{fence}{word}\n{code}\n{fence}"


def _source(hit: dict[str, Any]) -> str:
    place = ", ".join(str(hit[key]) for key in ("section", "page") if hit.get(key) not in (None, ""))
    title = " ".join(str(hit.get("title") or hit.get("file_name") or hit.get("uid")).split())
    return f"{title} ({place})" if place else title
