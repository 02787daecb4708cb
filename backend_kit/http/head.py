"""uvicorn's HTTP/1.1 protocol with a deadline for the head of a request (docs/libraries.md#U12)."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config

# This one, also where httptools is installed: its private parts are those that were looked at (tests/contracts).
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from backend_kit.http.ws import limit_unread

HEAD_TIMEOUT_S = 10.0

_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HandshakeTimeoutHttp(H11Protocol):
    """`uvicorn.Config(http=HandshakeTimeoutHttp)`. A connection whose next request has no complete head
    `head_timeout_s` after it was opened, or after the head's first byte, is closed: with 408 if a head has begun,
    silently if nothing came. Bytes that trickle in do not extend the time.

    Nothing else is timed here. For a client that does not read its answer, the application finds `abort` in
    `scope["state"]`, as with sockets, and the kernel drops what stays unread. Beside it, `send_now` sends a further
    piece of a streamed answer where that need not wait: a tenth of the work of an ASGI `send` through all middleware;
    and `on_gone` calls back when the client has gone, so that no task has to wait for it.
    """

    head_timeout_s = HEAD_TIMEOUT_S

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        ours = {"abort": self.abort, "send_now": self.send_now, "on_gone": self.on_gone}
        super().__init__(config, server_state, {**app_state, **ours}, _loop)
        # An access line would have the path and the query; the metrics count requests by route instead.
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_begun = False
        self._gone = False
        self._when_gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn types it
        """Start the clock of the first head."""
        super().connection_made(transport)
        limit_unread(transport)
        self._arm()

    def abort(self) -> None:
        """Drop the connection now, with all unsent data."""
        if self.transport is not None:
            self.transport.abort()

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        """Call this when the connection ends, at once if it has, instead of what was to be called; None: nothing.

        Whoever sets one takes it back at the end of the answer: the connection may be used for another.
        """
        self._when_gone = callback
        if self._gone and callback is not None:
            callback()

    def send_now(self, body: bytes) -> bool:
        """Send a further piece of the answer, whose head has no length and is on its way; whether it was sent.

        False, for a client that is behind, has gone, or knows no chunks (HTTP/1.0): then `send` does what is right.
        """
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete or cycle.disconnected:
            return False
        if self.flow.write_paused or cycle.scope["http_version"] != "1.1":
            return False
        if body:  # an empty chunk is the end of an answer
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def data_received(self, data: bytes) -> None:
        """Read; the clock runs while no request is in progress, whatever is sent."""
        if self._idle and self._head_timer is None:
            self._arm()
        self._head_begun = True
        super().data_received(data)
        upgraded = self not in self.connections and not self.transport.is_closing()
        # An upgrade took the transport away from this protocol, and uvicorn forgot the connection.
        if not self._idle or upgraded:
            self._disarm()
        if upgraded:
            self._let_go()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, which must not outlive the connection, and tell who waits for its end."""
        self._disarm()
        super().connection_lost(exc)
        self._gone = True
        if self._when_gone is not None:
            self._when_gone()
        self._let_go()

    def _let_go(self) -> None:
        """Break the circles through what the application was given: this goes at once, not with a later collection."""
        self.app_state = {}
        self.cycle = None  # type: ignore[assignment]  # uvicorn's begins so
        self.scope = None  # type: ignore[assignment]  # uvicorn's begins so

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _arm(self) -> None:
        self._head_begun = False
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_timed_out)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self.transport.is_closing():
            self.transport.abort()
        elif self._head_begun:
            self.transport.write(_TIMEOUT_RESPONSE)
            self.transport.close()
        else:
            self.transport.abort()
