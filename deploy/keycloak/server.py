"""Keycloak with our realm, on loopback and in memory."""

import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.java.install import PLUGIN, MavenDownload, check_sha256, install_once, require_program, run_to_end
from deploy.java.server import JavaCommand, JavaServer

VERSION = "26.7.3"
ARCHIVE = f"keycloak-quarkus-dist-{VERSION}.zip"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
PLACE = Path(".tools", "keycloak")
"""Below the checkout, beside uv: `make clean` removes it."""
_BUILD_S = 300.0
REALM = "turnwise"
REALM_FILE = Path(__file__).with_name("realm.json")
ADMIN = "admin"
"""Name and password of the administrator: it listens on this machine only, and forgets everything when it ends."""


def installed(checkout: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """The directory of a Keycloak that is ready to start. The first call downloads 177 MB and announces it through
    `say`; concurrent callers wait for it.

    Raises `JavaServerFailed` if Java or Maven is missing or fails, or if the archive is not the expected one.
    """
    require_program("java", "default-jre-headless", "Keycloak", environ)
    home = checkout / PLACE / VERSION

    def fill(half: Path) -> None:
        artifact = f"-Dartifact=org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
        MavenDownload([f"{PLUGIN}:copy", artifact], f"Keycloak {VERSION}", 177).put_into(half, environ, say)
        archive = half / ARCHIVE
        check_sha256(archive, SHA256)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(half)
        archive.unlink()
        # Keycloak would otherwise do this at its first start; its data is in memory.
        say("building Keycloak for quick starts (half a minute, once)")
        run_to_end([*script(half), "build", "--db=dev-mem"], environ, _BUILD_S, "Keycloak could not be built")

    install_once(home, fill)
    return home


def script(home: Path) -> list[str]:
    """The start of every command of the distribution in `home`."""
    return ["/bin/sh", str(home / f"keycloak-{VERSION}" / "bin" / "kc.sh")]


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
