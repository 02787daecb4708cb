"""Tool calls of the fake model: which tool, and arguments that fit its schema."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from backend_kit.wire import dumps
from ws_bench.fakes.answers import Turn

_PIECE = re.compile(r".{1,8}", re.DOTALL)
_MAX_DEPTH = 5


def called_tool(request: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The function of a request's tools that has this name (`*`: any), None where there is none to be called.

    After a tool's result the model answers, as one does that has what it asked for.
    """
    messages = request["messages"]
    if messages[-1].get("role") == "tool":
        return None
    for tool in request.get("tools") or ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str) and name in ("*", function["name"]):
            return function
    return None


def arguments_for(function: Mapping[str, Any], turns: Sequence[Turn]) -> str:
    """JSON arguments with every property that the schema requires; texts are the last user message."""
    asked = next((turn.text for turn in reversed(turns) if turn.role == "user"), "")
    parameters = function.get("parameters")
    return dumps(_value(parameters if isinstance(parameters, dict) else {"type": "object"}, asked, 0)).decode()


def pieces_of(text: str) -> list[str]:
    """A text in the pieces in which a model streams arguments."""
    return _PIECE.findall(text)


def _value(schema: Mapping[str, Any], text: str, depth: int) -> object:
    """The simplest value that a JSON schema of a tool allows."""
    if schema.get("enum"):
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        required = schema.get("required") or ()
        inside = {name: properties[name] for name in required if isinstance(properties.get(name), dict)}
        return {name: _value(one, text, depth + 1) for name, one in inside.items()} if depth < _MAX_DEPTH else {}
    simple: dict[str, object] = {"integer": schema.get("minimum", 1), "number": schema.get("minimum", 1.0)}
    simple |= {"boolean": True, "array": [], "null": None}
    return simple.get(str(kind), text)
