"""Keycloak's distribution: downloaded once, checked, unpacked and built below `.tools/`."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.java.install import PLUGIN, MavenDownload, check_sha256, install_once, require_program, run_to_end

VERSION = "26.7.3"
ARCHIVE = f"keycloak-quarkus-dist-{VERSION}.zip"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
PLACE = Path(".tools", "keycloak")
"""Below the checkout, beside uv: `make clean` removes it."""
_BUILD_S = 300.0


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
