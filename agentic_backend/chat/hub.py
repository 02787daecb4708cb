"""All chat sockets and event streams of the process: admission, deadlines, and shutdown.

One tick a second checks each of them, a few at a time; none has its own timer.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from agentic_backend.chat.dialects import CompatibleDialect, FrameLimits, NativeDialect, Turns, begin_turn
from agentic_backend.chat.follow import Follow
from agentic_backend.chat.frames import Asker, Resume
from agentic_backend.chat.handshake import Principal, credential_from, origin_allowed, traceparent_of
from agentic_backend.chat.outbox import CloseWhen, Closing, Outbox
from agentic_backend.chat.series import Series, SeriesStream
from agentic_backend.chat.socket import ChatSocket
from agentic_backend.chat.sse import (
    NATIVE,
    EventStream,
    OpenStream,
    StreamWriter,
    read_body,
    read_last_event_id,
)
from agentic_backend.chat.writer import Connection, SocketMeters
from agentic_backend.errors import MessageTooLong
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.admission import CountOverall
from agentic_backend.session.models import Session
from backend_kit.auth import (
    AuthError,
    Credentials,
    Identity,
    KeyScope,
    ScopeMissing,
    header,
    know_caller,
    takes_any_token,
)
from backend_kit.http import Cost, RouteAdmission, request_id
from backend_kit.wire import CODES, Code, ServiceError, message_for

TICK_S = 1.0
RETRY_S = 2
"""Seconds after which a connection that was refused for now may be tried again."""
_LOOKS = 100
"""How many peers the tick checks before it yields: all 5,000 at a time blocked the loop for 10 ms every second."""


@dataclass(frozen=True, slots=True)
class SocketRules:
    """The limits of handshakes and the deadlines of sockets. A count of 0 means no limit; times in seconds.

    An event stream counts as a socket.
    """

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
    """Accepts sockets as docs/protocol.md#handshake says, runs them, and closes them when they idle, block, or the
    process ends."""

    def __init__(
        self,
        *,
        admission: RouteAdmission,
        rules: SocketRules,
        metrics: AgenticMetrics,
        delivered: Callable[[float], None],
    ) -> None:
        """`delivered` gets the seconds from the end of a turn until its last frame is handed to a socket."""
        self._admission = admission
        self._verifier = admission.verifier
        self._rules = rules
        self._metrics = metrics
        self._meters = SocketMeters(metrics.ws_send, delivered, metrics.limit_hit)
        self._limits = FrameLimits(rules.max_message_chars, metrics.limit_hit, admission.pace)
        # When each was opened, on the monotonic clock.
        self._sockets: dict[ChatSocket, float] = {}
        self._streams: dict[OpenStream, float] = {}
        self._addresses: Counter[str] = Counter()
        self._connected = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
        self.overall: CountOverall | None = None
        """Where other instances serve the same users."""

    @property
    def send_s(self) -> float:
        """After how many seconds a client that takes nothing is cut off."""
        return self._rules.send_s

    def __len__(self) -> int:
        return len(self._sockets) + len(self._streams)

    @property
    def _everyone(self) -> tuple[ChatSocket | OpenStream, ...]:
        return (*self._sockets, *self._streams)

    async def serve(self, websocket: WebSocket, turns: Turns) -> None:
        """Check one handshake and, if it is accepted, run the socket until it closes."""
        refusal = self._refusal(websocket)
        if refusal is not None:
            await websocket.send_denial_response(_denial(refusal))
            return
        native = NativeDialect.subprotocol in websocket.scope.get("subprotocols", [])
        dialect = NativeDialect if native else CompatibleDialect
        with self._counted(_address(websocket)), contextlib.suppress(WebSocketDisconnect):
            await self._run(websocket, dialect, turns)

    async def stream(self, request: Request, identity: Identity, turns: Turns) -> Response:
        """The answer to a request that asks, answers an agent, or resumes a turn after its `Last-Event-ID`.

        Raises ServiceError if the request cannot be read.
        """
        body = await request.body()
        try:
            frame = read_body(body, self._rules.max_message_chars)
        except MessageTooLong:
            self._metrics.limit_hit("max_message_chars")
            raise
        last_event_id = read_last_event_id(request.headers.get("last-event-id"))
        refusal = await self.refusal_of_stream(request, identity.uid)
        if refusal is not None:
            return _denial(refusal)
        number = request_id(request.scope)
        asker = Asker(identity.uid, request.state.credentials, traceparent_of(request))

        def begin() -> Follow:
            asked = frame
            if last_event_id is not None and isinstance(frame, Resume):
                asked = frame.model_copy(update={"after_seq": last_event_id})
            follow = begin_turn(turns, asked, asker, number)
            if last_event_id is not None:
                follow.cursor = follow.turn.after(last_event_id)
                if not follow.turn.events:
                    follow.turn.begins_after = last_event_id  # if another instance runs it
            return follow

        return self.event_stream(request, identity.uid, begin)

    def event_stream(
        self, request: Request, user_id: str, begin: Callable[[], Follow], writer: StreamWriter = NATIVE
    ) -> EventStream:
        """The response that follows what `begin` returns, as `writer` writes it: counted, checked and drained with the
        others. Call it only if `refusal_of_stream` returned None."""
        return EventStream(
            user_id=user_id,
            begin=begin,
            watched=lambda stream: self._streaming(stream, _address(request)),
            delivered=self._meters.delivered,
            writer=writer,
        )

    def series_stream(
        self,
        request: Request,
        identity: Identity,
        session_id: str,
        turns: Series,
        writer: StreamWriter,
        failed: Callable[[ServiceError], bytes],
    ) -> SeriesStream:
        """The response that follows one turn of a session after the other; otherwise as `event_stream`."""
        return SeriesStream(
            identity=identity,
            session_id=session_id,
            turns=turns,
            failed=failed,
            watched=lambda stream: self._streaming(stream, _address(request)),
            delivered=self._meters.delivered,
            writer=writer,
        )

    async def check_peers(self) -> None:
        """Check every peer once a second, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.tick(time.monotonic())

    async def tick(self, now: float) -> None:
        """Abort blocked sends, close sockets that idle or whose token has expired, send heartbeats to silent ones."""
        everyone = self._everyone
        behind = 0
        for start in range(0, len(everyone), _LOOKS):
            behind += sum(self._look_at(peer, now) for peer in everyone[start : start + _LOOKS])
            await asyncio.sleep(0)
        self._metrics.ws_connections.set(len(self._sockets))
        self._metrics.sse_streams.set(len(self._streams))
        self._metrics.outbox_bytes.set(behind)

    def _look_at(self, peer: ChatSocket | OpenStream, now: float) -> int:
        """Check one peer; returns the bytes that wait to be sent to it."""
        rules = self._rules
        clock = peer.clock
        if clock.since and now - clock.since > rules.send_s:
            peer.abort()
        elif isinstance(peer, SeriesStream) and peer.overdue:
            peer.drain()
        elif isinstance(peer, ChatSocket) and (code := peer.overdue(now, rules.idle_s)) is not None:
            peer.outbox.close(Closing(code))
        elif now - clock.last_sent > rules.heartbeat_s - 2 * TICK_S:
            peer.heartbeat()
        return peer.outbox_bytes

    def followed(self) -> set[tuple[str, str]]:
        """(session id, user id) of each session that somebody follows now."""
        return {(id_, peer.user_id) for peer in self._everyone for id_ in peer.sessions}

    def behind_s(self) -> list[float]:
        """For each turn whose end is not yet written to its socket, the seconds since it ended. From any thread."""
        return [seconds for socket in tuple(self._sockets) for seconds in socket.outbox.behind_s]

    def send_renamed(self, session: Session) -> None:
        """Notify the user's sockets that the title of a session changed outside a turn."""
        for socket in tuple(self._sockets):
            if socket.user_id == session.user_id:
                socket.send_renamed(session)

    def begin_drain(self) -> int:
        """Refuse new connections; each socket closes with 1012 once its turns have ended and each ask that waited for
        them has been answered with a refusal. Returns the number of idle sockets.

        A socket that closes already does that in its own way. A stream ends with its turn.
        """
        self.draining = True
        for stream in self._streams:
            stream.drain()
        idle = [socket for socket in self._sockets if not socket.outbox.busy]
        for socket in self._sockets:
            if socket.outbox.closing is None:
                socket.outbox.close(Closing(1012, CloseWhen.AFTER_TURNS, reads_on=True))
        return len(idle)

    async def wait_empty(self, deadline_s: float) -> int:
        """Wait until every socket and stream is closed. Returns how many had to be cut at the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._empty.wait()
        except TimeoutError:
            left = self._everyone
            for peer in left:
                peer.abort()
            return len(left)
        return 0

    @contextlib.contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        """Count a connection of the address, starting before its credentials are checked, which may take a while."""
        self._connected += 1
        self._addresses[address] += 1
        try:
            yield
        finally:
            self._connected -= 1
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    @contextlib.contextmanager
    def _streaming(self, stream: OpenStream, address: str) -> Iterator[None]:
        with self._counted(address):
            self._streams[stream] = time.monotonic()
            self._empty.clear()
            self._note_change(stream.user_id)
            try:
                yield
            finally:
                del self._streams[stream]
                self._note_change(stream.user_id)
                self._note_empty()

    def note_unopened(self, user_id: str) -> None:
        """A stream that `refusal_of_stream` has let pass will not open: it counts no more."""
        self._note_change(user_id)

    def _note_change(self, user_id: str) -> None:
        if self.overall is not None:
            self.overall.note(user_id)

    def _note_empty(self) -> None:
        if not len(self):
            self._empty.set()

    async def _run(self, websocket: WebSocket, dialect: type[NativeDialect | CompatibleDialect], turns: Turns) -> None:
        scope = websocket.scope
        admitted = await self._admit(websocket)
        await websocket.accept(subprotocol=dialect.subprotocol)
        if isinstance(admitted, int):
            await websocket.close(admitted)
            return
        identity, credentials = admitted
        state = scope["state"]
        connection = Connection(state["send_texts"], state["send_texts_now"], websocket.close, state["abort"])
        principal = Principal(identity, credentials, traceparent_of(websocket), self._verifier, scope["headers"])
        spoken = dialect(Outbox(connection.abort), principal, turns, self._limits)
        socket = ChatSocket(websocket, spoken, connection, self._meters)
        self._make_room(identity.uid)
        self._sockets[socket] = time.monotonic()
        self._empty.clear()
        self._note_change(identity.uid)
        if self.draining:
            socket.outbox.close(Closing(1012))
        try:
            await socket.serve()
        finally:
            del self._sockets[socket]
            self._note_change(identity.uid)
            self._note_empty()

    async def _admit(self, websocket: WebSocket) -> tuple[Identity, Credentials] | int:
        """The caller of a handshake, at their pace; or the code with which the socket is closed.

        Called before the socket is accepted: a client that comes too fast waits, and opens no socket meanwhile.
        """
        try:
            known = await self._known(websocket.scope)
            if known is None:
                await self._admission.pace_stranger(_address(websocket))
                return 4401
            await self._admission.pace(known[0].uid, Cost.CHEAP)
        except ServiceError:  # too many came, or it is a key that nobody can look up now: the client connects again
            return 1011
        return known

    async def _known(self, scope: MutableMapping[str, Any]) -> tuple[Identity, Credentials] | None:
        """The caller of a handshake; None without valid credentials, or with a key that may not ask.

        Raises ServiceError where a key cannot be looked up.
        """
        headers = scope["headers"]
        token, _ = credential_from(
            headers,
            scope.get("subprotocols", []),
            scope.get("query_string", b""),
            allow_query_token=self._rules.allow_query_token,
        )
        if not token:
            # Without authentication any token is accepted, but one is required (docs/contract.md#handshake-and-tokens).
            return None
        try:
            identity, credentials = await know_caller(self._verifier, token, headers, request_id(scope))
        except (AuthError, ScopeMissing):
            return None
        return (identity, credentials) if credentials is not None and identity.may(KeyScope.ASK) else None

    def _make_room(self, user_id: str) -> None:
        """The newest wins: above the user's limit, the oldest socket is closed with 4409."""
        limit = self._rules.sockets_per_user
        if limit:
            self._close_oldest(user_id, self._held_by(user_id) - limit + 1)

    def _close_oldest(self, user_id: str, count: int) -> None:
        """Close `count` of the user's sockets; those that are closing already are counted."""
        mine = [socket for socket in self._sockets if socket.user_id == user_id]
        for socket in mine[: max(0, count)]:
            if socket.outbox.closing is None:
                self._metrics.limit_hit("per_user_sockets")
            if not socket.outbox.leaving:
                socket.outbox.close(Closing(4409))

    def keep_newest(self, user_id: str, count: int, reported_at: float) -> None:
        """Close the user's oldest sockets with 4409 until `count` are left of those that were open here at
        `reported_at`, on the monotonic clock; those that have closed since then count as closed."""
        open_then = sum(at <= reported_at for at in self._opened_at(user_id))
        self._close_oldest(user_id, open_then - count)

    def _held_by(self, user_id: str) -> int:
        return sum(peer.user_id == user_id for peer in self._everyone)

    def ages_of(self, user_id: str) -> list[float]:
        """For how many seconds the user has had each socket that is open here, the oldest first, and 0 for each stream:
        none is closed for another."""
        now = time.monotonic()
        sockets = sorted(at for socket, at in self._sockets.items() if socket.user_id == user_id)
        return [now - at for at in sockets] + [0.0 for stream in self._streams if stream.user_id == user_id]

    def _opened_at(self, user_id: str) -> list[float]:
        everyone: list[tuple[ChatSocket | OpenStream, float]] = [*self._sockets.items(), *self._streams.items()]
        return [at for peer, at in everyone if peer.user_id == user_id]

    def holders(self) -> set[str]:
        """The users who have sockets or streams open here."""
        return {peer.user_id for peer in self._everyone}

    async def refusal_of_stream(self, request: Request, user_id: str) -> Code | None:
        """Why no further stream is opened, or None. Above the user's limit the newest is refused, as an older stream
        may be in mid-answer."""
        limit = self._rules.sockets_per_user
        if limit and self._held_by(user_id) >= limit:
            self._metrics.limit_hit("per_user_sockets")
            return Code.RATE_LIMITED
        refusal = self._refusal(request)
        if refusal is None and not await self._has_room_overall(user_id):
            self._metrics.limit_hit("per_user_sockets")
            return Code.RATE_LIMITED
        return refusal

    async def _has_room_overall(self, user_id: str) -> bool:
        """Whether the user may have one more, together with those at other instances."""
        return self.overall is None or await self.overall.has_room(user_id, lambda: [*self.ages_of(user_id), 0.0])

    def is_foreign(self, connection: HTTPConnection) -> bool:
        """Whether a page that may not call sends the request: it might ask, although it can read nothing."""
        rules = self._rules
        headers = connection.scope["headers"]
        _, source = credential_from(
            headers,
            connection.scope.get("subprotocols", []),
            connection.scope.get("query_string", b""),
            allow_query_token=rules.allow_query_token,
        )
        origin = header(headers, b"origin")
        host = header(headers, b"host")
        any_host = not takes_any_token(self._verifier)
        return not origin_allowed(origin, rules.authorized_origins, host, source=source, any_host=any_host)

    def _refusal(self, connection: HTTPConnection) -> Code | None:
        """Why a handshake or a stream is refused, or None."""
        rules = self._rules
        if self.is_foreign(connection):
            return Code.FORBIDDEN
        if self.draining:
            return Code.DRAINING
        if rules.max_sockets and self._connected >= rules.max_sockets:
            self._metrics.limit_hit("max_sockets")
            return Code.OVERLOADED
        if rules.sockets_per_address and self._addresses[_address(connection)] >= rules.sockets_per_address:
            self._metrics.limit_hit("per_address_sockets")
            return Code.RATE_LIMITED
        return None


def _address(connection: HTTPConnection) -> str:
    return connection.client.host if connection.client else "unknown"


def _denial(code: Code) -> JSONResponse:
    status = CODES[code].status
    headers = {"Retry-After": f"{RETRY_S}"} if CODES[code].retryable else None
    body = {"detail": {"code": code.value, "message": message_for(code)}}
    return JSONResponse(body, status_code=status, headers=headers)
