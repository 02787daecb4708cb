"""`useStream` of @langchain/react, unmodified: a page on a thread's stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from tests.checks.source import ROOT
from tests.langgraph.test_threads_stream import AGENTS, ENDLESS, GRAPHS_TOO
from tests.page.__main__ import install
from tests.support.patience import PATIENCE_S
from tests.support.service import ServiceClient

pytestmark = pytest.mark.node

HERE: Final = Path("tests/langgraph/threads")
SLOW: Final = "mock;tokens=40;gap=40"
Told = dict[str, Any]


class ThreadPage:
    """What a person does on it; each answer has what it shows then."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, what: str, **given: Any) -> Told:
        """Let it do something."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"does": what, **given}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            done: Told = json.loads(await stdout.readline())
        assert "failed" not in done, done["failed"]
        return done

    async def open(self, service: ServiceClient, agent: str, thread_id: str | None = None) -> Told:
        """A page, of a thread that there is, or of a new one."""
        headers = {"Authorization": "Bearer local"}
        url = f"http://127.0.0.1:{service.port}"
        await self.do("open", url=url, headers=headers, assistant=agent, threadId=thread_id)
        return await self.do("until", fetched=True)

    async def say(self, text: str) -> None:
        """Send a message."""
        await self.do("say", message={"id": str(uuid4()), "type": "human", "content": text})

    async def until(self, **what: Any) -> Told:
        """What it shows once this holds."""
        return await self.do("until", **what)


@asynccontextmanager
async def thread_page() -> AsyncIterator[ThreadPage]:
    """The page, until the block ends."""
    install(folder=HERE)
    pipe = asyncio.subprocess.PIPE
    command = ("node", "hook.mjs")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT / HERE, stdin=pipe, stdout=pipe, limit=2**24)
    try:
        yield ThreadPage(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


def words(told: Told, place: int = -1) -> int:
    """How many words a line has, without who says it."""
    return len(told["shown"][place].split()) - 1


@pytest.mark.parametrize(("agent", "count"), [("Georges", 5), ("agent", 3)], ids=["ours", "hosted"])
async def test_a_chat_of_two_questions(start_service, agent, count):
    async with start_service("mock;tokens=5", **GRAPHS_TOO) as service, thread_page() as page:
        await page.open(service, agent)
        await page.say("hi")
        told = await page.until(loading=False, count=2)
        assert (told["shown"][0], words(told), told["error"]) == ("human: hi", count, None)
        await page.say("and again")
        told = await page.until(loading=False, count=4)
        assert (told["shown"][2], words(told), told["error"]) == ("human: and again", count, None)
        later = await page.open(service, agent, told["threadId"])
        later = await page.until(count=4)
        assert (later["shown"], later["ids"]) == (told["shown"], told["ids"])
        await page.say("a third")
        assert words(await page.until(loading=False, count=6)) == count


async def test_a_reload_in_mid_answer_goes_on(start_service):
    async with start_service(SLOW, **AGENTS) as service, thread_page() as page:
        await page.open(service, "Georges")
        await page.say("slow")
        before = await page.until(loading=True, count=2)
        await page.open(service, "Georges", before["threadId"])
        told = await page.until(loading=True, count=2)
        told = await page.until(loading=False, count=2)
        assert (words(told), told["error"], told["ids"]) == (40, None, before["ids"])


async def test_streams_that_are_cut_off_are_taken_up(start_service):
    async with start_service(SLOW, **AGENTS) as service, thread_page() as page:
        await page.open(service, "Georges")
        await page.say("slow")
        await page.until(loading=True, count=2)
        for _ in range(2):
            await page.do("cut")
        told = await page.until(loading=False, count=2)
        # What it learns of the end by one stream it shows before the other is taken up.
        async with service.http.get(f"/threads/{told['threadId']}/state") as response:
            whole = (await response.json())["values"]["messages"][-1]["content"]
        told = await page.until(contains=whole)
        assert (words(told), told["error"]) == (40, None)
        assert len([one for one in told["requests"] if one["path"].endswith("/stream/events")]) > 2


async def test_a_stop_keeps_what_was_shown(start_service):
    async with start_service(ENDLESS, **AGENTS) as service, thread_page() as page:
        await page.open(service, "Georges")
        await page.say("long")
        shown = await page.until(count=2)
        told = await page.do("stop")
        assert not told["loading"]
        assert any(one["path"].endswith("/cancel") for one in told["requests"])
        later = await page.open(service, "Georges", told["threadId"])
        later = await page.until(count=2)
        assert later["shown"][1].startswith(shown["shown"][1].strip())


async def test_a_question_is_asked_and_answered(start_service):
    async with start_service(**AGENTS) as service, thread_page() as page:
        await page.open(service, "Teller")
        await page.say("review")
        asked = await page.until(loading=False, asks=True)
        assert [one["name"] for one in asked["interrupt"]["value"]["action_requests"]] == ["send", "drop"]
        # A page that is loaded again asks again.
        await page.open(service, "Teller", asked["threadId"])
        again = await page.until(asks=True)
        assert again["interrupt"]["id"] == asked["interrupt"]["id"]
        decisions = [{"type": "approve"}, {"type": "reject", "message": "No."}]
        await page.do("respond", value={"decisions": decisions})
        told = await page.until(loading=False, asks=False, count=2)
        assert json.loads(told["shown"][-1].removeprefix("ai: "))[0] == {"decisions": decisions}
