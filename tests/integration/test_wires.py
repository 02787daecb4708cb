"""The same turn on each wire that a model may speak, over real connections: what it says, and how it fails.

A row is what the model does; what is to be seen of it is the same for the model of every provider. Each test makes its
rows happen in one service and compares whole tables, as `test_channels.py` does for the channels to clients.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from aiohttp import web
from pydantic import BaseModel

from agentic_backend.llm.providers import Models
from agentic_backend.settings import ChatModel, Deadlines
from backend_kit.wire import Code
from tests.support.agentic import StartProcess, start_process
from tests.support.following import ask_frame
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.service import RunningService, StartService, hear, hear_until, say
from tests.support.tool_server import ToolServer, tool_server
from tests.support.wires import WIRES

__all__ = ["start_process", "tool_server"]

Frame = dict[str, Any]
KEY: Final = "a-key"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of one turn."""

    text: str = ""
    thought: str = ""
    finish_reason: str = "stop"
    code: str = ""
    later: bool = False
    """Whether it is told when to come again."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Of the answer, and the parts that its provider counts."""


def failed(code: Code, text: str = "", *, later: bool = False) -> Seen:
    """A turn that began and could not end well."""
    return Seen(text, finish_reason="", code=code, later=later)


ROWS: Final[dict[str, tuple[str, Seen]]] = {
    "text": ("mock;tokens=4", Seen("Each turn is timed", tokens={"output_tokens": 4})),
    "reasoning": (
        "mock;tokens=2;think=3;cached=2",
        Seen("Each turn", "Each turn is", tokens={"output_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 3}),
    ),
    "429": ("mock;status=429;retry=20", failed(Code.LLM_RATE_LIMITED, later=True)),
    "500": ("mock;status=500", failed(Code.LLM_UNAVAILABLE)),
    "refusal": ("mock;status=400", failed(Code.LLM_PROTOCOL)),
    "garbage": ("mock;tokens=9;garbage=2", failed(Code.LLM_PROTOCOL, "Each turn")),
    "garbage at once": ("mock;tokens=9;garbage=0", failed(Code.LLM_PROTOCOL)),
    "cut": ("mock;tokens=9;truncate=3", failed(Code.LLM_PROTOCOL, "Each turn is")),
    "silence": ("mock;ttft=600000", failed(Code.LLM_TIMEOUT)),
    "stall": ("mock;tokens=9;stall=3", failed(Code.LLM_TIMEOUT, "Each turn is")),
}
LATE: Final = {"silence": {"first_token_s": 1}, "stall": {"inter_token_s": 1}}
"""What only a deadline ends, which the others must not meet."""


def expected(row: str, wire: str) -> Seen:
    """What is to be seen of a row where the provider hands on and counts what this one does."""
    seen, of = ROWS[row][1], WIRES[wire]
    tokens = {name: count for name, count in seen.tokens.items() if name == "output_tokens" or name in of.counts}
    return Seen(seen.text, seen.thought if of.reasons else "", seen.finish_reason, seen.code, seen.later, tokens)


def offered(mock_llm: MockModel, rows: tuple[str, ...]) -> Frame:
    """The section `ai` with a model for each cell, of which Georges may have any."""
    cells = {f"{wire}-{row.replace(' ', '-')}": (of, ROWS[row][0]) for wire, of in WIRES.items() for row in rows}
    models = [{"id": cell, **of.model(mock_llm, name)} for cell, (of, name) in cells.items()]
    agents = [{"name": "Georges", "class_path": "agentic_backend.agent.plain", "further_models": ["*"]}]
    return {"chat_models": models, "agents": agents}


async def seen_of(service: RunningService, wire: str, row: str) -> Seen:
    """What is seen of one turn on a socket of its own."""
    session_id = await service.create_session()
    frame = ask_frame(session_id, f"{wire}/{row}", "Say something")
    async with service.native() as socket:
        model = f"{wire}-{row.replace(' ', '-')}"
        await say(socket, **frame, runtime_context={"model": model})
        heard = await hear_until(socket, "final", "error")
    end = heard[-1]
    text = "".join(event["text"] for event in heard if event["type"] == "delta")
    thought = "".join(event["text"] for event in heard if event["type"] == "thought")
    if end["type"] == "error":
        return Seen(text, thought, "", end["code"], "retry_after_ms" in end)
    metadata = end["messages"][-1]["metadata"]
    assert metadata["model"] == ROWS[row][0]
    usage = metadata["extras"]["usage"]
    assert usage["input_tokens"] > 2
    counted = {name: usage[name] for name in ("output_tokens", "cached_tokens", "reasoning_tokens") if name in usage}
    return Seen(text, thought, metadata["finish_reason"], tokens=counted)


@pytest.mark.parametrize("late", [None, *LATE])
async def test_what_a_model_does_is_seen_alike_on_each_wire(
    start_service: StartService, mock_llm: MockModel, caplog: pytest.LogCaptureFixture, late: str | None
) -> None:
    rows = (late,) if late else tuple(row for row in ROWS if row not in LATE)
    waits = LATE[late] if late else {}
    async with start_service(ai=offered(mock_llm, rows), deadlines=waits) as service, asyncio.TaskGroup() as group:
        cells = {(row, wire): group.create_task(seen_of(service, wire, row)) for row in rows for wire in WIRES}
    assert {cell: task.result() for cell, task in cells.items()} == {cell: expected(*cell) for cell in cells}
    # What a provider said in its refusal, the prompt and the key are in no line of the log.
    for secret in ("refused by", "Say something", KEY):
        assert secret not in caplog.text


@pytest.mark.parametrize("wire", WIRES)
async def test_a_stop_closes_the_connection_to_the_model(
    start_service: StartService, mock_llm: MockModel, wire: str
) -> None:
    model = WIRES[wire].model(mock_llm, "mock;tokens=9;stall=3")
    async with start_service(ai={"default_chat_model": model}) as service, service.native() as socket:
        await say(socket, **ask_frame(await service.create_session(), "e1"))
        while (await hear(socket))["type"] != "delta":
            pass
        assert await open_streams(service, mock_llm) == 1
        await say(socket, type="cancel", exchange_id="e1")
        assert (await hear_until(socket, "cancelled"))[-1]["type"] == "cancelled"
        async with asyncio.timeout(PATIENCE_S):
            while await open_streams(service, mock_llm):
                pass


async def open_streams(service: RunningService, mock_llm: MockModel) -> int:
    """How many answers the model has begun."""
    async with service.http.get(mock_llm.base_url.removesuffix("/v1") + "/stats") as response:
        return int((await response.json())["streams"]["open"])


@pytest.mark.parametrize("wire", WIRES)
async def test_sammy_calls_tools(
    start_service: StartService, mock_llm: MockModel, tool_server: ToolServer, wire: str
) -> None:
    """Once a tool that reads, and once, after a person has agreed, one that may change something."""
    model = {"id": "tools", **WIRES[wire].model(mock_llm, "mock;think=2")}
    tuning = {"mcp_servers": [{"id": "tests"}]}
    sammy = {"name": "Sammy", "class_path": "agentic_backend.agent.tools", "model": "tools", "tuning": tuning}
    mcp = {"servers": [{"id": "tests", "url": tool_server.url}]}
    async with start_service(ai={"chat_models": [model], "agents": [sammy]}, mcp=mcp) as service:
        session_id = await service.create_session(agent_id="Sammy")
        async with service.native() as socket:
            await say(socket, **of_sammy(session_id, "e1", "Please add 2 and 40"))
            heard = await hear_until(socket, "final")
            assert tools_in(heard) == [("add", {"a": 2, "b": 40}), "42"]
            assert "".join(event["text"] for event in heard if event["type"] == "delta") == "42"
            assert any(event["type"] == "thought" for event in heard) is WIRES[wire].reasons
            await say(socket, **of_sammy(session_id, "e2", "Keep a note: the milk is sour"))
            asked = (await hear_until(socket, "awaiting_human"))[-1]["payload"]
            said = {"choice_id": "allow", "checkpoint_id": asked["checkpoint_id"]}
            frame = {"session_id": session_id, "agent_id": "Sammy", "exchange_id": "e2", "payload": said}
            await say(socket, type="human_resume", **frame)
            final = (await hear_until(socket, "final"))[-1]
            answer = final["messages"][-1]
            assert answer["parts"][0]["text"] == "kept: the milk is sour"
            assert answer["metadata"]["token_usage"]["output_tokens"] > 8


def of_sammy(session_id: str, exchange_id: str, message: str) -> Frame:
    """An ask of Sammy."""
    return {**ask_frame(session_id, exchange_id, message), "agent_id": "Sammy"}


def tools_in(heard: list[Frame]) -> list[Any]:
    """Calls with their arguments, and results."""
    parts = [part for event in heard if event["type"] == "message" for part in event["message"]["parts"]]
    told: list[Any] = []
    for part in parts:
        if part["type"] == "tool_call":
            told.append((part["name"], part["args"]))
        elif part["type"] == "tool_result":
            told.append(part["content"])
    return told


class AddNote(BaseModel):
    """Add a note."""

    text: str


@pytest.mark.parametrize("wire", [wire for wire in WIRES if WIRES[wire].provider != "openai"])
async def test_an_author_s_structured_output_and_whole_answers(mock_llm: MockModel, wire: str) -> None:
    options = {key: value for key, value in WIRES[wire].options.items() if key != "thinking"}  # which allows no choice
    names = ("mock;tool=*", "mock;tokens=9")
    called = [ChatModel.model_validate(WIRES[wire].model(mock_llm, name, options=options)) for name in names]
    async with AsyncExitStack() as stack:
        models = Models()
        stack.push_async_callback(models.aclose)
        await asyncio.to_thread(models.prepare, called, Deadlines())
        noting, answering = (models.model_of(one, Deadlines()) for one in called)
        assert await noting.with_structured_output(AddNote).ainvoke("Add a note: milk") == AddNote(text="milk")
        said = await answering.ainvoke("Hello", max_tokens=2)
        assert (said.text, said.response_metadata["finish_reason"]) == ("Each turn", "length")


@dataclass(slots=True)
class Identity:
    """Stands for the endpoint on a machine of Azure's that gives its programs tokens. `asked` is for what."""

    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
async def identity() -> AsyncIterator[Identity]:
    """An endpoint of managed identities."""
    one = Identity()

    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.headers["X-IDENTITY-HEADER"] == "of-this-machine"
        one.asked.append(request.query["resource"])
        token = {"access_token": "a-token", "expires_on": str(int(time.time()) + 86_400), "token_type": "Bearer"}
        return web.json_response(token | {"resource": one.asked[-1]})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    yield one
    await runner.cleanup()


async def test_azure_without_a_key_is_called_with_a_token_of_entra_id(
    start_process: StartProcess, mock_llm: MockModel, identity: Identity
) -> None:
    """As on a machine of Azure's: the token is asked for once and used for all calls."""
    model = WIRES["azure"].model(mock_llm, "mock;tokens=2", api_key=None)
    env = {"IDENTITY_ENDPOINT": identity.url, "IDENTITY_HEADER": "of-this-machine"}
    async with start_process(env=env, ai={"default_chat_model": model}) as process, process.native() as socket:
        session_id = await process.create_session()
        for turn in ("e1", "e2"):
            await say(socket, **ask_frame(session_id, turn))
            final = (await hear_until(socket, "final"))[-1]
            assert final["messages"][-1]["parts"][0]["text"] == "Each turn"
    assert identity.asked == ["https://cognitiveservices.azure.com"]
