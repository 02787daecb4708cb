"""Which commits of the spool are flushed, who copies its log, and what a power loss leaves of both."""

import asyncio
import logging
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agentic_backend.spool.log import CHECKPOINT_PAGES
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import Mark
from agentic_backend.spool.spoolfile import SpoolFile, connect
from agentic_backend.spool.spoolrows import Row, prepare
from tests.support.patience import PATIENCE_S

KEY = ("session", "ada")
WRITTEN, FLUSHED = 1, 2  # what `PRAGMA synchronous` says: NORMAL, FULL
MANY_BYTES = 2048 * CHECKPOINT_PAGES  # a body that makes a checkpoint due
COPY = "PRAGMA wal_checkpoint(PASSIVE)"


class Watched:
    """A disk whose commits and checkpoints are noted.

    `on_commit` and `on_copy` are called before them, in their thread; `on_copy` may give another statement to run
    instead. `copied` are the threads whose checkpoints have ended.
    """

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.copies: list[str] = []
        self.copied: list[str] = []
        self.on_commit: Callable[[], None] = lambda: None
        self.on_copy: Callable[[], str | None] = lambda: None

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open a spool file on it."""
        connect(path).close()
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
                if sql == "COMMIT":
                    disk.commits.append(super().execute("PRAGMA synchronous").fetchone()[0])
                    disk.on_commit()
                if sql == COPY:
                    name = threading.current_thread().name
                    disk.copies.append(name)
                    cursor = super().execute(disk.on_copy() or sql)
                    disk.copied.append(name)
                    return cursor
                return super().execute(sql, *parameters)  # type: ignore[arg-type]

        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection


def failed(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    return error


def rows(first: int, count: int, size: int = 3000) -> list[Row]:
    return [Row.of(first + n, "turn", KEY, f"x{first + n}", bytes([first + n & 0xFF]) * size) for n in range(count)]


@pytest.fixture
def disk() -> Watched:
    return Watched()


@pytest.fixture
async def spool(tmp_path: Path, disk: Watched) -> AsyncIterator[Spool]:
    opened = Spool(tmp_path / "spool", lambda _: None, connect_to=disk.connect)
    disk.commits.clear()
    opened.start()
    yield opened
    await opened.aclose()


async def put(spool: Spool, body: bytes = b"body") -> int:
    """A turn that is on the disk."""
    id_, landed = spool.put("turn", KEY, "x", body)
    async with asyncio.timeout(PATIENCE_S):
        await landed
    return id_


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - told by the spool's threads
            await asyncio.sleep(0.01)


async def test_only_a_commit_that_somebody_waits_for_is_flushed(spool: Spool, disk: Watched) -> None:
    spool.note("ask", KEY, "x", b"ask")
    await until(lambda: disk.commits)
    first = await put(spool)
    spool.done([first])
    await until(lambda: len(disk.commits) == 3)
    second = await put(spool)
    spool.bury(second, "poison")
    await until(lambda: len(disk.commits) == 5)
    await put(spool)
    assert disk.commits == [WRITTEN, FLUSHED, WRITTEN, FLUSHED, WRITTEN, FLUSHED]


async def test_what_nobody_waits_for_shares_the_one_flush_of_what_somebody_does(spool: Spool, disk: Watched) -> None:
    ask = spool.note("ask", KEY, "x", b"ask")
    spool.done([])
    _, landed = spool.put("turn", KEY, "x", b"turn", instead_of=ask)
    async with asyncio.timeout(PATIENCE_S):
        await landed
    assert disk.commits == [FLUSHED]


async def test_dead_letters_that_are_forgotten_are_gone_from_the_disk(spool: Spool, disk: Watched) -> None:
    """Retention has no record of it in the spool: after a power loss nothing would forget them again."""
    spool.bury(await put(spool), "poison")
    await until(lambda: len(disk.commits) == 2)
    spool.forget(KEY)
    await until(lambda: len(disk.commits) == 3)
    assert disk.commits == [FLUSHED, WRITTEN, FLUSHED]


async def test_a_log_that_is_long_is_copied_beside_the_writer_and_begun_anew(spool: Spool, disk: Watched) -> None:
    log = spool.directory / "spool-000001.sqlite-wal"
    await put(spool, b"b" * MANY_BYTES)
    await until(lambda: len(disk.copied) == 2)
    assert set(disk.copies) == {"spool-checkpointer"}
    long = log.stat().st_size
    for _ in range(3):
        await put(spool, b"b" * 100_000)
    assert log.stat().st_size == long


async def test_an_acknowledgement_does_not_wait_for_the_copy(spool: Spool, disk: Watched) -> None:
    come, let = threading.Event(), threading.Event()

    def held() -> None:
        come.set()
        let.wait(PATIENCE_S)

    disk.on_copy = held
    await put(spool, b"b" * MANY_BYTES)
    try:
        assert await asyncio.to_thread(come.wait, PATIENCE_S)
        await put(spool)
        assert len(disk.copies) == 1
    finally:
        let.set()


async def test_the_writer_copies_the_rest_of_a_log_that_the_other_cannot_end(spool: Spool, disk: Watched) -> None:
    """As under a load in which something is written during each copy."""
    disk.on_copy = lambda: f"SELECT 0, {4 * CHECKPOINT_PAGES}, {4 * CHECKPOINT_PAGES - 9}"
    await put(spool, b"b" * MANY_BYTES)
    await until(lambda: spool._file.log.overlong)
    await put(spool)
    await until(lambda: len(disk.copied) == 3)
    await put(spool)
    assert disk.copies == ["spool-checkpointer", "spool-checkpointer", "spool-writer"]


async def test_after_a_flush_that_failed_in_a_copy_a_new_file_is_begun(spool: Spool, disk: Watched) -> None:
    def failing() -> None:
        raise failed("SQLITE_IOERR_FSYNC")

    disk.on_copy = failing
    first = await put(spool, b"b" * MANY_BYTES)
    await until(lambda: list(spool.directory.glob("*.corrupt")))
    second = await put(spool)
    assert [row.id for row in await spool.read([first, second])] == [first, second]
    assert [path.name for path in spool.directory.glob("spool-*.sqlite")] == ["spool-000002.sqlite"]


async def test_where_the_disk_is_full_the_log_is_copied_so_that_it_needs_no_more_room(
    spool: Spool, disk: Watched
) -> None:
    await put(spool)

    def full_once() -> None:
        disk.on_commit = lambda: None
        raise failed("SQLITE_FULL")

    disk.on_commit = full_once
    await put(spool)
    assert disk.copies == ["spool-writer"]


async def test_its_threads_end_with_it(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    spool = Spool(tmp_path / "spool", lambda _: None)
    spool.start()
    ours = set(threading.enumerate()) - before
    assert {thread.name for thread in ours} == {"spool-writer", "spool-checkpointer"}
    assert all(thread.daemon for thread in ours)
    await spool.aclose()
    assert not any(thread.is_alive() for thread in ours)


def test_nothing_is_written_to_a_file_whose_flush_failed_until_there_is_another(tmp_path: Path, disk: Watched) -> None:
    """The system may have dropped what was to be flushed, and call the next flush a success."""
    file = SpoolFile(tmp_path, disk.connect)
    file.write(rows(1, 1), (), (), flush=False)

    def failing() -> None:
        raise failed("SQLITE_IOERR_FSYNC")

    disk.on_commit = failing
    with pytest.raises(sqlite3.OperationalError):
        file.write(rows(2, 1), (), ())
    disk.on_commit = lambda: None
    disk.commits.clear()
    with pytest.raises(sqlite3.OperationalError):
        file.write(rows(2, 1), (), ())
    assert disk.commits == []
    file.replace()
    file.write(rows(2, 1), (), ())
    assert [row.id for row in file.read([1, 2])] == [1, 2]
    assert disk.commits == [FLUSHED, FLUSHED]
    file.close()


def test_a_copy_for_which_the_disk_has_no_room_is_tried_again(tmp_path: Path, disk: Watched) -> None:
    file = SpoolFile(tmp_path, disk.connect)
    file.write(rows(1, 1, MANY_BYTES), (), ())

    def full() -> None:
        raise failed("SQLITE_FULL")

    disk.on_copy = full
    assert (file.log.is_due(), file.log.is_due()) == (True, False)
    file.checkpoint()
    file.checkpoint_rest()
    file.write(rows(2, 1), (), ())
    disk.on_copy = lambda: None
    file.checkpoint()
    assert (file.log.failed, [row.id for row in file.read([1, 2])]) == (None, [1, 2])
    log = tmp_path / "spool-000001.sqlite-wal"
    size = log.stat().st_size
    file.write(rows(3, 1), (), ())
    assert log.stat().st_size == size  # it has been copied, and begins anew
    file.close()


def test_a_copy_that_cannot_open_the_file_leaves_the_log_as_it_is(tmp_path: Path) -> None:
    shut = False

    def connect_if_open(path: Path) -> sqlite3.Connection:
        if shut:
            raise failed("SQLITE_CANTOPEN")
        return connect(path)

    file = SpoolFile(tmp_path, connect_if_open)
    file.write(rows(1, 1), (), ())
    shut = True
    file.checkpoint()
    assert (file.log.failed, file.writable) == (None, True)
    file.write(rows(2, 1), (), ())
    file.close()


def test_a_copy_has_no_part_in_a_file_that_was_replaced_or_let_go(tmp_path: Path, disk: Watched) -> None:
    seen: list[Path] = []

    def noted(path: Path) -> sqlite3.Connection:
        seen.append(path)
        return disk.connect(path)

    file = SpoolFile(tmp_path, noted)
    file.write(rows(1, 2), (), ())
    file.replace()
    file.checkpoint()
    assert seen[-1].name == "spool-000002.sqlite"
    file.note_done({1, 2})
    assert file.discard_marked()
    seen.clear()
    file.checkpoint()
    file.checkpoint_rest()
    assert seen == []
    file.close()


def test_an_orderly_end_lowers_the_mark_on_the_disk_before_it_removes_the_record(tmp_path: Path, disk: Watched) -> None:
    file = SpoolFile(tmp_path, disk.connect)
    file.write(rows(1, 3), (), ())
    file.write((), [1, 2, 3], ())
    marks: list[int] = [Mark(tmp_path / "newest").newest]
    disk.on_commit = lambda: marks.append(Mark(tmp_path / "newest").newest)
    file.close()
    assert marks == [3, 0]


class PowerLoss:
    """A spool's directory, and what its disk would have after the power failed.

    What was flushed is on the disk, of what was written to the log since any part from its beginning on. The mark is
    not flushed: the worst is that it is there as it was written last.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._flushed: dict[str, bytes] = {}
        self.flush()

    def flush(self) -> None:
        """Everything is on the disk."""
        self._flushed = self._now()

    def leaves(self, target: Path, share: float) -> Path:
        """The disk with this share of the log's newer bytes, 0 to 1."""
        target.mkdir(mode=0o700)
        for name, content in self._now().items():
            left = content
            if name.endswith("-wal"):
                old = self._flushed.get(name, b"")
                same = next((at for at, (a, b) in enumerate(zip(old, content, strict=False)) if a != b), len(old))
                cut = same + int((len(content) - same) * share)
                left = content[:cut] + old[cut:]
            (target / name).write_bytes(left)
        return target

    def _now(self) -> dict[str, bytes]:
        files = [path for path in self.directory.iterdir() if path.name.startswith(("spool-", "newest"))]
        return {path.name: path.read_bytes() for path in files if not path.name.endswith("-shm")}


def no_writing(_path: Path) -> sqlite3.Connection:
    raise sqlite3.OperationalError("only looked at")


def read_after(directory: Path, caplog: pytest.LogCaptureFixture) -> set[int]:
    """What a start finds in it; without an alarm of damage or loss."""
    caplog.clear()
    file = SpoolFile(directory, no_writing)
    found = {entry.id for entry in file.entries}
    file.close()
    assert "damaged" not in caplog.text
    assert "is missing" not in caplog.text
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_at_any_moment_takes_nothing_that_was_acknowledged(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    dice = random.Random(seed)  # noqa: S311 - seeded, not secret
    (tmp_path / "spool").mkdir(mode=0o700)
    file = SpoolFile(tmp_path / "spool")
    power = PowerLoss(tmp_path / "spool")
    there: list[int] = []
    acked: set[int] = set()
    removed: set[int] = set()
    starts = notes_lost = last = 0
    for step in range(40):
        work = dice.choice(("put", "note", "note", "remove", "bury", "copy"))
        if work in ("put", "note"):
            last += 1
            file.write(rows(last, 1, dice.randrange(9000)), (), (), flush=work == "put")
            there.append(last)
        elif work == "copy":
            file.checkpoint()
        elif there:
            id_ = there.pop(0)
            removed.add(id_)
            file.write((), [id_] if work == "remove" else (), [("poison", id_)] if work == "bury" else (), flush=False)
        if work == "put":
            acked = set(there)
        if work in ("put", "copy"):
            power.flush()
        for share in (0.0, dice.random(), 1.0):
            found = read_after(power.leaves(tmp_path / f"{step}-{share}", share), caplog)
            assert acked - removed <= found
            notes_lost += len(set(there) - found)
            starts += 1
    file.close()
    assert (starts, notes_lost > 0) == (120, True)  # else it would not have shown anything


def test_what_a_killed_process_did_not_flush_is_not_in_the_mark_of_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").mkdir(mode=0o700)
    killed = SpoolFile(tmp_path / "spool")
    killed.write(rows(1, 1), (), ())
    power = PowerLoss(tmp_path / "spool")
    killed.write(rows(2, 1), (), (), flush=False)
    power.directory = power.leaves(tmp_path / "killed", 1.0)
    killed.close()
    heir = SpoolFile(power.directory)
    assert [entry.id for entry in heir.entries] == [1, 2]
    heir.write(rows(3, 1), (), (), flush=False)
    assert read_after(power.leaves(tmp_path / "lost", 0.0), caplog) == {1}
    heir.write(rows(4, 1), (), ())
    assert Mark(power.directory / "newest").newest == 4
    assert read_after(power.leaves(tmp_path / "kept", 1.0), caplog) == {1, 2, 3, 4}
    heir.close()


def test_a_spool_of_the_release_before_opens_and_drains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each commit flushed, the log copied by SQLite, the mark of the newest commit: as a kill left it."""
    source, spool = tmp_path / "source", tmp_path / "spool"
    for directory in (source, spool):
        directory.mkdir(mode=0o700)
    before = sqlite3.connect(source / "spool-000001.sqlite", isolation_level=None)
    before.execute("PRAGMA journal_mode = WAL")
    before.execute("PRAGMA synchronous = FULL")
    prepare(before)
    for row in rows(1, 400):
        before.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row.values())
    before.execute("DELETE FROM record WHERE id < 398")
    (spool / "newest").write_bytes(b"%020d%020d" % (400, 0))
    for path in source.glob("spool-*"):
        (spool / path.name).write_bytes(path.read_bytes())
    before.close()
    file = SpoolFile(spool)
    assert [entry.id for entry in file.entries] == [398, 399, 400]
    file.write((), [398, 399, 400], (), flush=False)
    assert read_after(PowerLoss(spool).leaves(tmp_path / "killed", 1.0), caplog) == set()
    file.close()
    again = SpoolFile(spool)
    assert (again.entries, again.last_id, again.set_aside) == ([], 0, 0)
    again.close()
