"""The events of a turn for another instance: what it publishes is passed on as it comes, with its own numbers."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from agentic_backend.peers.events import encode_ask, encode_event, join_events
from agentic_backend.session.stream import Turn
from backend_kit.auth import header
from backend_kit.http.direct import DirectRoute

PATH: Final = "/fleet/turns"
"""Below the base path: `GET` with `user`, `session`, `exchange` and `after`, a number of events."""
VIEWS: Final = "/fleet/kpi/"
"""Below the base path, with the name of a view: the measurements of an instance."""
MEDIA_TYPE: Final = "application/x-ndjson"
HEARTBEAT_S: Final = 2.0
"""After this long without an event an empty line is sent, so that each side notices if the other has gone."""
SEND_S: Final = 6.0
"""A peer that takes nothing for this long is cut off."""
LINE_BYTES: Final = 64 * 1024
"""A line ends with the event that makes it at least this long."""
View = Callable[[str, Mapping[str, str]], Awaitable[bytes | None]]
"""The view with a name, as JSON, for the parameters of a request; None if there is none, or they are invalid."""
_NOTHING: Final = b"\n"
HEADERS: Final = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store, no-transform")]


class TurnRelay:
    """Lets the other instances of the fleet follow the turns of this one.

    Requests carry the `token` of this instance (an empty one raises ValueError); `find` gives the turn of an exchange
    and a user. Any other request, and one for a turn that is not here, gets 404. Followers count as clients of the
    turn, but not among the streams of its user.
    """

    def __init__(
        self,
        token: str,
        find: Callable[[str, str], Turn | None],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        send_s: float = SEND_S,
    ) -> None:
        if not token:
            raise ValueError("an instance has a token")
        self.token = token
        self.heartbeat_s = heartbeat_s
        self.send_s = send_s
        self.following = 0
        """How many turns are being passed on now."""
        self._find = find

    def knows(self, request: Request) -> bool:
        """Whether the request carries the token of this instance."""
        shown = header(request.scope["headers"], b"authorization") or ""
        return hmac.compare_digest(shown.encode(), f"Bearer {self.token}".encode())

    def answer(self, request: Request) -> Response:
        """The answer to a request: the stream of the turn, or 404 without a body."""
        turn = self._asked(request) if self.knows(request) else None
        if turn is None:
            return Response(status_code=404)
        return RelayedTurn(self, turn, turn.after(int(request.query_params["after"])))

    def _asked(self, request: Request) -> Turn | None:
        asked = request.query_params
        after = asked.get("after", "")
        if not (after.isascii() and after.isdigit() and len(after) <= 18):
            return None
        turn = self._find(asked.get("exchange", ""), asked.get("user", ""))
        return turn if turn is not None and turn.ask.session_id == asked.get("session") else None


async def _no_view(_name: str, _query: Mapping[str, str]) -> bytes | None:
    """No such view."""
    return None


def relay_routes(
    relay: TurnRelay,
    base: str,
    refused: Callable[[str], Awaitable[None]] | None = None,
    others: Callable[[Request], Response | None] = lambda _request: None,
    view: View = _no_view,
) -> list[BaseRoute]:
    """The routes of the relay, below the base path. They are not in the API document. `others` gives the response of
    another worker of this host, if the token is that worker's. Strangers are answered once `refused`, which gets their
    address, returns. `view` gives the measurements of this instance."""
    router = APIRouter(prefix=base, route_class=DirectRoute)

    async def elsewhere(request: Request) -> Response | None:
        """The response to a request without our token."""
        if relay.knows(request):
            return None
        if (answer := others(request)) is not None:
            return answer
        if refused is not None:
            await refused(request.client.host if request.client else "")
        return Response(status_code=404)

    @router.get(PATH, include_in_schema=False)
    async def turns(request: Request) -> Response:
        return await elsewhere(request) or relay.answer(request)

    @router.get(VIEWS + "{name}", include_in_schema=False)
    async def views(request: Request, name: str) -> Response:
        if (answer := await elsewhere(request)) is not None:
            return answer
        said = await view(name, request.query_params)
        return Response(status_code=404) if said is None else Response(said, media_type="application/json")

    return router.routes


class RelayedTurn(Response):
    """Answers a request with what one turn was asked and its events from `cursor` on, until its end.

    See `peers.events` for the lines. Empty ones fill silence.
    """

    media_type = MEDIA_TYPE

    def __init__(self, relay: TurnRelay, turn: Turn, cursor: int) -> None:
        super().__init__()
        self._relay = relay
        self._turn = turn
        self._cursor = cursor
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._due: asyncio.Handle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._unsent = b""
        self._sending_since = 0.0
        self._said = True
        self._gone = False
        self._send_now: Callable[[bytes], bool] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the shape of ASGI
        """Answer the request."""
        state, relay, turn = scope["state"], self._relay, self._turn
        relay.following += 1
        turn.follow(self._notice)
        state["on_gone"](self._leave)
        self._tick(state["abort"])
        try:
            await self._write(send, state.get("send_now"))
            if _is_let_go(turn):
                state["abort"]()  # it has no end here: followers look for the instance that has it
        finally:
            state["on_gone"](None)
            relay.following -= 1
            self._let_go()

    @property
    def _up_to_date(self) -> bool:
        return self._cursor == len(self._turn.events)

    async def _write(self, send: Send, send_now: Callable[[bytes], bool] | None) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await self._send(send, encode_ask(self._turn.ask) + b"\n")
        self._send_now = send_now
        while not (self._gone or _is_let_go(self._turn)):
            if self._unsent or not self._up_to_date:
                said, self._unsent = self._unsent or self._next_line(), b""
                await self._send(send, said)
                await asyncio.sleep(0)  # others' turns go on while much is passed on
            elif self._turn.ended:
                await self._send(send, b"", more=False)
                return
            elif not self._said:
                await self._send(send, _NOTHING)
            else:
                await self._wake.wait()
                self._wake.clear()

    def _next_line(self) -> bytes:
        events, encoded, size = self._turn.events, [], 0
        while size < LINE_BYTES and not self._up_to_date:
            one = encode_event(events[self._cursor])
            encoded.append(one)
            size += len(one)
            self._cursor += 1
        return join_events(encoded) + b"\n"

    def _notice(self) -> None:
        """Something has happened in the turn: it is written soon, together with what else happens until then."""
        if self._due is None:
            self._due = self._loop.call_soon(self._send_soon)

    def _send_soon(self) -> None:
        """Say what has happened without the task, where nobody need wait and the stream goes on."""
        self._due = None
        if self._sending_since:
            return  # the task writes what has come once it has finished its current piece
        if self._send_now is None or self._turn.ended or self._turn.let_go or self._unsent:
            self._wake.set()
            return
        failed = True
        try:
            line = self._next_line() if not self._up_to_date else b""
            if line and self._send_now(line):
                self._said = True
            else:
                self._unsent = line
            if not self._up_to_date or self._unsent:
                self._wake.set()
            failed = False
        finally:
            if failed:  # the loop logs what cannot be encoded; its stream cannot continue
                self._leave()

    def _tick(self, abort: Callable[[], None]) -> None:
        """Cut off a peer that does not read, and send an empty line if nothing was sent since the last tick."""
        if self._sending_since and time.monotonic() - self._sending_since > self._relay.send_s:
            abort()
        elif not self._said:
            self._wake.set()
        self._said = False
        self._clock = self._loop.call_later(self._relay.heartbeat_s, self._tick, abort)

    def _leave(self) -> None:
        self._gone = True
        self._wake.set()

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        self._sending_since = time.monotonic()
        try:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._sending_since = 0.0
            self._said = True

    def _let_go(self) -> None:
        """Stop following; cancel the turn if its ask says so and nobody else follows it."""
        turn = self._turn
        turn.unfollow(self._notice)
        for handle in (self._due, self._clock):
            if handle is not None:
                handle.cancel()
        if not turn.ended and turn.ask.on_disconnect == "cancel" and not turn.followed:
            turn.cancel()


def _is_let_go(turn: Turn) -> bool:
    """Whether it has no end here, though one may come."""
    return turn.let_go and not turn.ended
