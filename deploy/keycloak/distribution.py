"""Keycloak's distribution: downloaded once by Maven, checked, unpacked and built below `.tools/`."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.keycloak.errors import KeycloakFailed

VERSION = "26.7.3"
ARCHIVE = f"keycloak-quarkus-dist-{VERSION}.zip"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
PLACE = Path(".tools", "keycloak")
"""Below the checkout, beside uv: `make clean` removes it."""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy"
_DOWNLOAD_S = 900.0
_BUILD_S = 300.0


def installed(checkout: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """The directory of a Keycloak that is ready to start. The first call downloads 177 MB, which `say` is told.

    Processes that ask at once wait for the first. Raises `KeycloakFailed` where Java or Maven is missing or fails, or
    where the archive is not the one that is expected.
    """
    for program, package in (("java", "default-jre-headless"), ("mvn", "maven")):
        if shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
            raise KeycloakFailed(f"Keycloak needs {program} (Debian: apt-get install {package})")
    place = checkout / PLACE
    home = place / VERSION
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place / "lock"):
        if not home.exists():
            half = place / f"{VERSION}.new"
            shutil.rmtree(half, ignore_errors=True)
            _download(half, environ, say)
            _build(half, environ, say)
            half.rename(home)
    return home


def script(home: Path) -> list[str]:
    """The start of every command of the distribution in `home`."""
    return ["/bin/sh", str(home / f"keycloak-{VERSION}" / "bin" / "kc.sh")]


def _download(into: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    say(f"downloading Keycloak {VERSION} from Maven Central (177 MB, once)")
    command = ["mvn", "-q", "-B", "-C", _COPY, f"-Dartifact=org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"]
    _run([*command, f"-DoutputDirectory={into}"], environ, _DOWNLOAD_S, "Maven could not download Keycloak")
    archive = into / ARCHIVE
    # Maven checks what it downloads against its server; this against us.
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
            raise KeycloakFailed(f"{ARCHIVE} is not the file that is expected: its SHA-256 differs")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(into)
    archive.unlink()


def _build(home: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """What Keycloak would do at its first start; in memory is where its data is."""
    say("building Keycloak for quick starts (half a minute, once)")
    _run([*script(home), "build", "--db=dev-mem"], environ, _BUILD_S, "Keycloak could not be built")


def _run(command: list[str], environ: Mapping[str, str], limit_s: float, failure: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the person's own Maven, and what it brought
            command, env=dict(environ), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise KeycloakFailed(f"{failure} within {limit_s:.0f} s") from None
    if done.returncode != 0:
        words = " | ".join((done.stdout + done.stderr).splitlines()[-3:])
        raise KeycloakFailed(f"{failure}: {words}")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
