"""The WebSocket engine behind a seam of four calls, so that another library can take its place."""

import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from ws_bench.errors import TurnBroken

_CLOSE_TIMEOUT_S = 2.0
_AUTH_STATUSES = frozenset({401, 403})


class Wire(Protocol):
    """One open socket. Every call raises `TurnBroken` when the socket does not hold."""

    async def send(self, text: str) -> None:
        """Write one text frame."""

    async def recv(self) -> bytes:
        """The next frame's payload, undecoded."""

    async def close(self, code: int = 1000, reason: str = "done") -> None:
        """Close with a close handshake of at most two seconds. Never raises."""


class Engine(Protocol):
    """Opens sockets to one address."""

    async def connect(self) -> Wire:
        """A socket whose handshake is done. Raises `TurnBroken`; the caller sets the deadline."""


class WebsocketsEngine:
    """The `websockets` library: no compression, no pings, no proxy, so that a run measures the service alone."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, subprotocol: str = "", max_size: int, insecure: bool = False
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._subprotocol = subprotocol
        self._max_size = max_size
        self._ssl = _insecure_context() if insecure and url.startswith("wss:") else None

    async def connect(self) -> Wire:
        """See `Engine.connect`."""
        try:
            connection = await connect(
                self._url,
                additional_headers=self._headers,
                subprotocols=[Subprotocol(self._subprotocol)] if self._subprotocol else None,
                compression=None,
                max_size=self._max_size,
                ping_interval=None,
                open_timeout=None,
                close_timeout=_CLOSE_TIMEOUT_S,
                proxy=None,
                ssl=self._ssl,
            )
        except (OSError, InvalidHandshake) as failure:
            raise dial_failure(failure) from failure
        if self._subprotocol and connection.subprotocol != self._subprotocol:
            await connection.close()
            raise TurnBroken("protocol_not_native", f"the service does not speak {self._subprotocol}")
        return _WebsocketsWire(connection)


class _WebsocketsWire:
    """A `Wire` over one connection of `websockets`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise close_failure(closed) from closed

    async def recv(self) -> bytes:
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            raise close_failure(closed) from closed

    async def close(self, code: int = 1000, reason: str = "done") -> None:
        await self._connection.close(code, reason)


def dial_failure(failure: Exception) -> TurnBroken:
    """The error class of a connection that did not come about."""
    if isinstance(failure, InvalidStatus):
        status = failure.response.status_code
        return TurnBroken(f"auth_{status}" if status in _AUTH_STATUSES else f"ws_handshake_{status}")
    if isinstance(failure, InvalidHandshake):
        return TurnBroken("ws_handshake", type(failure).__name__)
    if isinstance(failure, socket.gaierror):
        return TurnBroken("dns", str(failure))
    if isinstance(failure, ssl.SSLError):
        return TurnBroken("tls", str(failure))
    # A name with several addresses ends in one OSError that only quotes the others' numbers.
    if isinstance(failure, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(failure):
        return TurnBroken("tcp_refused")
    if isinstance(failure, ConnectionResetError):
        return TurnBroken("tcp_reset")
    return TurnBroken("tcp_error", str(failure))


def close_failure(closed: ConnectionClosed) -> TurnBroken:
    """The error class of a socket that ended before the turn did; 1006 where no close frame came."""
    frame = closed.rcvd or closed.sent
    return TurnBroken(f"ws_close_{frame.code}", frame.reason) if frame else TurnBroken("ws_close_1006")


def _insecure_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
