"""Which spools a worker takes for those of siblings that do not come back, and when."""

from pathlib import Path

import pytest

from agentic_backend.persist.adoption import Adoption
from agentic_backend.spool.spooldir import SpoolLock

DEAD_S = 30.0


class Service:
    """The directories of a service's spools, and what is done with them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.now = 0.0
        self.empties = True
        self.written: list[str] = []
        self.gone: list[str] = []

    def spool(self, name: str) -> Path:
        directory = self.base / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "spool-1.sqlite").write_bytes(b"")
        return directory

    def adoption(self, own: Path, workers: int) -> Adoption:
        async def write_out(lock: SpoolLock) -> bool:
            self.written.append(lock.directory.name)
            if not self.empties:
                raise OSError
            lock.release()
            return self.empties

        async def gone(directory: Path) -> None:
            self.gone.append(directory.name)

        return Adoption(self.base, own, workers, write_out, gone, dead_s=DEAD_S, look_s=0.01, clock=lambda: self.now)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "spools")


async def looks(adoption: Adoption, times: int = 1) -> None:
    for _ in range(times):
        await adoption.look()


async def test_one_above_the_number_of_workers_is_written_at_once_and_once(service: Service) -> None:
    own = service.spool("")
    service.spool("worker-1")
    service.spool("worker-2")
    await looks(service.adoption(own, 2), 3)
    assert (service.written, service.gone) == (["worker-2"], ["worker-2"])


async def test_that_of_a_worker_is_written_once_it_has_been_free_for_long(service: Service) -> None:
    service.spool("")
    adoption = service.adoption(service.spool("worker-1"), 2)
    await looks(adoption)
    service.now = DEAD_S - 1
    lock = SpoolLock(service.base)
    await looks(adoption)
    lock.release()
    service.now += DEAD_S
    await looks(adoption)
    assert service.written == []
    service.now += DEAD_S
    await looks(adoption, 2)
    assert service.gone == [service.base.name]


async def test_one_that_is_used_again_is_looked_at_again(service: Service) -> None:
    adoption = service.adoption(service.spool(""), 1)
    left = service.spool("worker-1")
    await looks(adoption)
    (left / "spool-2.sqlite").write_bytes(b"")
    await looks(adoption, 2)
    assert service.written == ["worker-1"] * 2


async def test_one_that_cannot_be_read_is_let_go_and_tried_again(service: Service) -> None:
    adoption = service.adoption(service.spool(""), 1)
    left = service.spool("worker-1")
    service.empties = False
    await looks(adoption, 2)
    assert (service.written, service.gone) == (["worker-1"] * 2, [])
    SpoolLock(left).release()
    service.empties = True
    await looks(adoption)
    assert service.gone == ["worker-1"]


async def test_a_directory_without_a_spool_and_one_that_another_has_are_left_alone(service: Service) -> None:
    adoption = service.adoption(service.spool(""), 1)
    (service.base / "worker-1").mkdir()
    (service.base / "worker-x").mkdir()
    held = SpoolLock(service.spool("worker-2"))
    await looks(adoption)
    held.release()
    assert service.written == []
