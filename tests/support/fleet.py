"""Instances of one service on one database, clients that follow an exchange at any of them, and what Postgres holds."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from websockets.asyncio.client import ClientConnection

from tests.chaos.control import ProxyProcess
from tests.support.agentic import ServiceProcess, StartProcess
from tests.support.following import FRAGMENTS, TERMINAL, seq_of
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.service import BASE, ServiceClient, hear, say

MANY: dict[str, Any] = {"persistence": {"ack": "db", "replicas": "many"}}
ENDS = TERMINAL | {"awaiting_human"}


@asynccontextmanager
async def two_instances(
    start_process: StartProcess, model: str = "mock", other_model: str | None = None, **sections: Any
) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess]]:
    """Two of them, ready; the second with another model where it is named."""
    settings = {**sections, **MANY}
    async with start_process(model, **settings) as one, start_process(other_model or model, **settings) as other:
        yield one, other


@dataclass(slots=True)
class Listener:
    """A client on a socket of its own that keeps the frames of one exchange, as far as it has asked for them."""

    socket: ClientConnection
    exchange_id: str
    frames: list[dict[str, Any]] = field(default_factory=list)

    async def until(self, *types: str) -> dict[str, Any]:
        """The first frame to come of one of the types. Another end of the exchange fails the test."""
        while True:
            frame = await self._next()
            if frame["type"] in types:
                return frame
            assert frame["type"] not in ENDS, frame

    async def end(self) -> dict[str, Any]:
        """The frame that ends the exchange; what was shown by then is what it says, and nothing follows it."""
        end = await self.until(*ENDS)
        await say(self.socket, type="ping")
        assert (frame := await self._any())["type"] == "pong", frame
        if end["type"] == "final":
            assert shown(self.frames) == text_of(end)
        return end

    async def _next(self) -> dict[str, Any]:
        while (frame := await self._any()).get("exchange_id") != self.exchange_id:
            pass
        self.frames.append(frame)
        return frame

    async def _any(self) -> dict[str, Any]:
        while (frame := await hear(self.socket))["type"] == "heartbeat" or _of_no_turn(frame):
            pass
        return frame


@asynccontextmanager
async def listening(service: ServiceClient, frame: dict[str, Any]) -> AsyncIterator[Listener]:
    """A client that says one frame of an exchange, an ask or a resume, and hears what comes of it."""
    async with service.native() as socket:
        await say(socket, **frame)
        yield Listener(socket, frame.get("client_exchange_id") or frame["exchange_id"])


async def heard_end(service: ServiceClient, frame: dict[str, Any]) -> dict[str, Any]:
    """How the exchange ends of which this is the first frame."""
    async with listening(service, frame) as client:
        return await client.end()


async def heard_final(service: ServiceClient, frame: dict[str, Any]) -> dict[str, Any]:
    """The `final` of the exchange."""
    end = await heard_end(service, frame)
    assert end["type"] == "final", end
    return end


async def in_contact(service: ServiceClient) -> None:
    """Return once the instance takes asks again: after an absence it has to renew first, which clients are told."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with service.http.get(f"{BASE}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def read(socket: ClientConnection) -> None:
    """Return once the service has read all that was said on this socket, of which nothing may be answered before."""
    await say(socket, type="ping")
    assert (frame := await hear(socket))["type"] == "pong", frame


def shown(frames: list[dict[str, Any]]) -> str:
    """The text of the answer that a client shows which has heard these frames."""
    text = ""
    for frame in frames:
        if frame["type"] in {"restarted", "accepted"}:
            text = ""
        elif frame["type"] == "delta":
            text += frame["text"]
        elif frame["type"] == "message" and frame["message"]["channel"] == "thought":
            text = ""  # what was streamed was no answer
    return text


def text_of(end: dict[str, Any]) -> str:
    """The answer in the frame that ends an exchange."""
    return "".join(part.get("text", "") for part in end["messages"][-1]["parts"])


def assert_same_bytes(told: list[str], original: list[str]) -> None:
    """Each frame that says the same as one that somebody else heard is that one, byte for byte."""
    by_number = {seq_of(text): text for text in original}
    for text in told:
        other = by_number.get(seq_of(text))
        if json.loads(text)["type"] not in FRAGMENTS or (other is not None and json.loads(other) == json.loads(text)):
            assert text == other


def stored(database: Database, session_id: str) -> list[tuple[int, str, str]]:
    """(rank, exchange, role) of the session's rows in Postgres. Blocks."""
    query = "SELECT rank, exchange_id, role FROM session_history WHERE session_id = %s ORDER BY rank"
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(query, (session_id,)).fetchall()


def held(database: Database, session_id: str) -> tuple[str, int]:
    """Who has the session's lease, and its fence. Blocks."""
    query = "SELECT holder, fence FROM session_lease WHERE session_id = %s"
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute(query, (session_id,)).fetchone()
    assert row is not None
    return row[0], row[1]


def open_asks(database: Database) -> int:
    """How many sessions have a turn that runs, by Postgres. Blocks."""
    with psycopg.connect(database.dsn) as connection:
        ((count,),) = connection.execute("SELECT count(*) FROM session_lease WHERE ask IS NOT NULL")
        return int(count)


def silent(database: Database, seconds: float) -> bool:
    """Whether no instance has renewed its heartbeat for so long, by the clock of Postgres. Blocks."""
    query = "SELECT max(heartbeat_at) < now() - make_interval(secs => %s) FROM instance"
    with psycopg.connect(database.dsn) as connection:
        return connection.execute(query, (seconds,)).fetchone() == (True,)


@asynccontextmanager
async def frozen(service: ServiceProcess) -> AsyncIterator[None]:
    """The process does nothing during the block; its connections stay."""
    service.process.send(signal.SIGSTOP)
    try:
        yield
    finally:
        service.process.send(signal.SIGCONT)


@asynccontextmanager
async def proxied(database: Database) -> AsyncIterator[tuple[ProxyProcess, dict[str, Any]]]:
    """A fault proxy in front of Postgres, and the section of the configuration that leads through it."""
    with ProxyProcess(database.port) as proxy:
        await asyncio.to_thread(proxy.start)
        yield proxy, {"postgres": {"port": proxy.port}}


@asynccontextmanager
async def cut_off(proxy: ProxyProcess) -> AsyncIterator[None]:
    """Nothing passes the proxy during the block, in either direction; afterwards its connections are broken."""
    await proxy.tell("hold")
    try:
        yield
    finally:
        await proxy.tell("reset", "normal")


def _of_no_turn(frame: dict[str, Any]) -> bool:
    return frame["type"] == "session" and "seq" not in frame
