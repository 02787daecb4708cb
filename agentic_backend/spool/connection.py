"""Connections to Postgres outside of all pools: how one is opened, and how a silent one is ended."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg

from agentic_backend.spool.pooler import refusal_at_connect
from backend_kit.db.libpq import connect_args, server_args
from backend_kit.settings import Postgres

Connection = psycopg.Connection[tuple[object, ...]]


def connect(settings: Postgres, role: str) -> Connection:
    """A connection outside of all pools, which names `role` as its purpose. Blocks for up to
    `postgres.connect_timeout`. Raises `PoolerUnusable` if a pooler refuses it, or psycopg.OperationalError."""
    try:
        return psycopg.connect(**_arguments(settings, role), autocommit=True)
    except psycopg.OperationalError as error:
        if (unusable := refusal_at_connect(settings, error)) is not None:
            raise unusable from None
        raise


def _arguments(settings: Postgres, role: str) -> dict[str, Any]:
    arguments = connect_args(f"turnwise-agentic-{role} {os.getpid()}@{socket.gethostname()}", settings.connect_timeout)
    return {**arguments, **server_args(settings)}


class _Connected(Protocol):
    """A connection of psycopg, of either kind."""

    def fileno(self) -> int:
        """The descriptor of its socket. Raises psycopg.OperationalError where it is closed."""


@contextmanager
def hang_up_after(connection: _Connected, seconds: float) -> Iterator[None]:
    """Break the connection if the block, which waits for its server, takes longer: it gets psycopg.OperationalError at
    once. On the event loop; a thread may be what waits.

    Cancelling instead would make psycopg ask the server to stop, and wait for that: up to 10 s more with a server that
    is gone. If the server may be working, and should stop, cancel.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as own:
        due = asyncio.get_running_loop().call_later(seconds, _shut, own)
        try:
            yield
        finally:
            due.cancel()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        sock.shutdown(socket.SHUT_RDWR)
