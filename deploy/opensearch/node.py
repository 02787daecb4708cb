"""One OpenSearch node as a process of ours: started on loopback, asked until it answers, ended in order."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from deploy.opensearch.errors import OpenSearchFailed
from deploy.opensearch.jars import HERE, class_path, find_java
from turnwise.parent_death import with_parent_death_signal
from turnwise.ports import WantedPort, require_free_ports

START_S = 240.0
STOP_S = 20.0


class OpenSearchNode:
    """A node on 127.0.0.1:`port` that keeps its data in `directory`. No TLS, no users.

    `start()` blocks until it answers: 6 to 16 s, and once for the download of its jars. It ends with this process.
    `short_lived`: compiled quickly and not well, for tests.
    """

    def __init__(
        self, checkout: Path, directory: Path, port: int, *, heap_mb: int = 512, short_lived: bool = False
    ) -> None:
        self.directory = directory.absolute()
        self.port = port
        self._checkout = checkout
        self._heap_mb = heap_mb
        self._short_lived = short_lived
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id, None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def log(self) -> Path:
        """What it writes."""
        return self.directory / "node.log"

    def start(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Start it. Raises `PortTaken` or `OpenSearchFailed`."""
        java = find_java(os.environ)
        jars = class_path(self._checkout, os.environ, say)
        self.directory.mkdir(parents=True, exist_ok=True)
        require_free_ports([WantedPort("OpenSearch", "127.0.0.1", self.port)])
        command = [str(java), f"-Xms{self._heap_mb}m", f"-Xmx{self._heap_mb}m"]
        command += ["-XX:TieredStopAtLevel=1"] if self._short_lived else []
        command += ["-cp", jars, str(HERE / "LocalNode.java"), str(self.directory), str(self.port)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                with_parent_death_signal(command, signal.SIGTERM),
                cwd=self.directory,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
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
        """End it. Harmless when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        for how in (signal.SIGTERM, signal.SIGKILL):
            process.send_signal(how)  # does nothing to one that has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
                return

    def wait(self) -> int:
        """Block until it ends by itself; its exit code."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.wait()

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        give_up = time.monotonic() + START_S
        while not self._answers():
            if process.poll() is not None:
                raise OpenSearchFailed(f"OpenSearch ended with code {process.returncode}: {self._last_words()}")
            if time.monotonic() > give_up:
                raise OpenSearchFailed(f"OpenSearch does not answer on port {self.port}: {self._last_words()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_cluster/health", timeout=2):  # noqa: S310 - our own loopback
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])
