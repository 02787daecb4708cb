import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_backend.spool.spooldir import SpoolLock, SpoolTaken, SpoolUnusable
from agentic_backend.spool.spoolfile import SpoolFile, connect
from agentic_backend.spool.spoolrows import Row

KEY = ("session", "ada")


def rows(first: int, count: int, size: int = 3000) -> list[Row]:
    return [Row.of(first + n, "turn", KEY, f"x{first + n}", bytes([first + n & 0xFF]) * size) for n in range(count)]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name.startswith(("spool-", "newest"))}


def snapshot(source: Path, target: Path) -> None:
    """What a kill leaves: the file and its log as they are, without the checkpoint of a proper close."""
    target.mkdir()
    for name, content in files(source).items():
        if not name.endswith("-shm"):
            (target / name).write_bytes(content)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    lock = SpoolLock(tmp_path / "spool")
    assert stat.S_IMODE((tmp_path / "spool").stat().st_mode) == 0o700
    with pytest.raises(SpoolTaken, match="another process uses the spool directory"):
        SpoolLock(tmp_path / "spool")
    lock.release()
    lock.release()
    SpoolLock(tmp_path / "spool").release()


def test_a_directory_that_is_let_go_is_free_while_a_child_still_has_its_descriptors(tmp_path: Path) -> None:
    lock = SpoolLock(tmp_path)
    ours = [path for path in Path("/proc/self/fd").iterdir() if opened(path) == tmp_path / "lock"]
    inherited = [os.dup(int(path.name)) for path in ours]  # as between fork and exec
    assert inherited
    try:
        lock.release()
        SpoolLock(tmp_path).release()
    finally:
        for fd in inherited:
            os.close(fd)


def opened(descriptor: Path) -> Path | None:
    """What it is a descriptor of; None where it was closed meanwhile."""
    try:
        return descriptor.readlink()
    except OSError:
        return None


def test_a_directory_that_cannot_be_made_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolUnusable, match=r"cannot use the spool directory .*: Not a directory"):
        SpoolLock(tmp_path / "file" / "spool")


def test_rows_are_found_again_in_order_and_only_by_their_owner(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    written = rows(1, 5)
    file.write(written[3:], (), ())
    file.write(written[:3], [2], ())
    file.close()
    again = SpoolFile(tmp_path)
    assert [(entry.id, entry.exchange_id, entry.size) for entry in again.entries] == [
        (1, "x1", 3000),
        (3, "x3", 3000),
        (4, "x4", 3000),
        (5, "x5", 3000),
    ]
    assert again.last_id == 5
    assert again.read([5, 2, 1]) == [written[0], written[4]]
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("spool-*")} == {0o600}
    again.close()


def test_a_dead_letter_is_kept_and_its_number_not_given_again(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    file.write(rows(1, 3), (), ())
    file.write((), (), [("poison", 3)])
    file.close()
    again = SpoolFile(tmp_path)
    assert [entry.id for entry in again.entries] == [1, 2]
    assert again.dead_letters() == 1
    assert again.last_id == 3
    again.close()


def test_what_was_committed_survives_without_a_close(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    file.write(rows(1, 7), (), ())
    snapshot(tmp_path, tmp_path / "killed")
    file.close()
    killed = SpoolFile(tmp_path / "killed")
    assert [entry.id for entry in killed.entries] == [1, 2, 3, 4, 5, 6, 7]
    assert killed.set_aside == 0
    killed.close()


def flip(content: bytearray, place: int) -> None:
    content[place] ^= 0xFF


def truncate(content: bytearray, place: int) -> None:
    del content[place:]


def zero_page(content: bytearray, place: int) -> None:
    start = place // 4096 * 4096
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))


@pytest.mark.parametrize("damage", [flip, truncate, zero_page])
def test_a_damaged_database_file_is_set_aside_and_what_can_be_read_is_kept(
    tmp_path: Path, damage: Callable[[bytearray, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Seeded places all over the file. Whatever is found again is as it was written; nothing is emptied in silence."""
    source = tmp_path / "source"
    source.mkdir()
    file = SpoolFile(source)
    written = {row.id: row for row in rows(1, 40)}
    file.write(written.values(), (), ())
    file.close()
    (name,) = [name for name in files(source) if name.endswith(".sqlite")]
    whole = files(source)[name]
    dice = random.Random(8)  # noqa: S311 - seeded, not secret
    kept = set_aside = 0
    for number in range(24):
        place = tmp_path / f"{number}"
        place.mkdir()
        content = bytearray(whole)
        damage(content, dice.randrange(len(content)))
        (place / name).write_bytes(content)
        caplog.clear()
        opened = SpoolFile(place)
        for row in opened.read([entry.id for entry in opened.entries]):
            assert row == written[row.id]
        kept += len(opened.entries)
        set_aside += opened.set_aside
        if len(opened.entries) < len(written):
            assert opened.set_aside == 1
            assert "ALARM the spool was damaged" in caplog.text
            assert len(list(place.glob("*.corrupt"))) == 1
        opened.close()
        again = SpoolFile(place)
        assert [entry.id for entry in again.entries] == [entry.id for entry in opened.entries]
        assert again.set_aside == 0
        again.close()
    assert set_aside > 12
    assert kept > 24 * 40 // 3


def test_a_damaged_log_loses_nothing_from_before_the_damage_and_nothing_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    file = SpoolFile(source)
    for row in rows(1, 30):
        file.write([row], (), ())
    snapshot(source, tmp_path / "killed")
    file.close()
    (log,) = [name for name in files(tmp_path / "killed") if name.endswith("-wal")]
    whole = files(tmp_path / "killed")
    dice = random.Random(15)  # noqa: S311 - seeded, not secret
    for number in range(20):
        place = tmp_path / f"{number}"
        place.mkdir()
        content = bytearray(whole[log])
        cut, ends = dice.randrange(len(content)), number % 2
        (truncate if ends else flip)(content, cut)
        for name, kept in whole.items():
            (place / name).write_bytes(bytes(content) if name == log else kept)
        caplog.clear()
        opened = SpoolFile(place)
        ids = [entry.id for entry in opened.entries]
        if ends:
            assert ids == list(range(1, len(ids) + 1))  # a prefix: each commit is whole or absent
        else:
            assert len(ids) >= 29, "what is behind the damage is read on"
        missing = len(ids) < 30
        assert opened.set_aside == (missing or opened.damaged_frames > 0)
        said = "the end of the spool is missing" if ends or not opened.damaged_frames else "the spool was damaged"
        assert (f"ALARM {said}" in caplog.text) == bool(opened.set_aside)
        assert len(list(place.glob("*.corrupt"))) == opened.set_aside
        assert opened.last_id == 30
        opened.close()
        again = SpoolFile(place)
        assert again.set_aside == 0
        again.close()


def test_dead_letters_beside_a_damaged_page_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    file = SpoolFile(source)
    file.write(rows(1, 40), (), ())
    file.write((), (), [("poison", number) for number in range(1, 41)])
    file.close()
    (path,) = source.glob("*.sqlite")
    content = bytearray(path.read_bytes())
    letters = [place for place in range(len(content)) if content.startswith(b"poison", place)]
    zero_page(content, letters[len(letters) // 2])
    path.write_bytes(content)
    opened = SpoolFile(source)
    assert 35 <= opened.dead_letters() < 40
    opened.close()


def test_a_log_that_vanished_with_everything_in_it_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "source"
    source.mkdir()
    file = SpoolFile(source)
    file.write(rows(1, 3), (), ())
    file.write((), [1, 2, 3], ())
    snapshot(source, tmp_path / "killed")
    snapshot(source, tmp_path / "robbed")
    file.close()
    whole = SpoolFile(tmp_path / "killed")
    assert (whole.entries, whole.last_id, whole.set_aside) == ([], 3, 0)
    # The newest is still there, to show that nothing is missing, but nothing of what it held.
    ((row,),) = [whole.read([1, 2, 3])]
    assert (row.id, row.kind, row.session_id, row.body) == (3, "done", "", b"")
    whole.close()
    (log,) = (tmp_path / "robbed").glob("*-wal")
    log.unlink()
    robbed = SpoolFile(tmp_path / "robbed")
    assert robbed.entries == []
    assert "ALARM the end of the spool is missing: the newest record here is 0, 3 had been committed" in caplog.text
    robbed.close()


def test_an_orderly_end_leaves_nothing_of_what_is_done(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    file.write(rows(1, 3), (), ())
    file.write((), [1, 2, 3], ())
    file.close()
    again = SpoolFile(tmp_path)
    assert (again.entries, again.set_aside) == ([], 0)
    again.close()


def test_after_a_failed_flush_it_goes_on_in_a_new_file(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    file.write(rows(1, 3), (), ())
    file.write((), (), [("poison", 2)])
    file.replace()
    file.write(rows(4, 1), (), ())
    assert [row.id for row in file.read([1, 2, 3, 4])] == [1, 3, 4]
    assert file.dead_letters() == 1
    file.close()
    again = SpoolFile(tmp_path)
    assert [entry.id for entry in again.entries] == [1, 3, 4]
    assert len(list(tmp_path.glob("*.corrupt"))) == 1
    again.close()


def test_a_replacement_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path)
    file.write(rows(1, 3), (), ())
    file.close()
    (tmp_path / "newer").mkdir()
    newer = SpoolFile(tmp_path / "newer")
    newer.write([*rows(3, 1), *rows(4, 1)], (), ())
    newer.close()
    (tmp_path / "newer" / "spool-000001.sqlite").rename(tmp_path / "spool-000002.sqlite")
    (tmp_path / "newer" / "spool-000001.sqlite-wal").unlink(missing_ok=True)
    merged = SpoolFile(tmp_path)
    assert [entry.id for entry in merged.entries] == [1, 2, 3, 4]
    merged.close()
    again = SpoolFile(tmp_path)
    assert [entry.id for entry in again.entries] == [1, 2, 3, 4]
    again.close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 20")
        return connection

    file = SpoolFile(tmp_path, failing)
    file.write(rows(1, 2), (), ())
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.write(rows(3, 40), (), ())
    file.write((), [1], ())
    assert [row.id for row in file.read(list(range(50)))] == [2]
    file.close()


@pytest.mark.servers
def test_a_person_who_looks_into_a_running_spool_costs_nothing(tmp_path: Path) -> None:
    """A shell that closes last takes the log in and removes it: it must see that it is not the last."""
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM record').fetchall()"
    file = SpoolFile(tmp_path)
    file.write(rows(1, 1), (), ())
    subprocess.run([sys.executable, "-c", look, str(tmp_path / "spool-000001.sqlite")], check=True)
    file.write(rows(2, 1), (), ())
    script = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], ignore=lambda *_: ['lock'])"
    subprocess.run([sys.executable, "-c", script, str(tmp_path), str(tmp_path / "killed")], check=True)
    file.close()
    killed = SpoolFile(tmp_path / "killed")
    assert [entry.id for entry in killed.entries] == [1, 2]
    killed.close()
