"""What the MCP SDK says of a failed call, which is all that tells a lost connection from a refused call, and what its
HTTP client lets a transport do."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, CallToolRequest, CallToolRequestParams, CallToolResult
from pydantic import TypeAdapter

from agentic_backend.agent.mcp import _BAD_STATUS, _SESSION_FORGOTTEN, _Bounded

CALL = CallToolRequest(params=CallToolRequestParams(name="add", arguments={"a": 1}))
RESULT: TypeAdapter[CallToolResult] = TypeAdapter(CallToolResult)


class Server:
    """An MCP server in memory that has sessions; `calls` answers a call of a tool."""

    def __init__(self, calls: Callable[[Any], httpx2.Response]) -> None:
        self.methods: list[str] = []
        self._calls = calls

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return httpx2.Response(405)
        asked = json.loads(request.content)
        self.methods.append(asked["method"])
        match asked["method"]:
            case "initialize":
                found = {
                    "protocolVersion": asked["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "s", "version": "1"},
                }
                return said(asked, {"result": found}, {"mcp-session-id": "s1"})
            case "tools/call":
                return self._calls(asked)
        if "id" in asked:
            return said(asked, {"error": {"code": -32601, "message": "Method not found"}})
        return httpx2.Response(202)


def said(asked: Any, what: dict[str, Any], headers: dict[str, str] | None = None) -> httpx2.Response:
    return httpx2.Response(200, headers=headers, json={"jsonrpc": "2.0", "id": asked["id"], **what})


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server)) as http:
        transport = streamable_http_client("http://tools/mcp", http_client=http)
        async with Client(transport, cache=None) as client:
            yield client


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, _SESSION_FORGOTTEN), (400, _BAD_STATUS), (500, _BAD_STATUS), (503, _BAD_STATUS)],
)
async def test_a_status_is_told_by_one_of_two_messages(status: int, message: str) -> None:
    """agentic_backend/agent/mcp.py opens a new connection where it reads one of them, and calls a tool again only where
    the server has forgotten the session."""
    async with connected(Server(lambda _asked: httpx2.Response(status))) as client:
        with pytest.raises(MCPError) as failure:
            await client.session.send_request(CALL, RESULT)
    assert failure.value.message == message
    assert failure.value.code != CONNECTION_CLOSED


async def test_a_request_is_sent_once_and_its_result_handed_out_as_it_came() -> None:
    """agentic_backend/agent/mcp.py calls tools by `send_request`, since `call_tool` lists a new connection's tools."""
    result = {"content": [{"type": "text", "text": "3"}], "structuredContent": {"x": 1}, "isError": True}
    server = Server(lambda asked: said(asked, {"result": result}))
    async with connected(server) as client:
        got = await client.session.send_request(CALL, RESULT)
    assert (got.is_error, got.structured_content, got.content[0].type) == (True, {"x": 1}, "text")
    assert server.methods.count("tools/call") == 1
    assert "tools/list" not in server.methods


async def test_what_fails_in_the_transport_closes_the_connection_for_the_caller() -> None:
    """agentic_backend/agent/mcp.py knows a lost connection by `CONNECTION_CLOSED`, an error of httpx2, or a group."""

    def lost(_asked: Any) -> httpx2.Response:
        raise httpx2.ConnectError("no connection")

    with pytest.raises((MCPError, httpx2.HTTPError, ExceptionGroup)) as failure:
        async with connected(Server(lost)) as client:
            await client.session.send_request(CALL, RESULT)
    assert not isinstance(failure.value, MCPError) or failure.value.code == CONNECTION_CLOSED


def test_loggers_have_the_names_of_their_packages() -> None:
    """agentic_backend/agent/mcp.py silences `mcp`, `httpx2` and `httpcore2`, which log what is sent and received."""
    httpx2.AsyncHTTPTransport(verify=False)  # loads what sends
    names = set(logging.root.manager.loggerDict)
    assert {"mcp.client.streamable_http", "httpx2", "httpcore2.connection"} <= names


async def test_a_transport_may_put_another_stream_into_an_answer() -> None:
    """agentic_backend/agent/mcp.py bounds the body of an answer (`response.stream`) while it is read."""

    async def large() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 500_000

    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=large(), headers={"content-type": "application/json"})

    transport = _Bounded(httpx2.MockTransport(answer))
    async with httpx2.AsyncClient(transport=transport) as http, http.stream("GET", "http://tools/") as response:
        with pytest.raises(httpx2.StreamError, match="too large"):
            await response.aread()
