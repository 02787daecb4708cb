"""Sockets without a network: a peer that reads when it likes, turns that say what the test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.websockets import WebSocket

from agentic_backend.chat.hub import SocketHub, SocketRules
from agentic_backend.events import ChatMessage, text_part
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Accepted, Ask, Cancelled, Failed, Final, TextDelta, Turn
from backend_kit.auth import NoAuth, Verifier
from backend_kit.http import RequestLimits, RouteAdmission
from backend_kit.kpi import Kpi
from backend_kit.wire import Code
from tests.support.patience import PATIENCE_S

RULES = SocketRules(
    authorized_origins=(),
    allow_query_token=True,
    max_sockets=0,
    sockets_per_user=0,
    sockets_per_address=0,
    max_message_chars=1000,
    send_s=10.0,
    idle_s=1800.0,
    heartbeat_s=15.0,
)


class Peer:
    """The other end of one socket. It reads (`heard`) unless told not to, and can vanish at any moment.

    `closed_with` is the code that the application closed with, `denied` the HTTP status of a refused handshake.
    """

    def __init__(self, *, native: bool = True, token: str = "t", origin: str | None = None, host: str = "127.0.0.1"):
        protocols = (["turnwise.v1"] if native else []) + ([f"bearer.{token}"] if native and token else [])
        headers = [(b"host", b"127.0.0.1:8000")]
        if token and not native:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        if native or origin:  # a token in a subprotocol is a browser's, which names its page
            headers.append((b"origin", (origin or "http://127.0.0.1:8000").encode()))
        self.scope: dict[str, Any] = {
            "type": "websocket",
            "headers": headers,
            "subprotocols": protocols,
            "query_string": b"",
            "client": (host, 50000),
            "state": {"abort": self.abort, "send_texts": self._send_texts, "send_texts_now": self._send_texts_now},
            "extensions": {"websocket.http.response": {}},
        }
        self.reads = asyncio.Event()
        self.reads.set()
        self.closed_with: int | None = None
        self.denied: int | None = None
        self.accepted = False
        self.aborted = 0
        self.sending = 0
        self.gone = False
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_app.put_nowait({"type": "websocket.connect"})
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._closed = asyncio.Event()

    def websocket(self) -> WebSocket:
        return WebSocket(self.scope, self._to_app.get, self._send)

    def say(self, **frame: Any) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def say_raw(self, **message: Any) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", **message})

    def leave(self, code: int = 1000) -> None:
        """Close, as a client does; nothing can be sent to it any more."""
        self.gone = True
        self.reads.set()
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": code})

    def abort(self) -> None:
        self.aborted += 1
        if not self.gone:
            self.leave(1006)

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._frames.get()

    async def hear_until(self, *types: str) -> list[dict[str, Any]]:
        heard = [await self.hear()]
        while heard[-1]["type"] not in types:
            heard.append(await self.hear())
        return heard

    async def close_code(self) -> int | None:
        async with asyncio.timeout(PATIENCE_S):
            await self._closed.wait()
        return self.closed_with

    async def _send_texts(self, texts: Sequence[bytes]) -> None:
        await self._room()
        for text in texts:
            self._frames.put_nowait(json.loads(text))

    def _send_texts_now(self, texts: Sequence[bytes]) -> bool:
        if self.gone or not self.reads.is_set():
            return False
        for text in texts:
            self._frames.put_nowait(json.loads(text))
        return True

    async def _room(self) -> None:
        self.sending += 1
        await self.reads.wait()
        self.sending -= 1
        if self.gone:
            raise OSError("the peer is gone")

    async def _send(self, message: Any) -> None:
        await self._room()
        if message["type"] == "websocket.accept":
            self.accepted = True
        elif message["type"] == "websocket.http.response.start":
            self.denied = message["status"]
        elif message["type"] == "websocket.close":
            self.closed_with = message["code"]
            self._closed.set()
            # A well-behaved client answers the close frame.
            self._to_app.put_nowait({"type": "websocket.disconnect", "code": message["code"]})


class ToldTurns:
    """Turns that do nothing by themselves: the test publishes their events.

    An ask gets a new turn, or `same` where the test names one, or is met by `failure`.
    """

    def __init__(self) -> None:
        self.same: Turn | None = None
        self.failure: Exception | None = None
        self.asks: list[Ask] = []
        self.turns: dict[str, Turn] = {}
        self.refusal: Code | None = None
        self._new = asyncio.Event()

    def submit(self, ask: Ask) -> Turn:
        if self.failure is not None:
            raise self.failure
        if self.same is not None:
            return self.same
        self.asks.append(ask)
        turn = self.turns[ask.exchange_id] = Turn(ask)
        if self.refusal is not None:
            turn.publish(Failed(self.refusal, refused=True))
        self._new.set()
        return turn

    async def stop(self, exchange_id: str, user_id: str) -> bool:
        turn = self.turns.get(exchange_id)
        if turn is None or turn.ended or turn.ask.user_id != user_id:
            return False
        turn.cancel()
        return True

    async def asked(self, exchange_id: str) -> Turn:
        """The turn, once its ask has come."""
        async with asyncio.timeout(PATIENCE_S):
            while exchange_id not in self.turns:
                self._new.clear()
                await self._new.wait()
        return self.turns[exchange_id]


class ToldHub:
    """A hub with turns of the test's making."""

    def __init__(self, group: asyncio.TaskGroup, rules: SocketRules, verifier: Verifier | None, **pace: Any) -> None:
        kpi = Kpi(CollectorRegistry(), service="agentic")
        self.registry = kpi.registry
        self.turns = ToldTurns()
        self.delivered: list[float] = []
        self.hub = SocketHub(
            admission=RouteAdmission(
                verifier or NoAuth(), registry=kpi.registry, **({"limits": RequestLimits()} | pace)
            ),
            rules=rules,
            metrics=AgenticMetrics(kpi.registry, kpi),
            delivered=self.delivered.append,
        )
        self._group = group

    def connect(self, **options: Any) -> Peer:
        peer = Peer(**options)
        self._group.create_task(self.hub.serve(peer.websocket(), self.turns))
        return peer

    async def opened(self, **options: Any) -> Peer:
        """A socket that the hub watches."""
        before = len(self.hub)
        peer = self.connect(**options)
        await until(lambda: len(self.hub) > before)
        return peer

    async def asked(self, peer: Peer, exchange_id: str, **more: Any) -> Turn:
        """The turn of an ask of this peer."""
        ask = {"session_id": "s", "agent_id": "Georges", "message": "Hello", "client_exchange_id": exchange_id}
        peer.say(**({"type": "ask"} | ask | more))
        return await self.turns.asked(exchange_id)


@asynccontextmanager
async def told_hub(rules: SocketRules = RULES, verifier: Verifier | None = None, **pace: Any) -> AsyncIterator[ToldHub]:
    """A hub whose sockets have all ended at the end of the block. `pace`: options of its `RouteAdmission`."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        yield ToldHub(group, rules, verifier, **pace)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until something that no event tells of; only for what takes a few turns of it."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen")


def message(turn: Turn, rank: int, role: Any, text: str) -> ChatMessage:
    return ChatMessage.build(
        session_id=turn.ask.session_id,
        exchange_id=turn.ask.exchange_id,
        rank=rank,
        role=role,
        channel="final",
        parts=[text_part(text)],
    )


def session(turn: Turn) -> Session:
    return Session(turn.ask.session_id, turn.ask.user_id, turn.ask.agent_id, "t", "2026-01-01T00:00:00.000000Z", 2)


def accept(turn: Turn) -> None:
    turn.publish(Accepted())


def delta(turn: Turn, text: str, rank: int = 1, channel: Any = "final") -> None:
    turn.publish(TextDelta(rank, channel, text))


def finish(turn: Turn, text: str = "answer") -> None:
    messages = (message(turn, 0, "user", turn.ask.message), message(turn, 1, "assistant", text))
    turn.publish(Final(messages, session(turn), b"[]", 0.0, "none"))


def cancel(turn: Turn) -> None:
    turn.publish(Cancelled((), session(turn)))


Act = Callable[[Peer], Awaitable[None]]
