"""The first steps of a service's process: arguments, log, settings, and which commit it runs. Imports nothing heavy."""

import argparse
import gc
import io
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from backend_kit.settings import ServiceSettings, load_or_exit

S = TypeVar("S", bound=ServiceSettings)
VARIABLE: Final = "TURNWISE_GIT_SHA"
UNKNOWN: Final = "unknown"
_ROOT: Final = Path(__file__).parents[1]
_SHA: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def arguments(package: str, description: str) -> argparse.ArgumentParser:
    """The parser of `python -m package`, which a service may add to."""
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=description)
    parser.add_argument("--check", action="store_true", help="only say whether the configuration can be used")
    for ours in ("--worker", "--lifeline"):  # of `backend_kit.workers`
        parser.add_argument(ours, type=int, help=argparse.SUPPRESS)
    return parser


def configure(model: type[S], *, check: bool, worker: int | None = None) -> S:
    """Open the log on stderr and load the settings; each line of the log names the worker, where there are several.

    Raises SystemExit: 2 for unusable settings, 0 after a successful `check`.
    """
    open_streams()
    end_quietly()
    speaker = "" if worker is None else f"[worker {worker}] "
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s %(levelname)s %(name)s {speaker}%(message)s")
    settings = load_or_exit(model)
    if check:
        raise SystemExit(0)
    logging.getLogger().setLevel(settings.app.log_level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)  # we log the schema's revision ourselves
    return settings


def end_quietly() -> None:
    """Let Ctrl-C end a start at once, without a traceback of what was being imported; a server has handlers of its
    own."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_at_once() -> None:
    """Let the interpreter end without looking for garbage among everything that the process has had: the kernel takes
    its memory back all the same. Call it last."""
    gc.freeze()


def open_streams() -> None:
    """Make stdin, stdout and stderr what a service needs, whatever it was started with.

    One that is closed becomes /dev/null: its number would go to the next file or socket that is opened, and what a
    library or a child writes to its stderr would go there. stderr drops what its reader does not take (`LogStream`).
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdout = sys.stdout or _text(io.FileIO(1, "w", closefd=False))
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(LogStream(2))


def _text(raw: io.RawIOBase) -> io.TextIOWrapper:
    # Not buffered: the interpreter would try once more at its end to write what a full disk does not take, and exit
    # with 120 whatever the service exits with.
    return io.TextIOWrapper(cast(Any, raw), "utf-8", "backslashreplace", line_buffering=True, write_through=True)


class LogStream(io.RawIOBase):
    """A descriptor to which lines are written without ever waiting for its reader.

    A pipe whose reader has stopped (a log shipper that hangs, a terminal after Ctrl-S) takes 64 KiB, and the next line
    would hold the event loop, health checks included, until the reader goes on. Here such a line waits `patience_s`
    once, and then it and those after it are dropped, until there is room again; how many is then the first line.
    """

    def __init__(self, descriptor: int, *, patience_s: float = 0.2) -> None:
        self._file = io.FileIO(descriptor, "w", closefd=False)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._patience_ms = patience_s * 1e3
        self._lost = 0
        # Handlers of several loggers write from several threads, and poll refuses a second call meanwhile.
        self._writing = threading.Lock()

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._file.isatty()

    def write(self, data: Any) -> int:
        """Write the data, or drop what of it is not taken. Returns its length in both cases. Raises OSError."""
        whole = bytes(data)
        with self._writing:
            self._write(whole)
        return len(whole)

    def _write(self, whole: bytes) -> None:
        for begin in range(0, len(whole), select.PIPE_BUF):
            # A pipe is ready if it has room for this many bytes.
            if not self._poll.poll(0 if self._lost else self._patience_ms):
                self._lost += 1
                break
            if self._lost:
                self._file.write(f"{self._lost} lines of the log were dropped: nobody read it\n".encode())
                self._lost = 0
                if not self._poll.poll(0):
                    self._lost = 1
                    break
            self._file.write(whole[begin : begin + select.PIPE_BUF])


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause garbage collection during imports: they leave no garbage, and the search takes a twelfth of their time."""
    gc.disable()
    yield
    gc.enable()


def git_sha(environ: Mapping[str, str] | None = None, root: Path = _ROOT) -> str:
    """The commit by TURNWISE_GIT_SHA, else the one that is checked out in `root`; `unknown` for an installed package.

    Reads git's files and runs no program: a service may start where there is none.
    """
    said = (os.environ if environ is None else environ).get(VARIABLE, "").strip()
    if said and said != UNKNOWN:
        return said
    try:
        return _checked_out(root / ".git") or UNKNOWN
    except (OSError, UnicodeDecodeError):
        return UNKNOWN


def _checked_out(place: Path) -> str | None:
    if place.is_file():  # a worktree: the file says where its directory is
        place = place.parent / place.read_text().removeprefix("gitdir:").strip()
    head = (place / "HEAD").read_text().strip()
    if not head.startswith("ref:"):
        return _sha(head)
    name = head.removeprefix("ref:").strip()
    common = place / "commondir"
    places = [place, place / common.read_text().strip()] if common.exists() else [place]
    for where in places:
        if (where / name).is_file():
            return _sha((where / name).read_text())
    packed = places[-1] / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    return next((_sha(line) for line in lines if line.endswith(f" {name}")), None)


def _sha(text: str) -> str | None:
    found = _SHA.match(text)
    return found.group() if found else None
