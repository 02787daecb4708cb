"""Where an upload lies on disk until its document is in the index: one directory a file, under names that we make."""

import asyncio
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "turnwise-ingest-"
_STALE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one upload. No part of their names comes from a client."""

    path: Path

    @property
    def raw(self) -> Path:
        """The bytes that were uploaded."""
        return self.path / "raw"

    @property
    def content(self) -> Path:
        """The canonical text, UTF-8, written by the parsing child."""
        return self.path / "content.txt"

    @property
    def chunks(self) -> Path:
        """The chunks, a batch a line (`ingest.work.Job`)."""
        return self.path / "chunks.jsonl"


class Staging:
    """A private directory of this process. What touches the disk runs in a thread; OSError is the caller's to name."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._directory: Path | None = None

    async def open(self) -> None:
        """Make the directory, and remove those that killed processes left more than a day ago."""
        self._directory = await asyncio.to_thread(self._make)

    async def folder(self) -> Folder:
        """An empty folder for one file."""
        if self._directory is None:
            raise RuntimeError("the staging directory is not open")
        return Folder(Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._directory)))

    async def drop(self, folder: Folder) -> None:
        """Remove a folder; one that is gone already is no error."""
        await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)

    async def aclose(self) -> None:
        """Remove the directory."""
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory = None

    def _make(self) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        limit = time.time() - _STALE_S
        for left in self._root.glob(f"{PREFIX}*"):
            with suppress(FileNotFoundError):  # another process of the service clears up too
                if left.stat().st_mtime < limit:
                    shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._root))
