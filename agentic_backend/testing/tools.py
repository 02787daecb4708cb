"""Tools of a test: plain functions instead of a tool server."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from agentic_backend.agent.toolbox import Offer, Tool, ToolAnswer, ToolCaller

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class ToolFailed(Exception):
    """A tool call failed; the text is its answer."""


class FakeToolbox:
    """Functions as the tools of an agent's server: name, docstring and annotations of each are what the model sees.

    Those named in `ask_before` need a person's approval. A function that raises `ToolFailed` gives a failed answer.
    `called` has the calls in order. With `missing` the server cannot be reached.
    """

    def __init__(
        self,
        *functions: Callable[..., Any],
        ask_before: Sequence[str] = (),
        missing: bool = False,
        server: str = "tests",
    ) -> None:
        self.server = server
        self.called: list[tuple[str, dict[str, Any]]] = []
        self._functions = {function.__name__: function for function in functions}
        tools = tuple(_tool(function, server, function.__name__ in ask_before) for function in functions)
        self._offer = Offer((), (server,)) if missing else Offer(tools)

    async def offer(self, server_ids: Sequence[str], caller: ToolCaller) -> Offer:  # noqa: ARG002 # the port's
        """The functions, for an agent that names the server."""
        return self._offer if self.server in server_ids else Offer()

    async def call(self, tool: Tool, arguments: dict[str, Any], caller: ToolCaller) -> ToolAnswer:  # noqa: ARG002 - the port
        """Call the function; its result becomes text."""
        self.called.append((tool.name, arguments))
        try:
            result = self._functions[tool.name](**arguments)
            if inspect.isawaitable(result):
                result = await result
        except ToolFailed as failure:
            return ToolAnswer(str(failure), ok=False)
        return ToolAnswer(str(result))


def _tool(function: Callable[..., Any], server: str, needs_approval: bool) -> Tool:
    parameters = inspect.signature(function).parameters
    schema = {
        "type": "object",
        "properties": {name: {"type": _TYPES.get(one.annotation, "string")} for name, one in parameters.items()},
        "required": [name for name, one in parameters.items() if one.default is inspect.Parameter.empty],
    }
    name = function.__name__
    return Tool(name, server, name, inspect.getdoc(function) or "", schema, needs_approval)
