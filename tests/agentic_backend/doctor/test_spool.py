"""The spool's directory: writable, with room, on a disk whose flush takes so long."""

from pathlib import Path

import pytest

from agentic_backend.doctor.spool import flush_times, judge_flushes, judge_room, look_at_spool
from backend_kit.doctor.checks import Health
from tests.agentic_backend.records import settings_for
from tests.support.small_disk import NoRight, fill, small_disk

_GIB = 1 << 30
WHERE = {"host": "127.0.0.1", "port": 1, "database": "x", "username": "x"}


def found(directory: Path, workers: int = 1, **changes: str):  # type: ignore[no-untyped-def]
    kept = {"ack": "spool", "spool_dir": str(directory), **changes}
    return look_at_spool(settings_for(WHERE, persistence=kept, app={"workers": workers}))


def test_a_flush_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    times = flush_times(tmp_path)
    assert 5 <= len(times) <= 36
    assert min(times) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flushes", "state", "figure", "costs"),
    [
        ([0.0005] * 36, Health.OK, "0.5 ms median, 0.5 ms worst of 36", "0.5 to 1.0 ms, 1.0 at worst"),
        ([0.024, 0.02, 0.1], Health.SLOW, "24.0 ms median, 100.0 ms worst of 3", "24.0 to 48.0 ms, 200.0 at worst"),
    ],
)
def test_a_flush_costs_a_final_one_or_two(flushes: list[float], state: Health, figure: str, costs: str) -> None:
    found = judge_flushes(flushes)
    assert (found.state, found.figure) == (state, f"{figure}: ack: spool costs a final {costs}")


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [
        (_GIB, 100 * _GIB, Health.OK),
        (_GIB - 1, 100 * _GIB, Health.WRONG),
        (_GIB // 20 + 1, _GIB, Health.OK),
        (_GIB // 20, _GIB, Health.WRONG),
    ],
)
def test_room_is_what_the_service_takes_for_it(free: int, total: int, state: Health) -> None:
    assert judge_room(Path("spool"), free, total, made=True).state is state


def test_a_directory_that_is_not_made_yet_is_not_made(tmp_path: Path) -> None:
    room, flush = found(tmp_path / "data" / "spool")
    assert (room.state, flush.what) == (Health.OK, "flush")
    assert room.figure.endswith(f"{tmp_path}/data/spool, made at the first start")
    assert list(tmp_path.iterdir()) == []


def test_without_a_spool_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    (one,) = found(tmp_path, ack="db")
    assert (one.state, one.figure) == (Health.NOT_USED, "persistence.ack: db")


def test_a_file_in_the_way_is_wrong_for_any_worker(tmp_path: Path) -> None:
    (tmp_path / "worker-1").touch()
    (one,) = found(tmp_path, workers=2)
    assert (one.state, one.figure) == (Health.WRONG, f"this user may not write in {tmp_path}/worker-1")


@pytest.mark.servers
def test_a_full_disk_is_wrong(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 8) as place:
            fill(place)
            (one,) = found(place)
    except NoRight:
        pytest.skip("may not mount a file system")
    assert (one.state, one.figure) == (Health.WRONG, f"no room in {tmp_path}/disk (ENOSPC)")
    assert "storage_full" in one.remedy
