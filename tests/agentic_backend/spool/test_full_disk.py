"""The spool on a disk without a byte left: what a start needs, what it keeps, and how it goes on."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from agentic_backend.events import utc_now
from agentic_backend.persist.persistence import Persistence
from agentic_backend.session.models import AskRecord
from agentic_backend.spool.pending import Change
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import Mark, Reserve, SpoolLock
from agentic_backend.spool.spoolfile import SpoolFile
from agentic_backend.spool.spoolrows import Row
from backend_kit.kpi import Kpi
from backend_kit.parent_death import with_parent_death_signal
from backend_kit.wire import loads
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.records import USER, history_of, new_session, stored_ranks, turn, turns
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.processes import ROOT
from tests.support.small_disk import Neighbour, NoRight, fill, small_disk

pytestmark = pytest.mark.servers

KEY = ("session", "ada")
MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    try:
        with small_disk(tmp_path / "disk", 16) as place:
            yield place
    except NoRight:
        pytest.skip("no right to mount a file system; the tests with a file-size limit show the same")


def rows(first: int, count: int, size: int = 3000) -> list[Row]:
    return [Row.of(first + n, "turn", KEY, f"x{first + n}", bytes([first + n & 0xFF]) * size) for n in range(count)]


def killed(source: Path, target: Path, work: Callable[[SpoolFile], object]) -> Path:
    """A spool as a process leaves it that is killed after its work. Its log's index went with it."""
    source.mkdir()
    target.mkdir(mode=0o700)
    file = SpoolFile(source)
    work(file)
    for path in source.iterdir():
        if path.name.startswith(("spool-", "newest")) and not path.name.endswith("-shm"):
            (target / path.name).write_bytes(path.read_bytes())
            (target / path.name).chmod(0o600)
    (target / "lock").touch(0o600)
    file.close()
    return target


def contents(directory: Path) -> dict[str, bytes]:
    """What is in it, but for the index that SQLite makes anew at each opening."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.endswith("-shm")}


def ids(file: SpoolFile) -> list[int]:
    return [entry.id for entry in file.entries]


def test_a_start_on_a_full_disk_reads_everything_and_writes_nothing(tmp_path: Path, disk: Path) -> None:
    written = rows(1, 40)
    spool = killed(tmp_path / "source", disk / "spool", lambda file: [file.write([row], (), ()) for row in written])
    fill(disk)
    before = contents(spool)
    for _start in range(2):
        file = SpoolFile(spool)
        assert (ids(file), file.last_id, file.writable) == (list(range(1, 41)), 40, False)
        assert file.trouble == "SQLITE_IOERR_SHMSIZE"
        assert file.read([3, 40]) == [written[2], written[39]]
        assert file.dead_letters() == 0
        file.close()
        assert contents(spool) == before


def test_there_is_room_again_and_the_same_file_is_taken_up(tmp_path: Path, disk: Path) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 5), (), ()))
    filler = fill(disk)
    file = SpoolFile(spool)
    filler.unlink()
    file.take_up()
    file.write(rows(6, 1), [1], ())
    assert [row.id for row in file.read(list(range(9)))] == [2, 3, 4, 5, 6]
    file.close()
    again = SpoolFile(spool)
    assert (ids(again), again.set_aside) == ([2, 3, 4, 5, 6], 0)
    assert not list(spool.glob("*.corrupt"))
    again.close()


def test_nothing_can_be_written_by_a_limit_and_all_is_read(tmp_path: Path) -> None:
    """As a quota has it, and without a right to mount: no file of the process may grow or change."""
    spool = killed(tmp_path / "source", tmp_path / "spool", lambda file: file.write(rows(1, 9), [1], ()))
    before = contents(spool)
    script = """
import resource, sys
from pathlib import Path
from agentic_backend.spool.spooldir import SpoolLock
from agentic_backend.spool.spoolfile import SpoolFile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
lock = SpoolLock(Path(sys.argv[1]))
file = SpoolFile(Path(sys.argv[1]))
print([entry.id for entry in file.entries], len(file.read([2, 9])), file.writable)
file.close()
"""
    said = subprocess.run([sys.executable, "-c", script, str(spool)], check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "[2, 3, 4, 5, 6, 7, 8, 9] 2 False"
    assert contents(spool) == before


def test_a_disk_mounted_to_be_read_only_is_read(tmp_path: Path, disk: Path) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 9), (), ()))
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    lock = SpoolLock(spool)
    file = SpoolFile(spool)
    assert (ids(file), len(file.read([2, 9])), file.writable) == (list(range(1, 10)), 2, False)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    file.take_up()
    file.write(rows(10, 1), (), ())
    file.close()
    lock.release()


def test_what_is_marked_in_place_is_not_replayed_and_goes_once_there_is_room(tmp_path: Path, disk: Path) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 6), (), ()))
    filler = fill(disk)
    file = SpoolFile(spool)
    file.note_done({1, 2, 4})
    file.close()
    second = SpoolFile(spool)
    assert (ids(second), second.last_id) == ([3, 4, 5, 6], 6)
    second.note_done({3, 4, 5, 6})
    second.close()
    third = SpoolFile(spool)
    assert (ids(third), third.last_id) == ([], 6)
    filler.unlink()
    third.take_up()
    third.write(rows(7, 1), (), ())
    third.close()
    fourth = SpoolFile(spool)
    assert (ids(fourth), fourth.set_aside) == ([7], 0)
    assert [row.id for row in fourth.read(list(range(9)))] == [7]
    fourth.close()


def test_a_number_that_was_marked_is_not_given_again(tmp_path: Path, disk: Path) -> None:
    """An orderly end lets the numbers begin anew; what is below a mark would be taken for done."""
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 6), (), ()))
    filler = fill(disk)
    file = SpoolFile(spool)
    file.note_done({1, 2, 3, 4, 5, 6})
    filler.unlink()
    file.take_up()
    file.close()  # before anything was written
    again = SpoolFile(spool)
    assert again.last_id == 6
    again.write(rows(7, 1), (), ())
    again.write((), [7], ())
    again.close()
    last = SpoolFile(spool)
    assert (ids(last), last.last_id, last.set_aside) == ([], 0, 0)
    last.close()


def test_a_damaged_file_on_a_full_disk_is_read_and_stays_where_it_is(
    tmp_path: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 40), (), ()))
    (path,) = spool.glob("*-wal")
    SpoolFile(spool).close()  # the log is in the database now
    (path,) = spool.glob("*.sqlite")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    filler = fill(disk)
    before = contents(spool)
    file = SpoolFile(spool)
    found = ids(file)
    assert 30 < len(found) < 40
    assert "ALARM the spool was damaged" in caplog.text
    assert [row.id for row in file.read(found)] == found
    assert contents(spool) == before
    filler.unlink()
    file.take_up()
    file.write(rows(41, 1), (), ())
    file.close()
    assert len(list(spool.glob("*.corrupt"))) == 1
    again = SpoolFile(spool)
    assert (ids(again), again.set_aside) == ([*found, 41], 0)
    again.close()


def test_a_missing_end_is_kept_for_a_person_before_anything_is_written(
    tmp_path: Path, disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: [file.write([row], (), ()) for row in rows(1, 30)])
    (log,) = spool.glob("*-wal")
    log.write_bytes(cut := log.read_bytes()[: log.stat().st_size // 2])
    filler = fill(disk)
    file = SpoolFile(spool)
    assert (file.writable, file.trouble) == (False, "ENOSPC")
    assert "ALARM the end of the spool is missing" in caplog.text
    assert log.read_bytes() == cut
    filler.unlink()
    file.take_up()
    (aside,) = spool.glob("*.corrupt")
    assert (aside.read_bytes(), stat.S_IMODE(aside.stat().st_mode)) == (cut, 0o600)
    file.close()


def test_an_unfinished_replacement_is_read_as_one_on_a_full_disk(tmp_path: Path, disk: Path) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 3), (), ()))
    (disk / "spool" / "spool-000002.sqlite").touch(0o600)
    filler = fill(disk)
    file = SpoolFile(spool)
    assert (ids(file), file.writable) == ([1, 2, 3], False)
    file.close()
    filler.unlink()
    again = SpoolFile(spool)
    assert (ids(again), again.writable) == ([1, 2, 3], True)
    again.close()


def test_the_reserve_makes_room_for_a_start(tmp_path: Path, disk: Path) -> None:
    spool = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 5), (), ()))
    Reserve(spool).keep(MIB)
    assert (spool / "reserve").stat().st_blocks * 512 >= MIB
    fill(disk)
    file = SpoolFile(spool)
    assert (ids(file), file.writable, file.reserve.held) == ([1, 2, 3, 4, 5], True, False)
    file.write(rows(6, 1), [1], ())
    file.close()


def test_a_reserve_that_the_disk_does_not_give_is_not_there(disk: Path) -> None:
    reserve = Reserve(disk)
    with pytest.raises(OSError, match="No space left"):
        reserve.keep(17 * MIB)
    assert (reserve.held, list(disk.iterdir())) == (False, [])


def test_the_lock_is_made_with_the_room_of_the_reserve(disk: Path) -> None:
    """A copy that a person brought back has no lock."""
    (disk / "spool").mkdir()
    Reserve(disk / "spool").keep(MIB)
    subprocess.run(["mount", "-o", f"remount,nr_inodes={sum(1 for _ in disk.rglob('*')) + 1}", str(disk)], check=True)
    SpoolLock(disk / "spool").release()
    assert [path.name for path in (disk / "spool").iterdir()] == ["lock"]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - told by the writer's thread
            await asyncio.sleep(0.01)


async def test_a_spool_recovers_by_itself_when_there_is_room(tmp_path: Path, disk: Path) -> None:
    directory = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 5), (), ()))
    filler = fill(disk)
    spool = Spool(directory, lambda _: None)
    spool.start()
    assert ([entry.id for entry in spool.waiting], spool.usable, spool.disk_low) == ([1, 2, 3, 4, 5], False, True)
    id_, landed = spool.put("turn", KEY, "x6", b"body")
    spool.done([1, 2, 3])
    assert len(await spool.read([1, 5])) == 2
    assert not landed.done()
    filler.unlink()
    async with asyncio.timeout(PATIENCE_S):
        await landed
    spool.look_at_disk()
    assert (spool.usable, spool.disk_low) == (True, False)
    assert (directory / "reserve").exists()
    await spool.aclose()
    again = Spool(directory, lambda _: None)
    assert [entry.id for entry in again.waiting] == [4, 5, id_]
    again.start()
    await again.aclose()


async def test_with_nothing_to_write_it_is_tried_on_all_the_same(tmp_path: Path, disk: Path) -> None:
    directory = killed(tmp_path / "source", disk / "spool", lambda file: file.write(rows(1, 1), (), ()))
    filler = fill(disk)
    spool = Spool(directory, lambda _: None)
    spool.start()
    assert not spool.usable
    filler.unlink()
    await until(lambda: spool.usable)
    await spool.aclose()


async def test_turns_that_run_are_kept_by_the_reserve_and_no_new_one_is_let_in(disk: Path) -> None:
    spool = Spool(disk / "spool", lambda _: None)
    spool.start()
    assert not spool.disk_low
    filler = fill(disk)
    for number in range(20):
        async with asyncio.timeout(PATIENCE_S):
            await spool.put("turn", KEY, f"x{number}", b"b" * 20_000)[1]
    spool.look_at_disk()
    assert (spool.usable, spool.disk_low, (disk / "spool" / "reserve").exists()) == (True, True, False)
    filler.unlink()
    spool.look_at_disk()
    assert (spool.disk_low, (disk / "spool" / "reserve").exists()) == (False, True)
    await spool.aclose()


async def test_an_ask_is_over_only_with_the_turn_that_ends_it(tmp_path: Path, disk: Path) -> None:
    """What a kill finds while the disk takes nothing: the asks whose turns are nowhere, not those whose turns are."""
    asks = [Row.of(id_, "ask", KEY, f"x{id_}", b"ask") for id_ in (1, 2, 3)]
    directory = killed(tmp_path / "source", disk / "spool", lambda file: file.write(asks, (), ()))
    with Neighbour(disk):
        spool = Spool(directory, lambda _: None)
        spool.start()
        ended = [spool.put("turn", KEY, f"x{id_}", b"turn", instead_of=id_)[0] for id_ in (1, 2, 3)]
        spool.done(ended[:2])
        await until(lambda: SpoolFile(directory).entries[0].id == 3)
        await spool.aclose()
        again = SpoolFile(directory)
        assert ids(again) == [3]
        again.close()


async def recovered(spool: Spool) -> None:
    def well() -> bool:
        spool.look_at_disk()
        return spool.usable and not spool.disk_low

    await until(well)


async def test_a_disk_that_is_low_by_the_spool_alone_is_free_once_all_is_in_postgres(disk: Path) -> None:
    spool = Spool(disk / "spool", lambda _: None)
    spool.start()
    written: list[int] = []

    def records_bytes() -> int:
        return spool.size_bytes - (disk / "spool" / "reserve").stat().st_size

    while records_bytes() < 8 * MIB:
        id_, landed = spool.put("turn", KEY, f"x{len(written)}", b"b" * 100_000)
        written.append(id_)
        await landed
        spool.look_at_disk()
    # Opened again, so that no log is copied into the database while the rest of the disk is taken.
    await spool.aclose()
    spool = Spool(disk / "spool", lambda _: None)
    spool.start()
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - MIB // 2)
    spool.look_at_disk()
    assert (spool.usable, spool.disk_low) == (True, True)
    spool.done(written)
    await recovered(spool)
    assert (records_bytes() < MIB, filler.exists()) == (True, True)
    await spool.aclose()


@pytest.mark.parametrize("killed_before", [True, False])
async def test_a_disk_that_the_spool_has_filled_is_free_once_all_is_in_postgres(
    disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, killed_before: bool
) -> None:
    """Not even a deletion can be written: the file goes as a whole, after the mark that all of it is done."""
    directory = disk / "spool"
    if killed_before:
        killed(tmp_path / "source", directory, lambda file: file.write(rows(1, 60, 100_000), (), ()))
        fill(disk)
        spool = Spool(directory, lambda _: None)
        written = [entry.id for entry in spool.waiting]
        spool.start()
    else:
        spool = Spool(directory, lambda _: None)
        spool.start()
        written = []
        while spool.usable:
            written.append(spool.put("turn", KEY, f"x{len(written)}", b"b" * 200_000)[0])
            await asyncio.sleep(0.01)
    assert not spool.usable
    spool.done(written)
    await recovered(spool)
    id_, landed = spool.put("turn", KEY, "next", b"body")
    await landed
    assert id_ > max(written)
    await spool.aclose()
    again = SpoolFile(directory)
    assert (ids(again), again.set_aside) == ([id_], 0)
    assert "is missing" not in caplog.text
    again.close()


def test_the_service_starts_where_no_file_can_be_written_at_all(tmp_path: Path) -> None:
    """Not the spool, not its log, not what a library keeps for itself; and Postgres is away too."""
    spool = killed(tmp_path / "source", tmp_path / "spool", lambda file: file.write(delete(), (), ()))
    before = contents(spool)
    port = free_port()
    settings = {
        "app": {"port": port, "metrics_enabled": False, "kpi_log_summary_interval_sec": 1},
        "security": {"user": {"enabled": False}},
        "ai": {"default_chat_model": {"name": "mock", "settings": {"base_url": "http://127.0.0.1:9/v1"}}},
        "storage": {"postgres": {"host": "127.0.0.1", "port": free_port(), "database": "x", "username": "x"}},
        "persistence": {"spool_dir": str(spool)},
    }
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings))
    limited = 'ulimit -f 0; exec "$0" -m agentic_backend >/dev/full 2>&1'
    command = with_parent_death_signal(["/bin/sh", "-c", limited, sys.executable], signal.SIGKILL)
    home = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "CONFIG_FILE": str(file), "ENV_FILE": ""}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, env=environment | home, cwd=ROOT) as process:
        try:
            body = told(f"http://127.0.0.1:{port}/agentic/v1/ready", process)
        finally:
            process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert body["status"] == "storage_full"
    assert body["dependencies"]["spool"] == {"status": "down", "dead_letters": 0}
    assert body["dependencies"]["postgres"]["pending_records"] == 1
    assert contents(spool) == before


def delete() -> list[Row]:
    return [Row.of(1, "delete", KEY, "", b'{"op":"delete","schema":1,"session_id":"session","user_id":"ada"}')]


def told(url: str, process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The body of a 503, once there is one."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        assert process.poll() is None, "the service has ended"
        try:
            urllib.request.urlopen(url, timeout=5)  # noqa: S310 - of ours
        except urllib.error.HTTPError as error:
            answer: dict[str, Any] = loads(error.read())
            return answer
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


@pytest.fixture
def heir(build: Build, database: Database) -> Callable[[Path], Awaitable[Persistence]]:
    """Persistence on what another has left in a directory."""

    async def start(directory: Path) -> Persistence:
        own_kpi = Kpi(CollectorRegistry(), service="agentic")
        persistence = build(database.settings(), own_kpi=own_kpi, persistence={"spool_dir": str(directory)})
        await persistence.database.connect_until_ready(lambda _state: None)
        return persistence

    return start


def left_by(persistence: Persistence, directory: Path) -> Path:
    """The spool as a kill at this moment would leave it."""
    assert persistence.spool is not None
    ignored = shutil.ignore_patterns("*-shm", "lock", "reserve", "filler")
    shutil.copytree(persistence.spool.directory, directory, ignore=ignored)
    (directory / "lock").touch(0o600)
    persistence.owner.close()
    return directory


async def test_turns_go_to_postgres_from_a_full_disk_and_a_further_start_changes_nothing(
    disk: Path,
    held: Persistence,
    heir: Callable[[Path], Awaitable[Persistence]],
    database: Database,
    tmp_path: Path,
) -> None:
    session = await new_session(held)
    key = (session.id, USER)
    for record in turns(session, 3):
        assert await held.log.append(record) == "spool"
        session = record.session
    cut = turn(session, "cut", "why?", "because")
    held.log.begin(AskRecord(session, cut.messages[0]))
    _, on_disk = held.batcher.change(Change(key, utc_now(), title="An old title"))
    assert on_disk is not None
    await on_disk
    directory = left_by(held, disk / "spool")
    with Neighbour(disk):
        first = await heir(directory)
        assert not first.log.has_room()
        assert first.dependencies()["spool"] == {"status": "down", "dead_letters": 0}
        assert first.dependencies()["postgres"]["pending_records"] == 5
        seen = await history_of(first.store, session.id, USER)
        assert [loads(message)["rank"] for message in seen] == list(range(8))
        first.start()
        assert await first.flush(PATIENCE_S) == 0
        assert [rank for rank, _ in stored_ranks(database.dsn, session)] == list(range(8))
        assert await first.store.change(session.id, USER, title="A new title") is not None
        await until(lambda: Mark(directory / "newest").done >= 5)
        again = left_by(first, tmp_path / "again")
    second = await heir(again)
    assert second.dependencies()["postgres"]["pending_records"] == 0
    second.start()
    assert await second.flush(PATIENCE_S) == 0
    found = await second.store.get(session.id, USER)
    assert found is not None
    assert found.title == "A new title"
    assert [rank for rank, _ in stored_ranks(database.dsn, session)] == list(range(8))
    assert second.dependencies()["spool"] == {"status": "up", "dead_letters": 0}


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_nothing_beside_the_spool_is_for_others(tmp_path: Path, umask: int) -> None:
    """Also what was copied, set aside, or left wide open by whoever restored it."""
    script = """
import os, sys
from pathlib import Path
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spoolfile import SpoolFile
from agentic_backend.spool.spoolrows import Row
os.umask(int(sys.argv[2]))
directory = Path(sys.argv[1])
spool = Spool(directory, lambda _: None)
spool._file.write([Row.of(n, "turn", ("s", "u"), f"x{n}", b"b" * 3000) for n in range(1, 30)], (), ())
spool._file.replace()
spool._file.write([Row.of(n, "turn", ("s", "u"), f"x{n}", b"b" * 3000) for n in range(30, 60)], (), ())
os._exit(9)
"""
    spool = tmp_path / "spool"
    subprocess.run([sys.executable, "-c", script, str(spool), str(umask)], check=False)
    (log,) = [path for path in spool.glob("*-wal") if "corrupt" not in path.name]
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    for path in spool.iterdir():
        path.chmod(0o644)
    spool.chmod(0o755)
    lock = SpoolLock(spool)
    file = SpoolFile(spool)
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in spool.iterdir()}
    assert set(modes.values()) == {"0o600"}, modes
    assert {"lock", "newest", "reserve"} < modes.keys()
    assert sum(name.endswith((".corrupt", "-shm")) for name in modes) >= 3
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    file.close()
    lock.release()
