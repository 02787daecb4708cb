"""Where an upload lies on disk until its document is in the index: one directory a file, under names that we make."""

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from knowledge_flow_backend.errors import DiskRefuses

logger = logging.getLogger(__name__)

PREFIX = "turnwise-ingest-"
PIECE_BYTES = 1024 * 1024
_LOCK = "lock"


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

    @property
    def vectors(self) -> Path:
        """The vectors of the chunks, float32."""
        return self.path / "vectors.f32"


class Staging:
    """A private directory of this process. Work on the disk runs in a thread and raises OSError."""

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._directory: Path | None = None
        self._lock: IO[bytes] | None = None
        self._making = threading.Lock()

    async def open(self) -> None:
        """Create the directory, and remove those that killed processes left."""
        await asyncio.to_thread(self._make)

    async def folder(self) -> Folder:
        """An empty folder for one file. Raises RuntimeError before `open`."""
        if self._directory is None:
            raise RuntimeError("the staging directory is not open")
        return Folder(Path(await asyncio.to_thread(self._make_folder)))

    def refusal(self, error: OSError) -> DiskRefuses:
        """The error for the client if the disk did not take a file; one log line tells the operator about the disk."""
        reason = os.strerror(error.errno or 0)
        logger.error("an upload could not be written below %s: %s; TMPDIR names another place", self._root, reason)
        return DiskRefuses(reason)

    def unmade(self) -> Folder:
        """The name of a folder that does not exist, for a file whose bytes are elsewhere. Raises RuntimeError before
        `open`."""
        if self._directory is None:
            raise RuntimeError("the staging directory is not open")
        return Folder(self._directory / "unmade")

    async def restore(self, folder: Folder, pieces: AsyncIterator[bytes]) -> None:
        """Put the file of an empty folder together from these pieces; raises what they raise."""
        with await asyncio.to_thread(folder.raw.open, "xb") as file:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)

    async def pieces(self, folder: Folder) -> AsyncIterator[bytes]:
        """The bytes that were uploaded, some at a time."""
        with await asyncio.to_thread(folder.raw.open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def drop(self, folder: Folder) -> None:
        """Remove a folder; one that is gone already is no error."""
        await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)

    async def aclose(self) -> None:
        """Remove the directory."""
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
            self._directory = None
        if self._lock is not None:
            self._lock.close()

    def _make_folder(self) -> str:
        try:
            return tempfile.mkdtemp(dir=self._directory)
        except FileNotFoundError:
            self._make_again()
            return tempfile.mkdtemp(dir=self._directory)

    def _make_again(self) -> None:
        """Make another directory: what clears up temporary directories may take one in which long nothing came."""
        with self._making:
            if self._directory is None or self._directory.exists():  # closed, or made by another thread
                return
            logger.warning("the directory of received files has been removed: making another one")
            if self._lock is not None:
                self._lock.close()
            self._make()

    def _make(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        for left in self._root.glob(f"{PREFIX}*"):
            with suppress(OSError), (left / _LOCK).open("rb") as lock:  # another process may clear up too
                # The owner of the directory holds the lock while it lives.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        # Under another name until it is locked, so that nobody takes it for an abandoned one.
        made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=self._root))
        self._lock = (made / _LOCK).open("xb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._directory = made.rename(self._root / made.name.removeprefix("."))
