"""The directory of a spool: its lock, its permissions, and its reserve for a full disk."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import sqlite3
import stat
import threading
from fnmatch import fnmatchcase
from pathlib import Path

logger = logging.getLogger(__name__)

RESERVE_BYTES = 8 * 1024 * 1024
"""Bytes reserved for the spool: what SQLite's log has and its database has not, 1,000 pages (4 MiB) when it is copied,
and as much again for the turns that are running when the disk is full and for the marks of what Postgres has taken."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_BLOCK = 512
_OURS = ("spool-*", "newest", "lock", "reserve")
_DIGITS = 20


def name_of(error: sqlite3.Error | OSError) -> str:
    """SQLite's or the system's name of an error."""
    named: str | None = getattr(error, "sqlite_errorname", None)
    if named is None and isinstance(error, OSError) and error.errno is not None:
        named = errno.errorcode.get(error.errno)
    return named or type(error).__name__


def identity(path: Path) -> tuple[int, int] | None:
    """What identifies the file of this name to the system, None if there is none. A different file of the name
    differs."""
    try:
        return _identity(path.stat())
    except OSError:
        return None


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


class SpoolTaken(Exception):
    """Another process owns the directory. `str()` is one line for the operator."""


class SpoolUnusable(Exception):
    """The directory cannot be created or used. `str()` is one line for the operator."""


class SpoolLock:
    """The ownership of a spool directory: a kernel lock on a file in it, released when the process ends.

    Creates the directory (mode 0700), or removes others' permissions from an existing one. A directory that was in use
    can be locked even if the disk is full or mounted read-only. Raises `SpoolTaken` or `SpoolUnusable`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file: int | None = _open_lock(directory)
        except OSError as error:
            raise SpoolUnusable(
                f"cannot use the spool directory {directory}: {os.strerror(error.errno or 0)}"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise SpoolTaken(f"another process uses the spool directory {directory}") from None
        keep_private(directory)

    def renew(self) -> None:
        """Create the directory and its lock again if they were removed. Raises OSError, also if another process has
        created them meanwhile."""
        path = self.directory / "lock"
        if self._file is None or identity(path) == _identity(os.fstat(self._file)):
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = _open_lock(self.directory)
        try:
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fresh)
            raise
        os.close(self._file)
        self._file = fresh

    def release(self) -> None:
        """Let another process have the directory. A second call has no effect."""
        if self._file is not None:
            # Closing the file is not enough: a child between fork and exec has it open too.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = None


def _open_lock(directory: Path) -> int:
    path = directory / "lock"
    make = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, make, 0o600)
    except OSError as error:
        if error.errno in _NO_ROOM and Reserve(directory).free():
            return os.open(path, make, 0o600)
        if error.errno == errno.EROFS:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        raise


def keep_private(directory: Path) -> None:
    """Remove others' permissions from a spool: a restored copy, a umask or an older version may have left them."""
    # Copies that an older version made at each start, and left behind if the disk was too full for a complete one.
    with contextlib.suppress(OSError):
        (directory / "log-before-start").unlink(missing_ok=True)
    for path in (directory, *(path for name in _OURS for path in directory.glob(name))):
        try:
            about = path.lstat()
            if not stat.S_IMODE(about.st_mode) & 0o077 or stat.S_ISLNK(about.st_mode):
                continue
            if about.st_mode & stat.S_ISVTX:
                logger.warning("the spool is in %s, which others use too: give it a directory of its own", directory)
                continue
            path.chmod(0o700 if path == directory else 0o600)
        except OSError as error:
            logger.warning("others may read %s: %s", path, os.strerror(error.errno or 0))


def size_of(directory: Path) -> int:
    """Bytes of a spool's files: the reserve and what was set aside, too. Raises OSError."""
    try:
        with os.scandir(directory) as entries:
            return sum(map(_size_of, entries))
    except FileNotFoundError:
        return 0


def _size_of(entry: os.DirEntry[str]) -> int:
    if not any(fnmatchcase(entry.name, name) for name in _OURS):
        return 0
    try:
        about = entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # other threads remove files meanwhile
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


def copy_privately(source: Path, target: Path) -> None:
    """Copy a file with permissions for its owner only. Raises OSError, and then leaves no copy."""
    with source.open("rb") as whole:
        try:
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                shutil.copyfileobj(whole, file)
        except OSError:
            target.unlink(missing_ok=True)
            raise


class Reserve:
    """Disk blocks in a file without content: released when the disk is full, allocated again when it is not."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"
        self._lock = threading.Lock()
        self.held = self._path.exists()

    def free(self) -> bool:
        """Release the blocks; returns whether there were any."""
        with self._lock:
            self.held = False
            try:
                self._path.unlink()
            except OSError:
                return False
            return True

    def keep(self, size: int) -> None:
        """Allocate `size` bytes of real blocks. Raises OSError if the disk refuses."""
        with self._lock:
            if self.held and _blocks_of(self._path) == size:
                return
            self.held = False
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(file, 0, size)
                if os.fstat(file).st_blocks * _BLOCK < size:
                    _write_out(file, size)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise
            finally:
                os.close(file)
            self.held = True


def _blocks_of(path: Path) -> int | None:
    """The size of a file whose blocks are all allocated, else None."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_size if about.st_blocks * _BLOCK >= about.st_size else None


def _write_out(file: int, size: int) -> None:
    """Write incompressible bytes, for a file system that only promises blocks or compresses."""
    for place in range(0, size, 1024 * 1024):
        os.pwrite(file, os.urandom(min(1024 * 1024, size - place)), place)
    os.fsync(file)


class Mark:
    """Two record numbers in a file that is written in place, which works on a full disk as the block exists already.

    `newest` is the newest record that a flush has covered, `done` the one up to which everything is in Postgres
    although the full disk kept it from being removed from the spool. Written without a flush: they may lag behind the
    spool, but are never ahead of what is on the disk, and they survive a kill.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.newest = self.done = 0
        with contextlib.suppress(OSError):
            noted = path.read_bytes()
            self.newest, self.done = _number(noted[:_DIGITS]), _number(noted[_DIGITS : 2 * _DIGITS])

    def take_up(self) -> None:
        """Open the file for writing and allocate its block. Raises OSError."""
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write(self.newest, self.done)

    def note(self, newest: int) -> None:
        """Set `newest`, after the flush that covers it. Raises OSError."""
        if newest != self.newest:
            self._write(newest, self.done)

    def note_done(self, done: int) -> None:
        """Set `done`; 0 once the spool itself shows what is done. Raises OSError."""
        if done != self.done:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            self._write(self.newest, done)

    def flush(self) -> None:
        """Flush the numbers to disk, before something relies on them. Raises OSError."""
        if self._file is not None:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, newest: int, done: int) -> None:
        assert self._file is not None
        os.pwrite(self._file, b"%0*d%0*d" % (_DIGITS, newest, _DIGITS, done), 0)
        self.newest, self.done = newest, done


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() else 0
