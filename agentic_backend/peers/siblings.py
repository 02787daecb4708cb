"""The workers of one service on this host: each is reached by a Unix socket, whose name is derived from its token."""

import contextlib
import hashlib
import os
import socket
import time
from pathlib import Path
from typing import Final

_SUFFIX: Final = ".sock"
_BACKLOG: Final = 128
_YOUNG_S: Final = 5.0


class Siblings:
    """Unix sockets in a directory that only the user of the service may enter.

    All workers share the port of the service, so its address leads to any of them; a worker's own socket leads to it.
    """

    def __init__(self, directory: Path, *, young_s: float = _YOUNG_S) -> None:
        """`young_s`: a socket that is younger than this is not taken for one of a dead worker."""
        self._directory = directory
        self._young_s = young_s

    def listen(self, token: str) -> socket.socket:
        """This worker's listening socket. Sockets of workers that have ended are removed. Raises OSError."""
        self._remove_dead()
        sock = socket.socket(socket.AF_UNIX)
        try:
            # Not renamed once it listens: cleaners of temporary files know live sockets by their first name.
            sock.bind(str(self._path(token)))
            sock.listen(_BACKLOG)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        return sock

    def find(self, token: str) -> str | None:
        """The path of the socket of the worker with this token, None if there is no such worker."""
        path = str(self._path(token))
        return path if os.path.exists(path) else None  # noqa: PTH110 - one call for each turn that is followed

    def _path(self, token: str) -> Path:
        return self._directory / f"{hashlib.sha256(token.encode()).hexdigest()[:32]}{_SUFFIX}"

    def _remove_dead(self) -> None:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                if time.time() - path.stat().st_mtime < self._young_s:
                    continue  # it may be about to listen
                probe.setblocking(False)  # a stopped worker has a full queue, but is alive
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
