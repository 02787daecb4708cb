"""A disk of its own for a test, small enough to be filled to its last byte."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoRight(Exception):
    """This process may not mount a file system."""


@contextmanager
def small_disk(place: Path, mib: int) -> Iterator[Path]:
    """A tmpfs of so many MiB at `place`, which is made. Raises `NoRight`."""
    place.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        raise NoRight
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take the last byte of a disk; the file that has it."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return filler


class Neighbour:
    """Somebody else on the disk, who takes every byte as soon as it is free. A context manager."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)

    def __enter__(self) -> "Neighbour":
        fill(self._place)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Take no more, and give back all that was taken. A second call does nothing."""
        self._enough.set()
        if self._thread.ident is not None:
            self._thread.join()
        (self._place / "filler").unlink(missing_ok=True)

    def _take(self) -> None:
        while not self._enough.wait(0.002):
            fill(self._place)
