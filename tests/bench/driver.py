"""The load of the comparing benches: asks over WebSocket, closed or at a rate, timed over a window in the middle.

It runs in the bench's own process, so that the window in which turns are counted is the one in which CPU is read.
"""

import asyncio
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from backend_kit.kpi.rollup import nearest_rank
from tests.bench.rawsocket import RawSocket, SocketFailed, dial

TURNS_A_SESSION = 10
"""As many as a client of ws_bench asks by default: what an agent remembers is part of a turn."""
NATIVE = "turnwise.v1"
HEADERS = {"Authorization": "Bearer local"}
_DELTA = '{"type":"delta"'
_FINAL = '{"type":"final"'
_TERMINAL = (_FINAL, '{"type":"error"', '{"type":"cancelled"')
_DIALS_AT_ONCE = 64
_LOOKS_EVERY_S = 0.02


class TurnFailed(Exception):
    """A turn that ended otherwise than with its `final` and the text that the model gave."""


@dataclass(frozen=True, slots=True)
class Target:
    """A chat service under test. `session_url` is where sessions are made; without one, ids are the client's own.

    `answer` is what every turn must say, None where it depends on the question.
    """

    name: str
    port: int
    path: str
    native: bool = False
    session_url: str | None = None
    agent: str = "Georges"
    deflate: bool = False
    answer: str | None = None
    turn_s: float = 60.0
    """Seconds after which a turn has failed."""
    turns_a_session: int = TURNS_A_SESSION
    mark: str = _DELTA
    """What the frame begins with that `first_at` is the arrival of."""
    connect: "Callable[[Target, aiohttp.ClientSession], Awaitable[Client]] | None" = None
    """Makes a connected client of another protocol; None: one of a WebSocket."""


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` turns a second, or as many as `clients` can ask one after the other where it is None.

    Turns count that end within `seconds` after `warm_s`. Closed clients begin spread over `ramp_s` (None: half of
    `warm_s`).
    """

    clients: int
    seconds: float
    warm_s: float = 2.0
    rate: float | None = None
    ramp_s: float | None = None


@dataclass(slots=True)
class Counted:
    """What happened within the window, and (`…_in_all`) from the first ask to the last answer.

    `chars_under_way` is what had been heard of unfinished turns at the window's end, less that at its beginning.
    `firsts_s` are ask to first frame of the target's mark; `lags_s` by how much the load's own loop was late within the
    window, and `load_cpu_s` the CPU that it took.
    """

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    firsts_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    load_cpu_s: float = 0.0
    frames: int = 0
    failures: list[str] = field(default_factory=list)
    chars_under_way: int = 0
    turns_in_all: int = 0
    chars_in_all: int = 0

    @property
    def ended(self) -> int:
        """Turns that ended well within the window."""
        return len(self.latencies_s)

    @property
    def turns(self) -> float:
        """The same with parts of turns: what was begun before the window counts less, what went on after it more.

        A slow stack has as many turns under way as it ends in a window: to count whole ones would be a draw.
        """
        if not self.turns_in_all:
            return 0.0
        return max(0.0, self.ended + self.chars_under_way * self.turns_in_all / self.chars_in_all)

    def latency_ms(self, share: float) -> float:
        """Nearest-rank percentile of ask to final; infinite where no turn ended."""
        return nearest_rank(sorted(self.latencies_s), share) * 1e3 if self.latencies_s else float("inf")


class Connection(Protocol):
    """What a client hears over; the figures are those of `RawSocket`."""

    chars: int
    first_at: float | None
    ended_at: float

    async def close(self) -> None:
        """Close it."""


class Client(ABC):
    """One connection, and the session that it asks in."""

    def __init__(self, target: Target, socket: Connection, http: aiohttp.ClientSession) -> None:
        self._target = target
        self._socket = socket
        self._http = http
        self._session_id = ""
        self._left = 0

    @property
    def chars(self) -> int:
        """Characters of frames heard of the turn under way."""
        return self._socket.chars

    @property
    def first_at(self) -> float | None:
        """When the last turn's first frame of the mark came, on the clock of `time.perf_counter`."""
        return self._socket.first_at

    @property
    def ended_at(self) -> float:
        """When the last turn's end came, on the same clock."""
        return self._socket.ended_at

    @property
    def session_id(self) -> str:
        """The session of the last turn."""
        return self._session_id

    def forget(self) -> None:
        """The turn that was under way counts no more."""
        self._socket.chars = 0

    async def prepare(self) -> None:
        """Have a session for the next turn, which else is made with it. Raises `aiohttp.ClientError`."""
        if not self._left:
            self._session_id = await self._new_session()
            self._left = self._target.turns_a_session

    async def turn(self, question: str) -> list[str]:
        """Ask and return what was heard, the end included. Raises `TurnFailed`."""
        await self.prepare()
        self._left -= 1
        try:
            async with asyncio.timeout(self._target.turn_s):
                return await self._ask(question)
        except (TimeoutError, SocketFailed) as error:
            raise TurnFailed(f"{type(error).__name__}: {error}") from error

    @abstractmethod
    async def _ask(self, question: str) -> list[str]:
        """Ask in `session_id`. Raises `TurnFailed` and `SocketFailed`."""

    async def close(self) -> None:
        """Close the socket."""
        await self._socket.close()

    async def _new_session(self) -> str:
        url = self._target.session_url
        if url is None:
            return f"{id(self):x}-{time.perf_counter_ns():x}"
        async with self._http.post(url, json={"agent_id": self._target.agent, "title": "Bench"}) as response:
            response.raise_for_status()
            return str((await response.json())["id"])


class SocketClient(Client):
    """One that asks over a WebSocket, in either of our protocols."""

    def __init__(self, target: Target, socket: RawSocket, http: aiohttp.ClientSession) -> None:
        super().__init__(target, socket, http)
        self._frames = socket

    async def _ask(self, question: str) -> list[str]:
        ask = {
            "type": "ask",
            "session_id": self._session_id,
            "agent_id": self._target.agent,
            "message": question,
        }
        frames = await self._frames.exchange(json.dumps(ask))
        answer = self._target.answer
        if not frames[-1].startswith(_FINAL) or (answer is not None and answer not in frames[-1]):
            raise TurnFailed(frames[-1][:300])
        return frames


@asynccontextmanager
async def clients(target: Target, count: int) -> AsyncIterator[list[Client]]:
    """Connected clients; closed with a close handshake at the end."""
    # Shorter than the service keeps an idle connection, or a session is asked for on one that is just closed.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    connected: list[Client] = []
    places = asyncio.Semaphore(_DIALS_AT_ONCE)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as http:

        async def connect() -> None:
            async with places:
                connected.append(await (target.connect or _connected)(target, http))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(connect())
            yield connected
        finally:
            await asyncio.gather(*(client.close() for client in connected))


async def _connected(target: Target, http: aiohttp.ClientSession) -> Client:
    return SocketClient(target, await _dialled(target), http)


async def _dialled(target: Target) -> RawSocket:
    headers = [f"{name}: {value}" for name, value in HEADERS.items()]
    if target.native:
        headers.append(f"Sec-WebSocket-Protocol: {NATIVE}")
    return await dial(target.port, target.path, *headers, ends=_TERMINAL, mark=target.mark, deflate=target.deflate)


async def run(
    target: Target, load: Load, *, questions: Iterator[str] | None = None, at_edge: Callable[[], None]
) -> Counted:
    """Put the load on; `at_edge` is called at both ends of the window."""
    counted = Counted()
    asked = questions or itertools.repeat("Hello")
    async with clients(target, load.clients) as connected:
        window = _Window(counted)
        async with asyncio.TaskGroup() as group:
            if load.rate is None:
                # Not all at once: turns in step with one another would end in waves, and a window cut through one.
                step_s = (load.warm_s / 2 if load.ramp_s is None else load.ramp_s) / len(connected)
                for place, client in enumerate(connected):
                    group.create_task(_closed(client, asked, window, place * step_s))
            else:
                group.create_task(_open(connected, load.rate, asked, window))
            await asyncio.sleep(load.warm_s)
            at_edge()
            window.open(connected)
            counted.lags_s = await _lags(load.seconds)
            window.close(connected)
            at_edge()
    return counted


async def _lags(seconds: float) -> list[float]:
    """By how much this loop was late, each time that it was to wake, for so long."""
    lags = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        sleeps_s = min(_LOOKS_EVERY_S, until - begun)
        await asyncio.sleep(sleeps_s)
        lags.append(max(0.0, time.perf_counter() - begun - sleeps_s))
    return lags


class _Window:
    """When turns count, and when asking ends."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        self.ended = False
        self._began: float | None = None

    def open(self, connected: list[Client]) -> None:
        self._began = time.perf_counter()
        self.counted.load_cpu_s = -time.process_time()
        self.counted.chars_under_way = -sum(client.chars for client in connected)

    def close(self, connected: list[Client]) -> None:
        assert self._began is not None
        self.counted.seconds = time.perf_counter() - self._began
        self.counted.load_cpu_s += time.process_time()
        self.counted.chars_under_way += sum(client.chars for client in connected)
        self._began = None
        self.ended = True

    async def turn(self, client: Client, question: str, due: float | None = None) -> None:
        """One turn; its latency counts from when it was due, else from the ask (which is not that for a session)."""
        try:
            await client.prepare()
            begun = time.perf_counter() if due is None else due
            frames = await client.turn(question)
        except (TurnFailed, aiohttp.ClientError) as error:
            self.counted.failures.append(str(error))
            self.ended = self.ended or len(self.counted.failures) > 100
            client.forget()
            return
        self.counted.turns_in_all += 1
        self.counted.chars_in_all += client.chars
        client.forget()
        if self._began is not None:
            self.counted.latencies_s.append(client.ended_at - begun)
            self.counted.frames += len(frames)
            if client.first_at is not None:
                self.counted.firsts_s.append(client.first_at - begun)


async def _closed(client: Client, questions: Iterator[str], window: _Window, after_s: float) -> None:
    await asyncio.sleep(after_s)
    while not window.ended:
        await window.turn(client, next(questions))


async def _open(connected: list[Client], rate: float, questions: Iterator[str], window: _Window) -> None:
    """A turn each 1/rate seconds, whatever the service does. One that finds no free client fails."""
    free = deque(connected)

    async def one(due: float) -> None:
        if not free:
            window.counted.failures.append("no free client: the service is behind the rate")
            return
        client = free.popleft()
        await window.turn(client, next(questions), due)
        free.append(client)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            due = start + number / rate
            await asyncio.sleep(due - time.perf_counter())
            if window.ended:
                break
            group.create_task(one(due))


def answer_of(frames: list[str]) -> str:
    """The answer as its fragments said it: native deltas, or assistant messages of `stream` frames."""
    pieces = []
    for frame in frames:
        event: dict[str, Any] = json.loads(frame)
        if event["type"] == "delta":
            pieces.append(event["text"])
        elif event["type"] == "stream" and event["message"]["role"] == "assistant":
            pieces += [part["text"] for part in event["message"]["parts"] if part["type"] == "text"]
    return "".join(pieces)
