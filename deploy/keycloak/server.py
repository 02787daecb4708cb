"""One Keycloak as a process of ours: on loopback with our realm, asked until it answers, ended with its Java."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from deploy.keycloak.distribution import VERSION, installed, script
from deploy.keycloak.errors import KeycloakFailed
from turnwise.parent_death import with_parent_death_signal
from turnwise.ports import WantedPort, require_free_ports

REALM = "turnwise"
REALM_FILE = Path(__file__).with_name("realm.json")
ADMIN = "admin"
"""Name and password of the administrator: it listens on this machine only, and forgets everything when it ends."""
START_S = 240.0
STOP_S = 15.0


class Keycloak:
    """Keycloak on 127.0.0.1:`port`, with the realm of `realm.json`, in memory.

    `start()` blocks until it answers: 10 to 30 s, and once for its download. It ends with this process.
    """

    def __init__(self, checkout: Path, log: Path, port: int, *, heap_mb: int = 384) -> None:
        """`log` is the file that takes what it writes."""
        self.log = log
        self._checkout = checkout
        self._port = port
        self._heap_mb = heap_mb
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def realm_url(self) -> str:
        """The issuer of the realm's tokens: `security.user.realm_url`."""
        return f"{self.url}/realms/{REALM}"

    def start(self, say: Callable[[str], None] = lambda _text: None) -> None:
        """Start it. Raises `PortTaken` or `KeycloakFailed`."""
        require_free_ports([WantedPort("Keycloak", "127.0.0.1", self._port)])
        home = installed(self._checkout, os.environ, say)
        imports = home / f"keycloak-{VERSION}" / "data" / "import"
        imports.mkdir(parents=True, exist_ok=True)
        shutil.copy(REALM_FILE, imports)
        command = [*script(home), "start", "--optimized", "--import-realm", "--cache=local", "--http-enabled=true"]
        command += ["--http-host=127.0.0.1", f"--http-port={self._port}", f"--hostname={self.url}"]
        environ = {
            **os.environ,
            "KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN,
            "KC_BOOTSTRAP_ADMIN_PASSWORD": ADMIN,
            "JAVA_OPTS_KC_HEAP": f"-Xms64m -Xmx{self._heap_mb}m",
            # Only the quick compiler: it does not live long enough for the other to pay.
            "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1",
        }
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - what Maven brought, checked
                # The script hands the signal on to its Java.
                with_parent_death_signal(command, signal.SIGTERM),
                env=environ,
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
        """End it, the Java below its script too. Harmless when it does not run."""
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
        """Block until it ends by itself; its exit code."""
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.wait()

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        give_up = time.monotonic() + START_S
        while not self._answers():
            if process.poll() is not None:
                raise KeycloakFailed(f"Keycloak ended with code {process.returncode}: {self._last_words()}")
            if time.monotonic() > give_up:
                raise KeycloakFailed(f"Keycloak does not answer at {self.url}: {self._last_words()}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            # The realm is there only once it is imported.
            with urllib.request.urlopen(f"{self.realm_url}/.well-known/openid-configuration", timeout=2):  # noqa: S310 - our own loopback
                return True
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _last_words(self) -> str:
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-5:])
