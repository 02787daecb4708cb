"""The `messages` of a request: which of them is the question, and what is the history before it.

The client's list is the whole conversation: its users edit and branch, so nothing from storage is added to it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.surfaces.openai import reading
from agentic_backend.surfaces.openai.errors import Refused

MAX_PARTS: Final = 1_000
MAX_MESSAGES: Final = 4_000
MAX_NAME: Final = 256
_UNREADABLE: Final = {
    "image_url": "image", "input_image": "image", "input_audio": "audio", "file": "file", "input_file": "file"
}  # fmt: skip
"""Content parts that no agent reads, each with the word that replaces it."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history, oldest first, and the newest message, at `at` in the request.

    `question` is "" if the newest is the result of a client's tool: then the history ends with it. `left_out` has the
    kinds of content in earlier messages that no agent reads.
    """

    history: tuple[HistoryItem, ...]
    question: str
    at: str
    left_out: frozenset[str] = frozenset()


def read_messages(given: Any, at: str = "messages") -> Conversation:
    """The conversation of a chat completions request. Raises Refused, naming the message and its field.

    Images, audio and files are refused in the newest message, and replaced by a word in earlier ones, so that one
    refusal does not end the conversation.
    """
    items = reading.list_at(given, at)
    if not items:
        raise Refused(f"{at} is empty.", at, "invalid_value")
    if len(items) > MAX_MESSAGES:
        raise Refused(f"{at} has more than {MAX_MESSAGES} messages.", at, "array_above_max_length")
    reader = _Reader(newest=len(items) - 1)
    messages = [reader.read(number, item, f"{at}[{number}]") for number, item in enumerate(items)]
    return conversation_of(messages, f"{at}[{len(items) - 1}]", reader.contents.left_out)


def conversation_of(messages: Sequence[HistoryItem], last_at: str, left_out: Collection[str]) -> Conversation:
    """The conversation of messages, at least one, of which the newest is at `last_at`. Raises Refused."""
    newest = messages[-1]
    if newest.role == "tool":
        return Conversation(tuple(messages), "", last_at, frozenset(left_out))
    if newest.role != "user":
        raise Refused(
            f"{last_at}.role must be user or tool: an agent answers, and does not continue an answer.",
            f"{last_at}.role",
            "invalid_value",
        )
    if not newest.text.strip():
        raise Refused(f"{last_at}.content is empty.", f"{last_at}.content", "invalid_value")
    return Conversation(tuple(messages[:-1]), newest.text, f"{last_at}.content", frozenset(left_out))


class Contents:
    """Reads the text of messages, whole or in parts. `left_out` collects the words for what was left out."""

    def __init__(self) -> None:
        self.left_out: set[str] = set()

    def read(self, content: Any, place: str, *, is_newest: bool, optional: bool = False) -> str:
        """The text of what is at `place`. `optional` content may be null. Raises Refused."""
        if isinstance(content, str):
            return content
        if content is None:
            if optional:
                return ""
            raise reading.missing(place)
        if not isinstance(content, list):
            raise reading.wrong(place, "a string or an array of parts")
        if len(content) > MAX_PARTS:
            raise Refused(f"{place} has more than {MAX_PARTS} parts.", place, "array_above_max_length")
        parts = [self._part(part, f"{place}[{number}]", is_newest) for number, part in enumerate(content)]
        return "\n".join(parts)

    def _part(self, part: Any, at: str, is_newest: bool) -> str:
        fields = reading.object_at(part, at)
        kind = reading.text(fields, "type", at)
        if kind in ("text", "input_text", "output_text"):
            return reading.optional_text(fields, "text", at) or ""
        if kind == "refusal":
            return reading.optional_text(fields, "refusal", at) or ""
        word = _UNREADABLE.get(kind)
        if word is None:
            raise Refused(f"{at}.type is of no known part of a message.", f"{at}.type", "invalid_value")
        if is_newest:
            raise Refused(f"{at} cannot be read: agents take text, and no {word} here.", at, "unsupported_content")
        self.left_out.add(word)
        return f"[{word}]"


class _Reader:
    """Reads messages in their order."""

    def __init__(self, newest: int) -> None:
        self.contents = Contents()
        self._newest = newest
        self._open_calls: set[str] = set()

    def read(self, number: int, item: Any, at: str) -> HistoryItem:
        fields = reading.object_at(item, at)
        role = reading.text(fields, "role", at)
        is_newest = number == self._newest
        if role != "tool":
            self._open_calls = set()
        if role in ("system", "developer"):
            return HistoryItem("system", self._content(fields, at, is_newest=is_newest))
        if role == "user":
            return HistoryItem("user", self._content(fields, at, is_newest=is_newest))
        if role == "assistant":
            calls = _calls(fields, at)
            self._open_calls = {call.id for call in calls}
            return HistoryItem("assistant", self._content(fields, at, is_newest=False, optional=True), calls=calls)
        if role == "tool":
            call_id = reading.text(fields, "tool_call_id", at, most=MAX_NAME)
            if call_id not in self._open_calls:
                where = f"{at}.tool_call_id"
                raise Refused(f"{where} is no call of the assistant's message before it.", where, "invalid_value")
            return HistoryItem("tool", self._content(fields, at, is_newest=is_newest), call_id=call_id)
        raise Refused(
            f"{at}.role must be one of system, developer, user, assistant, tool.", f"{at}.role", "invalid_value"
        )

    def _content(self, fields: reading.Object, at: str, *, is_newest: bool, optional: bool = False) -> str:
        return self.contents.read(fields.get("content"), f"{at}.content", is_newest=is_newest, optional=optional)


def _calls(fields: reading.Object, at: str) -> tuple[EarlierCall, ...]:
    if "tool_calls" not in fields:
        return ()
    calls = reading.optional_list(fields, "tool_calls", at)
    return tuple(_call(call, f"{at}.tool_calls[{number}]") for number, call in enumerate(calls))


def _call(value: Any, at: str) -> EarlierCall:
    fields = reading.object_at(value, at)
    function = reading.optional_object(fields, "function", at)
    where = f"{at}.function"
    return EarlierCall(
        reading.text(fields, "id", at, most=MAX_NAME),
        reading.text(function, "name", where, most=MAX_NAME),
        reading.optional_text(function, "arguments", where) or "{}",
    )


def read_tools(given: Sequence[Any], at: str = "tools") -> tuple[dict[str, Any], ...]:
    """The client's function tools, each with `name`, `description` and `parameters`. Raises Refused."""
    return distinct([(f"{at}[{number}].function", _tool(tool, f"{at}[{number}]")) for number, tool in enumerate(given)])


def distinct(tools: Sequence[tuple[str, dict[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """Tools with the places of their functions. Raises Refused where two have one name."""
    seen: set[str] = set()
    for where, tool in tools:
        if tool["name"] in seen:
            raise Refused(f"{where}.name is that of another tool.", f"{where}.name", "invalid_value")
        seen.add(tool["name"])
    return tuple(tool for _, tool in tools)


def _tool(value: Any, at: str) -> dict[str, Any]:
    fields = reading.object_at(value, at)
    if reading.text(fields, "type", at) != "function":
        raise Refused(f"{at}.type must be function.", f"{at}.type", "invalid_value")
    return function_of(reading.optional_object(fields, "function", at), f"{at}.function")


def function_of(function: reading.Object, where: str) -> dict[str, Any]:
    """The function at a place as agents have it: `name`, `description`, `parameters`."""
    return {
        "name": reading.text(function, "name", where, most=MAX_NAME),
        "description": reading.optional_text(function, "description", where) or "",
        "parameters": reading.optional_object(function, "parameters", where) or {"type": "object", "properties": {}},
    }


def with_results(history: Sequence[HistoryItem]) -> tuple[HistoryItem, ...]:
    """A history in which each call has exactly one result, directly after the calls of its message: models refuse
    others.

    Clients send a call without a result if their user stopped before it and asked something else.
    """
    kept: list[HistoryItem] = []
    calls: tuple[EarlierCall, ...] = ()
    results: dict[str, HistoryItem] = {}
    for item in (*history, None):
        if item is not None and item.role == "tool":
            results.setdefault(item.call_id, item)
            continue
        if calls:
            asking = kept.pop()
            answered = tuple(call for call in calls if call.id in results)
            if answered or asking.text:
                kept.append(HistoryItem(asking.role, asking.text, calls=answered))
            kept += [results[call.id] for call in answered]
        if item is not None:
            kept.append(item)
            calls, results = item.calls, {}
    return tuple(kept)
