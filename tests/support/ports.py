"""Free loopback ports."""

import errno
import os
import secrets
import socket
from collections import deque
from functools import cache
from pathlib import Path

_LOWEST = 20_000
_SHARES = 17
"""The ports are divided by this many: one share for each worker of a run, the first for a run without any."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """Gives the ports of a range that nobody listens on."""

    def __init__(self, lowest: int, count: int) -> None:
        self._lowest = lowest
        self._count = count
        self._given: deque[int] = deque(maxlen=count // 3)
        """What was given lately: its server may not listen yet."""

    def block(self, size: int) -> int:
        """The first of `size` ports in a row that were free a moment ago and are nobody's yet."""
        while True:
            first = self._lowest + secrets.randbelow(self._count - size + 1)
            block = range(first, first + size)
            if all(port not in self._given and _is_free(port) for port in block):
                self._given.extend(block)
                return first


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Prefer letting a server choose (port 0) where it can.

    The kernel gives it to nobody else: it is below those that it chooses from for connections and for port 0, of which
    thousands come and go while a slow server starts.
    """
    return free_block(1)


def free_block(size: int) -> int:
    """The first of `size` ports in a row, each as `free_port` gives it."""
    return _ports_of(os.environ.get("PYTEST_XDIST_WORKER", "")).block(size)


@cache
def _ports_of(worker: str) -> Ports:
    lowest_of_the_kernel = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    share = max(lowest_of_the_kernel - _LOWEST, 100 * _SHARES) // _SHARES
    return Ports(_LOWEST + share * share_of(worker), share)


def share_of(worker: str) -> int:
    """Which part of the ports is a worker's, by its name (`gw0`, …): no two of a run give the same port."""
    return 1 + int(worker.removeprefix("gw")) % (_SHARES - 1) if worker else 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
