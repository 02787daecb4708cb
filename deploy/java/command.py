"""The commands that run a Java server until Ctrl-C."""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, TypeVar

from deploy.java.server import JavaServer
from turnwise.errors import StartRefused

_EXIT_REFUSED: Final = 2

S = TypeVar("S", bound=JavaServer)


class _Ended(Exception):
    """A signal ended the command."""


def run_until_ended(make: Callable[[], S], ready: Callable[[S], str]) -> int:
    """Start the server that `make` returns, print the text of `ready`, and wait for its end or a signal.

    Exit codes: 0 stopped by a signal, 1 the server exited, 2 it could not start.
    """
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    try:
        return _run(make(), ready)
    except StartRefused as refused:
        sys.stderr.write(f"turnwise: {refused}\n")
        return _EXIT_REFUSED
    except _Ended:
        return 0


def _run(server: S, ready: Callable[[S], str]) -> int:
    try:
        server.start(_say)
        _say(ready(server))
        code = server.wait()
    finally:
        server.stop()
    sys.stderr.write(f"turnwise: {server.name} ended by itself with code {code}; see {server.log}\n")
    return 1


def _end(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
