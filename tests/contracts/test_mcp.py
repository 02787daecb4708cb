"""What the MCP SDK says of a failed call, which is all that tells a lost connection from a refused call, what its HTTP
client lets a transport do, and what its entry of 2026-07-28 answers, as ours must."""

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
from mcp.server import lowlevel
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    Tool,
)
from pydantic import TypeAdapter

from agentic_backend.agent.mcp import _BAD_STATUS, _SESSION_FORGOTTEN, _Bounded
from backend_kit.aio import TaskRegistry
from backend_kit.auth import Identity
from backend_kit.mcp import DoorRules, McpDoor

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


PROTOCOL = "2026-07-28"
TAKES_BOTH = "application/json, text/event-stream"


def meta(**more: Any) -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    return {f"{prefix}protocolVersion": PROTOCOL, f"{prefix}clientCapabilities": {}, **more}


def call(name: Any = "say", *, about: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": {}, "_meta": meta() if about is None else about}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, **more}}


def headers_for(body: Any, **changed: str) -> list[tuple[str, str]]:
    params = body.get("params") if isinstance(body, dict) else None
    found = {"accept": TAKES_BOTH, "content-type": "application/json", "mcp-protocol-version": PROTOCOL}
    if isinstance(body, dict):
        found["mcp-method"] = str(body.get("method"))
    if isinstance(params, dict) and "name" in params:
        found["mcp-name"] = str(params["name"])
    return list({**found, **changed}.items())


LIST = {"jsonrpc": "2.0", "id": "a", "method": "tools/list", "params": {"_meta": meta()}}
NOTE = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
NEXT = {"mcp-protocol-version": "2099-01-01"}

REQUESTS: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "a call": (call(), headers_for(call())),
    "a call that tells of progress": (call("tell", about=meta(progressToken=0)), headers_for(call("tell"))),
    "a token that is none": (call("tell", about=meta(progressToken=True)), headers_for(call("tell"))),
    "progress that nobody wants": (call("tell"), headers_for(call("tell"))),
    "a call that fails": (call("fail"), headers_for(call("fail"))),
    "a call that fails after progress": (call("fail", about=meta(progressToken="p")), headers_for(call("fail"))),
    "a name that is none": (call(3), headers_for(call(3))),
    "a list": (LIST, headers_for(LIST)),
    "what is offered": ({**LIST, "method": "server/discover"}, headers_for({**LIST, "method": "server/discover"})),
    "a method of nobody's": ({**LIST, "method": "x/y"}, headers_for({**LIST, "method": "x/y"})),
    "a handshake": ({**LIST, "method": "initialize"}, headers_for({**LIST, "method": "initialize"})),
    "to hear of changes": (
        {**LIST, "method": "subscriptions/listen"},
        headers_for({**LIST, "method": "subscriptions/listen"}),
    ),
    "nothing of its client": ({**LIST, "params": {}}, headers_for(LIST)),
    "no parameters": ({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers_for(LIST)),
    "parameters that are a list": ({**LIST, "params": []}, headers_for(LIST)),
    "a version that is a number": (call(about={**meta(), next(iter(meta())): 3}), headers_for(call())),
    "a version to come": (call(about={**meta(), next(iter(meta())): "2099-01-01"}), headers_for(call(), **NEXT)),
    "another version in its header": (call(), headers_for(call(), **NEXT)),
    "another method in its header": (call(), headers_for(call(), **{"mcp-method": "tools/list"})),
    "another name in its header": (call(), headers_for(call(), **{"mcp-name": "tell"})),
    "a name in its header twice": (call(), [*headers_for(call()), ("mcp-name", "say")]),
    "no method in its header": (call(), [one for one in headers_for(call()) if one[0] != "mcp-method"]),
    "a notification": (NOTE, headers_for(NOTE)),
    "a notification of a version to come": (NOTE, headers_for(NOTE, **NEXT)),
    "a notification of no kind": ({"jsonrpc": "2.0"}, headers_for(NOTE)),
    "an answer": ({"jsonrpc": "2.0", "id": 1, "result": {}}, headers_for(NOTE)),
    "two at once": ([call(), call()], headers_for(call())),
    "a text": ("x", headers_for(call())),
    "no JSON": (b"{", headers_for(call())),
    "nothing": (b"", headers_for(call())),
    "JSON of great depth": (b"[" * 100_000, headers_for(call())),
    "an id that is null": ({**LIST, "id": None}, headers_for(LIST)),
    "an id that is true": ({**LIST, "id": True}, headers_for(LIST)),
    "an id that is half": ({**LIST, "id": 1.5}, headers_for(LIST)),
    "another JSON-RPC": ({**LIST, "jsonrpc": "1.0"}, headers_for(LIST)),
    "a form": (call(), headers_for(call(), **{"content-type": "text/plain"})),
    "JSON with a charset": (call(), headers_for(call(), **{"content-type": "application/json; charset=utf-8"})),
    "whatever there is": (call(), headers_for(call(), accept="*/*")),
    "documents alone": (call(), headers_for(call(), accept="application/json")),
    "events alone": (call(), headers_for(call(), accept="text/event-stream")),
    "nothing that it takes": (call(), headers_for(call(), accept="")),
}


def server_with_tools() -> lowlevel.Server[Any]:
    async def tools(_ctx: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="say", input_schema={"type": "object"})])

    async def run(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        if params.name != "say":
            await ctx.session.report_progress(1.0, message="é")
            await ctx.session.report_progress(2.0, 2.0)
        if params.name == "fail":
            raise MCPError(-32602, "Unknown tool.", {"tool": params.name})
        return CallToolResult(content=[TextContent(text="said\n")], structured_content={"x": 1})

    return lowlevel.Server("test", on_list_tools=tools, on_call_tool=run)


async def answer_of(app: Any, body: Any, headers: list[tuple[str, str]]) -> tuple[int, str, Any]:
    """The status, the media type and what is said, without the order of its keys."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http:
        got = await http.post("http://127.0.0.1/mcp", content=sent, headers=headers)
    kind = got.headers.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        return got.status_code, kind, [json.loads(line[6:]) for line in got.text.splitlines() if line[:6] == "data: "]
    return got.status_code, kind, got.json() if kind == "application/json" else got.text


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_is_answered_as_the_entry_of_the_sdk_answers_it(name: str) -> None:
    """backend_kit/mcp/standalone.py serves by `serve_one` and `classify_inbound_request`, as that entry does."""
    body, headers = REQUESTS[name]
    server = server_with_tools()
    door = McpDoor(server, DoorRules("Test"), TaskRegistry())

    async def ours(scope: Any, receive: Any, send: Any) -> None:
        await door.handle(Identity("ada", "ada"), scope, receive, send)

    manager = StreamableHTTPSessionManager(server, stateless=True)
    async with manager.run():
        theirs = await answer_of(manager.handle_request, body, headers)
    assert await answer_of(ours, body, headers) == theirs
