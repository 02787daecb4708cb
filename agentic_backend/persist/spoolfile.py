"""The spool on disk: one SQLite file in a directory with one owner, its rows, and what is saved of a damaged one."""

import contextlib
import fcntl
import logging
import os
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

logger = logging.getLogger(__name__)

Kind = Literal["ask", "turn", "delete", "change", "done"]
Connect = Callable[[Path], sqlite3.Connection]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, session_id TEXT NOT NULL, user_id TEXT NOT NULL,
    exchange_id TEXT NOT NULL, at REAL NOT NULL, crc INTEGER NOT NULL, body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS dead_letter (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, session_id TEXT NOT NULL, user_id TEXT NOT NULL,
    exchange_id TEXT NOT NULL, at REAL NOT NULL, reason TEXT NOT NULL, body BLOB NOT NULL
) STRICT;
"""
_COLUMNS = "id, kind, session_id, user_id, exchange_id, at, crc, body"
INSERT = f"INSERT OR IGNORE INTO record ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants
BURY = """INSERT OR IGNORE INTO dead_letter (id, kind, session_id, user_id, exchange_id, at, reason, body)
SELECT id, kind, session_id, user_id, exchange_id, at, ?, body FROM record WHERE id = ?"""
DELETE = "DELETE FROM record WHERE id = ?"
EMPTY = """UPDATE record SET kind = 'done', session_id = '', user_id = '', exchange_id = '', crc = 0, body = x''
WHERE id = ?"""
FORGET = "DELETE FROM dead_letter WHERE session_id = ? AND user_id = ?"

_BUSY_MS = 5000
_SHRINK_ABOVE_BYTES = 64 * 1024 * 1024
_SHRINK_BELOW_RECORDS = 1000


class SpoolTaken(Exception):
    """Another process owns the directory. `str()` is one line for the operator."""


class SpoolUnusable(Exception):
    """The directory cannot be made or written. `str()` is one line for the operator."""


class SpoolLock:
    """The ownership of a spool directory: the kernel's lock on a file in it, gone with the process that holds it.

    Makes the directory (mode 0700). Raises `SpoolTaken` or `SpoolUnusable`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: int | None = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SpoolUnusable(
                f"cannot use the spool directory {directory}: {os.strerror(error.errno or 0)}"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise SpoolTaken(f"another process uses the spool directory {directory}") from None

    def release(self) -> None:
        """Let another process have the directory. A second call has no effect."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, slots=True)
class Row:
    """One operation as it lies in the spool. `at` is seconds since the epoch, only to tell its age after a restart."""

    id: int
    kind: Kind
    session_id: str
    user_id: str
    exchange_id: str
    at: float
    crc: int
    body: bytes

    @classmethod
    def of(cls, id_: int, kind: Kind, key: tuple[str, str], exchange_id: str, body: bytes) -> "Row":
        """A new row of now."""
        return cls(id_, kind, key[0], key[1], exchange_id, time.time(), zlib.crc32(body), body)

    @property
    def key(self) -> tuple[str, str]:
        """(session id, user id)."""
        return (self.session_id, self.user_id)

    @property
    def sound(self) -> bool:
        """Whether the body is as it was written: SQLite itself has no checksums on its pages."""
        return zlib.crc32(self.body) == self.crc

    def values(self) -> tuple[object, ...]:
        """The parameters of `INSERT`."""
        return (self.id, self.kind, self.session_id, self.user_id, self.exchange_id, self.at, self.crc, self.body)


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a row without its body; `size` is the body's bytes."""

    id: int
    kind: Kind
    key: tuple[str, str]
    exchange_id: str
    at: float
    size: int


def connect(path: Path) -> sqlite3.Connection:
    """Open a spool file, made with mode 0600 where it is new. Any thread may use it, one at a time."""
    # Only where it is new: to close a file drops all locks that the process has on it (POSIX), those of the other
    # connection too, and a person's shell would take the log for nobody's and remove it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit returns after its fsync, so that it survives the host and not only the process.
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class SpoolFile:
    """The current file of a directory. Blocking; one thread at a time but for `read`, which has its own connection.

    A file that is found damaged, or whose disk reports an error, is never emptied or written on: what can be read of
    it is copied into a new file, and the old one is kept beside it as `.corrupt` for a person to look at.

    SQLite takes the end of a damaged log for one that was never written. So the number of the newest committed record
    is kept in a file beside it, and that record stays until there is a newer one, emptied once it is done: where it is
    missing at a start, the end of the spool is.
    """

    def __init__(self, directory: Path, connect_to: Connect = connect) -> None:
        self._directory = directory
        self._connect = connect_to
        self.set_aside = 0
        self.lost = 0
        self._mark = os.open(directory / "newest", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._kept: list[int] = []
        files = sorted(directory.glob("spool-*.sqlite"))
        self._path = files[-1] if files else self._new_path()
        log_copy = self._copy_of_log()
        self._connection = self._open_or_salvage()
        for older in files[:-1]:
            # Left by a replacement that was cut short: the newer file may hold the same rows already.
            self._rescue(self._put_aside(older), self._connection)
        self.entries = _index(self._connection)
        self.last_id = self._newest_checked(log_copy)
        self._newest = self.last_id
        self._reader = self._connect(self._path)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file on disk, log included."""
        return sum(path.stat().st_size for path in self._files() if path.exists())

    def write(
        self,
        inserts: Iterable[Row],
        removed: Iterable[int],
        buried: Iterable[tuple[str, int]],
        forgotten: Iterable[tuple[str, str]] = (),
    ) -> int:
        """One transaction; it is on disk when this returns. Raises sqlite3.Error, then nothing of it is.

        `forgotten` are sessions whose dead letters are removed; returns how many those were.
        """
        connection = self._connection
        rows = list(inserts)
        newest = rows[-1].id if rows else self._newest
        gone = [*self._kept, *removed]
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(INSERT, [row.values() for row in rows])
            for reason, id_ in buried:
                connection.execute(BURY, (reason, id_))
                connection.execute(DELETE, (id_,))
            connection.executemany(DELETE, [(id_,) for id_ in gone if id_ != newest])
            if newest in gone:
                connection.execute(EMPTY, (newest,))
            letters = sum(connection.execute(FORGET, key).rowcount for key in forgotten)
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._kept = [newest] if newest in gone else []
        self._newest = newest
        if rows:
            self._set_mark(newest)
        return letters

    def read(self, ids: list[int]) -> list[Row]:
        """The rows that are still there, ascending id. Raises sqlite3.Error."""
        marks = ",".join("?" * len(ids))
        query = f"SELECT {_COLUMNS} FROM record WHERE id IN ({marks}) ORDER BY id"  # noqa: S608 - question marks only
        return [Row(*values) for values in self._reader.execute(query, ids)]

    def dead_letters(self) -> int:
        """How many records were given up on and are kept for a person."""
        ((count,),) = self._reader.execute("SELECT count(*) FROM dead_letter")
        return int(count)

    def replace(self) -> None:
        """Go on in a new file, after an error of the disk: what a failed flush left in the old one is not known.

        Raises sqlite3.Error or OSError where no new file can be written; then the old one stays.
        """
        old, connection, reader = self._path, self._connection, self._reader
        path = self._new_path()
        fresh = self._connect(path)
        try:
            _prepare(fresh)
            _copy(self._sound(_readable(reader)), fresh)
            _copy_dead_letters(reader, fresh)
            new_reader = self._connect(path)
        except (sqlite3.Error, OSError):
            fresh.close()
            _unlink(path)
            raise
        self._path, self._connection, self._reader = path, fresh, new_reader
        for closing in (reader, connection):
            _close(closing)
        self._put_aside(old)

    def close(self) -> None:
        """Close the file. What it holds stays, but for a record that only showed that nothing is missing."""
        try:
            self._connection.executemany(DELETE, [(id_,) for id_ in self._kept])
            self._set_mark(_last_id(self._connection))
        except (sqlite3.Error, OSError) as error:
            logger.warning("the spool's last record is left in it: %s", type(error).__name__)
        _close(self._reader)
        _close(self._connection)
        os.close(self._mark)

    def _set_mark(self, newest: int) -> None:
        """Without a flush: it may be behind the commit, never before it, and outlives a kill."""
        os.pwrite(self._mark, b"%020d" % newest, 0)

    def _copy_of_log(self) -> Path | None:
        """The log as a process that was killed left it, before SQLite takes it in."""
        log = self._path.with_name(self._path.name + "-wal")
        if not log.exists() or not log.stat().st_size:
            return None
        copy = self._directory / "log-before-start"
        shutil.copyfile(log, copy)
        return copy

    def _newest_checked(self, log_copy: Path | None) -> int:
        """The number of the newest record that was ever here; an alarm where it is not here any more."""
        here = _last_id(self._connection)
        noted = os.pread(self._mark, 20, 0)
        newest = int(noted) if noted.isdigit() else 0
        if newest > here and not self.set_aside:
            aside = self._put_copy_aside(log_copy)
            logger.error(
                "ALARM the end of the spool is missing: the newest record here is %d, %d had been committed; "
                "what could be read is kept, the file before it is kept as %s",
                here,
                newest,
                aside.name,
            )
            self._set_mark(here)
        elif log_copy is not None and self.set_aside:
            self._put_copy_aside(log_copy)
        elif log_copy is not None:
            log_copy.unlink()
        return max(here, newest)

    def _put_copy_aside(self, log_copy: Path | None) -> Path:
        """Keep what there was before the start: the log where there was one, else the file as it is."""
        if self.set_aside == 0:
            self.set_aside = 1
        aside = self._directory / f"{self._path.name}-wal.{time.time_ns()}.corrupt"
        if log_copy is not None:
            log_copy.rename(aside)
            return aside
        aside = self._directory / f"{self._path.name}.{time.time_ns()}.corrupt"
        shutil.copyfile(self._path, aside)
        return aside

    def _open_or_salvage(self) -> sqlite3.Connection:
        connection = None
        try:
            connection = self._connect(self._path)
            _prepare(connection)
            _check(connection)
            _shrink(connection, self._path, len(_index(connection)))
        except sqlite3.DatabaseError as error:
            if connection is not None:
                _close(connection)
            return self._salvage(error)
        return connection

    def _salvage(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        aside = self._put_aside(self._path)
        self._path = self._new_path()
        connection = self._connect(self._path)
        _prepare(connection)
        self._rescue(aside, connection)
        logger.error(
            "ALARM the spool was damaged (%s): %d records could be read, %d of them were not as written; "
            "the file is kept as %s",
            error,
            len(_index(connection)),
            self.lost,
            aside.name,
        )
        return connection

    def _rescue(self, source: Path, target: sqlite3.Connection) -> None:
        """Copy what can be read of a file that was set aside, as far as it is as it was written."""
        damaged = sqlite3.connect(source, isolation_level=None)
        try:
            # Without it SQLite reads nothing of a file that is shorter than its header says.
            damaged.execute("PRAGMA writable_schema = ON")
            _copy(self._sound(_readable(damaged)), target)
            _copy_dead_letters(damaged, target)
        finally:
            _close(damaged)

    def _sound(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.sound:
                yield row
            else:
                self.lost += 1

    def _put_aside(self, path: Path) -> Path:
        """Rename a file with its log; SQLite finds the log by the file's name."""
        aside = path.with_name(f"{path.name}.{time.time_ns()}.corrupt")
        self.set_aside += 1
        for suffix in ("-wal", "-shm", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def _new_path(self) -> Path:
        taken = [int(path.name[6:12]) for path in self._directory.glob("spool-*.sqlite*")]
        return self._directory / f"spool-{max(taken, default=0) + 1:06d}.sqlite"

    def _files(self) -> list[Path]:
        return [self._path, self._path.with_name(self._path.name + "-wal")]


def _prepare(connection: sqlite3.Connection) -> None:
    connection.executescript(_SCHEMA)


def _check(connection: sqlite3.Connection) -> None:
    ((verdict,),) = connection.execute("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise sqlite3.DatabaseError("quick_check")


def _index(connection: sqlite3.Connection) -> list[Entry]:
    """What waits, in order, each body read once and let go. Raises sqlite3.DatabaseError where one is damaged."""
    entries = []
    for values in connection.execute(f"SELECT {_COLUMNS} FROM record ORDER BY id"):  # noqa: S608 - constants
        row = Row(*values)
        if not row.sound:
            raise sqlite3.DatabaseError("a record is not as it was written")
        if row.kind == "done":
            continue
        entries.append(Entry(row.id, row.kind, row.key, row.exchange_id, row.at, len(row.body)))
    return entries


def _last_id(connection: sqlite3.Connection) -> int:
    """The highest id in use: a number is never given twice, or a dead letter would hide another."""
    ((last,),) = connection.execute(
        "SELECT max(coalesce((SELECT max(id) FROM record), 0), coalesce((SELECT max(id) FROM dead_letter), 0))"
    )
    return int(last)


def _shrink(connection: sqlite3.Connection, path: Path, records: int) -> None:
    """Give the disk back what an outage had taken, where little is left to copy."""
    if path.stat().st_size > _SHRINK_ABOVE_BYTES and records < _SHRINK_BELOW_RECORDS:
        connection.execute("VACUUM")


def _copy(rows: Iterable[Row], target: sqlite3.Connection) -> None:
    target.execute("BEGIN IMMEDIATE")
    try:
        target.executemany(INSERT, (row.values() for row in rows))
        target.execute("COMMIT")
    except sqlite3.Error:
        if target.in_transaction:
            target.execute("ROLLBACK")
        raise


def _copy_dead_letters(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    try:
        letters = source.execute("SELECT * FROM dead_letter").fetchall()
    except sqlite3.Error as error:
        logger.error("ALARM the dead letters of a damaged spool cannot be read: %s", error)
        return
    with target:
        target.executemany("INSERT OR IGNORE INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?, ?)", letters)


def _readable(connection: sqlite3.Connection) -> Iterator[Row]:
    """Every row that SQLite can still read: from both ends to the damage, then each id between them by itself."""
    seen: set[int] = set()
    ends = {}
    for direction in ("ASC", "DESC"):
        try:
            for values in connection.execute(f"SELECT {_COLUMNS} FROM record ORDER BY id {direction}"):  # noqa: S608 - constants
                if not _is_row(values):
                    continue
                ends[direction] = values[0]
                if values[0] in seen:
                    break
                seen.add(values[0])
                yield Row(*values)
            else:
                return
        except sqlite3.Error:
            continue
    if len(ends) == 2:
        yield from _each(connection, ends["ASC"] + 1, ends["DESC"])


def _each(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Row]:
    for id_ in range(first, last):
        try:
            values = connection.execute(f"SELECT {_COLUMNS} FROM record WHERE id = ?", (id_,)).fetchone()  # noqa: S608 - constants
        except sqlite3.Error:
            continue
        if values is not None and _is_row(values):
            yield Row(*values)


def _is_row(values: tuple[object, ...]) -> bool:
    return tuple(map(type, values)) == (int, str, str, str, str, float, int, bytes)


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except sqlite3.Error as error:
        logger.warning("closing a spool file failed: %s", type(error).__name__)


def _unlink(path: Path) -> None:
    for suffix in ("-wal", "-shm", ""):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
