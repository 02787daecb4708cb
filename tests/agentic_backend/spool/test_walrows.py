"""The log of a spool, damaged anywhere: what is behind the damage is read, and a torn end is no damage."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_backend.spool.spoolfile import SpoolFile, connect
from agentic_backend.spool.spoolrows import Row
from agentic_backend.spool.walframes import FRAME, HEADER
from agentic_backend.spool.walrows import read_behind

KEY = ("session", "ada")
SIZES = (0, 40, 300, 3000, 5000, 20_000)


class Killed:
    """A spool as a kill left it: all its rows, the ids of those that wait, and the frames of the log in which a row was
    first written; none where it is in the database."""

    def __init__(
        self, directory: Path, rows: dict[int, Row], waiting: frozenset[int], frames: dict[int, range]
    ) -> None:
        self.directory = directory
        self.rows = rows
        self.waiting = waiting
        self.frames = frames

    @property
    def log(self) -> Path:
        """Its log."""
        (log,) = self.directory.glob("*-wal")
        return log


def made(id_: int) -> Row:
    """A row of one of the sizes; its body is of this row alone."""
    return Row.of(id_, "turn", KEY, f"x{id_}", (b"%06d" % id_ * 4000)[: SIZES[id_ % len(SIZES)]])


def valid_frames(log: Path) -> int:
    """How many frames are of the present use of the log: those of an earlier one have other salts."""
    content = log.read_bytes()
    places = range(HEADER, len(content), FRAME)
    return next((n for n, at in enumerate(places) if content[at + 8 : at + 16] != content[16:24]), len(places))


def fill(directory: Path, commits: int = 30, copied_at: int | None = None, *, goes_on: bool = False) -> Killed:
    """Commits of one to three rows, and the removal of the oldest with every second. After `copied_at` of them the log
    is copied into the database and begins anew: it ends in the middle, with old frames behind its end. If it `goes_on`,
    as under a load that never pauses, what is in the database is in the log, too."""
    live, killed = directory / "live", directory / "killed"
    live.mkdir()
    killed.mkdir()
    file = SpoolFile(live)
    (log,) = live.glob("*-wal")
    rows: dict[int, Row] = {}
    frames: dict[int, range] = {}
    before = valid_frames(log)
    with closing(connect(log.with_name(log.name.removesuffix("-wal")))) as reader:
        for number in range(commits):
            inserts = [made(len(rows) + 1 + place) for place in range(1 + number % 3)]
            rows.update((row.id, row) for row in inserts)
            file.write(inserts, [number // 2], ())
            after = valid_frames(log)
            frames.update((row.id, range(before, after)) for row in inserts)
            before = after
            if number == copied_at and goes_on:
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM record").fetchall()
                file.checkpoint()
            elif number == copied_at:
                file.checkpoint()
                frames, before = {}, 0
        for path in live.iterdir():
            if not path.name.endswith("-shm"):
                shutil.copy(path, killed)
    file.close()
    waiting = frozenset(id_ for id_ in rows if id_ > (commits - 1) // 2)
    return Killed(killed, rows, waiting, frames)


@pytest.fixture(
    scope="module",
    params=[{}, {"copied_at": 18}, {"copied_at": 18, "goes_on": True}],
    ids=["one log", "a log that began anew", "a log that was copied and goes on"],
)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    return fill(tmp_path_factory.mktemp("spool"), **request.param)


def damaged_frames(spans: list[tuple[int, int]]) -> set[int]:
    """The frames that bytes of these spans are in, and one behind each: the header counts as the one before the
    first."""
    hit: set[int] = set()
    for start, end in spans:
        first, last = (start - HEADER) // FRAME if start >= HEADER else -1, (end - 1 - HEADER) // FRAME
        hit |= set(range(first, max(first, last) + 2))
    return hit


def opened(source: Path, log: bytes) -> Iterator[SpoolFile]:
    """A start on this spool with this content of its log."""
    with TemporaryDirectory() as place:
        for path in source.iterdir():
            shutil.copy(path, place)
        (at,) = Path(place).glob("*-wal")
        at.write_bytes(log)
        file = SpoolFile(Path(place))
        yield file
        file.close()


SPANS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.sampled_from([1, 8, 512, 4096, 12_000])), min_size=1, max_size=3
)


@settings(max_examples=25)
@given(places=SPANS, with_what=st.sampled_from([b"\0", b"\xff", b"flip"]))
def test_every_row_outside_of_the_damage_is_read(
    killed: Killed, places: list[tuple[float, int]], with_what: bytes
) -> None:
    """A row is lost only where a frame in which it was written is damaged, or the one before that."""
    content = bytearray(killed.log.read_bytes())
    end = HEADER + FRAME * valid_frames(killed.log)
    spans = [(int(part * end), min(int(part * end) + size, end)) for part, size in places]
    for start, stop in spans:
        for place in range(start, stop):
            content[place] = content[place] ^ 0xFF if with_what == b"flip" else with_what[0]
    hit = damaged_frames(spans)
    out_of_it = {id_ for id_ in killed.waiting if id_ not in killed.frames or hit.isdisjoint(killed.frames[id_])}
    for file in opened(killed.directory, bytes(content)):
        found = {entry.id for entry in file.entries}
        assert out_of_it <= found, f"damaged {sorted(hit)}"
        for row in file.read(sorted(found)):
            was = killed.rows[row.id]
            assert (row.key, row.exchange_id, row.kind, row.body) == (was.key, was.exchange_id, was.kind, was.body)


def test_what_is_behind_an_early_damaged_frame_is_kept_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = fill(tmp_path)
    content = bytearray(killed.log.read_bytes())
    content[HEADER + 5 * FRAME + 100] ^= 0xFF
    hit = {id_ for id_ in killed.waiting if 5 in killed.frames[id_]}
    for file in opened(killed.directory, bytes(content)):
        assert killed.waiting - {entry.id for entry in file.entries} <= hit
        assert (file.damaged_frames, file.set_aside, file.lost) == (1, 1, 0)
        assert file.last_id == max(killed.rows)
    (alarm,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "ALARM the spool was damaged (its log)" in alarm.getMessage()
    assert "those behind 1 damaged frames of its log included" in alarm.getMessage()


@pytest.mark.parametrize("lost", [0, 1, 100, FRAME - 1, FRAME, 3 * FRAME + 50])
def test_a_torn_end_is_no_damage(tmp_path: Path, lost: int, caplog: pytest.LogCaptureFixture) -> None:
    """A process or a host that dies while it writes leaves part of a commit that nobody was told of."""
    live = tmp_path / "live"
    live.mkdir()
    file = SpoolFile(live)
    for id_ in range(1, 8):
        file.write([made(id_)], (), ())
    (log,) = live.glob("*-wal")
    flushed = log.stat().st_size
    file.write([made(11)], (), (), flush=False)
    content = bytearray(log.read_bytes())
    assert len(content) > flushed + 3 * FRAME + 50
    # A host that loses power may have written a later part of what was not flushed, and not an earlier one.
    for place in range(flushed + lost, flushed + lost + 10):
        content[place] ^= 0xFF
    killed = tmp_path / "killed"
    killed.mkdir()
    for path in live.iterdir():
        if not path.name.endswith("-shm"):
            shutil.copy(path, killed)
    file.close()
    for start in opened(killed, bytes(content)):
        assert [entry.id for entry in start.entries] == list(range(1, 8))
        assert (start.damaged_frames, start.set_aside) == (0, 0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_intact_log_has_nothing_behind_damage(killed: Killed) -> None:
    behind = read_behind(killed.log)
    assert (behind.rows, behind.damaged) == ({}, 0)


@given(st.binary(max_size=3 * FRAME))
def test_whatever_a_log_is_it_is_read_or_left(content: bytes) -> None:
    with TemporaryDirectory() as place:
        log = Path(place) / "log"
        log.write_bytes(content)
        assert read_behind(log).rows == {}
