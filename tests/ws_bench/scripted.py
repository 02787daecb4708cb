"""A small service of known behaviour: sessions over REST, and a socket that speaks both protocols by a script."""

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from aiohttp import WSMsgType, web

from backend_kit.wire import dumps, loads
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]


@dataclass
class ScriptedService:
    """What the service was asked, and how it answers: `behave` gets each ask with its number (from 0)."""

    behave: "Callable[[ScriptedService, Exchange], Awaitable[None]]"
    create_status: int = 200
    refusal: object = ""
    """What a refused creation says."""
    creating: Callable[[], Awaitable[None]] | None = None
    """Awaited before each session is made: every client is then before its first ask."""
    protocols: tuple[str, ...] = ("turnwise.v1",)
    port: int = 0
    created: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    asks: list[dict[str, Any]] = field(default_factory=list)
    sockets: int = 0
    tokens: list[tuple[str | None, str | None]] = field(default_factory=list)
    close_codes: list[int | None] = field(default_factory=list)
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    open_sockets: int = 0
    most_open: int = 0
    kept: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What the history of each session holds."""
    metrics: Callable[[], str] | None = None
    distributions: Callable[[], dict[str, Any]] | None = None
    statements: Callable[[], list[Any]] | None = None
    """What it counted of its statements; None: it has no such page."""
    verdict: dict[str, Any] | int | None = None
    """What it says of who bounds it, or the status with which it refuses to; None: it has no such route."""
    served_ms: list[float] = field(default_factory=list)
    """From an ask's arrival to the end of its answer, as this service saw it."""

    async def until(self, done: Callable[[], bool]) -> None:
        """Return once `done()`, which is asked again after each new session and each ask."""
        async with asyncio.timeout(PATIENCE_S):
            while not done():
                self.moved.clear()
                await self.moved.wait()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/agentic/v1/chatbot/query/ws"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"


@dataclass
class Exchange:
    """One ask on a socket, and how to answer it."""

    number: int
    ask: dict[str, Any]
    socket: web.WebSocketResponse
    request: web.Request
    total_ms: float | None = None
    """What a good turn says that it took."""

    @property
    def native(self) -> bool:
        return self.socket.ws_protocol == "turnwise.v1"

    async def send(self, kind: str, **more: Any) -> None:
        await self.socket.send_str(dumps({"type": kind, **more}).decode())

    def message(self, role: str, text: str, **metadata: Any) -> dict[str, Any]:
        return {
            "session_id": self.ask.get("session_id"),
            "exchange_id": self.ask["client_exchange_id"],
            "role": role,
            "channel": "final",
            "parts": [{"type": "text", "text": text}],
            "metadata": metadata,
        }

    def cut(self) -> None:
        """End the connection without a close frame."""
        transport = self.request.transport
        if transport is not None:
            transport.close()


async def answer(service: ScriptedService, exchange: Exchange) -> None:
    """A good turn in the protocol of the socket: two deltas, or one message."""
    told = {} if exchange.total_ms is None else {"extras": {"total_ms": exchange.total_ms}}
    messages = [exchange.message("user", exchange.ask["message"]), exchange.message("assistant", "Hello back", **told)]
    service.kept.setdefault(str(exchange.ask.get("session_id")), []).extend(messages)
    if not exchange.native:
        await exchange.send("stream", message=messages[0])
        await exchange.send("stream", message=messages[1])
        await exchange.send("final", messages=messages, session={})
        return
    head = {"session_id": exchange.ask["session_id"], "exchange_id": exchange.ask["client_exchange_id"]}
    await exchange.send("accepted", seq=0, **head)
    await exchange.send("message", seq=1, message=messages[0], **head)
    for seq, text in enumerate(("Hello", " back"), start=2):
        await exchange.send("delta", seq=seq, rank=1, channel="final", text=text, **head)
    await exchange.send("final", seq=4, messages=messages, session={}, ledger=[], durable="none", warnings=[], **head)


@asynccontextmanager
async def scripted_service(
    behave: Callable[[ScriptedService, Exchange], Awaitable[None]] = answer, **options: Any
) -> AsyncIterator[ScriptedService]:
    """The service on a free loopback port."""
    state = ScriptedService(behave, **options)
    app = web.Application()
    app.add_routes(
        [
            web.post("/agentic/v1/chatbot/session", functools.partial(_create, state)),
            web.delete("/agentic/v1/chatbot/session/{id}", functools.partial(_delete, state)),
            web.get("/agentic/v1/chatbot/session/{id}/history", functools.partial(_history, state)),
            web.get("/agentic/v1/chatbot/query/ws", functools.partial(_socket, state)),
            web.get("/agentic/v1/kpi/verdict", functools.partial(_verdict, state)),
            web.get("/agentic/v1/healthz", _healthz),
            web.get("/metrics", functools.partial(_metrics, state)),
            web.get("/distributions", functools.partial(_distributions, state)),
            web.get("/statements", functools.partial(_statements, state)),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    state.port = runner.addresses[0][1]
    try:
        yield state
    finally:
        await runner.cleanup()


async def _create(state: ScriptedService, request: web.Request) -> web.Response:
    if state.create_status != 200:
        return web.json_response(state.refusal, status=state.create_status)
    if state.creating is not None:
        await state.creating()
    state.bodies.append(await request.json())
    state.created.append(f"session-{len(state.created)}")
    state.moved.set()
    return web.json_response({"id": state.created[-1]})


async def _delete(state: ScriptedService, request: web.Request) -> web.Response:
    state.deleted.append(request.match_info["id"])
    return web.json_response(True)


async def _history(state: ScriptedService, request: web.Request) -> web.Response:
    return web.json_response(state.kept.get(request.match_info["id"], []))


async def _verdict(state: ScriptedService, request: web.Request) -> web.Response:
    if isinstance(state.verdict, dict):
        window_s = float(request.query.get("window_s", "60"))
        return web.json_response({**state.verdict, "window_s": window_s, "turns": len(state.served_ms)})
    return web.Response(status=state.verdict or 404)


async def _healthz(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _metrics(state: ScriptedService, _: web.Request) -> web.Response:
    return web.Response(status=404) if state.metrics is None else web.Response(text=state.metrics())


async def _statements(state: ScriptedService, _: web.Request) -> web.Response:
    if state.statements is None:
        return web.Response(status=404)
    return web.json_response({"unit": "ms", "started": 1.0, "statements": state.statements()})


async def _distributions(state: ScriptedService, _: web.Request) -> web.Response:
    if state.distributions is None:
        return web.Response(status=404)
    return web.json_response({"unit": "ms", "started": 1.0, "distributions": state.distributions()})


async def _socket(state: ScriptedService, request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=state.protocols, compress=False)
    await socket.prepare(request)
    state.sockets += 1
    state.open_sockets += 1
    state.most_open = max(state.most_open, state.open_sockets)
    state.tokens.append((request.headers.get("Authorization"), request.query.get("token")))
    async for frame in socket:
        if frame.type is WSMsgType.TEXT:
            exchange = Exchange(len(state.asks), loads(frame.data), socket, request)
            state.asks.append(exchange.ask)
            state.moved.set()
            arrived = time.perf_counter()
            await state.behave(state, exchange)
            state.served_ms.append((time.perf_counter() - arrived) * 1e3)
    state.open_sockets -= 1
    state.close_codes.append(socket.close_code)
    return socket


@dataclass(frozen=True)
class Outcome:
    """What a finished `ws_bench` process left behind."""

    code: int
    stdout: str
    stderr: str


@asynccontextmanager
async def start_bench(
    *argv: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m ws_bench …` with both outputs as pipes. Whatever of it is left when the block ends is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ws_bench", *argv, cwd=ROOT, env={**os.environ, **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                # Its workers are in sessions of their own, and a suspended one answers to nothing else.
                for one in (*parent.children(recursive=True), parent):
                    one.kill()
            await asyncio.wait_for(process.communicate(), PATIENCE_S)


async def finish(process: asyncio.subprocess.Process) -> Outcome:
    """Wait for a bench process to end by itself."""
    stdout, stderr = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode is not None
    assert "Traceback" not in stderr.decode(), stderr.decode()
    return Outcome(process.returncode, stdout.decode(), stderr.decode())


async def bench(*argv: str) -> Outcome:
    """Run `python -m ws_bench …` to its end."""
    async with start_bench(*argv) as process:
        return await finish(process)
