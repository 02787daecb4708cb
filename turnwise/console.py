"""The terminal and the log file: what matters is shown, everything is kept.

The terminal gets the launcher's own lines, the programs' errors and, below them, a status line that is overwritten in
place. The programs' output goes to a file of bounded size. Without a terminal (a pipe, a service manager) there is no
status line.
"""

import contextlib
import logging
import logging.handlers
import os
import re
import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import TextIO

NAME_WIDTH = 9
LOG_BYTES = 10 * 1024 * 1024
LOG_FILES = 3
SHOWN = 5
SHOWN_PER_S = 10.0
_TROUBLE = re.compile(r"(?:^| )(?:ERROR|CRITICAL|PANIC)[: ]|^\w*Error: |ALARM")
_CLEAR = "\r\x1b[K"


class Console:
    """Writes whole lines, from any thread. Never raises when the terminal or the disk is gone.

    `log` is the file for the programs' output; without one, or with `verbose`, that output goes to the terminal.
    """

    def __init__(
        self, stream: TextIO, log: Path | None = None, *, verbose: bool = False, log_bytes: int = LOG_BYTES
    ) -> None:
        """At `log_bytes` the log is rotated; three files are kept."""
        self._stream = stream
        self._lock = threading.Lock()
        self._verbose = verbose or log is None
        self._log = None if log is None else _log_file(log, log_bytes)
        self._status = ""
        self._shown: deque[float] = deque(maxlen=SHOWN)
        self.has_status_line = not self._verbose and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        """Whether a status line is shown and overwritten in place."""

    def print_line(self, name: str, text: str) -> None:
        """Print one line as `name     | text`, the name padded to a fixed width."""
        self.announce(f"{name:<{NAME_WIDTH}}| {text}")

    def announce(self, text: str) -> None:
        """Print a line without a name."""
        self._keep(text)
        self._show(text)

    def output(self, name: str, text: str) -> None:
        """Log a line of a program's output; print it if it reports an error (at most 5 in 10 s) or if verbose."""
        line = f"{name:<{NAME_WIDTH}}| {text}"
        self._keep(line)
        if self._verbose or (_TROUBLE.search(text) and self._may_show()):
            self._show(line)

    def status(self, text: str) -> None:
        """Replace the status line by `text`; an empty text removes it. Does nothing without a terminal."""
        if self.has_status_line:
            with self._lock:
                self._status = text
                self._write(self._status_line())

    def close(self) -> None:
        """Remove the status line and close the log."""
        self.status("")
        if self._log is not None:
            self._log.close()

    def _may_show(self) -> bool:
        now = time.monotonic()
        with self._lock:
            if len(self._shown) == SHOWN and now - self._shown[0] < SHOWN_PER_S:
                return False
            self._shown.append(now)
            return True

    def _keep(self, line: str) -> None:
        if self._log is not None:
            self._log.handle(logging.LogRecord("", logging.INFO, "", 0, line, None, None))

    def _show(self, line: str) -> None:
        with self._lock:
            self._write(f"{_CLEAR}{line}\n{self._status_line()}" if self._status else f"{line}\n")

    def _status_line(self) -> str:
        return _CLEAR + self._status[: shutil.get_terminal_size().columns - 1]

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def _log_file(path: Path, size: int) -> logging.Handler:
    """A rotating log file of `size` bytes with two older ones, in a directory that only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=size, backupCount=LOG_FILES - 1, encoding="utf-8", errors="replace"
    )
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005 - a full disk: see Console
    return handler
