"""The steps of a turn in words, for clients that show reasoning and know no other place for them."""

from collections.abc import Sequence
from typing import Any, Final

from agentic_backend.events import ChatMessage, Part, arguments_of
from backend_kit.wire import dumps

Calls = tuple[dict[str, Any], ...]
"""Calls of the client's tools as chat completions have them: `id`, `type`, `function` with `name` and `arguments`."""
_SHOWN_CHARS: Final = 500


def step_in_words(message: ChatMessage) -> str:
    """A tool call, its result, or another message beside the answer; "" for what says nothing here.

    A question is the client's own, and kept reasoning was streamed as it came.
    """
    if message.role == "user":
        return ""
    if message.channel == "thought" and (message.metadata.get("extras") or {}).get("reasoning"):
        return ""
    return "\n".join(filter(None, map(_part, message.parts)))


def _part(part: Part) -> str:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "tool_call":
        return f"→ {part.get('name')}({_cut(dumps(part.get('args')).decode())})"
    if kind == "tool_result":
        mark = "←" if part.get("ok", True) else "← failed:"
        return f"{mark} {_cut(_content(part.get('content')))}"
    return ""


def _content(content: Any) -> str:
    return content if isinstance(content, str) else dumps(content).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def calls_of(parts: Sequence[Part]) -> Calls:
    """The calls of the client's tools with which an answer ends."""
    calls = [part for part in parts if part.get("type") == "tool_call"]
    return tuple(
        {
            "id": call["call_id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": arguments_of(call)},
        }
        for call in calls
    )
