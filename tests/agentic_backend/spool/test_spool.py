import asyncio
import logging
import os
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentic_backend.spool.log import Connect
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import SpoolTaken
from agentic_backend.spool.spoolfile import SpoolFile, connect
from backend_kit.aio import Vigil
from tests.support.patience import PATIENCE_S

KEY = ("session", "ada")
Open = Callable[..., Spool]


@pytest.fixture
async def open_spool(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Spool] = []

    def make(
        commits: list[float] | None = None,
        connect_to: Connect = connect,
        name: str = "spool",
        vigil: Vigil | None = None,
    ) -> Spool:
        seen = [] if commits is None else commits
        spool = Spool(tmp_path / name, seen.append, connect_to=connect_to, vigil=vigil)
        spool.start()
        opened.append(spool)
        return spool

    yield make
    for spool in opened:
        await spool.aclose()


def on_disk(directory: Path, copies: Path) -> list[tuple[int, str]]:
    """What a process would find that started after a kill at this moment."""
    copies.mkdir()
    for path in directory.glob("spool-*"):
        if not path.name.endswith("-shm"):
            (copies / path.name).write_bytes(path.read_bytes())
    file = SpoolFile(copies)
    found: list[tuple[int, str]] = [(entry.id, entry.kind) for entry in file.entries]
    file.close()
    return found


async def landed(future: "asyncio.Future[None]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        await future


async def written(spool: Spool, id_: int) -> None:
    """Return once a record that nobody is told of has been committed."""
    async with asyncio.timeout(PATIENCE_S):
        while not await spool.read([id_]):  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0.01)


async def test_what_has_landed_is_found_after_a_kill(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool()
    for number in range(5):
        id_, future = spool.put("turn", KEY, f"x{number}", b"body")
        await landed(future)
        assert on_disk(spool.directory, tmp_path / f"{number}")[-1] == (id_, "turn")
    assert spool.records == 5


class HeldConnection(sqlite3.Connection):
    """Its commits say that they have come, and go on when they are let."""

    come, let = threading.Event(), threading.Event()

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            HeldConnection.come.set()
            HeldConnection.let.wait(30)
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def connect_held(path: Path) -> sqlite3.Connection:
    connect(path).close()
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=HeldConnection)


async def test_nothing_has_landed_before_its_commit_has(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool(connect_to=connect_held)
    id_, future = spool.put("turn", KEY, "x", b"body")
    assert await asyncio.to_thread(HeldConnection.come.wait, 30)
    told_early, found_early = future.done(), on_disk(spool.directory, tmp_path / "before")
    HeldConnection.let.set()
    await landed(future)
    assert (told_early, found_early) == (False, [])
    assert on_disk(spool.directory, tmp_path / "after") == [(id_, "turn")]


async def test_what_nobody_waits_for_rides_with_the_next_commit(open_spool: Open, tmp_path: Path) -> None:
    commits: list[float] = []
    spool = open_spool(commits)
    first = spool.note("ask", KEY, "x1", b"asked")
    second, future = spool.put("turn", ("other", "ada"), "x2", b"body")
    await landed(future)
    assert len(commits) == 1
    assert on_disk(spool.directory, tmp_path / "now") == [(first, "ask"), (second, "turn")]


async def test_an_ask_is_written_without_another_record(open_spool: Open, tmp_path: Path) -> None:
    commits: list[float] = []
    spool = open_spool(commits)
    ask = spool.note("ask", KEY, "x1", b"asked")
    await written(spool, ask)
    assert on_disk(spool.directory, tmp_path / "now") == [(1, "ask")]
    assert commits == []  # nobody waited for it


async def test_a_turn_takes_the_place_of_its_ask_in_one_commit(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool()
    ask = spool.note("ask", KEY, "x1", b"asked")
    turn, future = spool.put("turn", KEY, "x1", b"answered", instead_of=ask)
    await landed(future)
    assert on_disk(spool.directory, tmp_path / "now") == [(turn, "turn")]
    assert spool.records == 1


async def test_records_that_come_together_share_commits_and_keep_their_order(open_spool: Open, tmp_path: Path) -> None:
    commits: list[float] = []
    spool = open_spool(commits)
    futures = [spool.put("turn", KEY, f"x{number}", b"b" * 4000)[1] for number in range(200)]
    await asyncio.gather(*map(landed, futures))
    assert len(commits) < 200
    assert [id_ for id_, _ in on_disk(spool.directory, tmp_path / "now")] == list(range(1, 201))


async def test_what_is_done_is_gone_and_dead_letters_stay(open_spool: Open, tmp_path: Path) -> None:
    spool = open_spool()
    ids = [spool.put("turn", KEY, f"x{number}", b"body")[0] for number in range(4)]
    spool.done(ids[:2])
    spool.bury(ids[2], "poison")
    await spool.aclose()
    again = open_spool()
    assert [entry.id for entry in again.waiting] == ids[3:]
    assert (again.records, again.dead_letters) == (1, 1)


async def test_a_directory_in_use_is_refused(open_spool: Open) -> None:
    open_spool()
    with pytest.raises(SpoolTaken):
        open_spool()


async def test_rows_are_read_back_by_their_numbers(open_spool: Open) -> None:
    spool = open_spool()
    ids = []
    for number in range(3):
        id_, future = spool.put("turn", KEY, f"x{number}", b"body %d" % number)
        ids.append(id_)
        await landed(future)
    rows = await spool.read([ids[2], ids[0], 999])
    assert [(row.id, row.body, row.sound) for row in rows] == [(ids[0], b"body 0", True), (ids[2], b"body 2", True)]


class FailingConnection(sqlite3.Connection):
    """Its commits fail as long as it is told to; each failure is counted."""

    failing = 0
    failures = 0

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and FailingConnection.failing:
            FailingConnection.failing -= 1
            FailingConnection.failures += 1
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def connect_failing(path: Path) -> sqlite3.Connection:
    connect(path).close()
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=FailingConnection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


async def test_a_failed_flush_acknowledges_nothing_and_a_new_file_is_begun(
    open_spool: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool(connect_to=connect_failing)
    _, before = spool.put("turn", KEY, "x1", b"before")
    await landed(before)
    FailingConnection.failing, FailingConnection.failures = 1, 0
    _, future = spool.put("turn", KEY, "x2", b"after")
    await landed(future)

    assert FailingConnection.failures == 1
    assert spool.usable
    assert "ALARM the spool cannot be written" in caplog.text
    (aside,) = spool.directory.glob("*.corrupt")
    # Acknowledged by the new file alone, which has everything.
    aside.unlink()
    assert on_disk(spool.directory, tmp_path / "now") == [(1, "turn"), (2, "turn")]


async def test_a_disk_that_fails_for_long_is_tried_until_it_takes_the_record(open_spool: Open) -> None:
    spool = open_spool(connect_to=connect_failing)
    FailingConnection.failing, FailingConnection.failures = 7, 0
    _, future = spool.put("turn", KEY, "x1", b"body")
    await landed(future)
    assert FailingConnection.failures == 7
    assert spool.usable


class OddConnection(sqlite3.Connection):
    """Its first commits fail of something that nobody foresaw."""

    odd = 0

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT" and OddConnection.odd:
            OddConnection.odd -= 1
            raise MemoryError
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def connect_odd(path: Path) -> sqlite3.Connection:
    connect(path).close()
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=OddConnection)


class HeldThenOddConnection(sqlite3.Connection):
    """Its first commit says that it has come and goes on when it is let, its second fails of what nobody foresaw."""

    commits = 0
    come, let = threading.Event(), threading.Event()

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            HeldThenOddConnection.commits += 1
            if HeldThenOddConnection.commits == 1:
                HeldThenOddConnection.come.set()
                HeldThenOddConnection.let.wait(30)
            if HeldThenOddConnection.commits == 2:
                raise MemoryError
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def connect_held_then_odd(path: Path) -> sqlite3.Connection:
    connect(path).close()
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=HeldThenOddConnection)


class OddThenHeldConnection(sqlite3.Connection):
    """Its first commit fails of what nobody foresaw, its second says that it has come and goes on when it is let."""

    commits = 0
    come, let = threading.Event(), threading.Event()

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if sql == "COMMIT":
            OddThenHeldConnection.commits += 1
            if OddThenHeldConnection.commits == 1:
                raise MemoryError
            OddThenHeldConnection.come.set()
            OddThenHeldConnection.let.wait(PATIENCE_S)
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def connect_odd_then_held(path: Path) -> sqlite3.Connection:
    connect(path).close()
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=OddThenHeldConnection)


async def test_a_spool_whose_last_write_failed_is_not_usable_while_it_is_tried_again(open_spool: Open) -> None:
    spool = open_spool(connect_to=connect_odd_then_held)
    _, future = spool.put("turn", KEY, "x1", b"body")
    try:
        assert await asyncio.to_thread(OddThenHeldConnection.come.wait, PATIENCE_S)
        assert (spool.usable, spool.trouble) == (False, "MemoryError")
    finally:
        OddThenHeldConnection.let.set()
    await landed(future)
    assert spool.usable


async def test_a_writer_that_dies_of_what_nobody_foresaw_goes_on_with_what_it_had(open_spool: Open) -> None:
    vigil = Vigil()
    spool = open_spool(connect_to=connect_odd, vigil=vigil)
    _, before = spool.put("turn", KEY, "x1", b"before")
    await landed(before)
    OddConnection.odd = 1
    _, held = spool.put("turn", KEY, "x2", b"held")
    await landed(held)
    _, after = spool.put("turn", KEY, "x3", b"after")
    await landed(after)
    assert vigil.failures == {"spool-writer": 1}
    assert spool.usable
    assert [row.exchange_id for row in await spool.read([1, 2, 3])] == ["x1", "x2", "x3"]


async def test_closing_writes_what_a_writer_had_in_hand_that_has_just_died(open_spool: Open) -> None:
    vigil = Vigil()
    spool = open_spool(connect_to=connect_odd, vigil=vigil)
    OddConnection.odd = 1
    spool.put("turn", KEY, "x1", b"held")
    async with asyncio.timeout(PATIENCE_S):
        while not vigil.failures:  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0)
        spool.put("turn", KEY, "x2", b"after")
        await spool.aclose()
    file = SpoolFile(spool.directory)
    assert [entry.exchange_id for entry in file.entries] == ["x1", "x2"]
    file.close()


async def test_a_writer_that_died_of_its_last_group_ends_all_the_same(open_spool: Open) -> None:
    vigil = Vigil()
    spool = open_spool(connect_to=connect_held_then_odd, vigil=vigil)
    spool.put("turn", KEY, "x1", b"first")
    assert await asyncio.to_thread(HeldThenOddConnection.come.wait, 30)
    # What follows is its next group: the word of its owner to end is taken with it.
    spool.put("turn", KEY, "x2", b"last")
    async with asyncio.TaskGroup() as group:
        group.create_task(spool.aclose())
        await asyncio.sleep(0)
        HeldThenOddConnection.let.set()
    assert vigil.failures == {"spool-writer": 1}
    file = SpoolFile(spool.directory)
    assert [entry.exchange_id for entry in file.entries] == ["x1", "x2"]
    file.close()


def connect_small(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    connection.execute("PRAGMA max_page_count = 12")
    return connection


async def test_a_full_disk_holds_back_acknowledgements_until_there_is_room(
    open_spool: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    spool = open_spool(connect_to=connect_small)
    first, future = spool.put("turn", KEY, "x1", b"b" * 20_000)
    await landed(future)
    second, waiting = spool.put("turn", KEY, "x2", b"b" * 20_000)
    async with asyncio.timeout(PATIENCE_S):
        while spool.usable:  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0.01)
    assert spool.trouble == "SQLITE_FULL"
    assert not waiting.done()
    # Nothing was written over: the first one is still whole. Room comes from outside, as an operator makes it.
    assert [row.sound for row in await spool.read([first])] == [True]
    connection = spool._file._connection
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 1000")
    await landed(waiting)
    assert [row.id for row in await spool.read([first, second])] == [first, second]
    assert not list(spool.directory.glob("*.corrupt"))


async def test_closing_does_not_wait_for_a_disk_that_fails(open_spool: Open) -> None:
    spool = open_spool(connect_to=connect_failing)
    FailingConnection.failing = 10_000
    _, future = spool.put("turn", KEY, "x1", b"body")
    async with asyncio.timeout(PATIENCE_S):
        while spool.usable:  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0.01)
        await spool.aclose()
    FailingConnection.failing = 0
    assert not future.done()


class SlowReader:
    """A disk on which rows are read when the test says so."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def connect(self, path: Path) -> sqlite3.Connection:
        connect(path).close()
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
                if "WHERE id IN" in sql:
                    disk.reached.set()
                    assert disk.go_on.wait(PATIENCE_S)
                return super().execute(sql, *parameters)  # type: ignore[arg-type] # what it gets is passed on

        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection


async def test_closing_waits_for_a_reader_whose_task_is_gone(open_spool: Open) -> None:
    """Closed under it, SQLite takes the process down."""
    disk = SlowReader()
    spool = open_spool(connect_to=disk.connect)
    id_, done = spool.put("turn", KEY, "e1", b"body")
    await landed(done)
    read: list[int] = []
    reading = threading.Thread(target=lambda: read.extend(row.id for row in spool.read_now([id_])))
    reading.start()
    assert await asyncio.to_thread(disk.reached.wait, PATIENCE_S)
    closing = asyncio.create_task(spool.aclose())
    await asyncio.wait([closing], timeout=0.1)  # time enough to close it too early
    disk.go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await closing
    reading.join()
    assert read == [id_]


REMOVED = {"the directory": "*", "the file": "*.sqlite", "its log": "*-wal", "all files": "spool-*"}


def remove(directory: Path, what: str) -> None:
    """As a person or tmpreaper does."""
    for path in directory.glob(REMOVED[what]):
        path.unlink()
    if what == "the directory":
        directory.rmdir()


@pytest.mark.parametrize("what", REMOVED)
async def test_nothing_is_acknowledged_into_files_that_were_removed(
    open_spool: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    spool, directory = open_spool(), tmp_path / "spool"
    await landed(spool.put("turn", KEY, "x1", b"body")[1])
    remove(directory, what)
    await landed(spool.put("turn", KEY, "x2", b"body")[1])
    assert f"ALARM the files of the spool were removed from {directory}" in caplog.text
    assert on_disk(directory, tmp_path / "copies") == [(1, "turn"), (2, "turn")]
    await landed(spool.put("turn", KEY, "x3", b"body")[1])
    await spool.aclose()
    again = Spool(directory, lambda _: None)
    assert ([entry.id for entry in again.waiting], again.trouble) == ([1, 2, 3], None)
    again.start()
    await again.aclose()


@pytest.mark.parametrize("what", REMOVED)
async def test_what_waits_is_written_again_though_nothing_new_comes(
    open_spool: Open, tmp_path: Path, what: str
) -> None:
    spool, directory = open_spool(), tmp_path / "spool"
    await landed(spool.put("turn", KEY, "x1", b"body")[1])
    remove(directory, what)
    spool.look_at_disk()
    async with asyncio.timeout(PATIENCE_S):
        while not (directory / "spool-000002.sqlite").exists():  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0.01)
        await landed(spool.put("turn", KEY, "x2", b"body")[1])
    assert on_disk(directory, tmp_path / "copies") == [(1, "turn"), (2, "turn")]
    spool.look_at_disk()
    assert not spool.disk_low


async def test_a_directory_that_was_made_again_is_locked(open_spool: Open, tmp_path: Path) -> None:
    spool, directory = open_spool(), tmp_path / "spool"
    await landed(spool.put("turn", KEY, "x1", b"body")[1])
    remove(directory, "the directory")
    await landed(spool.put("turn", KEY, "x2", b"body")[1])
    with pytest.raises(SpoolTaken):
        Spool(directory, lambda _: None)


async def test_its_size_is_what_its_files_take_in_its_directory(open_spool: Open, tmp_path: Path) -> None:
    """By which a volume is sized: the log, the reserve and what was set aside, too, and no file of another one."""
    spool, directory = open_spool(), tmp_path / "spool"
    await landed(spool.put("turn", KEY, "x1", b"body" * 100_000)[1])
    (directory / "spool-000000.sqlite.1.corrupt").write_bytes(b"x" * 50_000)
    taken = sum(path.stat().st_size for path in directory.iterdir())
    (directory / "notes.txt").write_bytes(b"x" * 70_000)
    (directory / "spool-copies").mkdir()
    spool.look_at_disk()
    assert spool.size_bytes == taken
    assert taken > 400_000 + 50_000 + (directory / "reserve").stat().st_size > 500_000


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """This process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_files_that_cannot_be_listed_are_as_large_as_before(
    open_spool: Open, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool()
    await landed(spool.put("turn", KEY, "x1", b"body")[1])
    spool.look_at_disk()
    before = spool.size_bytes
    with no_descriptor_left():
        spool.look_at_disk()
    assert spool.size_bytes == before > 0
    assert [record.getMessage() for record in caplog.records] == ["the files of the spool cannot be listed: EMFILE"]


async def test_the_size_of_a_directory_that_was_removed_is_none(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", lambda _: None)
    assert spool.size_bytes > 0
    remove(tmp_path / "spool", "the directory")
    spool.look_at_disk()
    assert (spool.size_bytes, spool.disk_low) == (0, True)
    spool.start()
    await spool.aclose()
