"""Tools as an agent sees them, independent of their source: their names, arguments and answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend_kit.auth import Credentials


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of one server.

    `name` is what the model calls it by, unique among an agent's tools; `remote_name` what its server calls it.
    `parameters` is the JSON Schema of its arguments. With `needs_approval`, it may only run after a person agreed.
    """

    name: str
    server: str
    remote_name: str
    description: str
    parameters: dict[str, Any]
    needs_approval: bool

    def offered(self) -> dict[str, Any]:
        """The tool as a chat completions request offers it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools that can be used now, and the ids of the servers whose tools are missing from them."""

    tools: tuple[Tool, ...] = ()
    missing: tuple[str, ...] = ()

    def named(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)


@dataclass(frozen=True, slots=True)
class ToolCaller:
    """The user for whom a tool is called. The credentials are sent only to servers configured to receive them."""

    credentials: Credentials | None = field(default=None, repr=False)
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A tool's answer, as text of bounded length. If `ok` is False, the text explains to the model what failed."""

    text: str
    ok: bool = True


class Toolbox(Protocol):
    """The tools of configured servers. No method raises: the failure of a server is reported as an answer."""

    async def offer(self, server_ids: Sequence[str], caller: ToolCaller) -> Offer:
        """The tools of these servers. Each server is asked once, then its tools are cached."""

    async def call(self, tool: Tool, arguments: dict[str, Any], caller: ToolCaller) -> ToolAnswer:
        """Call a tool, once: a call that may have run is never retried."""
