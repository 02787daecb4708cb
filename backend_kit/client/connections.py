"""Outbound connections: their limits, and the one way in which a session of them is opened."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any, Final

import aiohttp

from backend_kit.kpi import current_ledger

_VANISHED: Final = {
    "TCP_KEEPIDLE": 10,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 2,
    "TCP_USER_TIMEOUT": 20_000,
}
"""By these the kernel gives up a peer that vanished within 20 s, where it has these options (Linux has). Without, a
request to it waits for its own deadline, and an answer that nobody sends any more, too."""


_PIECE: Final = 64 * 1024
"""Bytes of a body that are written at a time; as many wait in the transport before a writer has to."""


@dataclass(frozen=True, slots=True)
class Connections:
    """Limits of the HTTP connections to each server of a session, in seconds. `max_connections` 0 means no limit.

    Up to `max_idle` idle connections are kept for `keepalive_s`, None: all. A new one for each call (0) costs more CPU
    than the call's JSON.
    """

    max_connections: int = 0
    max_idle: int | None = None
    keepalive_s: float = 30.0
    connect_s: float = 5.0
    pool_s: float | None = 10.0
    """How long an attempt waits for a free connection before it fails; None: its caller has a deadline."""
    read_s: float | None = None
    """The longest silence of an answer; None: its reader has a deadline. With `pool_s` it bounds a whole attempt, so
    that an answer which drips ends too."""
    write_s: float | None = None
    """How long the server may take no more of a request (`body_of`); None: its caller has a deadline."""

    def __post_init__(self) -> None:
        seconds = (self.keepalive_s, self.connect_s, self.pool_s, self.read_s, self.write_s)
        if min(self.max_connections, self.max_idle or 0) < 0 or any(
            limit is not None and limit <= 0 for limit in seconds
        ):
            raise ValueError("connection limits are positive; max_connections 0 means none")


def open_session(
    limits: Connections,
    *,
    unix_socket: str | None = None,
    pool_wait: Callable[[float], None] | None = None,
    pool_wait_row: str | None = None,
) -> aiohttp.ClientSession:
    """A session without cookies, on the running loop; its opener closes it.

    With `unix_socket`, the path of one, every connection leads there, whatever the URL says.
    `pool_wait` gets the seconds of each wait for a free connection; such a wait also becomes the row `pool_wait_row` of
    the current turn's ledger. Calls that did not wait are in neither.
    """
    connect_s = None if limits.pool_s is None else limits.pool_s + limits.connect_s
    total_s = None if connect_s is None or limits.read_s is None else connect_s + limits.read_s
    # A server that stalls must not use up the connections to another: none in all, `max_connections` to each.
    bounds: dict[str, Any] = {
        "limit": 0,
        "limit_per_host": limits.max_connections,
        "keepalive_timeout": None if limits.max_idle == 0 else limits.keepalive_s,
        "force_close": limits.max_idle == 0,
    }
    return aiohttp.ClientSession(
        connector=(
            _Connector(limits, ttl_dns_cache=60, socket_factory=_socket, **bounds)
            if unix_socket is None
            else aiohttp.UnixConnector(unix_socket, **bounds)
        ),
        timeout=aiohttp.ClientTimeout(
            total=total_s, connect=connect_s, sock_connect=limits.connect_s, sock_read=limits.read_s
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "turnwise"},
        trace_configs=None if pool_wait is None else [_pool_wait_trace(pool_wait, pool_wait_row)],
    )


class _Connector(aiohttp.TCPConnector):
    """aiohttp's, which keeps all idle connections, and bounds the wait for a free one only together with connecting."""

    def __init__(self, limits: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        most = self._limits.max_idle
        full = most is not None and len(self._conns.get(key, ())) >= most
        super()._release(key, protocol, should_close=should_close or full)

    async def _wait_for_available_connection(self, key: Any, traces: list[Any]) -> None:
        try:
            async with asyncio.timeout(self._limits.pool_s):
                await super()._wait_for_available_connection(key, traces)
        except (TimeoutError, asyncio.CancelledError):
            # A wait in vain is one, too, and the longest: aiohttp tells the end of none but those with a connection.
            for trace in traces:
                await trace.send_connection_queued_end()
            raise


def body_of(data: bytes, write_s: float | None) -> "bytes | aiohttp.payload.Payload":
    """What to send for `data`: the server must take a part of it every `write_s` seconds, else the request fails with a
    plain TimeoutError. What the kernel takes at once is sent as it is."""
    return data if len(data) <= _PIECE else _Pieces(data, write_s)


class _Pieces(aiohttp.payload.Payload):
    """A body in pieces: aiohttp writes bytes in one go, and warns of large ones."""

    def __init__(self, data: bytes, write_s: float | None) -> None:
        super().__init__(data)
        self._data = data
        self._write_s = write_s

    @property
    def size(self) -> int:
        return len(self._data)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._data.decode(encoding, errors)

    async def write(self, writer: aiohttp.abc.AbstractStreamWriter) -> None:
        view = memoryview(self._data)
        for start in range(0, len(view), _PIECE):
            async with asyncio.timeout(self._write_s):
                await writer.write(view[start : start + _PIECE])
                await writer.drain()


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """One that notices where its peer has gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _VANISHED.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _pool_wait_trace(observe: Callable[[float], None], row: str | None) -> aiohttp.TraceConfig:
    async def queued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.queued_at = perf_counter()

    async def unqueued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        now = perf_counter()
        observe(now - context.queued_at)
        ledger = None if row is None else current_ledger()
        if row is not None and ledger is not None:
            ledger.add(row, context.queued_at, now)

    config = aiohttp.TraceConfig()
    config.on_connection_queued_start.append(queued)
    config.on_connection_queued_end.append(unqueued)
    return config
