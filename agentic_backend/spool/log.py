"""SQLite's log of a spool's file: how its pages get into the database without the writer waiting for it."""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from agentic_backend.spool.spooldir import name_of
from agentic_backend.spool.spoolrows import Row
from backend_kit.aio.retry import QuietLog

logger = logging.getLogger(__name__)

Connect = Callable[[Path], sqlite3.Connection]

CHECKPOINT_PAGES = 1000
"""Pages of 4 KiB that commits add to the log before it is copied into the database. The reserve counts on it."""
_OVERLONG_PAGES = 4 * CHECKPOINT_PAGES
_PAGE = 4096
_PAGES_OF_A_COMMIT = 4
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"
_FLUSHES = ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC")


class Log:
    """The log of the file that is written now. One thread writes, another may copy beside it.

    A checkpoint flushes the log, copies it into the database and flushes that. Then commits begin at the start of the
    log again, unless some came meanwhile: where they always do, the log becomes `overlong`, and the writer itself has
    to copy the rest. `lock` is held while pages are copied, and by who closes, moves or removes the file.

    `failed` is the error of a flush that failed. The system may have dropped what that flush was for, acknowledged
    records too, and may call the next one a success: nothing more may be written to the file.
    """

    def __init__(self, connect_to: Connect) -> None:
        self._connect = connect_to
        self._quiet = QuietLog(logger)
        self._grown = 0
        self.lock = threading.Lock()
        self.overlong = False
        self.failed: sqlite3.Error | None = None

    def begin(self) -> None:
        """Note that another file is written from now on."""
        self._grown, self.overlong, self.failed = 0, False, None

    def grew(self, rows: Iterable[Row]) -> None:
        """Count rows that a commit inserted. Their removal writes as many pages, and is counted with them, as an upper
        bound."""
        self._grown += _PAGES_OF_A_COMMIT + sum(2 + 2 * len(row.body) // _PAGE for row in rows)

    def is_due(self) -> bool:
        """Whether enough has been added for a checkpoint; True once for each."""
        if self._grown < CHECKPOINT_PAGES:
            return False
        self._grown = 0
        return True

    def copy_beside(self, path: Path) -> None:
        """Copy what is in the log now, on a connection of its own, while the writer continues. Hold `lock`."""
        try:
            connection = self._connect(path)
        except (sqlite3.Error, OSError) as error:
            self._quiet.warning("open", "the log of the spool cannot be copied: %s", name_of(error))
            return
        try:
            self._copy(connection)
            # Again: what came meanwhile is little, and mostly nothing comes while that is copied. Then the log ends.
            self.overlong = self._copy(connection) >= _OVERLONG_PAGES
        finally:
            connection.close()

    def copy_rest(self, connection: sqlite3.Connection) -> None:
        """Copy all of it on the writer's connection: nothing is added meanwhile. Hold `lock`."""
        self.overlong = False
        self._copy(connection)

    def note(self, error: BaseException) -> None:
        """Remember an error of the file if it is that of a flush."""
        if isinstance(error, sqlite3.Error) and name_of(error) in _FLUSHES:
            self.failed = error

    def _copy(self, connection: sqlite3.Connection) -> int:
        """How many pages the log had. Where it cannot be copied, as on a full disk, it stays and only grows."""
        try:
            ((_, pages, _),) = connection.execute(_CHECKPOINT)
        except sqlite3.Error as error:
            self.note(error)
            self._quiet.warning("copy", "the log of the spool cannot be copied: %s", name_of(error))
            return 0
        return int(pages)
