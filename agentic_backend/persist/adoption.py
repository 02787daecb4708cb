"""Spools of workers that do not come back: a sibling writes their content to Postgres."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from agentic_backend.spool.spooldir import SpoolLock, SpoolTaken, SpoolUnusable
from backend_kit.aio.retry import QuietLog

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
DEAD_S: Final = 30.0
"""A worker that is restarted takes its spool within some seconds; after this long it will not come back."""


class WritesSpool(Protocol):
    """Writes all of a spool to Postgres: `Persistence.write_out`."""

    async def __call__(self, lock: SpoolLock) -> bool:
        """Whether nothing is left in the spool that is locked; releases it."""


class Adoption:
    """Looks for spools that no worker has, and empties them.

    The spools of a service are `base` and `base/worker-N`. One above `workers`, from a start with more of them, belongs
    to nobody; any other one does once it has been free for `dead_s` seconds. `write_out` empties one, and `gone` is
    then called with its directory: its former owner has no turn left that only its spool knows.
    """

    def __init__(
        self,
        base: Path,
        own: Path,
        workers: int,
        write_out: WritesSpool,
        gone: Callable[[Path], Awaitable[None]],
        *,
        dead_s: float = DEAD_S,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base = base
        self._own = own
        self._workers = workers
        self._write_out = write_out
        self._gone = gone
        self._dead_s = dead_s
        self._look_s = look_s
        self._clock = clock
        self._free_since: dict[Path, float] = {}
        self._emptied: dict[Path, int] = {}
        self._log = QuietLog(logger)

    async def adopt_spools(self) -> None:
        """Look until cancelled. Spawn it with `restart=True`."""
        while True:
            await self.look()
            await asyncio.sleep(self._look_s)

    async def look(self) -> None:
        """Look once."""
        for directory in await asyncio.to_thread(self._left):
            await self._adopt(directory)

    def _left(self) -> list[Path]:
        """Those that are to be emptied now."""
        left = []
        for directory in [self._base, *sorted(self._base.glob("worker-*"))]:
            if directory == self._own:
                continue
            if not self._is_free(directory):
                self._free_since.pop(directory, None)
                continue
            # Looked at only while it is free: the files of one in use come and go.
            if self._emptied.get(directory) == _written_ns(directory):
                continue
            since = self._free_since.setdefault(directory, self._clock())
            if self._is_of_nobody(directory) or self._clock() - since >= self._dead_s:
                left.append(directory)
        return left

    def _is_of_nobody(self, directory: Path) -> bool:
        number = directory.name.removeprefix("worker-")
        return directory != self._base and number.isdigit() and int(number) >= self._workers

    @staticmethod
    def _is_free(directory: Path) -> bool:
        if not any(directory.glob("spool-*")):
            return False
        with suppress(SpoolTaken, SpoolUnusable):
            SpoolLock(directory).release()
            return True
        return False

    async def _adopt(self, directory: Path) -> None:
        try:
            lock = await asyncio.to_thread(SpoolLock, directory)
        except (SpoolTaken, SpoolUnusable):
            return
        self._log.warning(
            str(directory), "the spool %s is of a worker that does not come back: it is written to Postgres", directory
        )
        try:
            empty = await self._write_out(lock)
        except (sqlite3.Error, OSError) as error:
            lock.release()
            self._log.warning(f"{directory} read", "the spool %s cannot be read: %s", directory, type(error).__name__)
            return
        if empty:
            await self._gone(directory)
            self._emptied[directory] = await asyncio.to_thread(_written_ns, directory)


def _written_ns(directory: Path) -> int:
    """When a spool was written last."""
    newest = 0
    for path in directory.glob("spool-*"):
        with suppress(FileNotFoundError):  # a worker has taken it since, and begun a new file
            newest = max(newest, path.stat().st_mtime_ns)
    return newest
