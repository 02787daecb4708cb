"""The official client of AG-UI, unmodified, runs agents, is cut and runs on, asks a person and offers tools."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.agentic_backend.llm.scripted import scripted, status
from tests.checks.source import ROOT
from tests.docs.pages import blocks
from tests.integration.test_agui_door import CITY
from tests.integration.test_human import DONE, NOTES, sections, used
from tests.page.__main__ import install
from tests.support.again_agent import ANSWER as ALL_OF_IT
from tests.support.again_agent import THOUGHT as THOUGHT_AGAIN
from tests.support.again_agent import again
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService
from tests.support.telling_agent import ANSWER, SECRET, telling
from tests.support.tool_model import says, wants
from tests.support.tool_server import tool_server

__all__ = ["tool_server"]

pytestmark = pytest.mark.node

HERE = Path("tests/agui")
TELLER = {"ai": {"agents": [telling()]}}
TOLD = [
    ("reasoning", f"I look for {SECRET}."),
    ("reasoning", "Looked."),
    ("reasoning", "Now I know."),
    ("assistant", ANSWER),
    ("reasoning", "Is it?"),
]


@pytest.fixture(scope="module")
def resuming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module that docs/agui.md shows, beside an installed client."""
    install(folder=HERE)
    (shown,) = blocks(ROOT / "docs/agui.md", "module")
    module = tmp_path_factory.mktemp("agui") / shown.name
    module.write_text(shown.text)
    return module


@dataclass(slots=True)
class Client:
    """The client in a process of its own."""

    process: asyncio.subprocess.Process
    thread_id: str = ""

    async def do(self, what: str, **given: Any) -> dict[str, Any]:
        """Let it do something; what came of it, and its messages then. It has nothing to warn of."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"does": what, **given}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE_S):
            line = await self.process.stdout.readline()
        done: dict[str, Any] = json.loads(line)
        if not done.get("error"):
            assert done["warnings"] == []
        return done

    async def open(self, service: RunningService, agent: str) -> None:
        """Begin a thread with an agent."""
        self.thread_id = uuid4().hex
        url = f"http://127.0.0.1:{service.port}/agui/{agent}"
        await self.do("open", url=url, threadId=self.thread_id, headers={"Authorization": "Bearer local"})

    async def say(self, text: str) -> None:
        """Add a message of the user's."""
        await self.do("say", message={"id": uuid4().hex, "role": "user", "content": text})

    async def run(self, run_id: str | None = None, **more: Any) -> dict[str, Any]:
        """Run the agent."""
        given = {key: more.pop(key) for key in ("breaks", "resumes") if key in more}
        parameters = {"runId": run_id or uuid4().hex, **more}
        return await self.do("run", parameters=parameters, **given)


@asynccontextmanager
async def official_client(resuming: Path) -> AsyncIterator[Client]:
    """The client, until the block ends."""
    command = ("node", "client.mjs", str(resuming))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT / HERE, stdin=pipe, stdout=pipe, limit=2**24)
    try:
        yield Client(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


def said(done: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and text of each message."""
    return [(one["role"], one.get("content") or "") for one in done["messages"]]


def types(done: dict[str, Any]) -> list[str]:
    return [event["type"] for event in done["events"]]


async def test_it_takes_every_event_and_has_nothing_to_warn_of(start_service, resuming):
    async with start_service(**TELLER) as service, official_client(resuming) as client:
        await client.open(service, "Teller")
        await client.say("tell")
        done = await client.run()
        assert done["error"] is None
        assert said(done) == [("user", "tell"), *TOLD]
        assert set(types(done)) >= {"RUN_STARTED", "STEP_STARTED", "REASONING_START", "CUSTOM", "RUN_FINISHED"}
        # What it has then is what it sends with the next question.
        await client.say("tell")
        assert said(await client.run()) == [("user", "tell"), *TOLD] * 2


async def test_tools_a_question_and_its_answer(start_service, tool_server, resuming):
    async with (
        scripted(NOTES, DONE) as model,
        start_service(**sections(model, tool_server)) as service,
        official_client(resuming) as client,
    ):
        await client.open(service, "Sammy")
        await client.say("Note milk")
        asked = await client.run()
        (interrupt,) = asked["interrupts"]
        entry = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        done = await client.run(resume=[entry])
        assert (done["error"], done["interrupts"]) == (None, [])
        assert said(done)[1:] == [
            ("assistant", "I will note it."),
            ("tool", "kept: milk"),
            ("assistant", "I noted milk."),
        ]
        assert await used(tool_server, "note") == 1
        again = await client.run(resume=[entry])
        assert again["error"] is None
        assert said(again) == said(done)
        assert await used(tool_server, "note") == 1


async def test_it_calls_its_own_tool(start_service, resuming):
    async with scripted(wants(("call_0", "city", "{}"), text="Let me look."), says("You are in Oslo.")) as model:
        ai = {
            "default_chat_model": {"settings": {"base_url": model.base_url}},
            "agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain", "client_tools": True}],
        }
        async with start_service("scripted", ai=ai) as service, official_client(resuming) as client:
            await client.open(service, "Georges")
            await client.say("Where am I?")
            called = await client.run(tools=[CITY])
            assert called["events"][-1]["outcome"]["pendingToolCallIds"] == ["call_0"]
            await client.do("say", message={"id": "x", "role": "tool", "toolCallId": "call_0", "content": "Oslo"})
            assert said(await client.run(tools=[CITY]))[-1] == ("assistant", "You are in Oslo.")


async def test_cut_at_every_event_it_runs_again_and_has_each_text_once(start_service, resuming):
    async with start_service(**TELLER) as service, official_client(resuming) as client:
        await client.open(service, "Teller")
        await client.say("tell")
        for cut in range(len(types(await client.run()))):
            await client.open(service, "Teller")
            await client.say("tell")
            broken = await client.run(f"r{cut}", breaks=cut)
            assert "terminated" in broken["error"]["message"]
            done = await client.run(f"r{cut}")
            assert done["error"] is None
            assert sorted(said(done)) == sorted([("user", "tell"), *TOLD]), cut


async def test_cut_at_every_event_it_notices_nothing_with_the_fetch_of_the_documents(start_service, resuming):
    async with start_service(**TELLER) as service, official_client(resuming) as client:
        await client.open(service, "Teller")
        await client.say("tell")
        whole = types(await client.run())
        for cut in range(1, len(whole)):
            await client.open(service, "Teller")
            await client.say("tell")
            done = await client.run(f"r{cut}", breaks=cut, resumes=2)
            assert done["error"] is None
            assert said(done) == [("user", "tell"), *TOLD], cut


async def test_what_a_run_that_begins_again_had_said_is_taken_back(start_service, resuming):
    async with start_service(ai={"agents": [again()]}) as service, official_client(resuming) as client:
        await client.open(service, "Again")
        await client.say("silent")
        first = await client.run()
        await client.say("Why?")
        done = await client.run()
        assert done["error"] is None
        assert said(done)[: len(said(first))] == said(first)
        shown = [one for one in said(done)[len(said(first)) :] if one[1]]
        assert shown == [("user", "Why?"), ("reasoning", THOUGHT_AGAIN), ("assistant", ALL_OF_IT)]


async def test_failures_before_and_in_a_run(start_service, resuming):
    async with scripted(status(500)) as model:
        ai = {"default_chat_model": {"settings": {"base_url": model.base_url}}}
        async with start_service("scripted", ai=ai) as service, official_client(resuming) as client:
            await client.open(service, "Georges")
            await client.say("Hello")
            failed = await client.run()
            assert failed["events"][-1] | {"metadata": None} == {
                "type": "RUN_ERROR",
                "message": "The model is unavailable. Try again.",
                "code": "llm_unavailable",
                "metadata": None,
            }
            refused = await client.run("x" * 129)
            assert refused["error"]["status"] == 422
            assert refused["error"]["payload"]["detail"]["field"] == "runId"
