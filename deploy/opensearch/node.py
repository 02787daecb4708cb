"""An OpenSearch node on loopback, without TLS or users; its jars are downloaded once, checked, below `.tools/`."""

import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.java.install import PLUGIN, MavenDownload, check_sha256, install_once
from deploy.java.server import JavaCommand, JavaServer, JavaServerFailed

HERE = Path(__file__).parent
PLACE = Path(".tools", "opensearch")
"""Below the checkout, beside uv: `make clean` removes it."""
LEAST_JAVA = 17
KNN_ARCHIVE = "opensearch-knn-2.19.1.0.zip"
KNN_SHA256 = "eab8c9818865bc035212eab5068cdacae164baa09d4c152f49b736d6f6b0e85c"
_PACKAGE = "Debian: apt-get install default-jdk-headless"
_COMPILER = re.compile(r"^jdk\.compiler@(\d+)", re.MULTILINE)


def find_java(environ: Mapping[str, str]) -> Path:
    """The `java` of JAVA_HOME or PATH, of a JDK that is new enough. Raises `JavaServerFailed`, naming the package."""
    name = shutil.which("java", path=_java_path(environ))
    if name is None:
        raise JavaServerFailed(f"OpenSearch needs a JDK {LEAST_JAVA} or newer ({_PACKAGE})")
    done = subprocess.run([name, "--list-modules"], capture_output=True, text=True, check=False)  # noqa: S603 - the person's own Java
    found = _COMPILER.search(done.stdout)
    if found is None or int(found[1]) < LEAST_JAVA:
        what = "has no compiler" if found is None else f"is of version {found[1]}"
        raise JavaServerFailed(f"OpenSearch needs a JDK {LEAST_JAVA} or newer, {name} {what} ({_PACKAGE})")
    return Path(name)


def class_path(
    checkout: Path, environ: Mapping[str, str], say: Callable[[str], None], *, knn_sha256: str = KNN_SHA256
) -> str:
    """The class path of the node, as Java takes it. The first call downloads 60 MB and announces it through
    `say`; concurrent callers wait for it.

    Raises `JavaServerFailed` if Maven is missing or fails, or if the plugin does not match `knn_sha256`.
    """
    pom = HERE / "pom.xml"
    jars = checkout / PLACE / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]

    def fill(half: Path) -> None:
        resolve = ["-f", str(pom), f"{PLUGIN}:copy-dependencies", "-DincludeScope=runtime"]
        MavenDownload(resolve, "the jars of OpenSearch", 60).put_into(half, environ, say)
        archive = half / KNN_ARCHIVE
        check_sha256(archive, knn_sha256)
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(half, [name for name in opened.namelist() if name.endswith(".jar")])
        archive.unlink()

    install_once(jars, fill)
    return f"{jars}/*"


def _java_path(environ: Mapping[str, str]) -> str:
    path = environ.get("PATH", os.defpath)
    return f"{environ['JAVA_HOME']}/bin{os.pathsep}{path}" if environ.get("JAVA_HOME") else path


class OpenSearchNode(JavaServer):
    """A node on 127.0.0.1:`port` that keeps its data in `directory`. No TLS, no users.

    `start()` takes 6 to 16 s, and once the time of the download of its jars.
    `short_lived`: compiled quickly and not well, for tests.
    """

    name = "OpenSearch"
    ready_path = "/_cluster/health"

    def __init__(
        self, checkout: Path, directory: Path, port: int, *, heap_mb: int = 512, short_lived: bool = False
    ) -> None:
        self.directory = directory.absolute()
        super().__init__(checkout, self.directory / "node.log", port)
        self._heap_mb = heap_mb
        self._short_lived = short_lived

    def prepare(self, say: Callable[[str], None]) -> JavaCommand:
        """Install the jars and find a Java that runs `LocalNode.java` from source. Raises `JavaServerFailed`."""
        java = find_java(os.environ)
        jars = class_path(self.checkout, os.environ, say)
        command = [str(java), f"-Xms{self._heap_mb}m", f"-Xmx{self._heap_mb}m"]
        command += ["-XX:TieredStopAtLevel=1"] if self._short_lived else []
        command += ["-cp", jars, str(HERE / "LocalNode.java"), str(self.directory), str(self.port)]
        return JavaCommand(command, {"PATH": os.defpath, "LANG": "C.UTF-8"}, self.directory)
