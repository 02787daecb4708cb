"""The clients of `tests.bench.truth`: turns over sockets and the REST beside them, by their own clocks and counts.

Each question has a mark of its own (`#t17#`), by which the relays know whose model call and search is whose. Times are
of CLOCK_MONOTONIC in seconds, as those of the relays.
"""

import asyncio
import fcntl
import itertools
import json
import random
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.driver import NATIVE
from tests.bench.rawsocket import RawSocket, SocketFailed

BASE = "/agentic/v1"
PATH = f"{BASE}/chatbot/query/ws"
_ENDS = ('{"type":"final"', '{"type":"error"', '{"type":"cancelled"')
_DELTA, _ACCEPTED = b'{"type":"delta"', b'{"type":"accepted"'
_TURN_S = 120.0
_PAUSE_S = 5.0
_THINKS_S = 2.0
_LOOKS_EVERY_S = 0.01
_RECEIVES_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Role:
    """So many clients of one agent and one protocol. `context` is the runtime context of their turns, one after the
    other; `padding` characters make their questions long."""

    agent: str
    clients: int
    native: bool = True
    contexts: Sequence[dict[str, Any]] = ({},)
    padding: int = 0


@dataclass(slots=True)
class ClientTurn:
    """What a client saw of one turn; `ended` is the arrival of its final."""

    mark: int
    agent: str
    native: bool
    session_id: str
    asked: float
    exchange_id: str
    first: float | None = None
    ended: float = 0.0
    accepted: list[float] = field(default_factory=list)
    deltas: int = 0
    last_delta: float | None = None
    gap_s: float = 0.0
    ok: bool = False
    unattributed_ms: float | None = None
    events: int = 0
    frames: int = 0
    frame_bytes: int = 0
    failure: str = ""


@dataclass(slots=True)
class Call:
    """One REST call: what it was, its answer, and when."""

    what: str
    status: int
    begun: float
    ended: float
    session_id: str = ""


@dataclass(slots=True)
class Stall:
    """A client that read nothing from its question until `resumed`. `waiting_bytes` came after that and were nowhere in
    the kernel when it ended."""

    asked: float
    resumed: float
    waiting_bytes: int


class Tokens:
    """What clients show: how often, and how many of them no one has shown before."""

    def __init__(self, new: Callable[[], str]) -> None:
        self._new = new
        self.shown = 0
        self.distinct = 0

    def header(self, token: str) -> dict[str, str]:
        """The header that shows it."""
        self.shown += 1
        return {"Authorization": f"Bearer {token}"}

    def fresh(self) -> str:
        """One that nobody has shown."""
        self.distinct += 1
        return self._new()


class TimedSocket(RawSocket):
    """One that also keeps when each frame of interest came."""

    def __init__(self) -> None:
        super().__init__(_ENDS, _DELTA.decode())
        self.accepted: list[float] = []
        self.deltas = 0
        self.gap_s = 0.0
        self._last = 0.0

    @property
    def last_delta(self) -> float | None:
        """When the last piece of text came."""
        return self._last if self.deltas else None

    def begin(self) -> None:
        """The next turn."""
        self.accepted, self.deltas, self.gap_s, self._last = [], 0, 0.0, 0.0

    @property
    def heard(self) -> str:
        """The beginning of the last frame of the turn under way."""
        return self._heard[-1][:300].decode(errors="replace") if self._heard else ""

    def read(self, *, on: bool) -> None:
        """Read what comes, or nothing."""
        assert self._transport is not None
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def kernel_bytes(self) -> int:
        """What the kernel holds of what comes: received and not read, and sent by the server and not received."""
        assert self._transport is not None
        own = self._transport.get_extra_info("socket")
        unread = bytearray(4)
        fcntl.ioctl(own.fileno(), termios.FIONREAD, unread)
        (_, port), (_, server_port) = own.getsockname(), own.getpeername()
        return int(struct.unpack("i", unread)[0]) + _unsent(server_port, port)

    def _hear(self, payload: bytes) -> None:
        if payload.startswith(_DELTA):
            now = time.perf_counter()
            if self.deltas:
                self.gap_s = max(self.gap_s, now - self._last)
            self._last = now
            self.deltas += 1
        elif payload.startswith(_ACCEPTED):
            self.accepted.append(time.perf_counter())
        super()._hear(payload)


class Clients:
    """All of them against one service."""

    def __init__(
        self,
        port: int,
        roles: Sequence[Role],
        *,
        seconds: float,
        questions: Sequence[str],
        first_mark: int,
        tokens: Tokens,
        rerank_url: str = "",
    ) -> None:
        """`first_mark` is that of their first turn: no mark may come twice in a session. `rerank_url` is knowledge
        flow's route, which no agent calls."""
        self.port = port
        self.tokens = tokens
        self.stalls: list[Stall] = []
        self._rerank_url = rerank_url
        self.roles = roles
        self.turns: list[ClientTurn] = []
        self.calls: list[Call] = []
        self.open_sockets = 0
        self.most_sockets = 0
        self.most_running = 0
        self.lags_s: list[float] = []
        self._running = 0
        self._seconds = seconds
        self._questions = questions
        self._marks: Iterator[int] = itertools.count(first_mark)
        self.sessions: dict[int, str] = {}

    @property
    def count(self) -> int:
        """How many sockets there are."""
        return sum(role.clients for role in self.roles)

    @property
    def finished(self) -> list[ClientTurn]:
        """The turns that ended well."""
        return [turn for turn in self.turns if turn.ok]

    @property
    def failures(self) -> Counter[str]:
        """Why others did not."""
        return Counter(turn.failure for turn in self.turns if not turn.ok)

    async def run(self, *, ramp_s: float) -> None:
        """Ask one after the other until the time is up, and call the routes meanwhile; what runs then is waited for."""
        until = time.perf_counter() + self._seconds
        async with self._http() as http, asyncio.TaskGroup() as group:
            places = [role for role in self.roles for _ in range(role.clients)]
            for place, role in enumerate(places):
                group.create_task(self._client(http, place, role, until, ramp_s * place / len(places)))
            group.create_task(self._rest(http, until))
            group.create_task(self._watch(until))

    async def run_once(self) -> None:
        """One turn of each, a moment apart."""
        async with self._http() as http, asyncio.TaskGroup() as group:
            places = [role for role in self.roles for _ in range(role.clients)]
            for place, role in enumerate(places):
                group.create_task(self._client(http, place, role, 0.0, 0.02 * place))

    async def run_alone(self, agent: str, turns: int) -> None:
        """So many turns of one client and no other, and a pause behind each."""
        role = Role(agent, 1)
        async with self._http() as http:
            session_id = await self.new_session(http, agent, token=self.tokens.fresh(), title="Bench")
        client = await self._dialled(role, token=self.tokens.fresh())
        for number in range(turns):
            await self._turn(client, role, session_id, number)
            await asyncio.sleep(_PAUSE_S)
        await self._closed(client)

    async def run_unread(self, agent: str, turns: int, stall_s: float) -> None:
        """So many turns of a client that reads nothing for so long after its question, where each says much."""
        role = Role(agent, 1)
        async with self._http() as http:
            session_id = await self.new_session(http, agent, token=self.tokens.fresh(), title="Bench")
        client = await self._dialled(role, _receives_little(self.port), token=self.tokens.fresh())
        async with asyncio.timeout(_TURN_S):
            for number in range(turns):
                turn = asyncio.ensure_future(self._turn(client, role, session_id, number))
                await asyncio.sleep(0)
                client.read(on=False)
                asked = time.perf_counter()
                await asyncio.sleep(stall_s)
                held = client.kernel_bytes()
                stall = Stall(asked, time.perf_counter(), 0)
                client.read(on=True)
                await turn
                stall.waiting_bytes = self.turns[-1].frame_bytes - held
                self.stalls.append(stall)
        await self._closed(client)

    def _http(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        return aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", connector=connector)

    async def _watch(self, until: float) -> None:
        while (begun := time.perf_counter()) < until:
            await asyncio.sleep(_LOOKS_EVERY_S)
            self.lags_s.append(time.perf_counter() - begun - _LOOKS_EVERY_S)

    async def _client(self, http: aiohttp.ClientSession, place: int, role: Role, until: float, after_s: float) -> None:
        await asyncio.sleep(after_s)
        # Each has one of its own: two that come at once with the same new one are both the first to show it.
        token = self.tokens.fresh()
        if place not in self.sessions:
            title = "Bench" if place % 5 else ""
            self.sessions[place] = await self.new_session(http, role.agent, token=token, title=title)
        session_id = self.sessions[place]
        client = await self._dialled(role, token=token)
        thinks = random.Random(place)  # noqa: S311 - pauses
        try:
            for number in itertools.count():
                await self._turn(client, role, session_id, number)
                if time.perf_counter() >= until:
                    break
                # Else those whose questions were embedded together would come together from then on.
                await asyncio.sleep(thinks.uniform(0.0, _THINKS_S))
        except SocketFailed:
            pass  # its turn says why
        finally:
            await self._closed(client)

    async def _dialled(self, role: Role, connection: socket.socket | None = None, *, token: str) -> TimedSocket:
        loop = asyncio.get_running_loop()
        if connection is None:
            _, client = await loop.create_connection(TimedSocket, "127.0.0.1", self.port)
        else:
            _, client = await loop.create_connection(TimedSocket, sock=connection)
        offers = [f"Sec-WebSocket-Protocol: {NATIVE}"] if role.native else []
        headers = self.tokens.header(token)
        await client.upgrade(PATH, *(f"{name}: {value}" for name, value in headers.items()), *offers)
        self.open_sockets += 1
        self.most_sockets = max(self.most_sockets, self.open_sockets)
        return client

    async def _closed(self, client: TimedSocket) -> None:
        await client.close()
        self.open_sockets -= 1

    async def _turn(self, client: TimedSocket, role: Role, session_id: str, number: int) -> None:
        mark = next(self._marks)
        text = self._questions[mark % len(self._questions)]
        ask = {
            "type": "ask",
            "session_id": session_id,
            "agent_id": role.agent,
            "message": f"#t{mark}# {text}{' more' * (role.padding // 5)}",
            "client_exchange_id": f"truth-{mark}",
            "runtime_context": role.contexts[number % len(role.contexts)],
        }
        client.begin()
        turn = ClientTurn(mark, role.agent, role.native, session_id, time.perf_counter(), f"truth-{mark}")
        self.turns.append(turn)
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        try:
            async with asyncio.timeout(_TURN_S):
                frames = await client.exchange(json.dumps(ask))
        except SocketFailed as failure:
            turn.failure = f"{failure} {client.heard}"
            raise
        finally:
            self._running -= 1
        turn.ended, turn.first = client.ended_at, client.first_at
        turn.accepted, turn.deltas, turn.gap_s = client.accepted, client.deltas, client.gap_s
        turn.last_delta = client.last_delta
        turn.frames, turn.frame_bytes = len(frames), sum(map(len, frames))
        # A new title of the session may come behind it in the same piece.
        last = json.loads(next(frame for frame in reversed(frames) if frame.startswith(_ENDS)))
        turn.ok = last["type"] == "final" and not _error_of(last)
        turn.unattributed_ms = last.get("unattributed_ms")
        turn.events = last.get("seq", 0)
        if not turn.ok:
            turn.failure = json.dumps(last)[:300]
            await asyncio.sleep(0.2)

    async def new_session(self, http: aiohttp.ClientSession, agent: str, *, token: str, title: str) -> str:
        """The id of a new session."""
        body = {"agent_id": agent, "title": title}
        answer = await self.call(http, "create", "POST", "/chatbot/session", token=token, json=body)
        return str(answer["id"])

    async def call(
        self,
        http: aiohttp.ClientSession,
        what: str,
        method: str,
        path: str,
        *,
        token: str,
        session_id: str = "",
        **more: Any,
    ) -> Any:
        """One call, which is kept; its JSON. Raises `aiohttp.ClientResponseError`."""
        begun = time.perf_counter()
        headers = self.tokens.header(token)
        async with http.request(method, BASE + path, headers=headers, **more) as answer:
            body = await answer.read()
            call = Call(what, answer.status, begun, time.perf_counter(), session_id)
            self.calls.append(call)
            answer.raise_for_status()
            told: Any = json.loads(body) if body else None
            if what == "create":
                call.session_id = told["id"]
            return told

    async def _rest(self, http: aiohttp.ClientSession, until: float) -> None:
        """The routes that the summary has phases for, one after the other."""
        for number in itertools.count():
            if time.perf_counter() >= until:
                return
            if not self.finished:
                await asyncio.sleep(0.1)
                continue
            session_id = self.finished[number % len(self.finished)].session_id
            path = f"/chatbot/session/{session_id}"
            # What verified is remembered for a minute.
            call = partial(self.call, http, token=self.tokens.fresh())
            await call("list", "GET", "/chatbot/sessions")
            await call("history", "GET", f"{path}/history", session_id=session_id)
            await call(
                "prefer", "PUT", f"{path}/preferences", session_id=session_id, json={"preferences": {"n": number}}
            )
            rating = {"rating": 5, "messageId": "0", "sessionId": session_id, "agentName": "Georges"}
            await call("feedback", "POST", "/chatbot/feedback", session_id=session_id, json=rating)
            async with http.post(self._rerank_url, json=_RERANKED) as answer:
                answer.raise_for_status()
            if number % 3 == 0:
                await self._attach(call, session_id, number)

    @staticmethod
    async def _attach(call: Callable[..., Awaitable[Any]], session_id: str, number: int) -> None:
        form = aiohttp.FormData()
        form.add_field("session_id", session_id)
        text = f"Note {number} about the well of the village, which is {number} metres deep.\n"
        form.add_field("file", text.encode(), filename=f"note{number}.txt", content_type="text/plain")
        made = await call("upload", "POST", "/chatbot/upload", session_id=session_id, data=form)
        await call(
            "detach", "DELETE", f"/chatbot/upload/{made['attachment_id']}?session_id={session_id}",
            session_id=session_id,
        )  # fmt: skip


_RERANKED = {
    "question": "How deep is the well?",
    "documents": [
        {"content": f"The well is {metres} metres deep.", "uid": f"d{metres}", "title": "The well", "score": 0.5}
        for metres in range(4)
    ],
}


def _unsent(server_port: int, port: int) -> int:
    """The bytes in the send queue of a connection of this machine, from the server's port to the client's."""
    ends = f":{server_port:04X}", f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if (local[-5:], remote[-5:]) == ends:
            return int(queues.split(":")[0], 16)
    raise LookupError(f"no connection from port {server_port} to {port}")


def _receives_little(port: int) -> socket.socket:
    """A connection whose kernel keeps few bytes for its reader."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVES_BYTES)
    connection.connect(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


def _error_of(final: dict[str, Any]) -> str:
    extras = final["messages"][-1].get("metadata", {}).get("extras") or {}
    return str(extras.get("error") or "")
