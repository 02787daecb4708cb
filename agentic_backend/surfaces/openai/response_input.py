"""The `input` of a response: the user's text, or items of a conversation, of which the newest is the question."""

from collections.abc import Collection
from typing import Any, Final

from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.surfaces.openai import reading
from agentic_backend.surfaces.openai.errors import Refused
from agentic_backend.surfaces.openai.messages import MAX_MESSAGES, MAX_NAME, Contents, Conversation, conversation_of

_OURS: Final = frozenset({"reasoning", "mcp_call"})
"""Items of our own responses other than messages and calls: clients send them back, and no agent reads them."""
_OTHERS: Final = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "computer_call",
        "computer_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "image_generation_call",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""Items that only other servers produce; a conversation may contain some from one of them."""


def read_input(given: Any, open_calls: Collection[str] = (), at: str = "input") -> Conversation:
    """The conversation in an input. Raises Refused, naming the item and its field.

    `open_calls` are the ids of calls that an earlier response left to the client: results may belong to them.
    """
    if isinstance(given, str):
        if not given.strip():
            raise Refused(f"{at} is empty.", at, "invalid_value")
        return Conversation((), given, at)
    if not isinstance(given, list):
        raise reading.wrong(at, "a string or an array of items")
    if not given:
        raise Refused(f"{at} is empty.", at, "invalid_value")
    if len(given) > MAX_MESSAGES:
        raise Refused(f"{at} has more than {MAX_MESSAGES} items.", at, "array_above_max_length")
    reader = _Reader(len(given) - 1, open_calls)
    for number, item in enumerate(given):
        reader.read(number, item, f"{at}[{number}]")
    if not reader.messages:
        raise Refused(f"{at} has no message.", at, "invalid_value")
    return conversation_of(reader.messages, reader.last_at, reader.contents.left_out)


class _Reader:
    """Reads items in their order. Calls belong to the assistant's message before them."""

    def __init__(self, newest: int, open_calls: Collection[str]) -> None:
        self.contents = Contents()
        self.messages: list[HistoryItem] = []
        self.last_at = ""
        self._newest = newest
        self._open_calls = {*open_calls}

    def read(self, number: int, item: Any, at: str) -> None:
        fields = reading.object_at(item, at)
        kind = reading.optional_text(fields, "type", at) or "message"
        if kind == "message":
            self._add(self._message(fields, at, is_newest=number == self._newest), at)
        elif kind == "function_call":
            self._call(fields, at)
        elif kind == "function_call_output":
            self._add(self._result(fields, at, is_newest=number == self._newest), at)
        elif kind in _OTHERS:
            self.contents.left_out.add(kind)
        elif kind not in _OURS:
            raise Refused(f"{at}.type is of no item that can be read here.", f"{at}.type", "invalid_value")

    def _add(self, message: HistoryItem, at: str) -> None:
        self.messages.append(message)
        self.last_at = at

    def _message(self, fields: reading.Object, at: str, *, is_newest: bool) -> HistoryItem:
        role = reading.text(fields, "role", at)
        content, place = fields.get("content"), f"{at}.content"
        if role in ("system", "developer"):
            return HistoryItem("system", self.contents.read(content, place, is_newest=is_newest))
        if role == "user":
            return HistoryItem("user", self.contents.read(content, place, is_newest=is_newest))
        if role == "assistant":
            return HistoryItem("assistant", self.contents.read(content, place, is_newest=False, optional=True))
        where = f"{at}.role"
        raise Refused(f"{where} must be one of system, developer, user, assistant.", where, "invalid_value")

    def _call(self, fields: reading.Object, at: str) -> None:
        call = EarlierCall(
            reading.text(fields, "call_id", at, most=MAX_NAME),
            reading.text(fields, "name", at, most=MAX_NAME),
            reading.optional_text(fields, "arguments", at) or "{}",
        )
        self._open_calls.add(call.id)
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "assistant":
            last = HistoryItem("assistant", "")
            self._add(last, at)
        self.messages[-1] = HistoryItem("assistant", last.text, calls=(*last.calls, call))

    def _result(self, fields: reading.Object, at: str, *, is_newest: bool) -> HistoryItem:
        call_id = reading.text(fields, "call_id", at, most=MAX_NAME)
        if call_id not in self._open_calls:
            where = f"{at}.call_id"
            raise Refused(f"{where} is no call of this conversation.", where, "invalid_value")
        output = self.contents.read(fields.get("output"), f"{at}.output", is_newest=is_newest)
        return HistoryItem("tool", output, call_id=call_id)
