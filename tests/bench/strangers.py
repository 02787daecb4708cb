"""What strangers cost the others: 200 clients that ask and never read, 5,000 that only stay; figure, bound and verdict.

    make bench-strangers            the full figures of docs/trust.md#D5 and D8, on a machine that does nothing else

Hypothesis: a reader that does not read costs nobody else anything, since each socket has its own writer and a deadline;
a socket that says nothing costs its memory. Control: nobody, in two windows of the same closed load, one before and one
after those beside the strangers, so that what drifts counts on both sides. A round compares the p95 of both sides; the
verdict is over the median of the rounds, each of which is told, for they show what the machine does by itself. Beside
as many clients that ask for the same and read it at once p95 is told, too, and not judged.

The service has the first core; model, Postgres, load and strangers share the others. The strangers give way to all of
them (niceness 19), and idle ones are one loop without timers: in the world they have machines of their own.
Each of the slow readers must have been cut in each round, and the idle ones, which answer pings, must all be there at
its end: else it shows nothing.
"""

import argparse
import asyncio
import json
import os
import resource
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.bench import Verdicts, pinned_to
from tests.bench.crowd import BASE, Crowd
from tests.bench.deployment import Deployment, Server, cpu_s, deployed
from tests.support.processes import ModuleProcess
from tests.support.raw import PING, PONG, TEXT, frame, head

OTHERS = "mock;floor=300;tokens=20"
LONG = "mock;tokens=2000"
READER = "Reader"
P95_GROWTH_PCT = 5.0
IDLE_KB = 48.0
_PATH = f"{BASE}/chatbot/query/ws"
_WHO = {"Authorization": "Bearer local"}
_NATIVE = "turnwise.v1"
_SPARE_DESCRIPTORS = 500
_CLOSED_WITHIN_S = 60.0
_NICENESS = 19
_OPENING = 50
_TIMES = 8
"""How often a reader asks for its answer, of some 30 KB. Kernel and service hold 192 KB of it before a send waits."""
_TIMES_EVERY_S = 0.25
_SILENCE_S = 11.5
"""Until it looks whether it was cut: the send deadline of 10 s and a tick of the clock that watches it. Before that it
cannot know: the end of the connection waits behind what it does not read."""
_LOOKS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Size:
    """How many strangers, how long each window, how many rounds of each kind; `slack` widens the bounds of times.

    `cut`: how many slow readers must be cut in a round, which takes the service 10 s.
    """

    slow: int
    idle: int
    others: int
    seconds: float
    slow_rounds: int
    idle_rounds: int
    slack: float
    cut: int


FULL = Size(slow=200, idle=5000, others=30, seconds=10.0, slow_rounds=3, idle_rounds=6, slack=1.0, cut=200)
SHORT = Size(slow=50, idle=500, others=15, seconds=3.0, slow_rounds=2, idle_rounds=2, slack=5.0, cut=0)


# The strangers, as a process


async def be_readers(port: int, count: int, *, reads: bool) -> None:
    """Have one long answer each, then ask to hear it again and again, for ever: and read it, or nothing at all."""
    places = asyncio.Semaphore(4)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=_WHO) as http, asyncio.TaskGroup() as first:
        sessions = [first.create_task(_answered(http, port, places)) for _ in range(count)]
    print("ready", flush=True)
    reader = _reading if reads else _silent
    async with asyncio.TaskGroup() as group:
        for number, session in enumerate(sessions):
            group.create_task(reader(port, number, _resume(session.result())))


async def _answered(http: aiohttp.ClientSession, port: int, places: asyncio.Semaphore) -> str:
    """A session with one exchange, of the same id."""
    async with http.post(f"{BASE}/chatbot/session", json={"agent_id": READER, "title": "T"}) as made:
        session_id = str((await made.json())["id"])
    ask = {"type": "ask", "session_id": session_id, "agent_id": READER, "message": "Tell me all of it."}
    async with places, _dial(port) as peer:
        await peer.send(json.dumps({**ask, "client_exchange_id": session_id}))
        while b'"final"' not in (await peer.recv(decode=False))[:24]:
            pass
    return session_id


def _resume(session_id: str) -> str:
    return json.dumps({"type": "resume", "session_id": session_id, "exchange_id": session_id, "after_seq": 0})


def _dial(port: int) -> connect:
    return connect(
        f"ws://127.0.0.1:{port}{_PATH}",
        subprotocols=[Subprotocol(_NATIVE)],
        additional_headers=_WHO,
        ping_interval=None,
        compression=None,
        max_size=2**24,
    )


async def _reading(port: int, _number: int, resume: str) -> None:
    async with _dial(port) as peer, asyncio.TaskGroup() as group:

        async def drain() -> None:
            while True:
                await peer.recv(decode=False)

        group.create_task(drain())
        while True:
            for _ in range(_TIMES):
                await peer.send(resume)
                await asyncio.sleep(_TIMES_EVERY_S)
            await asyncio.sleep(_SILENCE_S)


async def _silent(port: int, number: int, resume: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with await _silent_socket(port) as sock:
            try:
                for _ in range(_TIMES):
                    await loop.sock_sendall(sock, frame(TEXT, resume.encode()))
                    await asyncio.sleep(_TIMES_EVERY_S)
                await asyncio.sleep(_SILENCE_S)
                while True:
                    await loop.sock_sendall(sock, frame(PING))
                    await asyncio.sleep(_LOOKS_EVERY_S)
            except ConnectionError:
                # Who does not read is cut; it comes back, as a browser would.
                print(f"cut {number}", flush=True)


async def _silent_socket(port: int) -> socket.socket:
    """A native chat socket of a peer whose kernel does not hide that it is slow: see Crowd."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    await loop.sock_sendall(sock, _handshake(f"Sec-WebSocket-Protocol: {_NATIVE}"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += await loop.sock_recv(sock, 1024)
        _check_upgrade(answer)
    return sock


def _handshake(*more: str) -> bytes:
    return head(_PATH, *(f"{name}: {value}" for name, value in _WHO.items()), *more)


def _check_upgrade(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 101 "):
        raise RuntimeError(answer.decode("latin-1"))


def be_idle(port: int, count: int) -> None:
    """Open so many sockets, answer their pings, and stay; whoever is closed ends the process."""
    with selectors.DefaultSelector() as selector:
        for start in range(0, count, _OPENING):
            opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(min(_OPENING, count - start))]
            for sock in opened:
                sock.sendall(_handshake())
            for sock in opened:
                _check_upgrade(sock.recv(1024))
                selector.register(sock, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                said = peer.recv(1024)
                # A ping and its four bytes; the next one waits for the answer.
                if said[:2] != bytes([0x80 | PING, 4]) or len(said) != 6:
                    raise RuntimeError(f"an idle socket hears {said!r}")
                peer.sendall(frame(PONG, said[2:]))


@contextmanager
def strangers(deployment: Deployment, server: Server, what: str, count: int) -> Iterator[ModuleProcess]:
    """Their process, so many of them, while the block runs."""
    arguments = ("--be", what, "--port", str(server.target.port), "--count", str(count))
    with pinned_to(deployment.other_cores), ModuleProcess("tests.bench.strangers", *arguments) as process:
        process.wait_for_line("^ready", 180.0)
        yield process
        if process.returncode is not None:
            raise RuntimeError(f"the strangers have ended:\n{process.output}")


# The others


class Windows:
    """What windows of the closed load have shown: how long each turn took, and what the service used meanwhile."""

    def __init__(self, server: Server, size: Size) -> None:
        self._server = server
        self._size = size
        self._turns_s: list[float] = []
        self._cpu_s = 0.0

    def more(self) -> None:
        """One more window."""
        crowd = Crowd(self._size.others, self._size.seconds)
        before_s = cpu_s(self._server.process.pid)
        uvloop.run(crowd.run(self._server.target.port))
        self._cpu_s += cpu_s(self._server.process.pid) - before_s
        if crowd.failures or not crowd.latencies_s:
            raise RuntimeError(f"turns failed: {dict(crowd.failures)}")
        self._turns_s += crowd.latencies_s

    @property
    def p95_ms(self) -> float:
        """Of all turns."""
        return nearest_rank(sorted(self._turns_s), 0.95) * 1e3

    def __str__(self) -> str:
        return f"{self.p95_ms:.1f} ms ({self._cpu_s / len(self._turns_s) * 1e3:.2f} ms of CPU a turn)"


def rss_kb(server: Server) -> float:
    """Resident memory of the service."""
    return float(psutil.Process(server.process.pid).memory_info().rss) / 1024


def wait_closed(server: Server, descriptors: int) -> None:
    """Until the service has about as many open as then."""
    process = psutil.Process(server.process.pid)
    give_up = time.monotonic() + _CLOSED_WITHIN_S
    while process.num_fds() > descriptors + _SPARE_DESCRIPTORS / 10:
        if time.monotonic() > give_up:
            raise RuntimeError(f"{process.num_fds()} descriptors are open, {descriptors} were before")
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Round:
    """Windows beside nobody and beside strangers, what each of these holds in memory, and what they have written."""

    alone: Windows
    beside: Windows
    memory_kb: float
    output: str

    @property
    def growth_pct(self) -> float:
        """By how much p95 is higher beside them."""
        return (self.beside.p95_ms / self.alone.p95_ms - 1) * 100

    def __str__(self) -> str:
        return f"p95 alone {self.alone}, beside {self.beside}: {self.growth_pct:+.1f} %"


def compared(deployment: Deployment, server: Server, size: Size, what: str, count: int) -> Round:
    """Two windows beside so many strangers, between one before and one after them."""
    alone, beside = Windows(server, size), Windows(server, size)
    alone.more()
    descriptors, before_kb = psutil.Process(server.process.pid).num_fds(), rss_kb(server)
    with strangers(deployment, server, what, count) as process:
        memory_kb = (rss_kb(server) - before_kb) / count
        beside.more()
        beside.more()
        output = process.output
    wait_closed(server, descriptors)
    alone.more()
    return Round(alone, beside, memory_kb, output)


def slow_readers(deployment: Deployment, server: Server, size: Size, verdicts: Verdicts) -> None:
    """D5: beside nobody, and beside clients that do not read; what reading ones cost is told."""
    growth, cut = [], []
    for _ in range(size.slow_rounds):
        found = compared(deployment, server, size, "silent", size.slow)
        growth.append(found.growth_pct)
        cut.append(len({line for line in found.output.splitlines() if line.startswith("cut ")}))
        print(f"  {size.slow} that never read: {found}, {cut[-1]} of them cut", flush=True)
    reading = compared(deployment, server, size, "reading", size.slow)
    print(f"  {size.slow} that read: {reading} (information)", flush=True)
    verdicts.hold(f"p95 beside {size.slow} slow readers", statistics.median(growth), P95_GROWTH_PCT * size.slack, "%")
    verdicts.hold_at_least("slow readers cut in each round", min(cut), size.cut, "readers")


def idle_sockets(deployment: Deployment, server: Server, size: Size, verdicts: Verdicts) -> None:
    """D8: many that stay and say nothing."""
    growth, memory = [], []
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS
    count = min(size.idle, allowed)
    for _ in range(size.idle_rounds):
        found = compared(deployment, server, size, "idle", count)
        growth.append(found.growth_pct)
        memory.append(found.memory_kb)
        print(f"  {count} idle sockets: {found}, {found.memory_kb:.1f} KB each", flush=True)
    verdicts.hold_at_least("idle sockets, open from start to end", count, size.idle, "sockets")
    verdicts.hold(f"p95 beside {count} idle sockets", statistics.median(growth), P95_GROWTH_PCT * size.slack, "%")
    # Later rounds find memory that the first one has left behind.
    verdicts.hold(f"memory of each of {count} idle sockets", max(memory), IDLE_KB, "KB")


def _with_readers(config: dict[str, Any], spool: Path) -> None:
    config["persistence"]["spool_dir"] = str(spool)
    ai = config["ai"]
    ai["chat_models"] = [{"id": "long", "title": "Long", "name": LONG}]
    ai["agents"].append({"name": READER, "class_path": "agentic_backend.agent.plain", "model": "long"})


def measure(size: Size) -> int:
    """1 where a bound is missed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    verdicts = Verdicts()
    with deployed() as deployment:
        change = partial(_with_readers, spool=deployment.work / "spool")
        server = deployment.service("strangers", OTHERS, change=change)
        Windows(server, size).more()
        slow_readers(deployment, server, size, verdicts)
        idle_sockets(deployment, server, size, verdicts)
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
    os.nice(_NICENESS)
    if options.be == "idle":
        be_idle(options.port, options.count)
    else:
        uvloop.run(be_readers(options.port, options.count, reads=options.be == "reading"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
