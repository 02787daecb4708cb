"""A real MCP server on stdio, as an operator would name it in the configuration: `python -m tests.support.stdio_tools`.

Each start adds a line to the file that STARTS names.
"""

import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("stdio tools")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=READS)
def variables() -> list[str]:
    """The names of its variables."""
    return sorted(os.environ)


@server.tool(annotations=READS)
def pid() -> int:
    """Its process."""
    return os.getpid()


@server.tool(annotations=READS)
def shout() -> str:
    """Write a secret, and what else may not stand in a log, to stderr."""
    print(f"the key is {os.environ['KEY']}, the line\x1b[31m ends", file=sys.stderr, flush=True)
    return "done"


@server.tool(annotations=READS)
def die() -> str:
    """End at once."""
    os._exit(3)


@server.tool(annotations=READS)
def flood() -> str:
    """Write a line that is too long."""
    return "x" * 3_000_000


if __name__ == "__main__":
    if "STARTS" in os.environ:
        with Path(os.environ["STARTS"]).open("a") as starts:
            starts.write(f"{os.getpid()}\n")
    print("ready", file=sys.stderr, flush=True)
    server.run("stdio")
