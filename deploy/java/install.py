"""Installation of a server: downloaded once by Maven, verified, and kept below `.tools/`."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.java.server import JavaServerFailed

PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:2.8"
_DOWNLOAD_S: Final = 900.0


def require_program(program: str, package: str, wanted_by: str, environ: Mapping[str, str]) -> str:
    """The path of a program. Raises `JavaServerFailed`, which names the Debian package, if it is not on PATH."""
    found = shutil.which(program, path=environ.get("PATH", os.defpath))
    if found is None:
        raise JavaServerFailed(f"{program} is needed for {wanted_by} (Debian: apt-get install {package})")
    return found


def install_once(directory: Path, fill: Callable[[Path], None]) -> None:
    """Create a directory with the content that `fill` writes, unless it exists.

    It is renamed into place when complete, and concurrent callers wait for the first. Raises what `fill` raises.
    """
    place = directory.parent
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return
        half = place / f"{directory.name}.new"
        shutil.rmtree(half, ignore_errors=True)
        fill(half)
        half.rename(directory)


@dataclass(frozen=True, slots=True)
class MavenDownload:
    """A download by Maven: its arguments, a name for messages, and its size in MB."""

    arguments: list[str]
    name: str
    size_mb: int

    def put_into(self, directory: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Download it, announcing that through `say`. Raises `JavaServerFailed`."""
        maven = require_program("mvn", "maven", self.name, environ)
        say(f"downloading {self.name} from Maven Central ({self.size_mb} MB, once)")
        command = [maven, "-q", "-B", "-C", *self.arguments, f"-DoutputDirectory={directory}"]
        run_to_end(command, environ, _DOWNLOAD_S, f"Maven could not download {self.name}")


def check_sha256(archive: Path, expected: str) -> None:
    """Raise `JavaServerFailed` if the hash differs: Maven only verifies a download against its own server."""
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise JavaServerFailed(f"{archive.name} is not the file that is expected: its SHA-256 differs")


def run_to_end(command: list[str], environ: Mapping[str, str], limit_s: float, failure: str) -> None:
    """Run a program. Raises `JavaServerFailed` with its output if it fails or takes longer than `limit_s`."""
    try:
        done = subprocess.run(  # noqa: S603 - the person's own Maven, and what it brought
            command, env=dict(environ), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise JavaServerFailed(f"{failure} within {limit_s:.0f} s") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        errors = [line for line in lines if "ERROR" in line] or lines
        raise JavaServerFailed(f"{failure}: {' | '.join(errors[:3])}")
