"""CPU of one turn through each door, beside the native WebSocket.

Hypothesis: a streamed turn of 50 tokens through any other door costs at most 1.3 times the CPU of the same turn over a
native WebSocket, on a saturated core.
Control: the native WebSocket of the same process, asked in turn with the others, round by round.
Command: `make bench-doors` (`--short`: one round of short windows, bounds five times as wide; `--only NAME`).

One service, alone on its core, with all doors open; model, Postgres and load share the others. 150 clients, one turn
after the other, ten in a conversation, the model sends a token each 5 ms. Each client is as lazy as the protocol lets
it be: a kept connection, the conversation so far where the protocol sends it along, the answer taken as it comes.
Before anything is timed each door must pass the turn check: two turns of a session, text exact, four rows in Postgres.
"""

import argparse
import asyncio
import json
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import aiohttp
import uvloop

from tests.bench.bench import Verdicts
from tests.bench.deployment import Deployment, Server, deployed
from tests.bench.driver import HEADERS, Client, Load, Target, TurnFailed, answer_of, clients
from tests.bench.measured import Series
from tests.bench.rawhttp import Answer, RawHttp, dial_http
from tests.bench.turn import (
    FULL,
    SATURATED,
    SHORT,
    TOKENS,
    Size,
    alternate,
    print_stage,
    print_table,
    row_count,
    spoken_answer,
    stored,
    wait_for,
    with_ack,
)

BOUND = 1.3
NATIVE = "native"
KEPT_S = 2.0
"""For how long a connection may be idle and used again: the service closes it after five seconds."""
_JSON = {**HEADERS, "Content-Type": "application/json"}
_names = count()


class HttpClient(Client):
    """One that asks by requests on a kept connection. The answer's last lines must have `proof`."""

    mark = b"data: "
    proof = ""

    def __init__(self, target: Target, connection: RawHttp, http: aiohttp.ClientSession) -> None:
        super().__init__(target, connection, http)
        self._connection = connection
        self._used_at = time.perf_counter()
        self._messages: list[dict[str, str]] = []

    @classmethod
    async def connect(cls, target: Target, http: aiohttp.ClientSession) -> Client:
        """A connected client."""
        return cls(target, await dial_http(target.port, cls.mark), http)

    async def _fresh(self) -> RawHttp:
        """The connection, another one where the service may be about to close this one."""
        if time.perf_counter() - self._used_at > KEPT_S:
            await self._connection.close()
            self._socket = self._connection = await dial_http(self._target.port, self.mark)
        return self._connection

    async def _ask(self, question: str) -> list[str]:
        path, headers, body = self.request(question)
        connection = await self._fresh()
        answer = await connection.exchange("POST", path, {**_JSON, **headers}, json.dumps(body).encode())
        self._used_at = time.perf_counter()
        heard = answer.body.decode()
        if answer.status != 200 or self.proof not in heard[-3000:]:
            raise TurnFailed(heard[-300:])
        self.take(answer, heard)
        return [line for line in heard.split("\n") if line.startswith("data: ")]

    @abstractmethod
    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        """Path, headers and body of an ask."""

    def take(self, answer: Answer, heard: str) -> None:
        """Remember what the next ask of the session needs."""

    def text(self, lines: Iterable[str]) -> str:
        """What the answer said."""
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
        return "".join(map(self.text_of, events))

    @abstractmethod
    def text_of(self, event: dict[str, Any]) -> str:
        """The text in one event."""

    def said(self, question: str) -> list[dict[str, str]]:
        """The conversation with a question at its end: of the session's ten turns so far."""
        if self._left == self._target.turns_a_session - 1:
            self._messages = []
        self._messages.append({"role": "user", "content": question})
        return self._messages

    def answered(self) -> None:
        """The answer is part of the conversation: with the text that every turn has, since reading it out of so many
        events would cost the load more than the service."""
        self._messages.append({"role": "assistant", "content": self._target.answer or "?"})


class StreamClient(HttpClient):
    """The native events as an event stream."""

    mark = b"event: delta"
    proof = "event: final"

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        body = {"type": "ask", "session_id": self.session_id, "agent_id": self._target.agent, "message": question}
        return "/agentic/v1/chatbot/query/stream", {}, body

    def text_of(self, event: dict[str, Any]) -> str:
        return str(event["text"]) if event["type"] == "delta" else ""


class NamedClient(HttpClient):
    """One whose service makes sessions of its conversations."""

    _named = ""

    @property
    def session_id(self) -> str:
        """The session that the service made."""
        return self._named

    async def _new_session(self) -> str:
        return f"c{next(_names)}"


class ChatClient(NamedClient):
    """OpenAI's chat completions, streamed, kept by the name of their conversation."""

    mark = b'"content":'
    proof = f'"completion_tokens":{TOKENS}'

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        body = {"model": self._target.agent, "messages": self.said(question), "stream": True}
        return (
            "/v1/chat/completions",
            {"X-Turnwise-Session": self._session_id},
            {**body, "stream_options": {"include_usage": True}},
        )

    def take(self, answer: Answer, _heard: str) -> None:
        self._named = answer.headers["x-turnwise-session-id"]
        self.answered()

    def text_of(self, event: dict[str, Any]) -> str:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


class ResponsesClient(NamedClient):
    """OpenAI's responses, streamed, in a conversation by its name."""

    mark = b"response.output_text.delta"
    proof = f'"output_tokens":{TOKENS}'

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        body = {"model": self._target.agent, "input": question, "conversation": self._session_id, "stream": True}
        return "/v1/responses", {}, body

    def take(self, answer: Answer, _heard: str) -> None:
        self._named = answer.headers["x-turnwise-session-id"]

    def text_of(self, event: dict[str, Any]) -> str:
        return str(event["delta"]) if event["type"] == "response.output_text.delta" else ""


class AgUiClient(NamedClient):
    """AG-UI."""

    mark = b"TEXT_MESSAGE_CONTENT"
    proof = f'"outputTokens":{TOKENS}'

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        messages = [{"id": f"m{at}", **one} for at, one in enumerate(self.said(question))]
        body = {"threadId": self._session_id, "runId": f"r{next(_names)}", "messages": messages}
        return (
            f"/agui/{self._target.agent}",
            {},
            {**body, "state": {}, "tools": [], "context": [], "forwardedProps": {}},
        )

    def take(self, _answer: Answer, heard: str) -> None:
        if self._left == self._target.turns_a_session - 1:
            first = heard[heard.index("data: ") + 6 : heard.index("\n\n")]
            self._named = json.loads(first)["metadata"]["turnwise"]["session_id"]
        self.answered()

    def text_of(self, event: dict[str, Any]) -> str:
        return str(event["delta"]) if event["type"] == "TEXT_MESSAGE_CONTENT" else ""


class LangGraphClient(HttpClient):
    """Runs of LangGraph's API on a thread."""

    mark = b"event: messages"
    proof = "event: end"

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        body = {"assistant_id": self._target.agent, "input": {"messages": [{"role": "user", "content": question}]}}
        return f"/threads/{self.session_id}/runs/stream", {}, {**body, "stream_mode": ["messages-tuple"]}

    async def _new_session(self) -> str:
        url = f"http://127.0.0.1:{self._target.port}/threads"
        async with self._http.post(url, json={}, headers=HEADERS, raise_for_status=True) as made:
            return str((await made.json())["thread_id"])

    def text_of(self, event: Any) -> str:
        if not isinstance(event, list):
            return ""
        said = event[0]
        return str(said["content"]) if said["type"] == "AIMessageChunk" else ""


class McpClient(HttpClient):
    """MCP of 2026-07-28, told of progress."""

    mark = b"notifications/progress"
    proof = '"status":"final"'

    def request(self, question: str) -> tuple[str, dict[str, str], dict[str, Any]]:
        name = f"ask_{self._target.agent}"
        protocol = "io.modelcontextprotocol/"
        meta = {f"{protocol}protocolVersion": "2026-07-28", f"{protocol}clientCapabilities": {}, "progressToken": 1}
        params = {"name": name, "arguments": {"question": question, "session_id": self.session_id}, "_meta": meta}
        headers = {"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name}
        headers["Accept"] = "application/json, text/event-stream"
        return "/mcp", headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    def text_of(self, event: dict[str, Any]) -> str:
        """All of it at the end: what progress tells is a part of it."""
        return str(event["result"]["structuredContent"]["answer"]) if "result" in event else ""


DOORS: dict[str, type[HttpClient] | None] = {
    NATIVE: None,
    "compatible": None,
    "stream": StreamClient,
    "chat": ChatClient,
    "responses": ResponsesClient,
    "agui": AgUiClient,
    "langgraph": LangGraphClient,
    "mcp": McpClient,
}
"""By the names of the table; None: a WebSocket."""


def opened(server: Server, name: str) -> Server:
    """The service behind one of its doors."""
    door = DOORS[name]
    target = replace(server.target, name=name, native=name == NATIVE)
    if door is not None:
        target = replace(target, connect=door.connect)
    return replace(server, target=target)


def checked(server: Server, answer: str) -> Server:
    """The turn check of a door. Else the bench ends here."""

    async def two_turns() -> tuple[str, list[str]]:
        async with clients(server.target, 1) as (client,):
            told: Callable[[list[str]], str] = client.text if isinstance(client, HttpClient) else answer_of
            said = [told(await client.turn(question)) for question in ("Hello", "Again")]
            return client.session_id, said

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        session_id, said = runner.run(two_turns())
    if said != [answer, answer]:
        raise SystemExit(f"{server.name} fails the turn check: it said {said}")
    wanted = [(0, "user", "Hello"), (1, "assistant", answer), (2, "user", "Again"), (3, "assistant", answer)]
    rows = wait_for(lambda: stored(server, session_id), wanted)
    if rows != wanted:
        raise SystemExit(f"{server.name} fails the turn check: it stored {rows}")
    return server.answering(answer)


def compare(deployment: Deployment, names: list[str], asking: int, size: Size, verdicts: Verdicts) -> dict[str, Series]:
    """Measure the doors in turn, and hold the service to what it has stored."""
    print(f"\n== {asking} clients, model {SATURATED.model!r}, {size.rounds} x {size.seconds:.0f} s a door")
    answer = spoken_answer(deployment, SATURATED.model)
    service = deployment.service("doors", SATURATED.model, change=with_ack(deployment, "doors", "spool"))
    servers = [checked(opened(service, name), answer) for name in names]
    load = Load(asking, size.seconds, size.warm_s)
    series = alternate(deployment, servers, load, size.rounds)
    samples = [one for each in series.values() for one in each.samples]
    failures = [failure for one in samples for failure in one.failures]
    for failure in failures[:3]:
        print(failure[:300])
    wanted = 4 * len(names) + 2 * sum(one.turns_in_all for one in samples)
    wait_for(lambda: row_count(service) >= wanted, True)
    print_table(series)
    print()
    lost = max(0, wanted - row_count(service))
    verdicts.hold("failed turns, rows not in Postgres", len(failures) + lost, 0, "")
    return series


def main() -> int:
    """All doors; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one round of short windows, bounds five times as wide")
    others = [name for name in DOORS if name != NATIVE]
    parser.add_argument("--only", choices=others, action="append", help="this door; may be given again")
    parser.add_argument("--clients", type=int, default=SATURATED.clients, help="few: tokens are sent one by one")
    parser.add_argument("--rounds", type=int, help="how often each takes its turn")
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    size = replace(size, rounds=options.rounds or size.rounds)
    chosen = options.only or others
    verdicts = Verdicts()
    print_stage()
    with deployed() as deployment:
        series = compare(deployment, [NATIVE, *chosen], options.clients, size, verdicts)
    for name in chosen:
        title = f"streamed, saturated: CPU {name} / native"
        verdicts.hold(title, series[name].ratio(series[NATIVE]), BOUND * size.slack, "x")
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
