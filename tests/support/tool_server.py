"""A real MCP server as a process: tools that read, change, stall, fail and flood, and a count of what it was asked.

`GET /counts` says how often each JSON-RPC method and each tool was called, and with which tokens.
"""

import argparse
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.ports import free_port
from tests.support.processes import ForkedModule, ModuleProcess

READS = ToolAnnotations(read_only_hint=True)
BIG = 10_000_000


class Counting:
    """Counts JSON-RPC methods and called tools on their way in."""

    def __init__(self, app: ASGIApp, refused: str) -> None:
        """`refused` is a method that the server does not know."""
        self._app = app
        self._refused = refused
        self.counts: dict[str, int] = {}
        self.tokens: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/counts":
            await JSONResponse({"counts": self.counts, "tokens": sorted(set(self.tokens))})(scope, receive, send)
            return
        if scope["type"] == "http" and scope["method"] == "POST":
            body = await Request(scope, receive).body()
            asked = json.loads(body)
            receive = self._count(scope, receive, body, asked)
            if asked.get("method") == self._refused:
                error = {"code": -32601, "message": "Method not found"}
                await JSONResponse({"jsonrpc": "2.0", "id": asked["id"], "error": error})(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _count(self, scope: Scope, receive: Receive, body: bytes, asked: dict[str, Any]) -> Receive:
        method = asked.get("method", "")
        self._add(method)
        if method == "tools/call":
            self._add(asked["params"]["name"])
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode()
        self.tokens.append(authorization.removeprefix("Bearer "))
        sent = False

        async def replayed() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replayed

    def _add(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


def tools() -> MCPServer:
    """The server."""
    server = MCPServer("tests")

    @server.tool(annotations=READS)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def note(text: str) -> str:
        """Keep a note."""
        return f"kept: {text}"

    @server.tool(annotations=READS)
    async def stall() -> str:
        """Never answer."""
        await anyio.sleep_forever()
        return ""

    @server.tool(annotations=READS)
    def flood() -> str:
        """Answer with 10 MB."""
        return "x" * BIG

    @server.tool(annotations=READS)
    def long() -> str:
        """Answer with 50,000 characters."""
        return "y" * 50_000

    @server.tool(annotations=READS)
    def fail() -> str:
        """Fail."""
        raise ValueError("a secret of the server")

    @server.tool(annotations=READS)
    async def learn(name: str, ctx: Context) -> str:
        """Offer one more tool, and say so to whoever listens."""
        server.add_tool(lambda: name, name=name, description="Learned.")
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "learned"

    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--refuse", default="", help="a JSON-RPC method that is not known")
    said = parser.parse_args()
    app = Counting(tools().streamable_http_app(), said.refuse)
    # Who listens for changes never goes by itself.
    uvicorn.run(app, host="127.0.0.1", port=said.port, log_level="warning", timeout_graceful_shutdown=1)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A running tool server."""

    url: str
    port: int
    process: ModuleProcess


@pytest.fixture
def tool_server() -> Iterator[ToolServer]:
    """A tool server of the test's own, so that its counts are the test's."""
    port = free_port()
    with _process(port) as process:
        process.wait_for_http(f"http://127.0.0.1:{port}/counts")
        yield _server(port, process)


@asynccontextmanager
async def started(port: int, refuse: str = "") -> AsyncIterator[ToolServer]:
    """A tool server on that port, for the time of the block; it does not know the JSON-RPC method `refuse`."""
    with _process(port, refuse) as process:
        try:
            await process.until(process.wait_for_http, f"http://127.0.0.1:{port}/counts")
            yield _server(port, process)
        finally:
            await process.until(process.stop)


async def counts(server: ToolServer) -> dict[str, Any]:
    """What `GET /counts` says."""
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{server.port}/counts") as response:
        told: dict[str, Any] = await response.json()
        return told


def _process(port: int, refuse: str = "") -> ModuleProcess:
    # The server logs the failures of its tools with their tracebacks: they are asked for.
    return ForkedModule(__name__, "--port", str(port), "--refuse", refuse, traceback_allowed=True, stop_s=5)


def _server(port: int, process: ModuleProcess) -> ToolServer:
    return ToolServer(f"http://127.0.0.1:{port}/mcp", port, process)


if __name__ == "__main__":
    main()
