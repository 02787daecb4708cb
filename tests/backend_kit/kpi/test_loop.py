"""The loop monitor sees blocks of the loop, also those that hold the GIL, and its own figures agree."""

import asyncio
import ctypes
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from backend_kit.aio.vigil import kind_of
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
        while notices:  # the machine itself hesitated: its notice is the only one of this second
            notices.clear()
            await asyncio.sleep(1.0)
        yield monitor
    finally:
        monitor.close()


def block(seen: Callable[[], object]) -> None:
    """Hold the loop for 200 ms, and for as long as the monitor's thread has not had its turn to see it."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < 0.2 or (not seen() and time.perf_counter() - begun < 10):
        time.sleep(0.01)


def late_samples(value: Value) -> float:
    """How many samples were above 100 ms."""
    return (value("app_event_loop_lag_seconds_count") or 0) - (
        value("app_event_loop_lag_seconds_bucket", le="0.1") or 0
    )


def lag(kpi: Kpi) -> Stats:
    stats = kpi.gauge("event_loop_lag_ms").rollup.take()
    assert stats is not None
    return stats


async def test_a_block_of_200_ms_shows_in_the_gauge_and_in_the_histogram(
    kpi: Kpi, samples: Samples, value: Value
) -> None:
    notices: list[str] = []
    async with watched(kpi, samples, notices):
        block(notices.__len__)
        await samples.more(8)
    stats = lag(kpi)
    assert stats.maximum >= 150
    assert value("app_event_loop_lag_seconds_count") == stats.count
    # One stall of several samples. Any further one is the machine's.
    assert 1 <= (value("app_event_loop_stalls_total") or 0) < late_samples(value)
    notice = notices[0]
    assert "test_a_block_of_200_ms" in notice
    assert notice.startswith("[KPI][STALL] lag_ms=")
    assert "\n" not in notice


async def test_a_block_inside_a_c_call_that_holds_the_gil_shows(kpi: Kpi, samples: Samples, value: Value) -> None:
    async with watched(kpi, samples, []):
        ctypes.PyDLL(None).usleep(200_000)
        await samples.more(8)
    assert lag(kpi).maximum >= 150
    assert 1 <= (value("app_event_loop_stalls_total") or 0) < late_samples(value)


async def test_the_lag_is_known_while_the_loop_is_blocked(kpi: Kpi, samples: Samples) -> None:
    known = threading.Event()

    def read() -> None:
        give_up = time.perf_counter() + 10
        while monitor.lag_s < 0.15 and time.perf_counter() < give_up:
            time.sleep(0.01)
        if monitor.lag_s >= 0.15:
            known.set()

    async with watched(kpi, samples, []) as monitor:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()  # blocks the loop until the lag is known
        await samples.more(1)
    assert known.is_set()


async def test_two_blocks_are_two_stalls_and_one_notice_a_second(kpi: Kpi, samples: Samples, value: Value) -> None:
    notices: list[str] = []
    async with watched(kpi, samples, notices):
        begun = time.perf_counter()
        for _ in range(2):
            before = value("app_event_loop_stalls_total") or 0
            block(lambda: value("app_event_loop_stalls_total") != before)  # noqa: B023  # called before the next round
            await samples.more(6)
        elapsed_s = time.perf_counter() - begun
    assert 2 <= (value("app_event_loop_stalls_total") or 0) < late_samples(value)
    assert 1 <= len(notices) <= 1 + elapsed_s


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
    monitor._thread.end(30)
    assert not monitor._thread.alive


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
                    block(notices.__len__)

            await asyncio.create_task(node(), name="turn:e1")

    async with watched(kpi, samples, notices) as monitor:
        await turn()
        await samples.more(8)
    [culprit] = [culprit for culprit in monitor.culprits.top() if culprit.seen.task == "turn"]
    assert culprit.seen.place == "kpi/test_loop.py:block"
    assert (culprit.seen.phase, culprit.seen.agent) == ("llm_invoke", "Sloth")
    assert culprit.stalls == 1
    assert culprit.worst_ms == culprit.total_ms >= 150
    assert re.match(r"\[KPI\]\[STALL\] lag_ms=\d+ task=turn phase=llm_invoke agent=Sloth stack=.*:node", notices[0])
    [line] = [line for line in monitor.culprits.lines() if " task=turn " in line]
    assert re.fullmatch(
        r"stall place=kpi/test_loop\.py:block task=turn phase=llm_invoke agent=Sloth count=1 total_ms=\d+ max_ms=\d+",
        line,
    )
    assert monitor.culprits.lines() == []


async def test_what_holds_the_loop_is_added_up(kpi: Kpi, samples: Samples) -> None:
    async with watched(kpi, samples, []) as monitor:
        before = monitor.totals()
        block(lambda: monitor.lag_s >= 0.2)
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


def test_the_number_of_a_librarys_task_makes_no_other_culprit() -> None:
    culprits = Culprits()
    for task in ("Task-17", "Task-2800", "turn:e1", "turn:e2"):
        culprits.count(Sighting("agents/slow.py:answer", kind_of(task), "llm_invoke", "Sloth", ""), 100.0)
    assert [(culprit.stalls, culprit.total_ms) for culprit in culprits.top()] == [(2, 200.0), (2, 200.0)]
    assert [" task=Task " in line for line in culprits.lines()] == [True, False]


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
