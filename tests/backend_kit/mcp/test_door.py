"""The endpoint of an MCP server on its own: what a handler that fails lets out, and what a door that is closed does."""

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

from backend_kit.aio import TaskRegistry
from backend_kit.auth import Identity
from backend_kit.http import RequestId
from backend_kit.mcp import Context, DoorRules, McpDoor, answering, caller_of, mcp_routes
from backend_kit.wire import Code, ServiceError
from tests.support.mcp_client import ERAS

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


async def identify() -> Identity:
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
