"""The spool: whether this user may write there, how much room its disk has, and what a flush of that disk takes."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.spool import least_free
from backend_kit.doctor.checks import Check, Diagnosis, Health, in_thread

SLOW_MS: Final = 10.0
"""Median of a flush from which it shows beside a first token."""
_WHAT: Final = "spool"
_WRITES: Final = 36
_FEWEST: Final = 5
_ENOUGH_S: Final = 2.0
_BLOCK: Final = bytes(4096)
_GIB: Final = 1 << 30
_DIRECTORY: Final = "persistence.spool_dir (TURNWISE_SPOOL_DIR)"


def spool_check(settings: AgenticSettings) -> Check:
    """The check of the spools of all workers."""
    return Check(_WHAT, in_thread(lambda: look_at_spool(settings)), f"its disk hangs: {_DIRECTORY} on another one")


def look_at_spool(settings: AgenticSettings) -> list[Diagnosis]:
    """What there is to say of it. Blocks for 2 s and one flush. Leaves nothing behind."""
    ack = settings.persistence.ack
    if ack != "spool":
        return [Diagnosis(_WHAT, Health.NOT_USED, f"persistence.ack: {ack}")]
    spools = [Path(settings.of_worker(number).persistence.spool_dir) for number in range(settings.app.workers)]
    for directory in spools:
        where = nearest(directory)
        if not where.is_dir() or not os.access(where, os.W_OK | os.X_OK):
            remedy = f"{_DIRECTORY}: a directory of the user who runs the service (chown)"
            return [Diagnosis(_WHAT, Health.WRONG, f"this user may not write in {where}", remedy)]
    where = nearest(spools[0])
    try:
        flushes = flush_times(where)
        disk = shutil.disk_usage(where)
    except OSError as error:
        return [failed_write(where, error.errno or 0)]
    room = judge_room(spools[0], disk.free, disk.total, made=spools[0].exists())
    return [room, judge_flushes(flushes)]


def judge_room(directory: Path, free: int, total: int, *, made: bool) -> Diagnosis:
    """What `free` of `total` bytes of the disk mean; `made` is whether the directory is there."""
    figure = f"{free / _GIB:.1f} GiB free in {directory}" + ("" if made else ", made at the first start")
    least = least_free(total)
    if free < least:
        return Diagnosis(
            _WHAT, Health.WRONG, figure, f"make room: below {least / _GIB:.2f} GiB new turns get storage_full"
        )
    return Diagnosis(_WHAT, Health.OK, figure)


def judge_flushes(flushes: Sequence[float]) -> Diagnosis:
    """What the seconds of the flushes mean for `ack: spool`."""
    middle, worst = median(flushes) * 1e3, max(flushes) * 1e3
    # An acknowledgement waits for one, behind the one that may be under way.
    costs = f"ack: spool costs a final {middle:.1f} to {2 * middle:.1f} ms, {2 * worst:.1f} at worst"
    figure = f"{middle:.1f} ms median, {worst:.1f} ms worst of {len(flushes)}: {costs}"
    if middle > SLOW_MS:
        return Diagnosis("flush", Health.SLOW, figure, f"{_DIRECTORY} on a disk of its own, or persistence.ack: db")
    return Diagnosis("flush", Health.OK, figure)


def failed_write(where: Path, code: int) -> Diagnosis:
    """What a write means that the system refused with this errno."""
    name = errno.errorcode.get(code, "an error")
    if code in (errno.ENOSPC, errno.EDQUOT):
        return Diagnosis(_WHAT, Health.WRONG, f"no room in {where} ({name})", "make room: new turns get storage_full")
    return Diagnosis(_WHAT, Health.WRONG, f"a write in {where} fails ({name})", f"look at that disk, or {_DIRECTORY}")


def flush_times(directory: Path) -> list[float]:
    """Seconds of each of 36 appends of 4 KiB with its flush, or of as many as 2 s give; 5 at least. Blocks. Raises
    OSError."""
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        give_up_at = time.monotonic() + _ENOUGH_S
        while len(times) < _WRITES and (len(times) < _FEWEST or time.monotonic() < give_up_at):
            begun = time.perf_counter()
            file.write(_BLOCK)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return times


def nearest(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    where = directory.absolute()
    while not where.exists():
        where = where.parent
    return where
