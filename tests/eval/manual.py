"""Finds the Python manual as Debian packages it, and says which of its pages are documents."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

PACKAGE: Final = "python3-doc"
INDEX: Final = "genindex-all.html"
_INSTALLED: Final = Path("/usr/share/doc")
# The index itself and what else only lists the manual's own headings and names.
_NO_DOCUMENTS: Final = re.compile(r"(genindex.*|py-modindex|search|contents)\.html")


class NoManual(Exception):
    """There is no manual to be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page. `path` is relative to the manual, as its links name it."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Manual:
    """`root` holds the HTML files."""

    root: Path

    @property
    def version(self) -> str:
        """Of Python, as the pages say."""
        found = re.search(r"(\d+\.\d+\.\d+) Documentation", (self.root / "index.html").read_text())
        return found[1] if found else "unknown"

    def index(self) -> str:
        """The page with every entry of the index."""
        return (self.root / INDEX).read_text()

    def pages(self, *, share: float = 1.0) -> list[Page]:
        """The documents, in order of their paths; of a smaller share always the same ones."""
        files = sorted(path for path in self.root.rglob("*.html") if not _NO_DOCUMENTS.fullmatch(path.name))
        named = [(path.relative_to(self.root).as_posix(), path) for path in files]
        return [Page(name, path.read_bytes()) for name, path in named if crc32(name.encode()) < share * 2**32]


def find(given: Path | None, cache: Path) -> Manual:
    """The manual at `given`, else an installed one, else the package's, fetched once and unpacked below `cache`.

    Nothing is installed. Raises `NoManual`.
    """
    if given is not None:
        if not (given / INDEX).is_file():
            raise NoManual(f"{given} holds no {INDEX}: name the html directory of the manual")
        return Manual(given)
    found = _newest(_INSTALLED) or _newest(cache)
    if found is None:
        _fetch(cache)
        found = _newest(cache)
    if found is None:
        raise NoManual(f"the package {PACKAGE} brings no {INDEX}")
    return Manual(found)


def _newest(below: Path) -> Path | None:
    found = sorted(path.parent for path in below.glob(f"**/python3*/html/{INDEX}"))
    return found[-1] if found else None


def _fetch(cache: Path) -> None:
    """Unpack what the package depends on: it is a name for the manual of the distribution's Python."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoManual(f"no manual in {_INSTALLED}: install {PACKAGE}, or name its html directory with --manual")
    cache.mkdir(parents=True, exist_ok=True)
    try:
        depends = _run(["apt-cache", "depends", "--important", PACKAGE], cache)
        package = next(iter(re.findall(r"Depends: (python[0-9.]+-doc)", depends)), PACKAGE)
        _run(["apt-get", "download", package], cache)
        for archive in cache.glob("*.deb"):
            _run(["dpkg-deb", "-x", archive.name, "unpacked"], cache)
            archive.unlink()
    except subprocess.CalledProcessError as error:
        raise NoManual(f"{' '.join(error.cmd)}: {error.stderr.strip()} (install {PACKAGE} by hand)") from None


def _run(command: list[str], where: Path) -> str:
    return subprocess.run(command, cwd=where, check=True, capture_output=True, text=True).stdout
