"""The first impression: a fresh start, all that the page suggests asked of every agent and judged, and the next start.

Nothing is played here: embedded Postgres, both services, the shipped documents with the shipped embedder, the shipped
configuration, tools and mock model.
"""

import json
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.support.patience import PATIENCE_S
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from tests.turnwise.test_launcher import Stack, ready

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]
HEADERS = {"Authorization": "Bearer local"}
BASE = "/agentic/v1"
JUDGED = {
    ("Georges", "What is Turnwise?"): ("asyncio", "LangGraph", "stand-in"),
    ("Georges", "Which model are you?"): ("stand-in", "OPENAI_API_KEY"),
    ("Georges", "How do I connect a real model?"): ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"),
    ("Rico", "What is Turnwise?"): ("Turnwise is", "agent backend", "phase"),
    ("Rico", "How does Turnwise persist a turn?"): ("Turnwise persists a turn", "disk", "Postgres"),
    ("Rico", "How long is a conversation kept?"): ("A conversation is kept until", "retention_days"),
    ("Sammy", "What is on the menu today?"): ("Today", "the canteen has"),
    ("Sammy", "What time is it?"): ("It is ", str(datetime.now().astimezone().year)),
    ("Sammy", "Add a note: water the plants on Friday"): ("Note 1 is kept: water the plants on Friday",),
}
"""Each starter of each agent, with what its answer must say. A starter without an entry fails."""
MARKUP = re.compile(r"^\s*(?:[-*+|#>]|\d+[.)]\s|```|~~~| {4}|\t)", re.MULTILINE)
NO_PROSE = re.compile(r"^\s*(?:[-*+]\s|[|#>]|\d+[.)]\s|```|~~~| {4}|\t)", re.MULTILINE)
"""The same, but for a paragraph that begins in bold."""
CITED = re.compile(r"\s*\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Visitor:
    """Someone at the service that the launcher has started."""

    port: int
    http: aiohttp.ClientSession

    async def agents(self) -> list[dict[str, Any]]:
        async with self.http.get(f"{BASE}/agents") as response:
            return list(await response.json())

    async def document(self, uid: str) -> str:
        async with self.http.get(f"{BASE}/documents/{quote(uid)}/markdown") as response:
            assert response.status == 200
            return str((await response.json())["content"])

    async def ask(self, agent: str, question: str) -> dict[str, Any]:
        """The `final` of a new conversation. A tool that asks is allowed; the answer then says so under `allowed`."""
        body = {"agent_id": agent, "title": "A visit"}
        async with self.http.post(f"{BASE}/chatbot/session", json=body) as response:
            session = (await response.json())["id"]
        frame = {"session_id": session, "agent_id": agent}
        url = f"ws://127.0.0.1:{self.port}{BASE}/chatbot/query/ws"
        allowed: dict[str, Any] | None = None
        async with connect(
            url, subprotocols=[Subprotocol("turnwise.v1")], additional_headers=HEADERS, open_timeout=PATIENCE_S
        ) as socket:
            await socket.send(json.dumps({"type": "ask", "message": question, **frame}))
            async for text in socket:
                event = json.loads(text)
                assert event["type"] not in {"error", "cancelled"}, event
                if event["type"] == "awaiting_human":
                    allowed = event["payload"]
                    said = {"choice_id": "allow", "checkpoint_id": allowed["checkpoint_id"]}
                    resume = {"type": "human_resume", "exchange_id": event["exchange_id"], "payload": said, **frame}
                    await socket.send(json.dumps(resume))
                if event["type"] == "final":
                    return {**event, "allowed": allowed}
        raise AssertionError("the socket was closed")


@dataclass(frozen=True, slots=True)
class FirstStart:
    """A fresh start that has read its documents."""

    stack: Stack
    launcher: ModuleProcess

    def end(self) -> str:
        """End it as Ctrl-C does; what its terminal showed. The tests that do come last in this file."""
        self.launcher.send(signal.SIGINT)
        assert self.launcher.wait() == 0
        return self.launcher.output


@pytest.fixture(scope="module")
def first_start() -> Iterator[FirstStart]:
    """One for the file: half a minute, and five minutes beside three other workers on two cores without VNNI."""
    home = public_directory("turnwise-test-first-")
    stack = Stack(home)
    with stack.launch() as launcher:
        ready(launcher, stack)
        launcher.wait_for_line(r"the library Turnwise is ready: .* 0 failed", 6 * PATIENCE_S)
        yield FirstStart(stack, launcher)
    shutil.rmtree(home)


@pytest.fixture
async def visitor(first_start: FirstStart) -> AsyncIterator[Visitor]:
    """Someone who has come to that start."""
    port = first_start.stack.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=HEADERS) as http:
        yield Visitor(port, http)


def text_of(final: dict[str, Any]) -> str:
    """The answer's text."""
    return "".join(part["text"] for part in final["messages"][-1]["parts"] if part["type"] == "text")


def plain(text: str) -> str:
    """A text without emphasis, link targets and line breaks."""
    return " ".join(re.sub(r"\[([^\[\]]+)\]\([^()\s]+\)", r"\1", text).replace("**", "").split())


def prose_of(document: str) -> list[str]:
    """The paragraphs of a document that are neither headings, lists, tables nor code."""
    without_code = re.sub(r"^(```|~~~).*?^\1.*?$", "", document, flags=re.MULTILINE | re.DOTALL)
    paragraphs = re.split(r"\n\s*\n", re.sub(r"^#.*$", "\n", without_code, flags=re.MULTILINE))
    return [plain(one) for one in paragraphs if not NO_PROSE.search(one.strip("\n"))]


@pytest.mark.parametrize(("agent", "starter"), JUDGED, ids=lambda value: value)
async def test_a_suggestion_is_answered_sensibly(visitor: Visitor, agent: str, starter: str) -> None:
    final = await visitor.ask(agent, starter)
    text = text_of(final)
    assert final["warnings"] == []
    assert [word for word in JUDGED[agent, starter] if word not in text] == [], text
    assert starter.rstrip("?").lower() not in text.lower()
    assert not MARKUP.search(text), text
    assert len(text) < 900
    if agent == "Rico":
        await judge_citations(visitor, final, text)
    elif agent == "Sammy":
        judge_calls(final, text, changes=starter.startswith("Add"))
    else:
        assert [part["type"] for part in final["messages"][-1]["parts"]] == ["text"]


async def judge_citations(visitor: Visitor, final: dict[str, Any], text: str) -> None:
    """Every sentence is a whole one of a paragraph of prose in the document that it cites, and cites it."""
    pieces = CITED.split(text)
    sentences, numbers, rest = pieces[0::2][:-1], pieces[1::2], pieces[-1]
    assert sentences, text
    assert rest.strip() == ""
    links = {part["source_id"]: part for part in final["messages"][-1]["parts"] if part["type"] == "link"}
    assert set(links) == set(numbers)
    for sentence, number in zip(sentences, numbers, strict=True):
        said = plain(sentence)
        assert re.match(r"[\"“(`*]*[A-Z0-9`]", said), said
        assert re.search(r"[.!][)\"”`*]*$", said), said
        paragraphs = prose_of(await visitor.document(links[number]["document_uid"]))
        assert any(re.search(rf"(?:^|[.!?:][)\"”`*]* ){re.escape(said)}(?= |$)", one) for one in paragraphs), said


def judge_calls(final: dict[str, Any], text: str, *, changes: bool) -> None:
    """One tool was called, what it said is the answer, and a person was asked where it changes something."""
    roles = [message["channel"] for message in final["messages"]]
    assert roles.count("tool_call") == roles.count("tool_result") == 1
    (result,) = (message["parts"][0] for message in final["messages"] if message["channel"] == "tool_result")
    assert result["ok"]
    assert text == result["content"]
    assert (final["allowed"] is not None) == changes
    if changes:
        assert final["allowed"]["metadata"]["arguments"] == {"text": "water the plants on Friday"}


async def test_every_suggestion_of_the_configuration_is_judged(visitor: Visitor) -> None:
    agents = await visitor.agents()
    assert {(agent["id"], starter) for agent in agents for starter in agent["starters"]} == set(JUDGED)
    assert [agent["id"] for agent in agents] == ["Georges", "Rico", "Sammy"]


def test_the_terminal_is_short_the_log_has_the_rest_and_the_next_start_reads_no_document_again(
    first_start: FirstStart,
) -> None:
    stack, output = first_start.stack, first_start.end()
    shown = output.splitlines()
    assert len(shown) <= 12, output
    assert not [line for line in shown if "INFO" in line]
    kept = {line.split("|")[0].strip() for line in stack.log.splitlines()}
    assert kept >= {"postgres", "knowledge", "agentic", "turnwise"}
    assert re.search("sending [0-9]+ documents of ours to the library Turnwise", output)
    assert re.search("the library Turnwise is ready: [0-9]+ ingested, 0 unchanged, 0 failed", output)
    with stack.launch() as second:
        second.wait_for_line("Turnwise is ready: ", PATIENCE_S)
    assert "documents of ours" not in second.output
    (stack.home / "data" / "samples-ingested").unlink()
    with stack.launch() as third:
        third.wait_for_line("the library Turnwise is ready: 0 ingested, [0-9]+ unchanged, 0 failed", PATIENCE_S)
