"""The spool: records that must survive this process are on its disk before they are acknowledged."""

import asyncio
import logging
import queue
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentic_backend.spool.log import Connect
from agentic_backend.spool.spooldir import RESERVE_BYTES, SpoolLock, name_of, size_of
from agentic_backend.spool.spoolfile import SpoolFile, connect
from agentic_backend.spool.spoolrows import Entry, Kind, Row
from backend_kit.aio import Vigil, WatchedThread
from backend_kit.aio.retry import Backoff, QuietLog

logger = logging.getLogger(__name__)

_LAZY_S = 0.05
"""Seconds that a record nobody waits for may wait for the next commit."""

_FREE_SHARE = 0.05
_FREE_BYTES = 1024**3


def least_free(total: int) -> float:
    """Bytes that must be free for new turns on a disk of `total` bytes: 5 % of it, or 1 GiB if that is less."""
    return min(_FREE_SHARE * total, _FREE_BYTES)


OnCommit = Callable[[float], None]
"""Called on the event loop with the seconds of each commit that somebody waited for, its flush included."""


class DiskUsage(Protocol):
    """Size of a directory's disk, and the free space that this process may use, in bytes."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...


@dataclass(slots=True)
class _Work:
    """Changes for the writer's next commit. `replaced` are asks, each with the turn that ends it, or with the ask under
    which it is run again."""

    rows: list[Row] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    replaced: dict[int, int] = field(default_factory=dict)
    buried: list[tuple[str, int]] = field(default_factory=list)
    forgotten: list[tuple[str, str]] = field(default_factory=list)
    landed: "list[asyncio.Future[None]]" = field(default_factory=list)

    def add(self, other: "_Work") -> None:
        """Append another's changes, in order."""
        self.rows += other.rows
        self.removed += other.removed
        self.replaced |= other.replaced
        self.buried += other.buried
        self.forgotten += other.forgotten
        self.landed += other.landed

    def over(self) -> set[int]:
        """The records that may be dropped even if none of this is ever written, since Postgres has them."""
        over = set(self.removed)
        for ask, successor in reversed(self.replaced.items()):  # from the end: a successor may be replaced itself
            if successor in over:
                over.add(ask)
        return over


class Spool:
    """Operations on their way to Postgres, in one directory, written by one thread in groups.

    `put` returns a future that is done once the operation is on disk (fsync). Nobody awaits `note`, `done` and `bury`:
    they are part of the next commit, at most 50 ms later, which is flushed only if it has an operation that was `put`.
    So they survive a kill, and a power loss once something was `put` after them. A group is retried until it is
    written: if the disk is full the reserve is released and the same file tried again, after any other error a new
    file is begun with all readable records. A second thread copies SQLite's log into its database, so that the writer
    does not wait for the flushes of that. `waiting` is what an earlier process left, in order; it can be read even if
    the disk cannot be written, and `usable` says whether it can. Opening blocks. `connect_to` opens the files,
    `disk_usage` measures their disk.
    """

    def __init__(
        self,
        directory: Path,
        on_commit: OnCommit,
        *,
        lock: SpoolLock | None = None,
        connect_to: Connect = connect,
        disk_usage: Callable[[Path], DiskUsage] = shutil.disk_usage,
        vigil: Vigil | None = None,
    ) -> None:
        self._disk_usage = disk_usage
        self._lock = lock or SpoolLock(directory)
        self._file = SpoolFile(directory, connect_to)
        self.directory = directory
        self.waiting: list[Entry] = self._file.entries
        self.records = len(self.waiting)
        self.dead_letters = self._file.dead_letters()
        self.damaged_frames = self._file.damaged_frames
        self.trouble = self._file.trouble
        self.disk_low = False
        self.size_bytes = 0
        self._on_commit = on_commit
        self._last_id = self._file.last_id
        self._next = _Work()
        self._timer: asyncio.TimerHandle | None = None
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._read_lock = threading.Lock()
        self._closing = threading.Event()
        self._log = QuietLog(logger)
        self._vigil = vigil or Vigil()
        self._thread: WatchedThread | None = None
        self._copying: WatchedThread | None = None
        self._log_is_due = threading.Event()
        self._in_hand: _Work | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.look_at_disk()

    @property
    def usable(self) -> bool:
        """Whether the last write succeeded. After a failure, False until a write succeeds again."""
        return self.trouble is None and self._thread is not None and self._thread.up

    def look_at_disk(self) -> None:
        """Check whether the disk has room left (5 % of it, or 1 GiB if that is less) and what the spool's files take.

        Room is low too while the reserve (8 MiB, 5 % of a small disk) is released: that is for running turns, not for
        new ones. Blocks for system calls, on a failing disk for as long as those take.
        """
        if not self._file.in_place:
            self._queue.put(_Work())  # its commit fails, and a new file is begun
        try:
            disk = self._disk_usage(self.directory)
        except FileNotFoundError:
            self.disk_low, self.size_bytes = True, 0
            return
        least, size = least_free(disk.total), min(RESERVE_BYTES, int(_FREE_SHARE * disk.total))
        reserve = self._file.reserve
        if reserve.held or disk.free >= least + size:
            try:
                reserve.keep(size)
            except OSError as error:
                self._log.warning("reserve", "the reserve of the spool cannot be allocated: %s", name_of(error))
        self.disk_low = disk.free < least or not reserve.held
        try:
            self.size_bytes = size_of(self.directory)
        except OSError as error:  # it takes a descriptor, and there may be none
            self._log.warning("size", "the files of the spool cannot be listed: %s", name_of(error))

    def start(self) -> None:
        """Begin to write. Call it on the event loop whose futures `put` returns."""
        self._loop = asyncio.get_running_loop()
        self._thread = WatchedThread(self._vigil, "spool-writer", self._write_all, essential=True)
        self._thread.start()
        self._copying = WatchedThread(self._vigil, "spool-checkpointer", self._copy_log)
        self._copying.start()
        if not self._file.writable:
            self._queue.put(_Work())  # retries begin even if there is nothing new to write

    def put(
        self, kind: Kind, key: tuple[str, str], exchange_id: str, body: bytes, *, instead_of: int | None = None
    ) -> "tuple[int, asyncio.Future[None]]":
        """Write an operation. Returns its id, and a future done once it is on disk. Also removes `instead_of`."""
        assert self._loop is not None
        id_ = self._add(kind, key, exchange_id, body)
        if instead_of is not None:
            self._next.replaced[instead_of] = id_
            self.records -= 1
        landed: asyncio.Future[None] = self._loop.create_future()
        self._next.landed.append(landed)
        self._hand_over()
        return id_, landed

    def note(self, kind: Kind, key: tuple[str, str], exchange_id: str, body: bytes) -> int:
        """Write an operation with the next commit; returns its id."""
        id_ = self._add(kind, key, exchange_id, body)
        self._soon()
        return id_

    def done(self, ids: Iterable[int]) -> None:
        """Remove what is in Postgres. Finding it again after a crash is harmless: its key identifies it."""
        before = len(self._next.removed)
        self._next.removed.extend(ids)
        self.records -= len(self._next.removed) - before
        self._soon()

    def bury(self, id_: int, reason: str) -> None:
        """Give up an operation and keep it among the dead letters."""
        self._next.buried.append((reason, id_))
        self.records -= 1
        self.dead_letters += 1
        self._soon()

    def forget(self, key: tuple[str, str]) -> None:
        """Remove the dead letters of a deleted session."""
        if self.dead_letters:
            self._next.forgotten.append(key)
            self._soon()

    async def read(self, ids: list[int]) -> list[Row]:
        """Those of the rows that still exist, by ascending id. Raises sqlite3.Error."""
        return await asyncio.to_thread(self.read_now, ids)

    def read_now(self, ids: list[int]) -> list[Row]:
        """`read`, but blocking, for start-up. Raises sqlite3.Error."""
        with self._read_lock:
            return self._file.read(ids)

    async def aclose(self) -> None:
        """Write what was enqueued, in one attempt, and close. What cannot be written is given up."""
        if self._closing.is_set():
            return
        self._hand_over()
        self._closing.set()
        self._queue.put(None)
        if self._thread is not None and self._copying is not None:
            await asyncio.to_thread(self._end, self._thread, self._copying)
        await asyncio.to_thread(self._close_file)
        self._lock.release()

    def _close_file(self) -> None:
        # The thread of a `read` goes on where its task was cancelled, and SQLite crashes where it is closed under one.
        with self._read_lock:
            self._file.close()

    def _add(self, kind: Kind, key: tuple[str, str], exchange_id: str, body: bytes) -> int:
        self._last_id += 1
        self._next.rows.append(Row.of(self._last_id, kind, key, exchange_id, body))
        self.records += 1
        return self._last_id

    def _soon(self) -> None:
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(_LAZY_S, self._hand_over)

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        work, self._next = self._next, _Work()
        self._queue.put(work)

    def _end(self, writer: WatchedThread, copying: WatchedThread) -> None:
        """Wait for the threads. If the writer ended between two attempts with a group unwritten, make the last here."""
        writer.end(None)
        if self._in_hand is not None:
            with self._vigil.watch("spool-writer").attempt():
                self._write_all()
        self._log_is_due.set()
        copying.end(None)

    def _write_all(self) -> None:
        """The writer's thread: each commit takes everything that arrived since the last one.

        After a failure it restarts with the unwritten group, since callers wait for it.
        """
        backoff = Backoff()
        # A group left by a failed attempt is retried immediately, not when more arrives.
        pause_s = 0.0 if self._in_hand is not None else None
        ended = False
        while not ended:
            self._in_hand = self._in_hand or _Work()
            ended = self._gather(self._in_hand, pause_s)
            if self._commit(self._in_hand):
                self._in_hand, pause_s = None, None
                backoff.reset()
                self._look_after_log()
            else:
                pause_s = backoff.next_s()
        self._in_hand = None

    def _gather(self, group: _Work, pause_s: float | None) -> bool:
        """Add to a group what has arrived; after a failure, all that arrives in the pause. True if it is the last."""
        until = None if pause_s is None else time.monotonic() + pause_s
        wait = True
        while True:
            # If an earlier attempt has taken the closing mark, no other comes; everything else was enqueued before it.
            closing = self._closing.is_set()
            try:
                work = self._queue.get(wait, None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                return closing
            if work is None:
                return True
            group.add(work)
            wait = until is not None

    def _commit(self, group: _Work) -> bool:
        """Write a group; returns whether all of it is written, and flushed if anybody waits for it."""
        begun = time.perf_counter()
        try:
            if not self._file.writable:
                with self._read_lock:
                    self._file.take_up()
            removed = [*group.removed, *group.replaced]
            # What is forgotten may have no other record, as after retention: nothing would forget it again.
            flush = bool(group.landed or group.forgotten)
            letters = self._file.write(group.rows, removed, group.buried, group.forgotten, flush=flush)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, group)
            return False
        except Exception as error:  # ends this run of the writer; the next one begins with the same group
            self.trouble = type(error).__name__
            raise
        self.trouble = None
        self._report_commit(group.landed, time.perf_counter() - begun, letters)
        return True

    def _look_after_log(self) -> None:
        """After a commit: see to it that the log is copied, and return what a low disk may have back."""
        if self.disk_low:
            self._file.give_back()
        if self._file.log.overlong:
            self._file.checkpoint_rest()
        elif self._file.log.is_due():
            self._log_is_due.set()
        if self._file.log.failed is not None:
            self._queue.put(_Work())  # its commit fails, and a new file is begun

    def _copy_log(self) -> None:
        """The checkpointer's thread."""
        while True:
            self._log_is_due.wait()
            self._log_is_due.clear()
            if self._closing.is_set():
                return
            self._file.checkpoint()
            if self._file.log.failed is not None:
                self._queue.put(_Work())

    def _failed(self, error: sqlite3.Error | OSError, group: _Work) -> None:
        self.trouble = code = name_of(error)
        self._log.warning(code, "ALARM the spool cannot be written: %s; no turn is acknowledged meanwhile", code)
        if code.startswith("SQLITE_BUSY"):
            return
        if isinstance(error, FileNotFoundError):
            self._log.warning("removed", "ALARM the files of the spool were removed from %s", self.directory)
        with self._read_lock:
            if self._file.writable and code != "SQLITE_FULL":
                # After a failed flush the file's state on disk is unknown: continue in another.
                try:
                    self._lock.renew()
                    self._file.replace()
                except (sqlite3.Error, OSError) as second:
                    self._log.warning("replace", "a new spool file cannot be created: %s", name_of(second))
                else:
                    return
            if code == "SQLITE_FULL":
                self._file.checkpoint_rest()  # then the log is written from its beginning, and needs no more room
            if self._file.reserve.free():
                logger.warning("the reserve of the spool is given up, so that turns that run can be kept")
                return
            try:
                self._file.note_done(group.over())
                self._file.discard_marked()
            except (sqlite3.Error, OSError) as second:
                self._log.warning("done", "records that are in Postgres cannot be marked as done: %s", name_of(second))

    def _report_commit(self, landed: "list[asyncio.Future[None]]", took_s: float, letters: int) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._landed, landed, took_s, letters)
        except RuntimeError:
            # The event loop has ended: nobody waits any longer.
            logger.debug("a commit landed after the loop's end")

    def _landed(self, landed: "list[asyncio.Future[None]]", took_s: float, letters: int) -> None:
        if landed:
            self._on_commit(took_s)
        self.dead_letters -= letters
        for future in landed:
            if not future.done():
                future.set_result(None)
