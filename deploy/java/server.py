"""A Java server as a child process on loopback: started, polled until it answers, and stopped with its Java."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from backend_kit.parent_death import with_parent_death_signal
from turnwise.errors import StartRefused
from turnwise.ports import WantedPort, require_free_ports


class JavaServerFailed(StartRefused):
    """There is no Java for it, what it is made of cannot be had, or it ended before it answered."""


START_S = 240.0
STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class JavaCommand:
    """The command to start, its environment and its working directory."""

    arguments: list[str]
    environ: Mapping[str, str]
    directory: Path | None = None


class JavaServer(ABC):
    """A server on 127.0.0.1:`port`. `start()` blocks until it answers. It ends with this process."""

    name: ClassVar[str]
    ready_path: ClassVar[str]
    """A path that answers once the server is usable."""

    def __init__(self, checkout: Path, log: Path, port: int) -> None:
        """`log` is the file for its output."""
        self.checkout = checkout
        self.log = log
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self, say: Callable[[str], None]) -> JavaCommand:
        """Install the server, announcing that through `say`, and return its command. Raises `JavaServerFailed`."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id, None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Start it. Raises `PortTaken` or `JavaServerFailed`."""
        require_free_ports([WantedPort(self.name, "127.0.0.1", self.port)])
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = self.prepare(say)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - what Maven brought, checked
                # A script hands the signal on to its Java.
                with_parent_death_signal(command.arguments, signal.SIGTERM),
                cwd=command.directory,
                env=command.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop it, and the Java that a script started. Does nothing if it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)  # does nothing to one that has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self) -> int:
        """Block until it exits and return its exit code. Raises RuntimeError if it has not been started."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.wait()

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_S
        while not self._answers():
            if process.poll() is not None:
                raise JavaServerFailed(f"{self.name} ended with code {process.returncode}: {self._log_end()}")
            if time.monotonic() > deadline:
                raise JavaServerFailed(f"{self.name} does not answer at {self.url}: {self._log_end()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}{self.ready_path}", timeout=2):  # noqa: S310 - our own loopback
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _log_end(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])
