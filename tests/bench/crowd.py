"""Clients that ask again as soon as they have their answer, for some seconds: the load of `verdict` and `kpi_cost`."""

import asyncio
import contextlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

BASE = "/agentic/v1"
_ENDS = ("final", "error", "cancelled")
_PATIENCE_S = 60.0
_ASK_ON_S = 1.5
_WHO = {"Authorization": "Bearer local"}


@dataclass(slots=True)
class Crowd:
    """How many at once, for how long, whom they ask and what. `bytes_per_s`: how fast each reads; 0 = at once. Before
    it asks, each waits for any time up to `think_s`."""

    clients: int
    seconds: float
    agent: str = "Georges"
    questions: Sequence[str] = ("Hello",)
    bytes_per_s: float = 0.0
    think_s: float = 0.0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    unattributed_ms: list[float] = field(default_factory=list)
    overhead_ms: list[float] = field(default_factory=list)

    async def run(self, port: int) -> None:
        """Let them all ask until the time is up; what runs then is waited for."""
        until = time.perf_counter() + self.seconds
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, asyncio.TaskGroup() as group:
            for number in range(self.clients):
                group.create_task(self._client(http, port, number, until))

    async def _client(self, http: aiohttp.ClientSession, port: int, number: int, until: float) -> None:
        asked = 0
        thinks = random.Random(number)  # noqa: S311 - pauses
        while time.perf_counter() < until:
            try:
                session_id = await self._session(http)
                async with self._dial(port) as peer:
                    if self.bytes_per_s:
                        await self._slowly(peer, session_id, until)
                    while time.perf_counter() < until:
                        question = self.questions[(number + asked * self.clients) % len(self.questions)]
                        asked += 1
                        if self.think_s:
                            await asyncio.sleep(thinks.uniform(0.0, self.think_s))
                        await self._turn(peer, session_id, question)
            except (WebSocketException, OSError, aiohttp.ClientError) as failure:  # TimeoutError is an OSError
                self.failures[f"{type(failure).__name__}: {failure}"] += 1
                await asyncio.sleep(0.05)

    async def _session(self, http: aiohttp.ClientSession) -> str:
        body = {"agent_id": self.agent}
        async with http.post(f"{BASE}/chatbot/session", json=body, headers=_WHO, raise_for_status=True) as made:
            return str((await made.json())["id"])

    def _dial(self, port: int) -> connect:
        options: dict[str, Any] = {"max_queue": 1} if self.bytes_per_s else {}
        if self.bytes_per_s:
            # The kernel would hide a slow reader: by our receive buffer, and by the service's send buffer, which it
            # makes for segments of the peer's size. Those of loopback are 64 KB; these are a network's.
            options["sock"] = sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
        return connect(
            f"ws://127.0.0.1:{port}{BASE}/chatbot/query/ws",
            subprotocols=[Subprotocol("turnwise.v1")],
            additional_headers=_WHO,
            compression=None,
            ping_interval=None,
            max_size=2**24,
            **options,
        )

    async def _slowly(self, peer: ClientConnection, session_id: str, until: float) -> None:
        """Ask on, whatever has been read: some turns fit into buffers on the way before anybody waits."""

        async def ask_on() -> None:
            ask = {"type": "ask", "session_id": session_id, "agent_id": self.agent, "message": self.questions[0]}
            while True:
                await peer.send(json.dumps({**ask, "if_busy": "queue"}))
                await asyncio.sleep(_ASK_ON_S)

        async def read_slowly() -> None:
            while True:
                text = await peer.recv(decode=False)
                await asyncio.sleep(len(text) / self.bytes_per_s)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - time.perf_counter()), asyncio.TaskGroup() as group:
                group.create_task(ask_on())
                group.create_task(read_slowly())

    async def _turn(self, peer: ClientConnection, session_id: str, question: str) -> None:
        began = time.perf_counter()
        ask = {"type": "ask", "session_id": session_id, "agent_id": self.agent, "message": question}
        await peer.send(json.dumps(ask))
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                text = await peer.recv(decode=False)
                if any(f'"{end}"'.encode() in text[:24] for end in _ENDS):
                    break
        frame = json.loads(text)
        if frame["type"] != "final":
            self.refused += 1
            await asyncio.sleep(min(frame.get("retry_after_ms") or 50, 500) / 1e3)
            return
        self.latencies_s.append(time.perf_counter() - began)
        model_ms = sum(row["ms"] for row in frame["ledger"] if row["phase"] == "llm_invoke")
        self.unattributed_ms.append(frame["unattributed_ms"])
        total_ms = frame["messages"][-1]["metadata"]["extras"]["total_ms"]
        self.overhead_ms.append(max(total_ms - model_ms, 0.0))
