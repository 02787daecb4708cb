"""LangChain's messages as what a turn shows: those that nodes return, tool calls and their results. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from langchain_core.messages import BaseMessage, InvalidToolCall, ToolCall, ToolMessage
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from agentic_backend.events import Step
from backend_kit.wire import dumps

_SHOWN_CHARS: Final = 4000
"""Characters shown of a tool's arguments or result: a compatible frame has 32 KiB for a whole exchange."""


def messages_in(update: Any) -> Iterator[BaseMessage]:
    """The messages that a node returned: in a state's values, in `Command`s, or by themselves."""
    if isinstance(update, BaseMessage):
        yield update
    elif isinstance(update, Command):
        yield from messages_in(update.update)
    elif isinstance(update, list | tuple):
        for one in update:
            if isinstance(one, tuple) and len(one) == 2:
                yield from _own(one[1])  # (channel, value), as a Command may hold its update
            elif isinstance(one, BaseMessage | Command):
                yield from messages_in(one)
    else:
        for value in _values(update):
            yield from _own(value)


def _own(value: Any) -> Iterator[BaseMessage]:
    """The messages that are the value of a channel, or in its list."""
    if isinstance(value, Overwrite):
        value = value.value
    if isinstance(value, BaseMessage):
        yield value
    elif isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, BaseMessage))


def _values(state: Any) -> Iterable[Any]:
    if isinstance(state, Mapping):
        return state.values()
    if isinstance(state, BaseModel):
        return [getattr(state, name) for name in type(state).model_fields]
    if is_dataclass(state) and not isinstance(state, type):
        return [getattr(state, one.name) for one in fields(state)]
    return ()


def tool_call_of(call: ToolCall | InvalidToolCall, said_by: Mapping[str, Any]) -> Step:
    """The step of a tool call of a model's message, `said_by` which. What could not be parsed is shown as it is."""
    args = call["args"]
    arguments = args if isinstance(args, dict) else {"unreadable": args or ""}
    if len(shown := _encoded(arguments)) > _SHOWN_CHARS:
        arguments = {"cut": shown[:_SHOWN_CHARS]}
    part = {"type": "tool_call", "call_id": call["id"] or "", "name": call["name"] or "", "args": arguments}
    return Step("assistant", "tool_call", [part], {"extras": dict(said_by)})


def tool_result_of(message: ToolMessage, said_by: Mapping[str, Any]) -> Step:
    """The step of a tool's result, `said_by` its message. What is longer than a conversation should show is cut; the
    graph has all of it."""
    text = message.text
    part = {
        "type": "tool_result",
        "call_id": message.tool_call_id,
        "ok": message.status != "error",
        "latency_ms": None,
        "content": text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…",
    }
    return Step("tool", "tool_result", [part], {"extras": dict(said_by)})


def _encoded(arguments: dict[str, Any]) -> str:
    return dumps(arguments).decode()
