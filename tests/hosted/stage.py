"""A model that says what each test wants, for a service that outlives the tests, and what clients of it do."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tests.agentic_backend.llm.scripted import Request, ScriptedModel, Step, scripted
from tests.support.agentic import ServiceProcess
from tests.support.following import heard, over_stream
from tests.support.service import hear_until, say

GRAPHS = "tests.hosted.graphs"
ENDS = ("final", "error", "awaiting_human", "cancelled")
Frame = dict[str, Any]


@dataclass(slots=True)
class Stage:
    """The model: `play` says what it answers from then on, `requests` what it was asked since."""

    model: ScriptedModel
    choose: Callable[[Request], Step] | None = None
    steps: list[Step] = field(default_factory=list)
    first: int = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return self.model.base_url

    def play(self, *steps: Step) -> None:
        """Answer the next requests so, the last step again and again."""
        self.steps, self.choose, self.first = list(steps), None, len(self.model.requests)
        self.model.gone.clear()

    def play_by(self, choose: Callable[[Request], Step]) -> None:
        """Answer each request as it says."""
        self.play()
        self.choose = choose

    @property
    def requests(self) -> list[Request]:
        """What was asked since `play`."""
        return self.model.requests[self.first :]

    def asked(self, number: int = -1) -> list[tuple[str, str]]:
        """The conversation that a request had: role and text of each message."""
        return [(one["role"], said(one.get("content"))) for one in self.requests[number].body["messages"]]


def said(content: Any) -> str:
    """The text of a message of chat completions."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Serve it."""
    stages: list[Stage] = []

    def step(write: Any) -> Any:
        (stage,) = stages
        request = stage.model.requests[-1]  # this one: nothing has awaited since it came
        if stage.choose is not None:
            return stage.choose(request)(write)
        return stage.steps[min(len(stage.requests), len(stage.steps)) - 1](write)

    async with scripted(step) as model:
        stages.append(Stage(model))
        yield stages[0]


def agents(**graphs: str | dict[str, Any]) -> dict[str, Any]:
    """The section `ai.agents` of a configuration with these graphs: `module:name`, below `tests.hosted.graphs`."""
    entries = []
    for name, graph in graphs.items():
        entry = graph if isinstance(graph, dict) else {"graph": graph}
        entries.append({"name": name, **entry, "graph": f"{GRAPHS}.{entry['graph']}"})
    return {"agents": entries}


def ask(session_id: str, agent: str, message: str, **more: Any) -> Frame:
    """An ask as a client sends it, of an exchange of its own."""
    head = {"type": "ask", "session_id": session_id, "agent_id": agent, "message": message}
    return {**head, "client_exchange_id": uuid4().hex, **more}


def answer(asked: Frame, payload: Any) -> Frame:
    """A person's answer to the question of an ask, as a client sends it."""
    head = {key: asked[key] for key in ("session_id", "agent_id")}
    return {**head, "type": "human_resume", "exchange_id": asked["client_exchange_id"], "payload": payload}


async def talk(service: ServiceProcess, frame: Frame, token: str = "local") -> list[Frame]:
    """What is heard after a frame, to the end, over a WebSocket."""
    async with service.native(token) as socket:
        await say(socket, **frame)
        return await hear_until(socket, *ENDS)


async def stream(service: ServiceProcess, frame: Frame) -> list[Frame]:
    """The same over an event stream."""
    return [json.loads(text) for text in await heard(over_stream(service, frame))]


def shown(frames: list[Frame]) -> list[tuple[str, ...]]:
    """What a person sees come, fragments joined: the question, texts, reasoning, steps, custom events, the end."""
    seen: list[tuple[str, ...]] = []
    for frame in frames:
        kind = frame["type"]
        if kind in ("delta", "thought"):
            if seen and seen[-1][0] == kind:
                seen[-1] = (kind, seen[-1][1] + frame["text"])
            else:
                seen.append((kind, frame["text"]))
        elif kind == "message":
            seen.append(told(frame["message"]))
        elif kind == "custom":
            seen.append((kind, json.dumps(frame["data"])))
        elif kind not in ("accepted", "session"):
            seen.append((kind,))
    return seen


def told(message: Frame) -> tuple[str, ...]:
    """A message as its channel and what its parts say."""
    words = []
    for part in message["parts"]:
        if part["type"] == "tool_call":
            words.append(f"{part['name']}({json.dumps(part['args'])})")
        elif part["type"] == "tool_result":
            words.append(("" if part["ok"] else "failed: ") + part["content"])
        else:
            words.append(part["text"])
    return (message["channel"] if message["role"] != "user" else "user", *words)


def text_of(frames: list[Frame]) -> str:
    """The answer of a turn."""
    assert frames[-1]["type"] == "final", frames[-1]
    return str(frames[-1]["messages"][-1]["parts"][0]["text"])


def phases(extras: Frame) -> list[tuple[str, int]]:
    """Name and depth of each row of a ledger, in order."""
    return [(row["phase"], row["depth"]) for row in extras["ledger"]]
