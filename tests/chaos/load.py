"""Clients of the native protocol that go on through faults: each its own socket and session, at a steady rate."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

from backend_kit.wire import dumps, loads
from tests.chaos.ledger import Asked, Ledger
from tests.chaos.until import until
from tests.support.patience import HANGS_S

BASE = "/agentic/v1"
CUT = (OSError, WebSocketException, TimeoutError)
"""How a socket or a handshake fails; TimeoutError is our own patience."""
AGAIN_S = 0.2
"""Until a client asks again what was refused for now."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How clients behave: turns a second together, the share that ask again what was not answered, their patience.

    `jitter_s` is the least and longest pause before a reconnect.
    """

    rate: float
    resend: float = 1.0
    jitter_s: tuple[float, float] = (0.05, 0.5)
    patience_s: float = 45.0
    agent: str = "Georges"


@dataclass(slots=True)
class _Seat:
    number: int
    session_id: str
    due: float
    resends: bool
    asked: Asked | None = None
    count: int = 0


class Address:
    """Where a service is, and how a client of it shows itself."""

    def __init__(self, port: int, token: str = "local") -> None:
        self.port = port
        self.token = token

    @property
    def url(self) -> str:
        """Base of REST."""
        return f"http://127.0.0.1:{self.port}{BASE}"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"}

    def dial(self, *, native: bool = True) -> connect:
        """A chat socket."""
        return connect(
            f"ws://127.0.0.1:{self.port}{BASE}/chatbot/query/ws",
            subprotocols=[Subprotocol("turnwise.v1")] if native else None,
            additional_headers=self.headers,
            compression=None,
            ping_interval=None,
            open_timeout=10,
            close_timeout=2,
            max_size=2**24,
        )


async def create_session(
    http: aiohttp.ClientSession, address: Address, agent: str = "Georges", *, patient: bool = False
) -> str:
    """A new session with a title. Raises aiohttp.ClientError where it is refused; asks again, where `patient`, as long
    as it may."""
    url = f"{address.url}/chatbot/session"
    body = {"agent_id": agent, "title": "Under faults"}
    # Where all stands still for some seconds, the service closes an idle connection as the next POST is written to it.
    headers = {**address.headers, "Connection": "close"}
    async with asyncio.timeout(HANGS_S):
        while True:
            async with http.post(url, json=body, headers=headers) as response:
                if not patient or response.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    response.raise_for_status()
                    return str((await response.json())["id"])
            await asyncio.sleep(AGAIN_S)


class Crowd:
    """`size` clients that ask until they are stopped. Make it with `crowd(...)`."""

    def __init__(
        self,
        address: Address,
        ledger: Ledger,
        habits: Habits,
        draw: random.Random,
        on_frame: Callable[[str], None] | None = None,
    ) -> None:
        self.ledger = ledger
        self.habits = habits
        self._address = address
        self._draw = draw
        self._on_frame = on_frame
        self._seats: list[_Seat] = []
        self._going = asyncio.Event()
        self._going.set()
        self._closed = False
        self._name = f"{draw.getrandbits(32):08x}"

    @property
    def size(self) -> int:
        """How many clients."""
        return len(self._seats)

    @property
    def sessions(self) -> list[str]:
        """The session of each client."""
        return [seat.session_id for seat in self._seats]

    @property
    def waiting(self) -> int:
        """Clients with a question that is not answered."""
        return sum(seat.asked is not None for seat in self._seats)

    def take_seats(self, sessions: list[str], tasks: asyncio.TaskGroup) -> None:
        """One client a session, their first asks spread over one period."""
        period = len(sessions) / self.habits.rate
        now = time.perf_counter()
        for number, session_id in enumerate(sessions):
            self.ledger.sessions.add(session_id)
            seat = _Seat(
                number, session_id, now + period * self._draw.random(), number < self.habits.resend * len(sessions)
            )
            self._seats.append(seat)
            tasks.create_task(self._member(seat, period))

    async def pause(self) -> None:
        """Ask nothing new, and wait for what was asked. Raises TimeoutError."""
        self._going.clear()
        await until(lambda: self.waiting == 0)

    def resume(self) -> None:
        """Go on asking, from now on at the same rate."""
        period = len(self._seats) / self.habits.rate
        now = time.perf_counter()
        for seat in self._seats:
            seat.due = now + period * self._draw.random()
        self._going.set()

    def close(self) -> None:
        """Let every client leave after its turn."""
        self._closed = True
        self._going.set()

    async def answered(self, count: int) -> None:
        """Wait until `count` more questions have been answered. Raises TimeoutError."""
        target = self.ledger.told_count + count
        await until(lambda: self.ledger.told_count >= target)

    async def _member(self, seat: _Seat, period: float) -> None:
        while not self._closed:
            try:
                async with self._address.dial() as socket:
                    await self._talk(socket, seat, period)
            except CUT:
                self.ledger.cuts += 1
                if seat.asked is not None and seat.resends:
                    self.ledger.asked_again.add(seat.asked.exchange_id)
                else:
                    seat.asked = None
                await asyncio.sleep(self._draw.uniform(*self.habits.jitter_s))

    async def _talk(self, socket: ClientConnection, seat: _Seat, period: float) -> None:
        while not self._closed:
            if seat.asked is None:
                if not await self._my_turn(seat, period):
                    return
                seat.count += 1
                exchange_id = f"{self._name}-{seat.number}-{seat.count}"
                seat.asked = self.ledger.ask(exchange_id, seat.session_id, f"Question {seat.count} of {exchange_id}?")
            try:
                async with asyncio.timeout(self.habits.patience_s):
                    await self._turn(socket, seat, seat.asked)
            except TimeoutError:
                self.ledger.late.add(seat.asked.exchange_id)
                raise

    async def _my_turn(self, seat: _Seat, period: float) -> bool:
        """Wait until the client's next question is due; False where it is to leave."""
        while not self._closed:
            await self._going.wait()
            wait_s = seat.due - time.perf_counter()
            if wait_s <= 0:
                seat.due = max(seat.due, time.perf_counter() - period) + period
                return not self._closed
            await asyncio.sleep(min(wait_s, 0.25))
        return False

    async def _turn(self, socket: ClientConnection, seat: _Seat, asked: Asked) -> None:
        await socket.send(ask_text(asked, self.habits.agent))
        frame = await hear_end(socket, asked.exchange_id, self._on_frame)
        if frame["type"] != "error":
            self.ledger.told(asked, frame)
            seat.asked = None
            return
        self.ledger.errors[frame["code"]] += 1
        if "seq" in frame or not (frame.get("retryable") and seat.resends):
            seat.asked = None  # with a seq it was a turn, and this is its end: the same ask is answered with it again
            return
        wait_s = (frame.get("retry_after_ms") or 200) / 1e3
        await asyncio.sleep(wait_s * self._draw.uniform(0.8, 1.2))


@asynccontextmanager
async def crowd(
    address: Address,
    ledger: Ledger,
    habits: Habits,
    draw: random.Random,
    sessions: list[str],
    on_frame: Callable[[str], None] | None = None,
) -> AsyncIterator[Crowd]:
    """Clients that ask while the block runs; they leave after their turns, or after 15 s without an answer."""
    clients = Crowd(address, ledger, habits, draw, on_frame)
    async with asyncio.TaskGroup() as outer:
        seated = outer.create_task(_seated(clients, sessions))
        try:
            yield clients
        finally:
            clients.close()
            _, late = await asyncio.wait([seated], timeout=15.0)
            if late:
                seated.cancel()


async def _seated(clients: Crowd, sessions: list[str]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as tasks:
            clients.take_seats(sessions, tasks)


def ask_text(asked: Asked, agent: str = "Georges", **more: Any) -> str:
    """The ask's frame."""
    frame = {
        "type": "ask",
        "session_id": asked.session_id,
        "agent_id": agent,
        "message": asked.text,
        "client_exchange_id": asked.exchange_id,
        **more,
    }
    return dumps(frame).decode()


async def hear(socket: ClientConnection, on_frame: Callable[[str], None] | None = None) -> dict[str, Any]:
    """The next frame. Raises what `CUT` names."""
    text = await socket.recv(decode=True)
    if on_frame is not None:
        on_frame(str(text))
    frame: dict[str, Any] = loads(text)
    return frame


async def hear_end(
    socket: ClientConnection, exchange_id: str, on_frame: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The terminal frame of an exchange: `final`, `cancelled` or `error`; frames of others are passed over."""
    while True:
        frame = await hear(socket, on_frame)
        if frame["type"] in ("final", "cancelled", "error") and frame.get("exchange_id", exchange_id) == exchange_id:
            return frame


async def take_turn(socket: ClientConnection, ledger: Ledger, asked: Asked, **more: Any) -> dict[str, Any]:
    """Ask and enter the answer in the ledger; the terminal frame."""
    await socket.send(ask_text(asked, **more))
    frame = await hear_end(socket, asked.exchange_id)
    if frame["type"] == "error":
        ledger.errors[frame["code"]] += 1
    else:
        ledger.told(asked, frame)
    return frame
