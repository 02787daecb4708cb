"""Tool servers that are programs: real ones, started by the toolbox under test."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic_backend.agent.mcp import McpToolbox
from agentic_backend.agent.mcp_program import McpProgram, TooSoon
from agentic_backend.agent.toolbox import Tool, ToolAnswer, ToolCaller
from agentic_backend.settings import Mcp, McpServer
from backend_kit.aio import TaskRegistry
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

NOBODY = ToolCaller()
ROOT = str(Path(__file__).parents[3])


class Unseen:
    """An observer that keeps nothing."""

    def tool_called(self, server: str, tool: str, status: str, seconds: float) -> None: ...

    def tools_looked_up(self, *, hit: bool) -> None: ...


def program(**more: Any) -> McpServer:
    """The server of `tests/support/stdio_tools.py`."""
    arguments = ("-m", "tests.support.stdio_tools")
    given = {"id": "s", "transport": "stdio", "command": sys.executable, "args": arguments, "cwd": ROOT}
    return McpServer(**{**given, **more})


@asynccontextmanager
async def toolbox(server: McpServer) -> AsyncIterator[McpToolbox]:
    tasks = TaskRegistry()
    box = McpToolbox(Mcp(servers=(server,), discover_s=PATIENCE_S, call_s=PATIENCE_S), tasks, Unseen())
    try:
        yield box
    finally:
        assert await tasks.aclose(PATIENCE_S) == 0
        await box.aclose()
        assert tasks.failures == {}


async def called(box: McpToolbox, name: str, **arguments: Any) -> ToolAnswer:
    offer = await box.offer(["s"], NOBODY)
    (tool,) = [tool for tool in offer.tools if tool.name == name]
    assert isinstance(tool, Tool)
    return await box.call(tool, arguments, NOBODY)


async def again(box: McpToolbox, name: str) -> ToolAnswer:
    """Call until the program that has ended is started again."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await called(box, name)).ok:  # noqa: ASYNC110 - a backoff tells nobody
            await asyncio.sleep(0.05)
    return answer


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_it_is_started_once_however_many_ask_and_ends_with_the_service(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with toolbox(program(env={"STARTS": str(starts)})) as box:
        answers = await asyncio.gather(*(called(box, "add", a=1, b=number) for number in range(10)))
        assert [answer.text for answer in answers] == [str(1 + number) for number in range(10)]
        pid = int((await called(box, "pid")).text)
        assert starts.read_text() == f"{pid}\n"
    assert gone(pid)


async def test_it_gets_the_variables_that_it_is_given_and_no_other() -> None:
    environ = {"PATH": os.environ["PATH"], "SECRET": "of the service", "GIVEN": "value-of-given"}
    made = McpProgram(program(env={"OWN": "1"}), environ=environ)
    assert made._environment == {"PATH": os.environ["PATH"], "OWN": "1"}
    async with toolbox(program(env={"OWN": "1"})) as box:
        names = set((await called(box, "variables")).text.split("\n"))
    assert "OWN" in names
    assert names <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "OWN", "LC_CTYPE"}


async def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    async with toolbox(program(env={"STARTS": str(starts)})) as box:
        first = int((await called(box, "pid")).text)
        died = await called(box, "die")
        assert (died.ok, died.text) == (False, "The tool could not be reached.")
        second = int((await again(box, "pid")).text)
        os.kill(second, signal.SIGKILL)
        third = int((await again(box, "pid")).text)
        assert starts.read_text().split() == [str(first), str(second), str(third)]
    assert gone(third)


async def test_it_waits_between_starts() -> None:
    made = McpProgram(program(command="/bin/false", args=()))
    async with made.running(lambda: None):
        pass
    with pytest.raises(TooSoon):
        async with made.running(lambda: None):
            pass


async def test_a_line_that_is_too_long_ends_the_connection_and_costs_no_memory() -> None:
    async with toolbox(program()) as box:
        assert not (await called(box, "flood")).ok
        assert (await again(box, "pid")).ok


async def test_a_program_that_is_not_there_is_a_server_that_is_down() -> None:
    async with toolbox(program(command="no-such-program")) as box:
        assert (await box.offer(["s"], NOBODY)).missing == ("s",)


async def test_its_stderr_is_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "agentic_backend.agent.mcp_program"):
        async with toolbox(program(env={"KEY": "canary-key"})) as box:
            assert (await called(box, "shout")).ok
            async with asyncio.timeout(PATIENCE_S):
                while "the key is" not in caplog.text:  # noqa: ASYNC110 - a log tells nobody
                    await asyncio.sleep(0.01)
    assert "mcp server s: the key is ***, the line\\x1b[31m ends" in caplog.text
    assert "canary" not in caplog.text


async def test_it_dies_with_a_service_that_is_killed(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = (
        "import asyncio, sys\n"
        "from tests.agentic_backend.agent.test_mcp_program import called, program, toolbox\n"
        "async def main():\n"
        "    async with toolbox(program(env={'STARTS': sys.argv[1]})) as box:\n"
        "        print((await called(box, 'pid')).text, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    service = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(starts), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert service.stdout is not None
    pid = int(await service.stdout.readline())
    service.kill()
    await service.wait()
    async with asyncio.timeout(PATIENCE_S):
        while not gone(pid):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)
