"""Ends a connection to Postgres of which nothing is heard any more."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class _Connected(Protocol):
    """A connection of psycopg, of either kind."""

    def fileno(self) -> int:
        """The descriptor of its socket. Raises psycopg.OperationalError where it is closed."""


@contextmanager
def hang_up_after(connection: _Connected, seconds: float) -> Iterator[None]:
    """Break the connection if the block, which waits for its server, takes longer: it gets psycopg.OperationalError at
    once. On the event loop; a thread may be what waits.

    Cancelling in its place has psycopg ask the server to stop, and wait for it: up to 10 s more with a server that is
    not there. Where it may be at work, and should stop, cancel.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        due = asyncio.get_running_loop().call_later(seconds, _shut, own)
        try:
            yield
        finally:
            due.cancel()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended by itself
        sock.shutdown(socket.SHUT_RDWR)
