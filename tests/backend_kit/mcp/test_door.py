"""The endpoint of an MCP server on its own: what a handler that fails lets out, and what a door that is closed does."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from mcp import MCPError
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool
from starlette.requests import Request
from starlette.types import Message

from backend_kit.aio import TaskRegistry
from backend_kit.auth import Identity
from backend_kit.http import RequestId
from backend_kit.mcp import Context, DoorRules, McpDoor, answering, caller_of, mcp_routes
from backend_kit.wire import Code, ServiceError, dumps, loads
from tests.agentic_backend.session.gated_turns import ticks
from tests.support.mcp_client import ERAS
from tests.support.patience import PATIENCE_S

CALLER = Identity("ada", "ada")
Call = Callable[[Context, CallToolRequestParams], Awaitable[CallToolResult]]


class Busy(ServiceError):
    code: ClassVar[Code] = Code.OVERLOADED


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry()
    yield registry
    assert await registry.aclose() == 0
    assert registry.failures == {}


async def identify(_request: Request) -> Identity:
    return CALLER


def door_of(call: Call, tasks: TaskRegistry, **rules: Any) -> McpDoor:
    async def tools(_ctx: Context, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="one", input_schema={"type": "object"})])

    server: Server[Any] = Server("test", on_list_tools=tools, on_call_tool=answering(call))
    return McpDoor(server, DoorRules("Test", **rules), tasks)


@asynccontextmanager
async def client_of(door: McpDoor, era: str) -> AsyncIterator[Client]:
    app = FastAPI()
    app.router.routes += mcp_routes(lambda: door, identify)
    app.add_middleware(RequestId)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, headers={"X-Request-ID": "r1"}) as http:
        url = "http://127.0.0.1/mcp"
        async with Client(streamable_http_client(url, http_client=http), mode=era, cache=None) as client:
            yield client


@pytest.mark.parametrize("era", ERAS)
async def test_a_fault_of_ours_is_an_error_without_its_words(
    tasks: TaskRegistry, caplog: pytest.LogCaptureFixture, era: str
) -> None:
    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        raise LookupError("canary")

    door = door_of(call, tasks, json_only=True)
    with caplog.at_level(logging.ERROR):
        async with client_of(door, era) as client:
            with pytest.raises(MCPError) as failure:
                await client.call_tool("one", {})
    assert failure.value.data == {"code": "internal", "request_id": "r1"}
    assert "canary" not in str(failure.value)
    assert "request r1 failed: LookupError" in caplog.text


@pytest.mark.parametrize("era", ERAS)
async def test_a_failure_with_a_code_is_a_result(tasks: TaskRegistry, era: str) -> None:
    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        raise Busy("canary", retry_after_s=1.0)

    async with client_of(door_of(call, tasks, json_only=True), era) as client:
        result = await client.call_tool("one", {})
    assert result.is_error
    detail = {"code": "overloaded", "message": "The service is overloaded. Try again.", "retryable": True}
    assert result.structured_content == {**detail, "retry_after_s": 1.0}


@pytest.mark.parametrize("era", ERAS)
async def test_a_handler_knows_who_calls(tasks: TaskRegistry, era: str) -> None:
    async def call(ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=caller_of(ctx).uid)])

    async with client_of(door_of(call, tasks, json_only=True), era) as client:
        (block,) = (await client.call_tool("one", {})).content
    assert isinstance(block, TextContent)
    assert block.text == "ada"


@pytest.mark.parametrize("sessions", [0, 2])
async def test_a_batch_is_refused_at_its_first_sign(tasks: TaskRegistry, sessions: int) -> None:
    """The SDK would read all of it, and try each element as each kind of message."""

    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        raise AssertionError("nobody asked")

    said: list[Message] = []
    body: list[Message] = [{"type": "http.request", "body": part, "more_body": True} for part in (b" \n", b" [{}")]

    async def receive() -> Message:
        return body.pop(0)  # no more than this is asked for

    async def send(message: Message) -> None:
        said.append(message)

    headers = [(b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers}
    door = door_of(call, tasks, sessions_per_user=sessions)
    await door.handle(CALLER, scope, receive, send)
    assert said[0]["status"] == 400
    assert loads(said[1]["body"])["error"]["message"] == "Validation error"
    await door.aclose()


async def test_calls_are_answered_although_a_server_was_told_to_exit(tasks: TaskRegistry) -> None:
    """The SDK's event streams would be empty: they belong to whichever server of the process is told first."""

    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        uvicorn.Server(uvicorn.Config("none")).handle_exit(signal.SIGTERM, None)
        return CallToolResult(content=[TextContent(text="here")])

    uvicorn.Server(uvicorn.Config("none")).handle_exit(signal.SIGTERM, None)
    async with client_of(door_of(call, tasks), "legacy") as client:
        for _ in range(2):
            (block,) = (await client.call_tool("one", {})).content
            assert isinstance(block, TextContent)


async def test_a_process_has_no_more_sessions_than_it_may(tasks: TaskRegistry) -> None:
    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        return CallToolResult(content=[])

    door = door_of(call, tasks, json_only=True, sessions_per_user=3, max_sessions=2)
    first, second = client_of(door, "legacy"), client_of(door, "legacy")
    async with first, second:
        assert door.sessions == 2
        with pytest.raises(ExceptionGroup):
            async with client_of(door, "legacy"):
                pass
    await door.aclose()
    assert door.sessions == 0
    assert len(tasks) == 0


class Exchanged:
    """A request of 2026-07-28 to a door, and all that is sent for it."""

    def __init__(self, door: McpDoor, method: str = "tools/call") -> None:
        self._door = door
        self._method = method
        """What its header says of the request."""
        self.sent: list[bytes] = []
        self.heard = asyncio.Event()
        self.aborted = False
        self.stuck = False
        """Whether its client takes nothing."""
        self.callback: Callable[[], None] | None = None

    async def __call__(self) -> None:
        prefix = "io.modelcontextprotocol/"
        meta = {f"{prefix}protocolVersion": ERAS[1], f"{prefix}clientCapabilities": {}, "progressToken": 1}
        params = {"name": "one", "arguments": {}, "_meta": meta}
        body = dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": ERAS[1],
            "mcp-method": self._method,
            "mcp-name": "one",
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": {"abort": self._abort, "on_gone": self._on_gone},
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        await self._door.handle(CALLER, scope, receive, self._send)

    async def _send(self, message: Message) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        if message["type"] == "http.response.body":
            self.sent.append(message["body"])
            self.heard.set()

    def _abort(self) -> None:
        self.aborted = True

    def _on_gone(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback


async def test_a_client_that_hears_nothing_gets_comments_until_the_result(tasks: TaskRegistry) -> None:
    go_on = asyncio.Event()

    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        await go_on.wait()
        return CallToolResult(content=[])

    exchanged = Exchanged(door_of(call, tasks, silence_s=0.01))
    running = asyncio.ensure_future(exchanged())
    async with asyncio.timeout(PATIENCE_S):
        while len(exchanged.sent) < 2:
            exchanged.heard.clear()
            await exchanged.heard.wait()
        go_on.set()
        await running
    *comments, result = exchanged.sent
    assert set(comments) == {b": ping\r\n\r\n"}
    assert loads(result.partition(b"data: ")[2])["result"]["resultType"] == "complete"


async def test_where_documents_are_all_there_is_nothing_comes_before_the_result(tasks: TaskRegistry) -> None:
    async def call(ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        await ctx.session.report_progress(1.0)
        return CallToolResult(content=[])

    exchanged = Exchanged(door_of(call, tasks, json_only=True, silence_s=0.0))
    await exchanged()
    (document,) = exchanged.sent
    assert loads(document)["id"] == 1


async def test_a_client_that_leaves_ends_its_call(tasks: TaskRegistry) -> None:
    ended: list[str] = []

    async def call(ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        await ctx.session.report_progress(1.0)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("call")
        raise AssertionError

    exchanged = Exchanged(door_of(call, tasks))
    running = asyncio.ensure_future(exchanged())
    async with asyncio.timeout(PATIENCE_S):
        await exchanged.heard.wait()
        leave = exchanged.callback
        assert leave is not None
        leave()
        await running
    assert ended == ["call"]
    assert exchanged.callback is None


async def test_a_client_that_takes_nothing_is_cut_off(tasks: TaskRegistry) -> None:
    async def call(ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        while True:
            await ctx.session.report_progress(1.0)

    exchanged = Exchanged(door_of(call, tasks, send_s=0.01))
    exchanged.stuck = True
    async with asyncio.timeout(PATIENCE_S):
        await exchanged()
    assert exchanged.aborted


async def test_a_door_that_closes_cuts_off_what_does_not_end(tasks: TaskRegistry) -> None:
    async def call(ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        await ctx.session.report_progress(1.0)
        await asyncio.Event().wait()
        raise AssertionError

    door = door_of(call, tasks)
    exchanged = Exchanged(door)
    running = asyncio.ensure_future(exchanged())
    async with asyncio.timeout(PATIENCE_S):
        await exchanged.heard.wait()
        await door.aclose()
        await running
    progress, end = exchanged.sent
    assert b"notifications/progress" in progress
    assert loads(end.partition(b"data: ")[2])["error"]["data"]["code"] == "draining"


async def test_a_door_that_closes_cuts_off_a_refusal_that_nobody_takes(tasks: TaskRegistry) -> None:
    async def call(_ctx: Context, _params: CallToolRequestParams) -> CallToolResult:
        raise AssertionError

    door = door_of(call, tasks)
    exchanged = Exchanged(door, "tools/list")
    exchanged.stuck = True
    running = asyncio.ensure_future(exchanged())
    await ticks()
    async with asyncio.timeout(PATIENCE_S):
        await door.aclose()
        await running
    assert exchanged.sent == []
