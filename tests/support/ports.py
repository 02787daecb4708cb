"""Free loopback ports."""

import errno
import fcntl
import os
import secrets
import socket
import tempfile
from collections import deque
from functools import cache
from pathlib import Path

_LOWEST = 20_000
_LEAST = 2_000
"""How many there are at least, wherever the kernel's own begin."""
_SHARES = 16
"""So many processes may each hold what they were given lately, and leave some to others: workers, and stages of a run
beside them."""
_TRIES = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """Gives the ports of a range that nobody listens on, and none that was given lately: its server may not listen
    yet. `file` tells processes of the same user from each other, as many of them give ports at once as there are
    workers, runs and stages: in it, a port is given who has the byte of its number locked."""

    def __init__(self, lowest: int, count: int, file: Path) -> None:
        self._lowest = lowest
        self._count = count
        # Never closed while this gives ports: the process's locks on the file would go with it.
        self._locks = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._given: deque[int] = deque()
        self._most_given = count // _SHARES

    def block(self, size: int) -> int:
        """The first of `size` ports in a row that were free a moment ago and are nobody's yet. Raises RuntimeError
        where there are none."""
        for _ in range(_TRIES):
            first = self._lowest + secrets.randbelow(self._count - size + 1)
            block = range(first, first + size)
            taken: list[int] = []
            while len(taken) < size and self._take(block[len(taken)]):
                taken.append(block[len(taken)])
            if len(taken) == size:
                self._given.extend(block)
                while len(self._given) > self._most_given:
                    self._give_back(self._given.popleft())
                return first
            for port in taken:
                self._give_back(port)
        raise RuntimeError(f"no {size} free ports in a row among {self._count} from {self._lowest} on")

    def _take(self, port: int) -> bool:
        """Whether the port is this process's to give now."""
        if port in self._given:  # a process may lock twice what it has locked
            return False
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                raise
            return False
        if _is_free(port):
            return True
        self._give_back(port)
        return False

    def _give_back(self, port: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, port)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago. Prefer letting a server choose (port 0) where it can.

    The kernel gives it to nobody else: it is below those that it chooses from for connections and for port 0, of which
    thousands come and go while a slow server starts.
    """
    return free_block(1)


def free_block(size: int) -> int:
    """The first of `size` ports in a row, each as `free_port` gives it."""
    return _ports().block(size)


@cache
def _ports() -> Ports:
    lowest_of_the_kernel = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    count = max(lowest_of_the_kernel - _LOWEST, _LEAST)
    return Ports(_LOWEST, count, Path(tempfile.gettempdir(), f"turnwise-test-ports-{os.getuid()}"))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True
