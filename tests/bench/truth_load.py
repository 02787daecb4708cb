"""The clients of `tests.bench.truth`: turns over sockets and the REST beside them, by their own clocks and counts.

Each question has a mark of its own (`#t17#`), by which the relays know whose model call and search is whose. Times are
of CLOCK_MONOTONIC in seconds, as those of the relays.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.bench.driver import HEADERS, NATIVE
from tests.bench.rawsocket import RawSocket, SocketFailed

BASE = "/agentic/v1"
PATH = f"{BASE}/chatbot/query/ws"
_ENDS = ('{"type":"final"', '{"type":"error"', '{"type":"cancelled"')
_DELTA, _ACCEPTED = b'{"type":"delta"', b'{"type":"accepted"'
_TURN_S = 120.0
_PAUSE_S = 0.3
_LOOKS_EVERY_S = 0.01


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
    gap_s: float = 0.0
    ok: bool = False
    unattributed_ms: float | None = None
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


class TimedSocket(RawSocket):
    """One that also keeps when each frame of interest came."""

    def __init__(self) -> None:
        super().__init__(_ENDS, _DELTA.decode())
        self.accepted: list[float] = []
        self.deltas = 0
        self.gap_s = 0.0
        self._last = 0.0

    def begin(self) -> None:
        """The next turn."""
        self.accepted, self.deltas, self.gap_s, self._last = [], 0, 0.0, 0.0

    @property
    def heard(self) -> str:
        """The beginning of the last frame of the turn under way."""
        return self._heard[-1][:300].decode(errors="replace") if self._heard else ""

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
        self, port: int, roles: Sequence[Role], *, seconds: float, questions: Sequence[str], first_mark: int
    ) -> None:
        """`first_mark` is that of their first turn: no mark may come twice in a session."""
        self.port = port
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
            session_id = await self.new_session(http, agent, title="Bench")
        socket = await self._dialled(role)
        for number in range(turns):
            await self._turn(socket, role, session_id, number)
            await asyncio.sleep(_PAUSE_S)
        await self._closed(socket)

    def _http(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
        return aiohttp.ClientSession(f"http://127.0.0.1:{self.port}", headers=HEADERS, connector=connector)

    async def _watch(self, until: float) -> None:
        while (begun := time.perf_counter()) < until:
            await asyncio.sleep(_LOOKS_EVERY_S)
            self.lags_s.append(time.perf_counter() - begun - _LOOKS_EVERY_S)

    async def _client(self, http: aiohttp.ClientSession, place: int, role: Role, until: float, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if place not in self.sessions:
            self.sessions[place] = await self.new_session(http, role.agent, title="Bench" if place % 5 else "")
        session_id = self.sessions[place]
        socket = await self._dialled(role)
        try:
            for number in itertools.count():
                await self._turn(socket, role, session_id, number)
                if time.perf_counter() >= until:
                    break
        except SocketFailed:
            pass  # its turn says why
        finally:
            await self._closed(socket)

    async def _dialled(self, role: Role) -> TimedSocket:
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(TimedSocket, "127.0.0.1", self.port)
        offers = [f"Sec-WebSocket-Protocol: {NATIVE}"] if role.native else []
        await socket.upgrade(PATH, *(f"{name}: {value}" for name, value in HEADERS.items()), *offers)
        self.open_sockets += 1
        self.most_sockets = max(self.most_sockets, self.open_sockets)
        return socket

    async def _closed(self, socket: TimedSocket) -> None:
        await socket.close()
        self.open_sockets -= 1

    async def _turn(self, socket: TimedSocket, role: Role, session_id: str, number: int) -> None:
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
        socket.begin()
        turn = ClientTurn(mark, role.agent, role.native, session_id, time.perf_counter(), f"truth-{mark}")
        self.turns.append(turn)
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        try:
            async with asyncio.timeout(_TURN_S):
                frames = await socket.exchange(json.dumps(ask))
        except SocketFailed as failure:
            turn.failure = f"{failure} {socket.heard}"
            raise
        finally:
            self._running -= 1
        turn.ended, turn.first = socket.ended_at, socket.first_at
        turn.accepted, turn.deltas, turn.gap_s = socket.accepted, socket.deltas, socket.gap_s
        turn.frames, turn.frame_bytes = len(frames), sum(map(len, frames))
        last = json.loads(frames[-1])
        turn.ok = last["type"] == "final" and not _error_of(last)
        turn.unattributed_ms = last.get("unattributed_ms")
        if not turn.ok:
            turn.failure = frames[-1][:300]
            await asyncio.sleep(0.2)

    async def new_session(self, http: aiohttp.ClientSession, agent: str, *, title: str) -> str:
        """The id of a new session."""
        body = {"agent_id": agent, "title": title}
        answer = await self.call(http, "create", "POST", "/chatbot/session", json=body)
        return str(answer["id"])

    async def call(
        self, http: aiohttp.ClientSession, what: str, method: str, path: str, *, session_id: str = "", **more: Any
    ) -> Any:
        """One call, which is kept; its JSON. Raises `aiohttp.ClientResponseError`."""
        begun = time.perf_counter()
        async with http.request(method, BASE + path, **more) as answer:
            body = await answer.read()
            call = Call(what, answer.status, begun, time.perf_counter(), session_id)
            self.calls.append(call)
            answer.raise_for_status()
            told = json.loads(body) if body else None
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
            await self.call(http, "list", "GET", "/chatbot/sessions")
            await self.call(http, "history", "GET", f"{path}/history", session_id=session_id)
            await self.call(
                http, "prefer", "PUT", f"{path}/preferences", session_id=session_id, json={"preferences": {"n": number}}
            )
            rating = {"rating": 5, "messageId": "0", "sessionId": session_id, "agentName": "Georges"}
            await self.call(http, "feedback", "POST", "/chatbot/feedback", session_id=session_id, json=rating)
            if number % 3 == 0:
                await self._attach(http, session_id, number)

    async def _attach(self, http: aiohttp.ClientSession, session_id: str, number: int) -> None:
        form = aiohttp.FormData()
        form.add_field("session_id", session_id)
        text = f"Note {number} about the well of the village, which is {number} metres deep.\n"
        form.add_field("file", text.encode(), filename=f"note{number}.txt", content_type="text/plain")
        made = await self.call(http, "upload", "POST", "/chatbot/upload", session_id=session_id, data=form)
        await self.call(
            http, "detach", "DELETE", f"/chatbot/upload/{made['attachment_id']}?session_id={session_id}",
            session_id=session_id,
        )  # fmt: skip


def _error_of(final: dict[str, Any]) -> str:
    extras = final["messages"][-1].get("metadata", {}).get("extras") or {}
    return str(extras.get("error") or "")
