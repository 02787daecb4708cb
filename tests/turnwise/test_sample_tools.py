"""The tools that Sammy has in `make run`: what they say, what they keep, and who may reach them."""

import json
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from mcp.client import Client
from mcp_types import TextContent

from tests.support.ports import free_port
from tests.support.processes import ForkedModule
from turnwise.sample_tools import MOST_CHARS, MOST_NOTES, Notes, sample_tools

SUNDAY = datetime(2026, 11, 22, 16, 41, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tools:
    """The server without a network, at a fixed time; each call is a client of its own."""

    file: Path

    def client(self) -> Client:
        return Client(sample_tools(Notes(self.file), lambda: SUNDAY))

    async def call(self, name: str, **arguments: object) -> tuple[bool, str]:
        async with self.client() as client:
            result = await client.call_tool(name, arguments)
        (block,) = result.content
        assert isinstance(block, TextContent)
        return not result.is_error, block.text


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path / "notes.json")


async def test_what_only_reads_says_so_and_nothing_else_does(tools: Tools) -> None:
    async with tools.client() as client:
        listed = (await client.list_tools()).tools
    hints = {
        tool.name: (tool.annotations.read_only_hint, tool.annotations.destructive_hint)
        for tool in listed
        if tool.annotations is not None
    }
    assert hints == {
        "current_time": (True, None),
        "canteen_menu": (True, None),
        "list_notes": (True, None),
        "add_note": (False, False),
        "delete_note": (False, True),
    }


async def test_the_clock_and_the_menu_follow_the_day(tools: Tools) -> None:
    assert await tools.call("current_time") == (True, "It is 16:41 on Sunday, 22 November 2026.")
    said = [(await tools.call("canteen_menu", day=day))[1] for day in ("today", "tomorrow", "monday")]
    assert said[0].startswith("Today, Sunday, the canteen has ")
    assert said[1].startswith("Tomorrow, Monday, the canteen has ")
    assert said[2] == said[1].replace("Tomorrow, Monday,", "On Monday")
    assert (await tools.call("canteen_menu")) == (True, said[0])
    assert (await tools.call("canteen_menu", day="someday"))[0] is False


async def test_notes_are_added_listed_deleted_and_kept_in_a_file_of_their_owner(tools: Tools) -> None:
    assert await tools.call("list_notes") == (True, "There are no notes.")
    assert await tools.call("add_note", text=" buy\nmilk ") == (True, "Note 1 is kept: buy milk")
    assert await tools.call("add_note", text="Été") == (True, "Note 2 is kept: Été")
    assert await tools.call("list_notes") == (True, "There are 2 notes: (1) buy milk; (2) Été")
    assert stat.S_IMODE(tools.file.stat().st_mode) == 0o600
    assert await tools.call("delete_note", number=1) == (True, "Note 1 is deleted: buy milk")
    assert await tools.call("list_notes") == (True, "There is 1 note: (1) Été")
    assert [path.name for path in tools.file.parent.iterdir()] == ["notes.json"]


async def test_what_cannot_be_done_is_said_and_changes_nothing(tools: Tools) -> None:
    assert await tools.call("delete_note", number=1) == (False, "There is no note 1: there are 0.")
    for text in (" ", "x" * (MOST_CHARS + 1)):
        assert await tools.call("add_note", text=text) == (False, f"A note has 1 to {MOST_CHARS} characters.")
    tools.file.write_text(json.dumps(["n"] * MOST_NOTES))
    assert (await tools.call("add_note", text="n"))[0] is False
    for broken in ("{", '{"a": 1}', "[1]"):
        tools.file.write_text(broken)
        assert await tools.call("list_notes") == (False, "The notes cannot be read.")
        assert (await tools.call("add_note", text="n"))[0] is False
        assert tools.file.read_text() == broken


@pytest.mark.servers
async def test_a_page_of_another_place_is_refused(tmp_path: Path) -> None:
    """Nobody signs in to it: a browser must not be led there by a stranger's page, or by a name that is rebound."""
    port = free_port()
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    url = f"http://127.0.0.1:{port}/mcp"
    accept = {"Accept": "application/json, text/event-stream"}
    arguments = ("--port", str(port), "--notes", str(tmp_path / "notes.json"))
    with ForkedModule("turnwise.sample_tools", *arguments, stop_s=5) as process:
        await process.until(process.wait_for_line, "listens on")
        async with aiohttp.ClientSession(headers=accept) as http:
            for strange, status in (({"Origin": "https://evil.example"}, 403), ({"Host": "evil.example"}, 421)):
                async with http.post(url, json=hello, headers=strange) as response:
                    assert response.status == status
            async with http.post(url, json=hello) as response:
                assert response.status not in (403, 421)
