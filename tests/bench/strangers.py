"""What strangers cost the others: 200 clients that ask and never read, 5,000 that only stay; figure, bound and verdict.

    make bench-strangers            the full figures of TRUST D5 and D8, on a machine that does nothing else

Hypothesis: a reader that does not read costs nobody else anything, since each socket has its own writer and a deadline;
a socket that says nothing costs its memory. Control of both: nobody; of the slow readers also as many clients that ask
for the same and read it at once, which is told and not judged. Rounds of each, one right after the other, their order
changing; p95 of the same closed load, and the median of what the rounds differ by. The strangers are a process of their
own beside model and load, the service has its core. Slow readers must have been cut, and idle ones, which answer pings,
must all be there at the end of a round: else it shows nothing.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.bench import Verdicts, pinned_to
from tests.bench.crowd import BASE, Crowd
from tests.bench.rig import Rig, Server, rig
from tests.support.processes import ModuleProcess
from tests.support.raw import PING, PONG, frame, head, peer

OTHERS = "mock;floor=300;tokens=20"
LONG = "mock;tokens=2000"
READER = "Reader"
P95_GROWTH_PCT = 5.0
IDLE_KB = 48.0
_WHO = "Authorization: Bearer local"
_SPARE_DESCRIPTORS = 500
_AGAIN_S = 1.0
_OPENING = 50


@dataclass(frozen=True, slots=True)
class Size:
    """How many strangers, how long each round, how many rounds of each kind; `slack` widens the bounds of times.

    `cuts`: how many slow readers must be cut in a round, which takes the service 10 s.
    """

    slow: int
    idle: int
    others: int
    seconds: float
    rounds: int
    slack: float
    cuts: int


FULL = Size(slow=200, idle=5000, others=30, seconds=20.0, rounds=4, slack=1.0, cuts=200)
SHORT = Size(slow=50, idle=500, others=15, seconds=5.0, rounds=3, slack=5.0, cuts=0)


# The strangers, as a process


async def be_readers(port: int, count: int, *, reads: bool) -> None:
    """Ask for one long answer, then to hear it again, every second, for ever: and read it, or nothing at all."""
    begun = asyncio.Semaphore(4)
    ready = [asyncio.Event() for _ in range(count)]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http, asyncio.TaskGroup() as group:
        for event in ready:
            group.create_task(_reader(http, port, begun, event, reads=reads))
        for event in ready:
            await event.wait()
        print("ready", flush=True)


async def _reader(
    http: aiohttp.ClientSession, port: int, begun: asyncio.Semaphore, ready: asyncio.Event, *, reads: bool
) -> None:
    headers = {"Authorization": "Bearer local"}
    async with http.post(f"{BASE}/chatbot/session", json={"agent_id": READER, "title": "T"}, headers=headers) as made:
        session_id = str((await made.json())["id"])
    resume = {"type": "resume", "session_id": session_id, "exchange_id": session_id, "after_seq": 0}
    async with begun, _dial(port) as first:
        ask = {"type": "ask", "session_id": session_id, "agent_id": READER, "message": "Tell me all of it."}
        await first.send(json.dumps({**ask, "client_exchange_id": session_id}))
        while b'"final"' not in (await first.recv(decode=False))[:24]:
            pass
    ready.set()
    while True:
        # Who does not read is cut; it comes back at once, as a browser would.
        try:
            async with _dial(port) as socket_, asyncio.TaskGroup() as group:
                if reads:
                    group.create_task(_drain(socket_))
                while True:
                    await socket_.send(json.dumps(resume))
                    await asyncio.sleep(_AGAIN_S)
        except* (WebSocketException, OSError):
            print("cut", flush=True)
        await asyncio.sleep(_AGAIN_S)


async def _drain(socket_: ClientConnection) -> None:
    while True:
        await socket_.recv(decode=False)


def _dial(port: int) -> connect:
    sock = socket.socket()
    # The kernel would hide a slow reader: see Crowd.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    options: dict[str, Any] = {"sock": sock, "max_queue": 1, "max_size": 2**24, "compression": None}
    return connect(
        f"ws://127.0.0.1:{port}{BASE}/chatbot/query/ws",
        subprotocols=[Subprotocol("turnwise.v1")],
        additional_headers={"Authorization": "Bearer local"},
        ping_interval=None,
        close_timeout=1,
        **options,
    )


async def be_idle(port: int, count: int) -> None:
    """Open so many sockets, answer their pings, and stay; whoever is closed ends the process."""
    places = asyncio.Semaphore(_OPENING)
    opened = asyncio.Semaphore(0)

    async def stay() -> None:
        async with peer(port) as stranger:
            async with places:
                answer = await stranger.upgrade(head(f"{BASE}/chatbot/query/ws", _WHO))
            if not answer.startswith(b"HTTP/1.1 101 "):
                raise RuntimeError(answer.decode("latin-1"))
            opened.release()
            while True:
                with contextlib.suppress(TimeoutError):
                    opcode, payload = await stranger.hear()
                    if opcode != PING:
                        raise RuntimeError(f"opcode {opcode}: {payload!r}")
                    await stranger.send(frame(PONG, payload))

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(stay())
        for _ in range(count):
            await opened.acquire()
        print("ready", flush=True)


@contextmanager
def strangers(built: Rig, server: Server, what: str, count: int) -> Iterator[ModuleProcess]:
    """Their process, so many of them, while the block runs."""
    arguments = ("--be", what, "--port", str(server.target.port), "--count", str(count))
    with pinned_to(built.other_cores), ModuleProcess("tests.bench.strangers", *arguments) as process:
        process.wait_for_line("^ready", 180.0)
        yield process
        if process.returncode is not None:
            raise RuntimeError(f"the strangers have ended:\n{process.output}")


# The others


def p95_ms(server: Server, size: Size) -> float:
    """Of the turns of the closed load."""
    crowd = Crowd(size.others, size.seconds)
    uvloop.run(crowd.run(server.target.port))
    if crowd.failures or not crowd.latencies_s:
        raise RuntimeError(f"turns failed: {dict(crowd.failures)}")
    return nearest_rank(sorted(crowd.latencies_s), 0.95) * 1e3


def rss_kb(server: Server) -> float:
    """Resident memory of the service."""
    return float(psutil.Process(server.process.pid).memory_info().rss) / 1024


def slow_readers(built: Rig, server: Server, size: Size, verdicts: Verdicts) -> None:
    """D5: nobody beside the others, the same clients reading, and not reading."""
    growth, cuts = [], []
    kinds = ["nobody", "reading", "silent"]
    for number in range(size.rounds):
        found = {}
        for what in kinds[number % 3 :] + kinds[: number % 3]:
            if what == "nobody":
                found[what] = p95_ms(server, size)
                continue
            with strangers(built, server, what, size.slow) as process:
                found[what] = p95_ms(server, size)
                if what == "silent":
                    cuts.append(process.output.splitlines().count("cut"))
        growth.append((found["silent"] / found["nobody"] - 1) * 100)
        words = ", ".join(f"{what} {found[what]:.1f} ms" for what in kinds)
        print(f"  p95 beside {size.slow} readers: {words}; {cuts[-1]} cut")
    verdicts.hold(f"p95 beside {size.slow} slow readers", statistics.median(growth), P95_GROWTH_PCT * size.slack, "%")
    verdicts.hold_at_least("slow readers cut in a round", min(cuts), size.cuts, "cuts")


def idle_sockets(built: Rig, server: Server, size: Size, verdicts: Verdicts) -> None:
    """D8: many that stay and say nothing."""
    growth, memory = [], []
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS
    count = min(size.idle, allowed)
    for number in range(size.rounds):
        alone = 0.0
        if number % 2 == 0:
            alone = p95_ms(server, size)
        before = rss_kb(server)
        with strangers(built, server, "idle", count):
            memory.append((rss_kb(server) - before) / count)
            beside = p95_ms(server, size)
        alone = alone or p95_ms(server, size)
        growth.append((beside / alone - 1) * 100)
        print(f"  p95 alone {alone:.1f} ms, beside {count} idle sockets {beside:.1f} ms, {memory[-1]:.1f} KB each")
    verdicts.hold_at_least("idle sockets, open from start to end", count, size.idle, "sockets")
    verdicts.hold(f"p95 beside {count} idle sockets", statistics.median(growth), P95_GROWTH_PCT * size.slack, "%")
    # Later rounds find memory that the first one has left behind.
    verdicts.hold(f"memory of each of {count} idle sockets", max(memory), IDLE_KB, "KB")


def _with_readers(config: dict[str, Any]) -> None:
    ai = config["ai"]
    ai["chat_models"] = [{"id": "long", "title": "Long", "name": LONG}]
    ai["agents"].append({"name": READER, "class_path": "agentic_backend.agent.plain", "model": "long"})


def measure(size: Size) -> int:
    """1 where a bound is missed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    verdicts = Verdicts()
    with rig() as built:
        server = built.service("strangers", OTHERS, change=_with_readers)
        p95_ms(server, size)
        slow_readers(built, server, size, verdicts)
        idle_sockets(built, server, size, verdicts)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return int(verdicts.failed > 0)


def main() -> int:
    """The bench, or, with `--be`, its strangers."""
    parser = argparse.ArgumentParser(description="What slow readers and idle sockets cost the others.")
    parser.add_argument("--short", action="store_true", help="fewer of them, times with bounds five times as wide")
    parser.add_argument("--be", choices=["silent", "reading", "idle"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be is None:
        return measure(SHORT if options.short else FULL)
    if options.be == "idle":
        uvloop.run(be_idle(options.port, options.count))
    else:
        uvloop.run(be_readers(options.port, options.count, reads=options.be == "reading"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
