"""The spool's file: one SQLite database, read before it is written to, and the recovery of a damaged one."""

import contextlib
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentic_backend.spool.log import Connect, Log
from agentic_backend.spool.spooldir import Mark, Reserve, copy_privately, identity, name_of
from agentic_backend.spool.spoolrows import (
    INSERT,
    Entry,
    Row,
    copy,
    copy_dead_letters,
    ids_of,
    in_memory,
    index_of,
    is_begun,
    last_id,
    look_into,
    prepare,
    readable,
    rows_of,
)
from agentic_backend.spool.walrows import Behind, read_behind

logger = logging.getLogger(__name__)

_BURY = """INSERT OR IGNORE INTO dead_letter (id, kind, session_id, user_id, exchange_id, at, reason, body)
SELECT id, kind, session_id, user_id, exchange_id, at, ?, body FROM record WHERE id = ?"""
_DELETE = "DELETE FROM record WHERE id = ?"
_DELETE_THROUGH = "DELETE FROM record WHERE id <= ? AND id <> ?"
_EMPTY = """UPDATE record SET kind = 'done', session_id = '', user_id = '', exchange_id = '', crc = 0, body = x''
WHERE id = ?"""
_FORGET = "DELETE FROM dead_letter WHERE session_id = ? AND user_id = ?"
_WAITING = "SELECT id FROM record WHERE id > ? AND kind <> 'done' ORDER BY id"

_BUSY_MS = 5000
_FREE_AT_START = 64 * 1024 * 1024
_FREE_WHEN_LOW = 1024 * 1024
_MOSTLY = 7 / 8
_SUFFIXES = ("", "-shm", "-wal")


def connect(path: Path) -> sqlite3.Connection:
    """Open a spool file, creating it with mode 0600. Any thread may use it, one at a time. Raises sqlite3.Error."""
    # Only if it is new: closing a file drops all locks that the process has on it (POSIX), also those of the other
    # connection, and then a person's SQLite shell would consider the log unused and remove it.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit returns after its fsync, so that it survives the host and not only the process.
        connection.execute("PRAGMA synchronous = FULL")
        # Else a commit that makes the log long would copy it, with two flushes more, before it returns.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class SpoolFile:
    """The current file of a directory. Blocking; one thread at a time except for `read` and `checkpoint`, which have
    connections of their own.

    A start has two steps. First the file is read without writing a byte (`look_into`); `entries` are the pending
    records. Then it is opened for writing. If the disk has no room for that the reserve is released; if that is not
    enough `trouble` says why, everything can still be read, and `take_up` should be tried again.

    A file that is damaged, or whose disk reports an error, is never emptied or written to: its readable records are
    copied into a new file, and the old one is kept beside it as `.corrupt` for inspection. SQLite reads its log up to
    the first damaged frame; what is behind that is read here (`walrows`), `damaged_frames` counts what could not be.

    Only commits that somebody waits for are flushed; the others reach the disk with the next of these. The log is one
    sequence, so that what a power loss leaves are the commits up to some point, all those that were flushed included.

    SQLite mistakes the damaged end of a log for one that was never written. So the number of the newest flushed record
    is kept in a separate file, and that record stays, emptied once done, until there is a newer one: if it is missing
    at a start, the end of the spool is lost.
    """

    def __init__(self, directory: Path, connect_to: Connect = connect) -> None:
        self._directory = directory
        self._connect = connect_to
        self.set_aside = 0
        self.lost = 0
        self.damaged_frames = 0
        self.trouble: str | None = None
        self.reserve = Reserve(directory)
        self.log = Log(connect_to)
        self._mark = Mark(directory / "newest")
        self._kept: list[int] = []
        self._unflushed = 0
        self._flushes: bool | None = None
        self._connection: sqlite3.Connection | None = None
        self._path: Path | None = None
        self._places: list[tuple[int, int] | None] = []
        self._old: list[Path] = []
        self._evidence: tuple[Path, Path] | None = None
        self._in_memory = False
        self._reader, entries = self._look(sorted(directory.glob("spool-*.sqlite")))
        self.entries = [entry for entry in entries if entry.id > self._mark.done]
        here = last_id(self._reader)
        self._check_newest_record(here)
        self.last_id = max(here, self._mark.newest, self._mark.done)
        self._newest = self.last_id
        self._here = here
        self._begin()

    @property
    def writable(self) -> bool:
        """Whether it is open for writing."""
        return self._connection is not None

    @property
    def in_place(self) -> bool:
        """Whether its files are still those of their names. What is written to files that were removed, by hand or by
        what clears up temporary directories, ends with this process."""
        path, places = self._path, self._places
        return path is None or not places or places == _places(path)

    def take_up(self) -> None:
        """Open the file for writing. Raises sqlite3.Error or OSError, and then changes nothing."""
        self._mark.take_up()
        self._keep_evidence()
        path = self._path or self._new_path()
        if not self._in_memory:
            _close(self._reader)  # before the file is opened to write, see `look_into`
        writer = None
        try:
            writer = self._connect(path)
            prepare(writer)
            if self._in_memory and self._here:
                copy(readable(self._reader), writer)
                copy_dead_letters(self._reader, writer)
            reader = self._connect(path)
        except (sqlite3.Error, OSError):
            if writer is not None:
                _close(writer)
            if self._path is None:
                _unlink(path)
            elif not self._in_memory:
                self._reader = look_into(path)
            raise
        if self._in_memory:
            _close(self._reader)
        self._path, self._reader, self._in_memory = path, reader, False
        self._write_on(writer)
        # Not above it: the last of a process that was killed may have been written and never flushed.
        self._mark.note(min(self._here, self._mark.newest))
        self._put_old_aside()
        self._shrink(_FREE_AT_START)

    def write(
        self,
        inserts: Iterable[Row],
        removed: Iterable[int],
        buried: Iterable[tuple[str, int]],
        forgotten: Iterable[tuple[str, str]] = (),
        *,
        flush: bool = True,
    ) -> int:
        """Run one transaction. Raises sqlite3.Error, and then none of it is written, or OSError; FileNotFoundError
        where the files were removed.

        On return it is on the disk, with all that was written before; without `flush` it survives the process, and
        the host only with the next that is flushed. `forgotten` are sessions whose dead letters are removed; returns
        how many letters that were.
        """
        connection = self._writer()
        rows = list(inserts)
        newest = rows[-1].id if rows else self._newest
        done = self._mark.done
        gone = {*self._kept, *removed, *([newest] if done and newest <= done else [])}
        flush = flush or done > 0  # the mark is cleared below: what it stands for must be on the disk by then
        self._set_flush(connection, flush)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(INSERT, [row.values() for row in rows])
            for reason, id_ in buried:
                connection.execute(_BURY, (reason, id_))
                connection.execute(_DELETE, (id_,))
            connection.executemany(_DELETE, [(id_,) for id_ in gone if id_ != newest])
            if done:
                connection.execute(_DELETE_THROUGH, (done, newest))
            if newest in gone:
                connection.execute(_EMPTY, (newest,))
            letters = sum(connection.execute(_FORGET, key).rowcount for key in forgotten)
            connection.execute("COMMIT")
        except BaseException as error:
            self.log.note(error)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._kept = [newest] if newest in gone else []
        self._newest = newest
        self.log.grew(rows)
        if rows:
            self._unflushed = newest
        if flush and self._unflushed:
            self._mark.note(self._unflushed)
            self._unflushed = 0
        self._mark.note_done(0)
        self._places = self._places or _places(self._path)  # its log is there since this commit, if not longer
        return letters

    def _writer(self) -> sqlite3.Connection:
        """The connection that writes. Raises what keeps it from that."""
        connection = self._connection
        if connection is None:
            raise sqlite3.OperationalError("the spool has not been taken up")
        if self.log.failed is not None:
            raise self.log.failed.with_traceback(None)  # reused, or it would grow each time
        if not self.in_place:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
        return connection

    def checkpoint(self) -> None:
        """Copy the log into the database while another thread writes. Has no effect where nothing is written to."""
        with self.log.lock:
            if self._path is not None and self._connection is not None:
                self.log.copy_beside(self._path)

    def checkpoint_rest(self) -> None:
        """Copy all of the log, from the thread that writes."""
        with self.log.lock:
            if self._connection is not None:
                self.log.copy_rest(self._connection)

    def note_done(self, over: set[int]) -> None:
        """Mark the leading records among `over` as done, for when the disk does not allow their removal.

        The next start does not replay them. Raises sqlite3.Error or OSError if not even that can be written.
        """
        waiting = [id_ for (id_,) in self._reader.execute(_WAITING, (self._mark.done,))]
        left = next((id_ for id_ in waiting if id_ not in over), None)
        self._mark.note_done(left - 1 if left is not None else max([self._mark.done, *waiting]))

    def discard_marked(self) -> bool:
        """Free the room of a file that cannot be written, by starting another if all its records are marked done.

        Returns whether they were. Raises sqlite3.Error or OSError.
        """
        waiting = self._reader.execute(_WAITING, (self._mark.done,)).fetchone()
        if self._path is None or self._in_memory or waiting or self.dead_letters() or self._evidence is not None:
            return False
        self._mark.note_done(max(self._mark.done, self._newest))
        self._mark.flush()
        with self.log.lock:
            path, self._path = self._path, None
            _close(self._reader)
            if self._connection is not None:
                _close(self._connection)
            self._reader, self._connection, self._in_memory = in_memory(), None, True
            self._here, self._kept, self._unflushed = 0, [], 0
            _unlink(path)
        return True

    def give_back(self) -> None:
        """Return unused pages to the disk, if its room is low."""
        self._shrink(_FREE_WHEN_LOW)

    def read(self, ids: list[int]) -> list[Row]:
        """The rows that are still there, ascending id. Raises sqlite3.Error."""
        return rows_of(self._reader, ids)

    def dead_letters(self) -> int:
        """How many records were given up and are kept for inspection."""
        ((count,),) = self._reader.execute("SELECT count(*) FROM dead_letter")
        return int(count)

    def replace(self) -> None:
        """Continue in a new file after a disk error, since the effect of a failed flush on the old one is unknown, or
        after the old one was removed: it can be read as long as it is open.

        Raises sqlite3.Error or OSError if no new file can be written; then the old one stays.
        """
        old, connection, reader = self._path, self._connection, self._reader
        assert old is not None
        assert connection is not None
        path = self._new_path()
        fresh = None
        try:
            fresh = self._connect(path)
            prepare(fresh)
            copy(self._sound(readable(reader)), fresh)
            copy_dead_letters(reader, fresh)
            self._mark.close()  # which may have been removed as well
            self._mark.take_up()
            new_reader = self._connect(path)
        except (sqlite3.Error, OSError):
            if fresh is not None:
                _close(fresh)
            _unlink(path)
            raise
        with self.log.lock:
            self._path, self._reader = path, new_reader
            self._write_on(fresh)
            for closing in (reader, connection):
                _close(closing)
            self._old.append(old)
            self._put_old_aside()

    def close(self) -> None:
        """Close the file. Its records stay, except one that only proved that nothing is missing."""
        with self.log.lock:
            _close(self._reader)
            if self._connection is not None:
                try:
                    self._remove_kept(self._connection)
                except (sqlite3.Error, OSError) as error:
                    logger.warning("the spool's last record is left in it: %s", type(error).__name__)
                _close(self._connection)
            self._mark.close()

    def _remove_kept(self, connection: sqlite3.Connection) -> None:
        if not self._kept:
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_DELETE, [(id_,) for id_ in self._kept])
        # First, and on the disk: a mark that names a record which is gone would be an alarm after a power loss.
        self._mark.note(min(self._mark.newest, last_id(connection)))
        self._mark.flush()
        connection.execute("COMMIT")

    def _write_on(self, connection: sqlite3.Connection) -> None:
        """Write to this connection's file from now on."""
        self._connection, self._flushes, self._places = connection, None, []
        self.log.begin()

    def _set_flush(self, connection: sqlite3.Connection, flush: bool) -> None:
        """Let the commits that follow be flushed, or only be written."""
        if flush is not self._flushes:
            connection.execute(f"PRAGMA synchronous = {'FULL' if flush else 'NORMAL'}")
            self._flushes = flush

    def _look(self, files: list[Path]) -> tuple[sqlite3.Connection, list[Entry]]:
        """Read what earlier processes left: from the file, or copied to memory if it is damaged or not the only one."""
        found = None
        if files:
            self._path = files[-1]
            # An interrupted replacement left the older files: the newer one may have the same rows already.
            self._old = files[:-1]
            try:
                found = _sound_file(files[-1])
            except sqlite3.DatabaseError as error:
                return self._salvage(files, error)
            if self._lacks_some(found, files[-1]):
                if found is not None:
                    _close(found[0])
                return self._salvage(files, sqlite3.DatabaseError("its log"))
        if found is not None and not self._old:
            return found
        if found is not None:
            _close(found[0])
        gathered = self._gather(files)
        return gathered, index_of(gathered)

    def _lacks_some(self, found: tuple[sqlite3.Connection, list[Entry]] | None, path: Path) -> bool:
        """Whether the log has flushed records behind a damaged frame. What no flush has covered may be missing after a
        power loss, in the middle of the log too, and is no damage.

        The log is read, at 0.2 ms a frame, where a number is missing: not only at the end, since pages that were copied
        from behind the damage are in the database, beside older ones from the log.
        """
        here = set() if found is None else ids_of(found[0])
        if here and max(here) >= self._mark.newest and len(here) == max(here) - min(here) + 1:
            return False
        flushed = range(self._mark.done + 1, self._mark.newest + 1)
        behind = _behind(path).rows.values()
        return any(row.id in flushed and row.id not in here and row.kind != "done" for row in behind)

    def _salvage(self, files: list[Path], error: sqlite3.DatabaseError) -> tuple[sqlite3.Connection, list[Entry]]:
        self._path = None
        self._old = files
        gathered = self._gather(files)
        entries = index_of(gathered)
        logger.error(
            "ALARM the spool was damaged (%s): %d records could be read, those behind %d damaged frames of its log "
            "included; %d that were not as written are left out; the file is kept as %s.*.corrupt",
            error,
            len(entries),
            self.damaged_frames,
            self.lost,
            files[-1].name,
        )
        return gathered, entries

    def _gather(self, files: list[Path]) -> sqlite3.Connection:
        """The readable and intact records of files; of duplicates, the newer file's."""
        self._in_memory = True
        gathered = in_memory()
        for path in reversed(files):
            if _beside(path, "-journal").exists():
                continue  # a process was killed while it created the file
            source = look_into(path)
            try:
                # Without it SQLite reads nothing of a file that is shorter than its header says.
                source.execute("PRAGMA writable_schema = ON")
                copy(self._sound(readable(source)), gathered)
                copy_dead_letters(source, gathered)
            finally:
                _close(source)
            behind = _behind(path)
            self.damaged_frames += behind.damaged
            copy(behind.rows.values(), gathered)
        return gathered

    def _begin(self) -> None:
        """Open for writing if the disk allows it, releasing the reserve if necessary."""
        try:
            try:
                self.take_up()
            except (sqlite3.Error, OSError):
                if not self.reserve.free():
                    raise
                self.take_up()
        except (sqlite3.Error, OSError) as error:
            self.trouble = name_of(error)
            logger.error(
                "ALARM the spool cannot be written (%s): what is in it can be read and goes to Postgres, no turn is "
                "taken until the disk lets it be written again",
                self.trouble,
            )

    def _check_newest_record(self, here: int) -> None:
        """Log an alarm if the newest committed record is missing and cannot be elsewhere."""
        if self._mark.newest <= max(here, self._mark.done) or self._old:
            return
        kept_as = "nothing is left of its file"
        if self._path is not None:
            log = _beside(self._path, "-wal")
            source = log if log.exists() and log.stat().st_size else self._path
            self._evidence = source, source.with_name(f"{source.name}.{time.time_ns()}.corrupt")
            kept_as = f"the file before it is kept as {self._evidence[1].name}"
        logger.error(
            "ALARM the end of the spool is missing: the newest record here is %d, %d had been committed; "
            "what could be read is kept, %s",
            here,
            self._mark.newest,
            kept_as,
        )

    def _shrink(self, least: int) -> None:
        """Return the room taken during an outage, if it is at least `least` bytes and little is left to copy."""
        assert self._connection is not None
        names = ("freelist_count", "page_count", "page_size")
        try:
            free, pages, size = (self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            if free * size >= least and free >= _MOSTLY * pages:
                with self.log.lock:
                    self._connection.execute("VACUUM")
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            self.log.note(error)
            logger.info("the spool's file keeps its size: %s", name_of(error))

    def _keep_evidence(self) -> None:
        """Copy the files before SQLite merges the log. Raises OSError; nothing has been written to them by then."""
        if self._evidence is not None:
            copy_privately(*self._evidence)
            self._evidence = None
            self.set_aside += 1

    def _sound(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            if row.sound:
                yield row
            else:
                self.lost += 1

    def _put_old_aside(self) -> None:
        """Rename copied files and their logs, which SQLite finds by the name of the file."""
        for path in self._old:
            aside = path.with_name(f"{path.name}.{time.time_ns()}.corrupt")
            try:
                for suffix in _SUFFIXES:
                    if _beside(path, suffix).exists():
                        _beside(path, suffix).rename(_beside(aside, suffix))
            except OSError as error:
                logger.warning("a file of the spool cannot be set aside: %s", name_of(error))
            self.set_aside += 1
        self._old = []

    def _new_path(self) -> Path:
        taken = [int(path.name[6:12]) for path in self._directory.glob("spool-*.sqlite*")]
        if self._path is not None:  # also where it was removed: SQLite removes its log by name when it is closed
            taken.append(int(self._path.name[6:12]))
        return self._directory / f"spool-{max(taken, default=0) + 1:06d}.sqlite"


def _sound_file(path: Path) -> tuple[sqlite3.Connection, list[Entry]] | None:
    """An intact file and its pending records; None if nothing was ever written to it.

    Raises sqlite3.DatabaseError if it is damaged.
    """
    if _beside(path, "-journal").exists():
        return None  # a process was killed while it created the file
    connection = look_into(path)
    try:
        if is_begun(connection):
            return connection, index_of(connection)
    except sqlite3.Error:
        _close(connection)
        raise
    _close(connection)
    return None


def _behind(path: Path) -> Behind:
    """What a file's log has behind a damaged frame; nothing where it has no log or that cannot be read."""
    try:
        return read_behind(_beside(path, "-wal"))
    except FileNotFoundError:
        return Behind()
    except OSError as error:
        logger.warning("the log of the spool cannot be read on: %s", name_of(error))
        return Behind()


def _places(path: Path | None) -> list[tuple[int, int] | None]:
    return [] if path is None else [identity(_beside(path, suffix)) for suffix in _SUFFIXES]


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _close(connection: sqlite3.Connection) -> None:
    try:
        connection.close()
    except sqlite3.Error as error:
        logger.warning("closing a spool file failed: %s", type(error).__name__)


def _unlink(path: Path) -> None:
    for suffix in _SUFFIXES:
        _beside(path, suffix).unlink(missing_ok=True)
