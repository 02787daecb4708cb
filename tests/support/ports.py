"""Free loopback ports."""

import errno
import os
import secrets
import socket
from collections import deque
from pathlib import Path

_LOWEST = 20_000
_SHARES = 17
"""The ports are divided by this many: one share for each worker of a run, the first for a run without any."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_GIVEN: deque[int] = deque(maxlen=200)
"""What was given lately: its server may not listen yet."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Prefer letting a server choose (port 0) where it can.

    The kernel gives it to nobody else: it is below those that it chooses from for connections and for port 0, of which
    thousands come and go while a slow server starts.
    """
    lowest_of_the_kernel = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    share = max(lowest_of_the_kernel - _LOWEST, 100 * _SHARES) // _SHARES
    lowest = _LOWEST + share * share_of(os.environ.get("PYTEST_XDIST_WORKER", ""))
    while True:
        port = lowest + secrets.randbelow(share)
        if port not in _GIVEN and _is_free(port):
            _GIVEN.append(port)
            return port


def free_block(size: int) -> int:
    """The first of `size` ports in a row that were free a moment ago."""
    while True:
        first = free_port()
        if all(_is_free(port) for port in range(first, first + size)):
            _GIVEN.extend(range(first, first + size))
            return first


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
