"""What it costs the instance that runs a turn that another one follows it; prints figure, bound and verdict.

Hypothesis: a turn that nobody follows elsewhere costs nothing more, one that is followed at most 90 µs of its holder's
CPU an event beside sending it to its own client, and the event is with the follower 2 ms after it was published (p50).
Control: the same turns with their own clients alone, also against themselves, which tells the noise; and events that
go through Postgres (NOTIFY), gathered while a statement is under way.
Command: `python -m tests.bench.relay` (`--short`: fewer rounds, bounds five times as wide).

The holder is a process of its own on the first core: the server and the relay that ship, turns that publish one token
each 20 ms, each with an event stream to its client. Clients and follower are this process. A second without the other
instance and one with it take turns; figures are medians of their differences.
"""

import argparse
import asyncio
import contextlib
import shutil
import statistics
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import aiohttp
import psycopg
import uvloop
from fastapi import FastAPI
from starlette.responses import Response

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.sse import EventStream
from agentic_backend.peers.events import decode_events, encode_events
from agentic_backend.peers.mirror import Peers
from agentic_backend.peers.relay import TurnRelay, relay_routes
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Ask, Cancelled, TextDelta, Turn, TurnEvent
from backend_kit.aio import TaskRegistry
from backend_kit.http import ServeSettings, build_server, listen
from tests.bench.bench import Verdicts, cores, pinned_to
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.processes import ModuleProcess
from turnwise.postgres import EmbeddedPostgres

MODULE = "tests.bench.relay"
TOKEN: Final = "bench"
GAP_S: Final = 0.02
CHANNEL: Final = "turnwise_bench"
PAYLOAD_BYTES: Final = 7900
"""A NOTIFY takes less than 8,000."""
END = Cancelled((), Session("s", "u", "a", "", ""))


class Bus(Protocol):
    """A way of events through somebody else."""

    async def push(self, lines: list[bytes]) -> int:
        """Send the first of these lines, as many as go at once; how many those were."""

    def pull(self) -> AsyncGenerator[bytes]:
        """The lines as they come."""


class Notify:
    """Events through Postgres."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self._connection = connection

    @classmethod
    @asynccontextmanager
    async def connected(cls, address: str) -> AsyncIterator["Notify"]:
        """Over a connection of its own, on which it listens."""
        connection = await psycopg.AsyncConnection.connect(address, autocommit=True, prepare_threshold=0)
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            yield cls(connection)

    async def push(self, lines: list[bytes]) -> int:
        """See `Bus`."""
        size, count = 0, 0
        while count < len(lines) and (not count or size + len(lines[count]) < PAYLOAD_BYTES):
            size += len(lines[count]) + 1
            count += 1
        await self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, b"\n".join(lines[:count]).decode()))
        return count

    async def pull(self) -> AsyncGenerator[bytes]:
        """See `Bus`."""
        async for notice in self._connection.notifies():
            for line in notice.payload.encode().split(b"\n"):
                yield line


BUSES: dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Bus]]] = {"notify": Notify.connected}


class Pusher:
    """Passes on what turns publish by a bus, gathered while something is under way."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()

    def follow(self, turn: Turn) -> None:
        """Pass on each event of a turn from now on."""

        def noticed() -> None:
            self._lines.append(encode_events([turn.events[-1]]))
            self._wake.set()

        turn.follow(noticed)

    async def run(self) -> None:
        """Push, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._lines:
                sent = await self._bus.push(self._lines)
                del self._lines[:sent]


@dataclass(frozen=True, slots=True)
class Load:
    """So many turns of so many events at once, and so many pairs of that: without and with another instance."""

    turns: int
    events: int
    pairs: int


def exchange_id(round_: int, number: int) -> str:
    """The exchange of a turn of a round."""
    return f"e{round_}-{number}"


class Holder:
    """The process that runs the turns. Each round has its own; they publish when it is asked to, and it answers with
    the CPU that this took."""

    def __init__(self, load: Load, pusher: Pusher | None) -> None:
        self.app = FastAPI(openapi_url=None)
        self.app.router.routes += relay_routes(TurnRelay(TOKEN, self._find), "")
        self.app.add_api_route("/own/{exchange}", self._own)
        self.app.add_api_route("/publish/{round_}", self._publish)
        self._load = load
        self._pusher = pusher
        self._turns: dict[str, Turn] = {}

    def _find(self, exchange: str, _user_id: str) -> Turn:
        if exchange not in self._turns:
            self._turns[exchange] = Turn(Ask("s", "a", "", exchange, "u", 0.0))
        return self._turns[exchange]

    async def _own(self, exchange: str) -> Response:
        turn = self._find(exchange, "u")
        return EventStream(
            user_id="u",
            begin=lambda: Follow(turn),
            watched=lambda _stream: contextlib.nullcontext(),
            delivered=lambda _seconds: None,
        )

    async def _publish(self, round_: int) -> dict[str, float]:
        """A token of each turn in each gap, the turns spread over it."""
        load, loop = self._load, asyncio.get_running_loop()
        turns = [self._find(exchange_id(round_, number), "u") for number in range(load.turns)]
        if self._pusher is not None and round_ % 2:
            for turn in turns:
                self._pusher.follow(turn)
        began, before = loop.time(), time.process_time()
        step_s = GAP_S / len(turns)
        for number in range(load.events * len(turns)):
            wait_s = began + number * step_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            turns[number % len(turns)].publish(TextDelta(1, "final", f"{time.monotonic_ns()} "))
        await asyncio.sleep(GAP_S)
        spent_s = time.process_time() - before
        for turn in turns:
            turn.publish(END)
        return {"us": spent_s * 1e6 / (load.events * len(turns))}


async def hold(load: Load, bus: str, address: str) -> None:
    """Be the holder, until a signal ends it."""
    tasks = TaskRegistry()
    sock = listen("127.0.0.1", 0)

    async def drain() -> None:
        await tasks.aclose()

    async with contextlib.AsyncExitStack() as stack:
        pusher = None
        if bus in BUSES:
            pusher = Pusher(await stack.enter_async_context(BUSES[bus](address)))
            tasks.spawn("push", pusher.run)
        server = build_server(Holder(load, pusher).app, drain, ServeSettings(loop="none"))
        print(f"port {sock.getsockname()[1]}")
        await server.serve(sockets=[sock])


class Crowd:
    """The clients of all turns and, as `way` says, the other instance. `more_us` has what an event cost the holder
    more in each pair of rounds, `own_us` what it cost without; `late_ms` how late each event was at the other."""

    def __init__(self, port: int, way: str, load: Load, address: str) -> None:
        self.own_us: list[float] = []
        self.more_us: list[float] = []
        self.late_ms: list[float] = []
        self._ended = 0
        self._url = f"http://127.0.0.1:{port}"
        self._port = port
        self._way = way
        self._load = load
        self._address = address
        self._peers = Peers("")
        self._connected = asyncio.Semaphore(0)

    async def measure(self) -> None:
        """All pairs of rounds."""
        async with asyncio.timeout(HANGS_S), aiohttp.ClientSession() as http:
            for pair in range(self._load.pairs):
                own = await self._round(http, 2 * pair, [])
                more = await self._round(http, 2 * pair + 1, self._others(2 * pair + 1))
                self.own_us.append(own)
                self.more_us.append(more - own)
        await self._peers.aclose()
        expected = 0 if self._way == "own" else self._load.turns * self._load.events * self._load.pairs
        if len(self.late_ms) != expected:
            raise RuntimeError(f"{self._way}: {len(self.late_ms)} events of {expected} came")

    def _others(self, round_: int) -> list[Coroutine[Any, Any, None]]:
        if self._way == "relay":
            return [self._relayed(exchange_id(round_, number)) for number in range(self._load.turns)]
        return [self._pulled()] if self._way in BUSES else []

    async def _round(self, http: aiohttp.ClientSession, round_: int, others: list[Coroutine[Any, Any, None]]) -> float:
        """The holder's CPU an event."""
        everybody = [*(self._own(exchange_id(round_, number)) for number in range(self._load.turns)), *others]
        async with asyncio.TaskGroup() as group:
            for one in everybody:
                group.create_task(one)
            for _ in everybody:
                await self._connected.acquire()
            await asyncio.sleep(0.3)  # what was asked arrives
            async with http.get(f"{self._url}/publish/{round_}", raise_for_status=True) as answer:
                return float((await answer.json())["us"])

    async def _own(self, exchange: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET /own/{exchange} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        self._connected.release()
        while b"event: cancelled" not in await reader.read(65536):
            pass
        writer.close()

    async def _relayed(self, exchange: str) -> None:
        follow = self._peers.follow(self._url, TOKEN, user_id="u", session_id="s", exchange_id=exchange, after=0)
        self._connected.release()
        async with aclosing(follow) as batches:
            async for batch in batches:
                self._note(batch)

    async def _pulled(self) -> None:
        self._ended = 0
        async with BUSES[self._way](self._address) as bus, aclosing(bus.pull()) as lines:
            self._connected.release()
            async for line in lines:
                self._note(decode_events(line))
                if self._ended == self._load.turns:
                    return

    def _note(self, events: list[TurnEvent]) -> None:
        now = time.monotonic_ns()
        texts = [event.payload.text for event in events if isinstance(event.payload, TextDelta)]
        self.late_ms += [(now - int(text)) / 1e6 for text in texts]
        self._ended += len(events) - len(texts)


async def measure(port: int, way: str, load: Load, address: str) -> Crowd:
    """All pairs of rounds."""
    crowd = Crowd(port, way, load, address)
    await crowd.measure()
    return crowd


def measured(way: str, load: Load, address: str) -> Crowd:
    """The same on a holder of its own."""
    mine, others = cores()
    options = ["--turns", str(load.turns), "--events", str(load.events), "--address", address]
    with ExitStack() as stack:
        with pinned_to(mine):
            holder = stack.enter_context(ModuleProcess(MODULE, "--hold", way, *options))
        port = int(holder.wait_for_line(r"port (\d+)")[1])
        with pinned_to(others), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(port, way, load, address))


def judge(way: str, crowd: Crowd, verdicts: Verdicts, slack: float) -> None:
    """Print what was found."""
    more = statistics.median(crowd.more_us)
    if way == "own":
        verdicts.hold("relay, not followed, an event", abs(more), 5.0 * slack, "us")
    elif way == "relay":
        verdicts.hold("relay, followed, an event", more, 90.0 * slack, "us")
        verdicts.hold("relay, publish to follower, p50", statistics.median(crowd.late_ms), 2.0 * slack, "ms")
    else:
        verdicts.tell(f"{way}, an event", more, "us")
        verdicts.tell(f"{way}, publish to follower, p50", statistics.median(crowd.late_ms), "ms")
    shown = " ".join(f"{one:.1f}" for one in crowd.more_us)
    print(f"    own client alone {statistics.median(crowd.own_us):.1f} us; more in each pair: {shown}")


def main() -> int:
    """All ways; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What the relay of a turn to another instance costs.")
    parser.add_argument("--pairs", type=int, default=15, help="pairs of rounds of each way (default 15)")
    parser.add_argument("--turns", type=int, default=40, help="turns at once (default 40)")
    parser.add_argument("--events", type=int, default=50, help="tokens of a turn (default 50: a second)")
    parser.add_argument("--short", action="store_true", help="three pairs, bounds five times as wide")
    parser.add_argument("--hold", help=argparse.SUPPRESS)
    parser.add_argument("--address", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    load = Load(options.turns, options.events, 3 if options.short else options.pairs)
    if options.hold:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(hold(load, options.hold, options.address))
        return 0
    verdicts = Verdicts()
    with ExitStack() as stack:
        directory = public_directory("turnwise-relay-")
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        postgres = EmbeddedPostgres(directory, free_port(), durable=False)
        with pinned_to(cores()[1]):
            postgres.start()
        stack.callback(postgres.stop)
        for way in ("own", "relay", *BUSES):
            judge(way, measured(way, load, postgres.dsn), verdicts, 5.0 if options.short else 1.0)
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
