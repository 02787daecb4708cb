"""Outbound connections: their limits, and the one way in which a session of them is opened."""

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


@dataclass(frozen=True, slots=True)
class Connections:
    """Limits of the HTTP connections to each server of a session, in seconds. `max_connections` 0 means no limit.

    Idle connections are kept for `keepalive_s` unless `keepalive` is off: a new one for each call costs more CPU
    than the call's JSON.
    """

    max_connections: int = 0
    keepalive: bool = True
    keepalive_s: float = 30.0
    connect_s: float = 5.0
    pool_s: float | None = 10.0
    """How long an attempt waits for a free connection before it fails; None: its caller has a deadline."""
    read_s: float | None = None
    """The longest silence of an answer; None: its reader has a deadline. With `pool_s` it bounds a whole attempt, so
    that an answer which drips ends too."""

    def __post_init__(self) -> None:
        seconds = (self.keepalive_s, self.connect_s, self.pool_s, self.read_s)
        if self.max_connections < 0 or any(limit is not None and limit <= 0 for limit in seconds):
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
        "keepalive_timeout": limits.keepalive_s if limits.keepalive else None,
        "force_close": not limits.keepalive,
    }
    return aiohttp.ClientSession(
        connector=(
            aiohttp.TCPConnector(ttl_dns_cache=60, socket_factory=_socket, **bounds)
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
