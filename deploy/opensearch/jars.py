"""The jars of an OpenSearch node: resolved once by Maven, checked, kept below `.tools/`; and the Java to run them."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deploy.opensearch.errors import OpenSearchFailed

HERE = Path(__file__).parent
PLACE = Path(".tools", "opensearch")
"""Below the checkout, beside uv: `make clean` removes it."""
LEAST_JAVA = 17
KNN_ARCHIVE = "opensearch-knn-2.19.1.0.zip"
KNN_SHA256 = "eab8c9818865bc035212eab5068cdacae164baa09d4c152f49b736d6f6b0e85c"
DOWNLOAD_S = 600.0
_RESOLVE = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
_PACKAGE = "Debian: apt-get install default-jdk-headless"
_COMPILER = re.compile(r"^jdk\.compiler@(\d+)", re.MULTILINE)


def find_java(environ: Mapping[str, str]) -> Path:
    """The `java` of JAVA_HOME or PATH, of a JDK that is new enough. Raises `OpenSearchFailed` with the package."""
    name = shutil.which("java", path=_java_path(environ))
    if name is None:
        raise OpenSearchFailed(f"OpenSearch needs a JDK {LEAST_JAVA} or newer ({_PACKAGE})")
    done = subprocess.run([name, "--list-modules"], capture_output=True, text=True, check=False)  # noqa: S603 - the person's own Java
    found = _COMPILER.search(done.stdout)
    if found is None or int(found[1]) < LEAST_JAVA:
        what = "has no compiler" if found is None else f"is of version {found[1]}"
        raise OpenSearchFailed(f"OpenSearch needs a JDK {LEAST_JAVA} or newer, {name} {what} ({_PACKAGE})")
    return Path(name)


def class_path(
    checkout: Path, environ: Mapping[str, str], say: Callable[[str], None], *, knn_sha256: str = KNN_SHA256
) -> str:
    """The class path of the node, as Java takes it. The first call downloads 60 MB, which `say` is told.

    Processes that ask at once wait for the first. Raises `OpenSearchFailed` where Maven is missing or cannot resolve,
    or where the plugin is not the one of `knn_sha256`.
    """
    place = checkout / PLACE
    jars = place / hashlib.sha256((HERE / "pom.xml").read_bytes()).hexdigest()[:12]
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place / "lock"):
        if not jars.exists():
            _resolve(jars, environ, say, knn_sha256)
    return f"{jars}/*"


def _resolve(jars: Path, environ: Mapping[str, str], say: Callable[[str], None], knn_sha256: str) -> None:
    """Fill the directory. It gets its name once it is complete."""
    maven = shutil.which("mvn", path=environ.get("PATH", os.defpath))
    if maven is None:
        raise OpenSearchFailed("OpenSearch's jars come through Maven (Debian: apt-get install maven)")
    say("downloading the jars of OpenSearch from Maven Central (60 MB, once)")
    half = jars.with_name(f"{jars.name}.new")
    shutil.rmtree(half, ignore_errors=True)
    command = [maven, "-q", "-B", "-C", "-f", str(HERE / "pom.xml"), _RESOLVE]
    command += [f"-DoutputDirectory={half}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)  # noqa: S603 - as above
    except subprocess.TimeoutExpired:
        raise OpenSearchFailed(f"Maven did not download OpenSearch's jars within {DOWNLOAD_S:.0f} s") from None
    if done.returncode != 0:
        words = " | ".join((done.stdout + done.stderr).splitlines()[:3])
        raise OpenSearchFailed(f"Maven could not download OpenSearch's jars: {words}")
    _unpack(half / KNN_ARCHIVE, half, knn_sha256)
    half.rename(jars)


def _unpack(archive: Path, into: Path, sha256: str) -> None:
    """Take the jars out of the plugin's archive. Maven checks what it downloads against its server; this against us."""
    if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
        raise OpenSearchFailed(f"{KNN_ARCHIVE} is not the file that is expected: its SHA-256 differs")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(into, [name for name in opened.namelist() if name.endswith(".jar")])
    archive.unlink()


def _java_path(environ: Mapping[str, str]) -> str:
    path = environ.get("PATH", os.defpath)
    return f"{environ['JAVA_HOME']}/bin{os.pathsep}{path}" if environ.get("JAVA_HOME") else path


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
