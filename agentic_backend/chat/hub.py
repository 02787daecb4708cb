"""All chat sockets of the process: who may come in, the clock that watches them, and how they all go.

One tick a second looks at every socket; no socket has a timer of its own.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentic_backend.chat.socket import ChatSocket, ProtocolName, Turns
from agentic_backend.metrics import AgenticMetrics
from backend_kit.auth import AuthError, Credentials, NoAuth, Verifier, credential_from, header, origin_allowed
from backend_kit.wire import Code, message_for

NATIVE_SUBPROTOCOL = "turnwise.v1"
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class SocketRules:
    """What a handshake is checked against and how long a socket may take. Counts of 0 are off; times in seconds."""

    authorized_origins: tuple[str, ...]
    allow_query_token: bool
    max_sockets: int
    sockets_per_user: int
    sockets_per_address: int
    max_message_chars: int
    send_s: float
    idle_s: float
    heartbeat_s: float


class SocketHub:
    """Accepts sockets in the order of TRUST 4.4, runs them, and ends them when they idle, block, or must leave."""

    def __init__(
        self, *, verifier: Verifier, rules: SocketRules, metrics: AgenticMetrics, delivered: Callable[[float], None]
    ) -> None:
        """`delivered` is told the seconds from the end of a turn to the last of it handed to a socket."""
        self._verifier = verifier
        self._delivered = delivered
        self._rules = rules
        self._metrics = metrics
        self._sockets: dict[ChatSocket, None] = {}
        self._addresses: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    def __len__(self) -> int:
        return len(self._sockets)

    async def serve(self, websocket: WebSocket, turns: Turns) -> None:
        """Take one handshake through its checks and, where they hold, run the socket to its end."""
        refusal = self._refusal(websocket)
        if refusal is not None:
            await websocket.send_denial_response(refusal)
            return
        protocols = websocket.scope.get("subprotocols", [])
        native = NATIVE_SUBPROTOCOL in protocols
        address = websocket.client.host if websocket.client else "unknown"
        self._addresses[address] += 1
        try:
            with contextlib.suppress(WebSocketDisconnect):
                await websocket.accept(subprotocol=NATIVE_SUBPROTOCOL if native else None)
                await self._run(websocket, "native" if native else "compatible", address, turns)
        finally:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    async def watch(self) -> None:
        """Look at every socket once a second, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Abort blocked sends, close idle sockets, send heartbeats where it has been silent."""
        rules = self._rules
        for socket in tuple(self._sockets):
            clock = socket.clock
            if clock.since and now - clock.since > rules.send_s:
                socket.abort()
            elif not socket.busy and now - clock.last_received > rules.idle_s:
                socket.close(4408)
            elif now - clock.last_sent > rules.heartbeat_s - 2 * TICK_S:
                socket.heartbeat()
        self._metrics.ws_connections.set(len(self._sockets))
        self._metrics.outbox_bytes.set(sum(socket.outbox_bytes for socket in self._sockets))

    def begin_drain(self) -> int:
        """Refuse handshakes; each socket closes with 1012 once its turns have ended. Returns how many are idle."""
        self.draining = True
        idle = [socket for socket in self._sockets if not socket.busy]
        for socket in tuple(self._sockets):
            socket.close(1012, finish_turns=True)
        return len(idle)

    async def wait_empty(self, deadline_s: float) -> int:
        """Wait until every socket is closed. Returns how many had to be cut at the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            left = tuple(self._sockets)
            for socket in left:
                socket.abort()
            return len(left)
        return 0

    async def _run(self, websocket: WebSocket, protocol: ProtocolName, address: str, turns: Turns) -> None:
        scope = websocket.scope
        token, _ = credential_from(
            scope["headers"],
            scope.get("subprotocols", []),
            scope.get("query_string", b""),
            allow_query_token=self._rules.allow_query_token,
        )
        try:
            # Without authentication any token will do, but there must be one (CONTRACT §2).
            identity = self._verifier.verify(token) if token else None
        except AuthError:
            identity = None
        if identity is None or token is None:
            await websocket.close(4401)
            return
        socket = ChatSocket(
            websocket,
            protocol=protocol,
            identity=identity,
            credentials=Credentials(token),
            address=address,
            turns=turns,
            verifier=self._verifier,
            max_message_chars=self._rules.max_message_chars,
            send_seconds=self._metrics.ws_send,
            delivered=self._delivered,
            abort=_abort_handle(scope),
        )
        self._make_room(identity.uid)
        self._sockets[socket] = None
        self._empty.clear()
        if self.draining:
            socket.close(1012)
        try:
            await socket.run()
        finally:
            del self._sockets[socket]
            if not self._sockets:
                self._empty.set()

    def _make_room(self, user_id: str) -> None:
        """Newest wins: over the user's bound, the oldest socket is closed with 4409."""
        limit = self._rules.sockets_per_user
        if not limit:
            return
        mine = [socket for socket in self._sockets if socket.identity.uid == user_id]
        for socket in mine[: max(0, len(mine) - limit + 1)]:
            socket.close(4409)

    def _refusal(self, websocket: WebSocket) -> JSONResponse | None:
        """The HTTP answer that stands against a handshake, or None."""
        rules = self._rules
        headers = websocket.scope["headers"]
        _, source = credential_from(
            headers,
            websocket.scope.get("subprotocols", []),
            websocket.scope.get("query_string", b""),
            allow_query_token=rules.allow_query_token,
        )
        origin = header(headers, b"origin")
        host = header(headers, b"host")
        any_host = not isinstance(self._verifier, NoAuth)
        if not origin_allowed(origin, rules.authorized_origins, host, source=source, any_host=any_host):
            return _denial(403, Code.FORBIDDEN)
        if self.draining:
            return _denial(503, Code.DRAINING)
        if rules.max_sockets and len(self._sockets) >= rules.max_sockets:
            return _denial(503, Code.OVERLOADED)
        address = websocket.client.host if websocket.client else "unknown"
        if rules.sockets_per_address and self._addresses[address] >= rules.sockets_per_address:
            return _denial(429, Code.RATE_LIMITED)
        return None


def _denial(status: int, code: Code) -> JSONResponse:
    headers = {"Retry-After": "2"} if status in (429, 503) else None
    body = {"detail": {"code": code.value, "message": message_for(code)}}
    return JSONResponse(body, status_code=status, headers=headers)


def _abort_handle(scope: Mapping[str, Any]) -> Callable[[], None]:
    """The transport's abort, which the hardened protocol puts into the scope (TRUST U4)."""
    abort: Callable[[], None] = scope["state"]["abort"]
    return abort
