"""Who may have a connection: how many there are, by address and in all, and which one gives way at a bound."""

import logging
import time
from collections import Counter as Counts
from collections.abc import Callable, Hashable
from ipaddress import IPv6Network, ip_address, ip_network
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from backend_kit.aio.retry import QuietLog
from backend_kit.settings import ConnectionBounds

logger = logging.getLogger(__name__)

Reason = Literal["max_open", "per_address", "head", "body", "answer", "malformed"]
"""Why a connection was refused or ended; the settings of the same names, and a request that is none."""

SURPLUS: Final = 64
"""Connections above the bound that get health and readiness; one more ends the oldest of them."""
MOST: Final = 10_000
_LOG_INTERVAL_S: Final = 60.0
_SAID: Final[dict[Reason, str]] = {
    "max_open": "connections.max_open is reached",
    "per_address": "connections.per_address is reached",
    "head": "a request had no whole head within connections.head_s",
    "body": "a body came more slowly than connections.body_bytes_per_s",
    "answer": "an answer was not read within connections.answer_s",
    "malformed": "a request was not HTTP/1.1",
}


class ConnectionMetrics:
    """`app_connections` and `app_connections_refused_total{reason}`, whose label is a `Reason`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.open = Gauge("app_connections", "Open connections to the service's port.", registry=registry)
        refused = Counter(
            "app_connections_refused_total",
            "Connections that a bound refused or ended.",
            ["reason"],
            registry=registry,
        )
        self.refused: dict[Reason, Counter] = {reason: refused.labels(reason) for reason in _SAID}


class ConnectionPlace:
    """What `OpenConnections` knows of one connection. `refuses` is the bound above which it was opened: it may have
    health and readiness, and nothing else; None for an ordinary one."""

    __slots__ = ("_all", "address", "drop", "peer", "refuses", "taken")

    def __init__(self, among: "OpenConnections", peer: str, address: Hashable, drop: Callable[[], None]) -> None:
        self._all = among
        self.peer = peer
        self.address = address
        self.drop = drop
        self.refuses: Reason | None = None
        self.taken = True

    def waits(self) -> None:
        """The server waits for the client, from now on: this connection may be ended for another one."""
        if self.taken:
            self._all.waits(self)

    def works(self) -> None:
        """The client waits for the server: this connection stays."""
        if self.taken:
            self._all.works(self)

    def leave(self) -> None:
        """The connection has ended. A second call has no effect."""
        if self.taken:
            self._all.leave(self)

    def refused(self, reason: Reason) -> None:
        """Count that the connection, or what it asked for, was refused."""
        self._all.refused(reason, self.peer)


class OpenConnections:
    """The open connections of a server, and its bounds for them. Every call takes constant time."""

    def __init__(
        self,
        settings: ConnectionBounds,
        descriptors: int,
        metrics: ConnectionMetrics,
        *,
        surplus: int = SURPLUS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`descriptors`: how many the process may open. `surplus`: as `SURPLUS`."""
        self._most = settings.max_open or min(MOST, descriptors // 2)
        self._per_address = settings.per_address
        self._proxies = tuple(ip_network(proxy) for proxy in settings.trusted_proxies)
        self._metrics = metrics
        self._max_surplus = surplus
        self._log = QuietLog(logger, interval_s=_LOG_INTERVAL_S, clock=clock)
        self._open = Counts[Hashable]()
        self._count = 0
        # Dicts as ordered sets: the first is the longest waiting.
        self._surplus: dict[ConnectionPlace, None] = {}
        self._waiting: dict[Hashable, dict[ConnectionPlace, None]] = {}
        self._crowds: dict[int, dict[Hashable, None]] = {}
        self._largest = 0

    def enter(self, peer: str, drop: Callable[[], None]) -> ConnectionPlace:
        """A place for a new connection from the address `peer`, which waits for its client. `drop` ends it at once,
        where it has to give way to another."""
        # Without an address: by a Unix socket, from a process of our own.
        several = not peer or self._is_trusted(peer)
        place = ConnectionPlace(self, peer, object() if several else _address(peer), drop)
        reason: Reason | None = None
        candidates: dict[ConnectionPlace, None] | None = None
        if self._per_address and self._open[place.address] >= self._per_address:
            reason, candidates = "per_address", self._waiting.get(place.address)
        elif self._count >= self._most:
            reason, candidates = "max_open", self._most_crowded()
        if reason is not None:
            if candidates:
                self._end(next(iter(candidates)), reason)
            else:
                self._add_surplus(place, reason)
        if place.refuses is None:
            self._count += 1
            self._open[place.address] += 1
        self._metrics.open.inc()
        self.waits(place)
        return place

    def waits(self, place: ConnectionPlace) -> None:
        """See `ConnectionPlace.waits`."""
        if place.refuses is not None:
            return
        self.works(place)
        group = self._waiting.setdefault(place.address, {})
        group[place] = None
        self._move(place.address, len(group) - 1, len(group))

    def works(self, place: ConnectionPlace) -> None:
        """See `ConnectionPlace.works`."""
        group = self._waiting.get(place.address)
        if group is None or place not in group:
            return
        del group[place]
        self._move(place.address, len(group) + 1, len(group))
        if not group:
            del self._waiting[place.address]

    def leave(self, place: ConnectionPlace) -> None:
        """See `ConnectionPlace.leave`."""
        self.works(place)
        place.taken = False
        self._metrics.open.dec()
        if place.refuses is not None:
            del self._surplus[place]
            return
        self._count -= 1
        self._open[place.address] -= 1
        if not self._open[place.address]:
            del self._open[place.address]

    def refused(self, reason: Reason, peer: str) -> None:
        """Count a refusal, and name it in the log once a minute."""
        self._metrics.refused[reason].inc()
        self._log.warning(reason, f"a connection from %s was refused or ended: {_SAID[reason]}", peer or "unknown")

    def _is_trusted(self, peer: str) -> bool:
        if not self._proxies:
            return False
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in proxy for proxy in self._proxies)

    def _most_crowded(self) -> dict[ConnectionPlace, None] | None:
        crowd = self._crowds.get(self._largest)
        return self._waiting[next(iter(crowd))] if crowd else None

    def _end(self, place: ConnectionPlace, reason: Reason) -> None:
        self.leave(place)
        self.refused(reason, place.peer)
        place.drop()

    def _add_surplus(self, place: ConnectionPlace, reason: Reason) -> None:
        if len(self._surplus) >= self._max_surplus:
            self._end(next(iter(self._surplus)), reason)
        place.refuses = reason
        self._surplus[place] = None

    def _move(self, address: Hashable, before: int, after: int) -> None:
        """Keep the addresses by how many of their connections wait; the numbers differ by one."""
        if before:
            crowd = self._crowds[before]
            del crowd[address]
            if not crowd:
                del self._crowds[before]
        if after:
            self._crowds.setdefault(after, {})[address] = None
        if after > self._largest or self._largest not in self._crowds:
            self._largest = after


def _address(peer: str) -> Hashable:
    """What counts as one address: of IPv6 the network of 64 bits, which is what a customer gets at least."""
    if ":" not in peer:
        return peer
    try:
        return IPv6Network((peer.partition("%")[0], 64), strict=False)
    except ValueError:
        return peer
