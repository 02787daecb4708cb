"""Keycloak with our realm, on loopback and in memory."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from deploy.java.server import JavaCommand, JavaServer
from deploy.keycloak.distribution import VERSION, installed, script

REALM = "turnwise"
REALM_FILE = Path(__file__).with_name("realm.json")
ADMIN = "admin"
"""Name and password of the administrator: it listens on this machine only, and forgets everything when it ends."""


class Keycloak(JavaServer):
    """Keycloak on 127.0.0.1:`port`, with the realm of `realm.json`, in memory.

    `start()` takes 10 to 30 s, and once the time of its download.
    """

    name = "Keycloak"
    # The realm is there only once it is imported.
    ready_path = f"/realms/{REALM}/.well-known/openid-configuration"

    def __init__(self, checkout: Path, log: Path, port: int, *, heap_mb: int = 384) -> None:
        """`log` is the file for its output."""
        super().__init__(checkout, log, port)
        self._heap_mb = heap_mb

    @property
    def realm_url(self) -> str:
        """The issuer of the realm's tokens: `security.user.realm_url`."""
        return f"{self.url}/realms/{REALM}"

    def prepare(self, say: Callable[[str], None]) -> JavaCommand:
        """Install the distribution and put our realm into its import directory. Raises `JavaServerFailed`."""
        home = installed(self.checkout, os.environ, say)
        imports = home / f"keycloak-{VERSION}" / "data" / "import"
        imports.mkdir(parents=True, exist_ok=True)
        shutil.copy(REALM_FILE, imports)
        command = [*script(home), "start", "--optimized", "--import-realm", "--cache=local", "--http-enabled=true"]
        command += ["--http-host=127.0.0.1", f"--http-port={self.port}", f"--hostname={self.url}"]
        environ = {
            **os.environ,
            "KC_BOOTSTRAP_ADMIN_USERNAME": ADMIN,
            "KC_BOOTSTRAP_ADMIN_PASSWORD": ADMIN,
            "JAVA_OPTS_KC_HEAP": f"-Xms64m -Xmx{self._heap_mb}m",
            # Only the quick compiler: it does not live long enough for the other to pay.
            "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1",
        }
        return JavaCommand(command, environ)
