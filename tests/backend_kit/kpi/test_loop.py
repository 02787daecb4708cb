"""The loop monitor sees blocks of the loop, also those that hold the GIL, and its own figures agree."""

import asyncio
import ctypes
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from backend_kit.kpi import Culprits, Kpi, Ledger, LoopMonitor
from backend_kit.kpi.culprit import Sighting, sight
from backend_kit.kpi.rollup import Stats

Value = Callable[..., float | None]


class Samples:
    """Stands where the compatible gauge would and tells when so many samples of the lag have come."""

    def __init__(self) -> None:
        self._missing = 0
        self._come = asyncio.Event()

    def set(self, value: float) -> None:  # noqa: ARG002  # only the coming of a sample counts
        self._missing -= 1
        if self._missing == 0:
            self._come.set()

    async def more(self, count: int) -> None:
        self._missing = count
        self._come.clear()
        await self._come.wait()


@pytest.fixture
def samples(kpi: Kpi) -> Samples:
    samples = Samples()
    kpi.gauge("event_loop_lag_ms", samples)
    return samples


@asynccontextmanager
async def watched(kpi: Kpi, samples: Samples, notices: list[str]) -> AsyncIterator[LoopMonitor]:
    monitor = LoopMonitor(kpi, notice=notices.append)
    monitor.start()
    try:
        await samples.more(2)
        yield monitor
    finally:
        monitor.close()


def lag(kpi: Kpi) -> Stats:
    stats = kpi.gauge("event_loop_lag_ms").rollup.take()
    assert stats is not None
    return stats


async def test_a_block_of_200_ms_shows_in_the_gauge_and_in_the_histogram(
    kpi: Kpi, samples: Samples, value: Value
) -> None:
    notices: list[str] = []
    async with watched(kpi, samples, notices):
        time.sleep(0.2)  # noqa: ASYNC251  # the block that must be seen
        await samples.more(8)
    stats = lag(kpi)
    assert stats.maximum >= 150
    count = value("app_event_loop_lag_seconds_count")
    assert count == stats.count
    assert count - (value("app_event_loop_lag_seconds_bucket", le="0.1") or 0) >= 2
    assert value("app_event_loop_stalls_total") == 1
    [notice] = notices
    assert "test_a_block_of_200_ms" in notice
    assert notice.startswith("[KPI][STALL] lag_ms=")
    assert "\n" not in notice


async def test_a_block_inside_a_c_call_that_holds_the_gil_shows(kpi: Kpi, samples: Samples, value: Value) -> None:
    async with watched(kpi, samples, []):
        ctypes.PyDLL(None).usleep(200_000)
        await samples.more(8)
    assert lag(kpi).maximum >= 150
    assert value("app_event_loop_stalls_total") == 1


async def test_the_lag_is_known_while_the_loop_is_blocked(kpi: Kpi, samples: Samples) -> None:
    seen: list[float] = []
    async with watched(kpi, samples, []) as monitor:
        reader = threading.Timer(0.25, lambda: seen.append(monitor.lag_s))
        reader.start()
        reader.join()  # blocks the loop until the timer has read
        await samples.more(1)
    assert seen[0] >= 0.15


async def test_two_blocks_are_two_stalls_and_one_notice_a_second(kpi: Kpi, samples: Samples, value: Value) -> None:
    notices: list[str] = []
    async with watched(kpi, samples, notices):
        for _ in range(2):
            time.sleep(0.16)  # noqa: ASYNC251  # the block that must be seen
            await samples.more(6)
    assert value("app_event_loop_stalls_total") == 2
    assert len(notices) == 1


async def test_a_busy_loop_reads_as_busy(kpi: Kpi, samples: Samples, value: Value) -> None:
    async with watched(kpi, samples, []):
        while kpi.gauge("event_loop_busy_pct").value is None:
            sum(range(2000))
            await asyncio.sleep(0)
    percent = kpi.gauge("event_loop_busy_pct").value
    assert percent is not None
    assert 0 < percent <= 100
    assert value("app_event_loop_busy_ratio") == pytest.approx(percent / 100)


async def test_close_ends_the_thread_and_may_come_first(kpi: Kpi) -> None:
    monitor = LoopMonitor(kpi, notice=lambda _: None)
    monitor.close()
    assert monitor.lag_s == 0.0
    assert "kpi-loop-monitor" not in {thread.name for thread in threading.enumerate()}


def test_the_thread_ends_with_its_loop(kpi: Kpi) -> None:
    monitor = LoopMonitor(kpi, notice=lambda _: None)

    async def begin() -> None:
        monitor.start()

    asyncio.run(begin())
    assert monitor._thread is not None
    monitor._thread.join(30)
    assert not monitor._thread.is_alive()


async def test_questions_to_a_loop_that_stays_blocked_are_bounded(kpi: Kpi) -> None:
    monitor = LoopMonitor(kpi, notice=lambda _: None, interval_s=0.0001)
    monitor.start()
    time.sleep(0.4)  # noqa: ASYNC251  # long enough for 4,000 questions
    asked = len(monitor._outstanding)
    monitor.close()
    assert 0 < asked <= 1200
    answered = asyncio.Event()
    asyncio.get_running_loop().call_soon(answered.set)  # behind the answers in the loop's queue
    await answered.wait()
    assert not monitor._outstanding


async def test_a_stall_names_who_caused_it(kpi: Kpi, samples: Samples) -> None:
    notices: list[str] = []

    async def turn() -> None:
        with Ledger(kpi, owner="Sloth").activate() as ledger:

            async def node() -> None:
                with ledger.kpi.phase("llm_invoke"):
                    time.sleep(0.25)  # noqa: ASYNC251  # the block that must be seen

            await asyncio.create_task(node(), name="turn:e1")

    async with watched(kpi, samples, notices) as monitor:
        await turn()
        await samples.more(8)
    [culprit] = monitor.culprits.top()
    assert culprit.seen.place == "kpi/test_loop.py:node"
    assert (culprit.seen.task, culprit.seen.phase, culprit.seen.agent) == ("turn:e1", "llm_invoke", "Sloth")
    assert culprit.stalls == 1
    assert culprit.worst_ms == culprit.total_ms >= 200
    assert re.match(r"\[KPI\]\[STALL\] lag_ms=\d+ task=turn:e1 phase=llm_invoke agent=Sloth stack=.*:node", notices[0])
    [line] = monitor.culprits.lines()
    assert re.fullmatch(
        r"stall place=kpi/test_loop\.py:node task=turn phase=llm_invoke agent=Sloth count=1 total_ms=\d+ max_ms=\d+",
        line,
    )
    assert monitor.culprits.lines() == []


async def test_what_holds_the_loop_is_added_up(kpi: Kpi, samples: Samples) -> None:
    async with watched(kpi, samples, []) as monitor:
        before = monitor.totals()
        time.sleep(0.2)  # noqa: ASYNC251  # the block that must be seen
        await samples.more(8)
        after = monitor.totals()
    assert after.samples - before.samples >= 8
    assert after.held_s - before.held_s >= 0.12
    assert after.lag_s - before.lag_s >= 0.2


def test_culprits_are_bounded_and_the_longest_come_first() -> None:
    culprits = Culprits()
    for number in range(150):
        culprits.count(Sighting(f"file.py:f{number}", "turn:e", "", "", ""), float(number))
    culprits.count(None, 1000.0)
    assert len(culprits.top(500)) == 101
    assert [round(culprit.total_ms) for culprit in culprits.top(2)] == [1000 + sum(range(100, 150)), 99]
    assert len(culprits.lines()) == 3


async def test_a_stall_outside_a_turn_has_no_phase() -> None:
    def block() -> None:
        seen.append(sight(loop, thread))

    loop, thread, seen = asyncio.get_running_loop(), threading.get_ident(), list[Sighting]()
    looker = threading.Thread(target=block)
    looker.start()
    looker.join()
    [found] = seen
    assert (found.phase, found.agent) == ("", "")
    assert found.place == "kpi/test_loop.py:test_a_stall_outside_a_turn_has_no_phase"
