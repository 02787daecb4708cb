"""The WebSocket client behind four calls, so that the library can be replaced."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from ws_bench.errors import TurnBroken, json_or_text, refusal_text

CLOSE_TIMEOUT_S = 2.0
_SLOW_BUFFER = 4096
AUTH_STATUSES = frozenset({401, 403})


class ClientSocket(Protocol):
    """One open socket. `send` and `recv` raise `TurnBroken` if the connection fails.

    `kept_session` is the id of the session that the service made of what was asked; empty where it makes none itself.
    """

    kept_session: str

    async def send(self, text: str) -> None:
        """Write one text frame."""

    async def recv(self) -> bytes:
        """The next frame's payload, undecoded."""

    async def close(self, code: int = 1000, reason: str = "done", /) -> None:
        """Close with a handshake of at most two seconds. Never raises. Frames already read can still be received."""

    def abort(self) -> None:
        """Drop the connection without a close handshake, as a killed browser does."""


class Connector(Protocol):
    """Opens sockets to one address. `dials` says whether `connect` opens a connection, or the first ask does."""

    dials: bool

    async def connect(self, *, bytes_per_s: float = 0.0) -> ClientSocket:
        """Open a socket and do the handshake. Raises `TurnBroken`; the caller sets the deadline.

        With `bytes_per_s` it reads no faster, through the smallest possible buffers, so that the peer notices.
        """


class WebsocketsConnector:
    """The `websockets` library: no pings, no proxy, and no compression unless `deflate`, so that a run measures
    the service alone."""

    dials = True

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        subprotocol: str = "",
        max_size: int,
        insecure: bool = False,
        deflate: bool = False,
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._subprotocol = subprotocol
        self._max_size = max_size
        self._deflate = deflate
        self._ssl = _insecure_context() if insecure and url.startswith("wss:") else None

    async def connect(self, *, bytes_per_s: float = 0.0) -> ClientSocket:
        """See `Connector.connect`. Raises `TurnBroken`."""
        try:
            sock = await _small_socket(self._url) if bytes_per_s else None
            connection = await connect(
                self._url,
                sock=sock,
                max_queue=1 if bytes_per_s else 16,
                additional_headers=self._headers,
                subprotocols=[Subprotocol(self._subprotocol)] if self._subprotocol else None,
                compression="deflate" if self._deflate else None,
                max_size=self._max_size,
                ping_interval=None,
                open_timeout=None,
                close_timeout=CLOSE_TIMEOUT_S,
                proxy=None,
                ssl=self._ssl,
            )
        except (OSError, InvalidHandshake) as failure:
            raise dial_failure(failure) from failure
        if self._subprotocol and connection.subprotocol != self._subprotocol:
            await connection.close()
            raise TurnBroken("protocol_not_native", f"the service does not speak {self._subprotocol}")
        answer = connection.response
        if self._deflate and (answer is None or "Sec-WebSocket-Extensions" not in answer.headers):
            await connection.close()
            raise TurnBroken("protocol_not_deflated", "the service does not take permessage-deflate")
        return _WebsocketsSocket(connection, bytes_per_s)


class _WebsocketsSocket:
    """A `ClientSocket` over one connection of `websockets`."""

    kept_session = ""

    def __init__(self, connection: ClientConnection, bytes_per_s: float = 0.0) -> None:
        self._connection = connection
        self._bytes_per_s = bytes_per_s

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise close_failure(closed) from closed

    async def recv(self) -> bytes:
        try:
            frame = await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            raise close_failure(closed) from closed
        if self._bytes_per_s:
            await asyncio.sleep(len(frame) / self._bytes_per_s)
        return frame

    async def close(self, code: int = 1000, reason: str = "done") -> None:
        await self._connection.close(code, reason)

    def abort(self) -> None:
        self._connection.transport.abort()


def dial_failure(failure: Exception) -> TurnBroken:
    """The error class of a failed connection attempt."""
    if isinstance(failure, InvalidStatus):
        status = failure.response.status_code
        said = refusal_text(json_or_text(bytes(failure.response.body or b"")))
        return TurnBroken(f"auth_{status}" if status in AUTH_STATUSES else f"ws_handshake_{status}", said)
    if isinstance(failure, InvalidHandshake):
        return TurnBroken("ws_handshake", type(failure).__name__)
    if isinstance(failure, socket.gaierror):
        return TurnBroken("dns", str(failure))
    if isinstance(failure, ssl.SSLError):
        return TurnBroken("tls", str(failure))
    # For a host with several addresses there is one OSError that only quotes the numbers of the others.
    if isinstance(failure, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(failure):
        return TurnBroken("tcp_refused")
    if isinstance(failure, ConnectionResetError):
        return TurnBroken("tcp_reset")
    return TurnBroken("tcp_error", str(failure))


def close_failure(closed: ConnectionClosed) -> TurnBroken:
    """The error class of a socket that closed before the turn ended; 1006 if no close frame came."""
    frame = closed.rcvd or closed.sent
    return TurnBroken(f"ws_close_{frame.code}", frame.reason) if frame else TurnBroken("ws_close_1006")


async def _small_socket(url: str) -> socket.socket:
    """A connected socket with the smallest receive buffer: the kernel's usual one would hide a slow reader."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "wss" else 80)
    loop = asyncio.get_running_loop()
    family, kind, proto, _, address = (await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM))[0]
    sock = socket.socket(family, kind, proto)
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER)
        await loop.sock_connect(sock, address)
    except (OSError, asyncio.CancelledError):
        sock.close()
        raise
    return sock


def _insecure_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
