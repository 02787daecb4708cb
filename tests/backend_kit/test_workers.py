"""Workers that do not start: left out while another serves, tried again, and the end of all where none does."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from backend_kit.settings import usable_cores
from backend_kit.workers import EXIT_REFUSED, GIVE_UP_AFTER, QUICK_S, Workers
from tests.agentic_backend.records import until
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.servers

SERVES = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(600)"


class Service:
    """Two workers: what each is told to do, by how often it was started; the last again and again."""

    def __init__(self, *codes: list[int | None]) -> None:
        self.now = 0.0
        self.counts = [0] * len(codes)
        self._codes = codes
        self.workers = Workers(
            len(codes), self._command, kill_after_s=PATIENCE_S, left_out_s=0.05, clock=lambda: self.now
        )

    def _command(self, number: int, _lifeline: int) -> Sequence[str]:
        codes = self._codes[number]
        code = codes[min(self.counts[number], len(codes) - 1)]
        self.counts[number] += 1
        return [sys.executable, "-c", SERVES if code is None else f"import sys; sys.exit({code})"]

    async def ended(self) -> int:
        return await asyncio.wait_for(self.workers.supervise_workers(), PATIENCE_S)

    async def left_out_and_back(self) -> None:
        """Both have been started, the first one serves, and the second is back after it was left out."""
        supervised = asyncio.create_task(self.workers.supervise_workers())
        await until(lambda: min(self.counts) == 1)
        self.now += QUICK_S
        await until(lambda: self.counts[1] == len(self._codes[1]) and len(self.workers.pids) == 2)
        assert self.counts[0] == 1
        self.workers.stop()
        await asyncio.wait_for(supervised, PATIENCE_S)


async def test_one_that_dies_again_and_again_is_left_out_while_another_serves(caplog: pytest.LogCaptureFixture) -> None:
    await Service([None], [*[1] * GIVE_UP_AFTER, None]).left_out_and_back()
    assert "worker 1 does not start: it is left out" in caplog.text


async def test_one_whose_restart_is_refused_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    await Service([None], [1, EXIT_REFUSED, None]).left_out_and_back()
    assert "worker 1 does not start: it is left out" in caplog.text


async def test_without_another_one_that_serves_the_service_ends() -> None:
    service = Service([None], [1])
    assert await service.ended() == 1
    assert service.counts == [1, GIVE_UP_AFTER]


async def test_one_that_is_refused_at_the_start_ends_all_whoever_serves() -> None:
    service = Service([None], [EXIT_REFUSED])
    supervised = asyncio.create_task(service.ended())
    await until(lambda: min(service.counts) == 1)
    service.now += QUICK_S
    assert await supervised == EXIT_REFUSED
    assert service.counts == [1, 1]


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", None), ("100000 100000", 1), ("50000 100000", 1), ("", None), ("a b c", None), ("1 0", None)],
)
def test_cores_are_those_that_the_container_may_use(tmp_path: Path, quota: str, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    allowed = len(os.sched_getaffinity(0))
    assert usable_cores(file) == (cores or allowed)
    assert usable_cores(tmp_path / "none") == allowed
    file.write_text(f"{allowed * 250_000} 100000")
    assert usable_cores(file) == allowed
