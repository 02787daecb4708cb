"""One operation as a row of the spool, and the reading of files of such rows."""

import logging
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentic_backend.spool.walframes import has_commit

logger = logging.getLogger(__name__)

Kind = Literal["ask", "turn", "delete", "change", "done"]

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
_LETTER_COLUMNS = "id, kind, session_id, user_id, exchange_id, at, reason, body"
_ROW_TYPES = (int, str, str, str, str, float, int, bytes)
_LETTER_TYPES = (int, str, str, str, str, float, str, bytes)
INSERT = f"INSERT OR IGNORE INTO record ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class Row:
    """One operation as stored in the spool. `at` is seconds since the epoch, only for its age after a restart."""

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
        """A new row with the current time."""
        return cls(id_, kind, key[0], key[1], exchange_id, time.time(), zlib.crc32(body), body)

    @property
    def key(self) -> tuple[str, str]:
        """(session id, user id)."""
        return (self.session_id, self.user_id)

    @property
    def sound(self) -> bool:
        """Whether the body is unchanged since it was written: SQLite's pages have no checksums."""
        return zlib.crc32(self.body) == self.crc

    def values(self) -> tuple[object, ...]:
        """The parameters of `INSERT`."""
        return (self.id, self.kind, self.session_id, self.user_id, self.exchange_id, self.at, self.crc, self.body)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row without its body; `size` is the body's bytes."""

    id: int
    kind: Kind
    key: tuple[str, str]
    exchange_id: str
    at: float
    size: int


def look_into(path: Path) -> sqlite3.Connection:
    """Open a file with its log for reading, as a kill left them. Writes nothing, needs no disk space, takes no lock.

    SQLite otherwise begins by rebuilding the log's index, the file `-shm`: 32 KiB that a full disk does not have. In
    exclusive mode the index is in memory; the VFS `unix-none` takes no locks for that, so a person's SQLite shell does
    not block it. A log of which it reads nothing is left alone (`has_commit`). No other process may write meanwhile,
    and this one must close the connection before it opens the file for writing: closing a file drops the locks that
    the process has on it (POSIX).
    """
    how = "vfs=unix-none" if has_commit(path.with_name(path.name + "-wal")) else "immutable=1"
    uri = f"{path.absolute().as_uri()}?mode=ro&{how}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def in_memory() -> sqlite3.Connection:
    """A new spool in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables if they do not exist."""
    connection.executescript(_SCHEMA)


def is_begun(connection: sqlite3.Connection) -> bool:
    """Whether both tables exist: else nothing was ever written. Raises sqlite3.DatabaseError if damaged."""
    ((verdict,),) = connection.execute("PRAGMA quick_check(1)")
    if verdict != "ok":
        raise sqlite3.DatabaseError("quick_check")
    ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_schema WHERE name IN ('record', 'dead_letter')")
    return bool(tables == 2)


def index_of(connection: sqlite3.Connection) -> list[Entry]:
    """The pending records in order, without their bodies. Raises sqlite3.DatabaseError if a body is damaged."""
    entries = []
    for values in connection.execute(f"SELECT {_COLUMNS} FROM record ORDER BY id"):  # noqa: S608 - constants
        row = Row(*values)
        if not row.sound:
            raise sqlite3.DatabaseError("a record is not as it was written")
        if row.kind == "done":
            continue
        entries.append(Entry(row.id, row.kind, row.key, row.exchange_id, row.at, len(row.body)))
    return entries


def last_id(connection: sqlite3.Connection) -> int:
    """The highest id in use: an id is never reused, or a dead letter would hide another."""
    ((last,),) = connection.execute(
        "SELECT max(coalesce((SELECT max(id) FROM record), 0), coalesce((SELECT max(id) FROM dead_letter), 0))"
    )
    return int(last)


def ids_of(connection: sqlite3.Connection) -> set[int]:
    """The ids of all records and dead letters. Raises sqlite3.Error."""
    return {id_ for (id_,) in connection.execute("SELECT id FROM record UNION SELECT id FROM dead_letter")}


def rows_of(connection: sqlite3.Connection, ids: list[int]) -> list[Row]:
    """Those of the rows that exist, by ascending id. Raises sqlite3.Error."""
    marks = ",".join("?" * len(ids))
    query = f"SELECT {_COLUMNS} FROM record WHERE id IN ({marks}) ORDER BY id"  # noqa: S608 - question marks only
    return [Row(*values) for values in connection.execute(query, ids)]


def copy(rows: Iterable[Row], target: sqlite3.Connection) -> None:
    """Copy rows into another spool, in one transaction, without replacing existing ones. Raises sqlite3.Error."""
    target.execute("BEGIN IMMEDIATE")
    try:
        target.executemany(INSERT, (row.values() for row in rows))
        target.execute("COMMIT")
    except sqlite3.Error:
        if target.in_transaction:
            target.execute("ROLLBACK")
        raise


def copy_dead_letters(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Copy every dead letter that SQLite can still read into another spool."""
    letters = _readable(source, "dead_letter", _LETTER_COLUMNS, _LETTER_TYPES)
    with target:
        target.executemany("INSERT OR IGNORE INTO dead_letter VALUES (?, ?, ?, ?, ?, ?, ?, ?)", letters)


def readable(connection: sqlite3.Connection) -> Iterator[Row]:
    """Every row that SQLite can still read."""
    for values in _readable(connection, "record", _COLUMNS, _ROW_TYPES):
        yield Row(*values)


def is_row(values: tuple[Any, ...]) -> bool:
    """Whether these are the columns of a record, by their types."""
    return tuple(map(type, values)) == _ROW_TYPES


def _readable(
    connection: sqlite3.Connection, table: str, columns: str, types: tuple[type, ...]
) -> Iterator[tuple[Any, ...]]:
    """From both ends of a table up to the damage, then each id in between separately."""
    query = f"SELECT {columns} FROM {table}"  # noqa: S608 - constants
    seen: set[int] = set()
    ends = {}
    for direction in ("ASC", "DESC"):
        try:
            for values in connection.execute(f"{query} ORDER BY id {direction}"):
                if tuple(map(type, values)) != types:
                    continue
                ends[direction] = values[0]
                if values[0] in seen:
                    break
                seen.add(values[0])
                yield values
            else:
                return
        except sqlite3.Error as error:
            logger.info("%s can be read in part: %s", table, error)
    for id_ in range(ends["ASC"] + 1, ends["DESC"]) if len(ends) == 2 else ():
        try:
            found = connection.execute(f"{query} WHERE id = ?", (id_,)).fetchone()
        except sqlite3.Error:
            continue
        if found is not None and tuple(map(type, found)) == types:
            yield found
