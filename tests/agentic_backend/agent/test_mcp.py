import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agentic_backend.agent.mcp import McpToolbox
from agentic_backend.agent.toolbox import Offer, Tool, ToolCaller
from agentic_backend.settings import Mcp, McpServer
from backend_kit.aio import TaskRegistry
from backend_kit.auth import Credentials, Grant
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.tool_server import ToolServer, counts, started, tool_server

pytestmark = pytest.mark.servers

__all__ = ["tool_server"]

NOBODY = ToolCaller()


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.lookups: list[bool] = []

    def tool_called(self, server: str, tool: str, status: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((server, tool, status))

    def tools_looked_up(self, *, hit: bool) -> None:
        self.lookups.append(hit)


@asynccontextmanager
async def toolbox(*servers: McpServer, seen: Seen | None = None, **rules: Any) -> AsyncIterator[McpToolbox]:
    tasks = TaskRegistry()
    box = McpToolbox(Mcp(servers=servers, **rules), tasks, seen or Seen())
    try:
        yield box
    finally:
        assert await tasks.aclose() == 0
        await box.aclose()
        assert tasks.failures == {}


def at(url: str, server_id: str = "s", **more: Any) -> McpServer:
    return McpServer(id=server_id, url=url, **more)


async def tool(box: McpToolbox, name: str, caller: ToolCaller = NOBODY) -> Tool:
    found = (await box.offer(["s"], caller)).named(name)
    assert found is not None
    return found


async def test_discovers_a_server_once_however_many_ask(tool_server: ToolServer) -> None:
    seen = Seen()
    async with toolbox(at(tool_server.url), seen=seen) as box:
        offers = await asyncio.gather(*(box.offer(["s"], NOBODY) for _ in range(20)))
        for _ in range(5):
            offers.append(await box.offer(["s"], NOBODY))
        added = await box.call(await tool(box, "add"), {"a": 1, "b": 2}, NOBODY)
        told = (await counts(tool_server))["counts"]
    assert {tuple(one.name for one in offer.tools) for offer in offers} == {
        ("add", "note", "stall", "flood", "long", "fail", "learn")
    }
    assert (added.text, added.ok) == ("3", True)
    assert (told["tools/list"], told["tools/call"]) == (1, 1)
    assert seen.lookups == [False] * 20 + [True] * 6
    assert seen.calls == [("s", "add", "ok")]


async def test_what_may_change_something_needs_approval(tool_server: ToolServer) -> None:
    async with toolbox(at(tool_server.url)) as box:
        offer = await box.offer(["s"], NOBODY)
    assert [one.name for one in offer.tools if one.needs_approval] == ["note"]
    async with toolbox(at(tool_server.url, approved_tools=("note",), tools_to_approve=("add",))) as box:
        offer = await box.offer(["s"], NOBODY)
    assert [one.name for one in offer.tools if one.needs_approval] == ["add"]
    async with toolbox(at(tool_server.url, tools_to_approve=("*",))) as box:
        assert all(one.needs_approval for one in (await box.offer(["s"], NOBODY)).tools)


async def test_a_tool_that_fails_or_refuses_is_an_answer(tool_server: ToolServer) -> None:
    seen = Seen()
    async with toolbox(at(tool_server.url), seen=seen) as box:
        failed = await box.call(await tool(box, "fail"), {}, NOBODY)
        refused = await box.call(await tool(box, "add"), {"a": "x"}, NOBODY)
        added = await box.call(await tool(box, "add"), {"a": 1, "b": 1}, NOBODY)
    assert not failed.ok
    assert "secret" not in failed.text
    assert not refused.ok
    assert added.ok
    assert [status for _, _, status in seen.calls] == ["error", "error", "ok"]


async def test_a_slow_tool_is_left_at_the_deadline_and_takes_no_other_call_with_it(tool_server: ToolServer) -> None:
    seen = Seen()
    async with toolbox(at(tool_server.url), seen=seen, call_s=8.0) as box:
        stall, add = await tool(box, "stall"), await tool(box, "add")
        slow = asyncio.ensure_future(box.call(stall, {}, NOBODY))
        while (await counts(tool_server))["counts"].get("stall") is None:  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)
        assert (await box.call(add, {"a": 2, "b": 2}, NOBODY)).text == "4"
        late = await slow
    assert not late.ok
    assert "in time" in late.text
    assert seen.calls == [("s", "add", "ok"), ("s", "stall", "timeout")]


async def test_an_answer_of_10_mb_is_cut_off_while_it_is_read(tool_server: ToolServer) -> None:
    async with toolbox(at(tool_server.url)) as box:
        flooded = await box.call(await tool(box, "flood"), {}, NOBODY)
        after = await box.call(await tool(box, "add"), {"a": 1, "b": 1}, NOBODY)
    assert not flooded.ok
    assert len(flooded.text) < 200
    assert after.ok


async def test_a_long_answer_is_shortened_and_says_so(tool_server: ToolServer) -> None:
    async with toolbox(at(tool_server.url), max_result_chars=1000) as box:
        long = await box.call(await tool(box, "long"), {}, NOBODY)
    assert long.text == "y" * 1000 + "\n[cut: 49000 more characters]"


async def test_a_cancelled_call_is_counted_as_that(tool_server: ToolServer) -> None:
    seen = Seen()
    async with toolbox(at(tool_server.url), seen=seen) as box:
        calling = asyncio.ensure_future(box.call(await tool(box, "stall"), {}, NOBODY))
        while (await counts(tool_server))["counts"].get("stall") is None:  # noqa: ASYNC110 - the server is asked
            await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    assert seen.calls == [("s", "stall", "cancelled")]


async def test_the_token_goes_only_where_the_configuration_says(tool_server: ToolServer) -> None:
    ann = ToolCaller(Credentials("ann-token"))
    async with toolbox(at(tool_server.url)) as box:
        await box.call(await tool(box, "add", ann), {"a": 1, "b": 2}, ann)
    assert (await counts(tool_server))["tokens"] == [""]
    async with toolbox(at(tool_server.url, forward_token=True)) as box:
        add = await tool(box, "add", ann)
        await box.call(add, {"a": 1, "b": 2}, ann)
        await box.call(add, {"a": 1, "b": 2}, ToolCaller(Credentials("bob-token")))
        await box.call(add, {"a": 1, "b": 2}, ToolCaller(Credentials("tw_key", Grant())))
    told = await counts(tool_server)
    assert told["tokens"] == ["", "ann-token", "bob-token"], "an API key goes to no tool server"
    assert told["counts"]["tools/list"] == 2


async def test_a_server_that_is_down_is_missing_from_the_offer() -> None:
    async with toolbox(at(f"http://127.0.0.1:{free_port()}/mcp")) as box:
        assert await box.offer(["s"], NOBODY) == Offer((), ("s",))
        assert await box.offer(["s"], NOBODY) == Offer((), ("s",))


async def test_a_server_that_restarts_is_used_again() -> None:
    port = free_port()
    async with toolbox(at(f"http://127.0.0.1:{port}/mcp")) as box:
        async with started(port):
            add = await tool(box, "add")
            assert (await box.call(add, {"a": 1, "b": 2}, NOBODY)).ok
        away = await box.call(add, {"a": 1, "b": 2}, NOBODY)
        async with started(port):
            assert (await box.call(add, {"a": 3, "b": 4}, NOBODY)).text == "7"
    assert not away.ok


async def test_a_server_that_stays_away_is_not_called_again_at_once() -> None:
    seen = Seen()
    port = free_port()
    async with toolbox(at(f"http://127.0.0.1:{port}/mcp"), seen=seen) as box:
        async with started(port):
            add = await tool(box, "add")
        answers = [await box.call(add, {"a": 1, "b": 2}, NOBODY) for _ in range(7)]
    assert {answer.text for answer in answers} == {"The tool could not be reached."}
    assert [status for _, _, status in seen.calls] == ["error"] * 7


@pytest.mark.parametrize(
    ("refuse", "protocol"), [("", "subscriptions/listen"), ("server/discover", "initialize")], ids=["new", "old"]
)
async def test_a_server_that_says_its_tools_have_changed_is_listed_again(refuse: str, protocol: str) -> None:
    async with started(free_port(), refuse) as server, toolbox(at(server.url), call_s=5) as box:
        learn = await tool(box, "learn")
        # Until the server hears somebody listen, what it says is lost.
        async with asyncio.timeout(PATIENCE_S):
            for number in itertools.count():
                await box.call(learn, {"name": f"learned_{number}"}, NOBODY)
                await asyncio.sleep(0.1)  # the server is another process: what it has told cannot be awaited
                if (await box.offer(["s"], NOBODY)).named("learned_0") is not None:
                    break
        told = (await counts(server))["counts"]
    assert told[protocol] >= 1
    assert 2 <= told["tools/list"] <= 1 + told["learn"]


async def test_a_server_that_tells_of_no_changes_is_used_all_the_same() -> None:
    async with started(free_port(), "subscriptions/listen") as server, toolbox(at(server.url)) as box:
        add = await tool(box, "add")
        assert (await box.call(add, {"a": 1, "b": 2}, NOBODY)).ok
        async with asyncio.timeout(PATIENCE_S):
            while "subscriptions/listen" not in (told := (await counts(server))["counts"]):  # noqa: ASYNC110 - the server is asked
                await asyncio.sleep(0.02)
    assert told["tools/list"] == 1


def liar(answers: Callable[[dict[str, Any]], Any]) -> web.Application:
    """A server of the handshake era that says what `answers` makes of a request, whatever the protocol asks for."""

    async def serve(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405)
        asked = await request.json()
        if "id" not in asked:
            return web.Response(status=202)
        if asked["method"] == "initialize":
            result: Any = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "liar", "version": "1"},
            }
        elif asked["method"] == "server/discover":
            return web.json_response(
                {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}}
            )
        else:
            result = answers(asked)
        if isinstance(result, web.Response):
            return result
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    app = web.Application()
    app.router.add_route("*", "/mcp", serve)
    return app


@asynccontextmanager
async def lying(answers: Callable[[dict[str, Any]], Any]) -> AsyncIterator[str]:
    runner = web.AppRunner(liar(answers))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


GOOD = {"name": "good", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    "result",
    [
        {"content": "no list"},
        {"content": [{"type": "text"}]},
        {"contents": []},
        [],
        None,
        web.Response(status=500),
        web.Response(status=200, text="<html>", content_type="text/html"),
        web.Response(status=200, text="{", content_type="application/json"),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
        web.Response(
            status=200, body=b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 10_000_000, content_type="application/json"
        ),
    ],
    ids=lambda result: json.dumps(result) if not isinstance(result, web.Response) else f"{result.status}",
)
async def test_a_result_that_breaks_the_protocol_is_an_answer_that_says_so(result: Any) -> None:
    def answers(asked: dict[str, Any]) -> Any:
        return {"tools": [GOOD]} if asked["method"] == "tools/list" else result

    async with lying(answers) as url, toolbox(at(url), call_s=3.0) as box:
        answer = await box.call(await tool(box, "good"), {}, NOBODY)
    assert not answer.ok
    assert len(answer.text) < 200


async def test_a_tool_whose_schema_is_too_large_is_left_out() -> None:
    bad = {"name": "bad", "inputSchema": {"type": "object", "description": "x" * 40_000}}
    async with lying(lambda _: {"tools": [bad, GOOD]}) as url, toolbox(at(url)) as box:
        offer = await box.offer(["s"], NOBODY)
    assert [one.name for one in offer.tools] == ["good"]


@pytest.mark.parametrize("listed", [{"tools": "none"}, {"tools": [{**GOOD, "inputSchema": {}}]}, {}, []], ids=str)
async def test_a_list_that_breaks_the_protocol_leaves_the_server_out(listed: Any) -> None:
    async with lying(lambda _: listed) as url, toolbox(at(url)) as box:
        assert await box.offer(["s"], NOBODY) == Offer((), ("s",))


async def test_a_list_without_end_is_cut() -> None:
    pages = iter(range(10_000))

    def answers(_: dict[str, Any]) -> Any:
        page = next(pages)
        more = [{**GOOD, "name": f"t{page}-{number}"} for number in range(5)]
        return {"tools": more, "nextCursor": str(page)}

    async with lying(answers) as url, toolbox(at(url)) as box:
        assert len((await box.offer(["s"], NOBODY)).tools) == 64
    assert next(pages) <= 16


async def test_equal_and_unfit_names_get_their_servers(tool_server: ToolServer) -> None:
    odd = {"tools": [{**GOOD, "name": "add"}, {**GOOD, "name": "an odd.name"}]}
    async with lying(lambda _: odd) as url, toolbox(at(tool_server.url, "one"), at(url, "two")) as box:
        names = [one.name for one in (await box.offer(["one", "two"], NOBODY)).tools]
    assert names[:2] == ["one_add", "note"]
    assert names[-2:] == ["two_add", "two_an_odd_name"]


async def test_content_that_is_no_text_is_named() -> None:
    result = {"content": [{"type": "image", "data": "aaaa", "mimeType": "image/png"}, {"type": "text", "text": "a\0b"}]}

    def answers(asked: dict[str, Any]) -> Any:
        return {"tools": [GOOD]} if asked["method"] == "tools/list" else result

    async with lying(answers) as url, toolbox(at(url)) as box:
        answer = await box.call(await tool(box, "good"), {}, NOBODY)
    assert answer.text == "[image content, not shown]\na\ufffdb"
