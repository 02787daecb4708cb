"""The loop monitor rests while the loop is idle, and misses nothing that it must see: on simulated time."""

import asyncio
import heapq
import threading
from collections.abc import Callable
from itertools import count, cycle
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi, Ledger, LoopMonitor
from backend_kit.kpi.culprit import Sighting
from backend_kit.kpi.loop import Senses

IDLE = Sighting("server.py:serve", "", "", "", "")
SLOTH = Sighting("slow.py:block", "cleaner", "", "", "")
INTERVAL_S, REST_S = 0.04, 0.5


class Handle:
    """A call that the loop was asked for."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class SimulatedLoop:
    """A loop, its thread's CPU and the monitor's thread on one simulated clock. Blocks are (begin, end), in seconds.

    The loop takes no time for its calls; while it is blocked they wait. A block with `gil` stops the monitor's thread
    too. `busy` is the share of the time that the loop's thread computes, until `idle_from`. The wakes of the monitor's
    thread are `late_s` late, each by the next of these in turn.
    """

    def __init__(
        self,
        *,
        blocks: tuple[tuple[float, float], ...] = (),
        gil: bool = False,
        busy: float = 0.0,
        idle_from: float = float("inf"),
        late_s: tuple[float, ...] = (0.0,),
        ends_at: float = 60.0,
    ) -> None:
        self.now = 0.0
        self.wakes: list[float] = []
        self.loop_wakes: list[float] = []
        self.notices: list[str] = []
        self.kpi = Kpi(CollectorRegistry(), service="agentic")
        senses = Senses(lambda: self.now, lambda _: lambda: min(self.now, idle_from) * busy, self._sight, self._wait)
        self.monitor = LoopMonitor(
            self.kpi, notice=self.notices.append, interval_s=INTERVAL_S, rest_s=REST_S, senses=senses
        )
        self.calls: list[tuple[float, int, Handle]] = []
        self._order = count()
        self._blocks = blocks
        self._gil = gil
        self._late_s = cycle(late_s)
        self._ends_at = ends_at

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        handle = Handle(call)
        heapq.heappush(self.calls, (self.now + delay_s, next(self._order), handle))
        return handle

    def call_soon_threadsafe(self, call: Callable[[], None]) -> Handle:
        return self.call_later(0.0, call)

    def run(self) -> None:
        """Let the time pass."""
        loop = cast(asyncio.AbstractEventLoop, self)
        self.monitor.begin(loop)
        self.monitor.watch(loop, threading.get_ident())

    def pass_over(self) -> None:
        """Let the loop come to the call that is due next."""
        due, _, handle = heapq.heappop(self.calls)
        if handle.call is not None:
            self.now = self._free_at(max(due, self.now))
            self.loop_wakes.append(self.now)
            handle.call()

    @property
    def culprits(self) -> list[str]:
        return [culprit.seen.place for culprit in self.monitor.culprits.top()]

    @property
    def stalls(self) -> float:
        return self.kpi.registry.get_sample_value("app_event_loop_stalls_total") or 0.0

    def _free_at(self, moment: float) -> float:
        return next((end for begin, end in self._blocks if begin <= moment < end), moment)

    def _sight(self, _loop: asyncio.AbstractEventLoop, _thread: int) -> Sighting:
        return SLOTH if self._free_at(self.now) > self.now else IDLE

    def _wait(self, woken: threading.Event, seconds: float) -> bool:
        until = self.now + seconds + next(self._late_s)
        if self._gil:
            until = self._free_at(until)
        while self.calls and not woken.is_set() and self._free_at(max(self.calls[0][0], self.now)) <= until:
            self.pass_over()
        if not woken.is_set():
            self.now = max(self.now, until)
        self.wakes.append(self.now)
        if self.now >= self._ends_at:
            self.monitor.close()
        return woken.is_set()


def phases(length_s: float) -> list[tuple[float, float]]:
    """Blocks of one length that begin at every hundredth of a resting second."""
    return [(10 + phase / 100, 10 + phase / 100 + length_s) for phase in range(100)]


def test_it_wakes_twice_a_second_while_nothing_runs() -> None:
    simulated = SimulatedLoop()
    simulated.run()
    assert len([at for at in simulated.wakes if 5 <= at < 55]) <= 2 * 50 + 1
    assert len([at for at in simulated.loop_wakes if 5 <= at < 55]) <= 4 * 50 + 1
    assert simulated.stalls == 0
    assert simulated.culprits == []


def test_what_it_leaves_out_is_counted() -> None:
    simulated = SimulatedLoop()
    simulated.run()
    assert simulated.monitor.totals().samples == pytest.approx(60 / INTERVAL_S, rel=0.02)
    assert simulated.monitor.totals().lag_s == 0
    assert simulated.kpi.registry.get_sample_value("app_event_loop_lag_seconds_count") == pytest.approx(1500, rel=0.02)


@pytest.mark.parametrize("late_s", [(0.0,), (0.002, 0.0, 0.001), (0.7, 0.0)])
def test_the_average_of_how_busy_it_is_weighs_rest_as_work(late_s: tuple[float, ...]) -> None:
    """A second without a look of its own belongs to the next one: of a loop that computed half of the first half
    minute, the average over the whole minute is a quarter."""
    simulated = SimulatedLoop(busy=0.5, idle_from=30.0, late_s=late_s)
    simulated.run()
    busy = simulated.kpi.gauge("event_loop_busy_pct").rollup.take()
    assert busy is not None
    assert busy.count == pytest.approx(simulated.now, abs=2)
    assert busy.average == pytest.approx(25.0, abs=1.0)
    assert (busy.minimum, busy.maximum) == pytest.approx((0.0, 50.0))


def test_a_loop_that_computes_is_asked_25_times_a_second() -> None:
    simulated = SimulatedLoop(busy=0.05)
    simulated.run()
    assert len([at for at in simulated.wakes if 5 <= at < 55]) >= 50 / INTERVAL_S - 1


@pytest.mark.parametrize("running", ["turn", "request"])
def test_what_runs_is_watched_at_the_full_rate_from_its_begin(running: str) -> None:
    simulated = SimulatedLoop()
    work = Ledger(simulated.kpi).activate() if running == "turn" else simulated.kpi.activity
    simulated.call_later(20.1, lambda: work.__enter__() and None)
    simulated.call_later(30.1, lambda: work.__exit__(None, None, None) and None)
    simulated.run()
    assert any(at == pytest.approx(20.1) for at in simulated.wakes)
    assert len([at for at in simulated.wakes if 20.1 <= at < 30.1]) >= 10 / INTERVAL_S - 1
    assert len([at for at in simulated.wakes if 33 <= at < 53]) <= 2 * 20 + 1


@pytest.mark.parametrize("gil", [False, True], ids=["free", "held"])
def test_a_block_of_half_a_second_is_one_stall_wherever_it_begins(gil: bool) -> None:
    for block in phases(0.5):
        simulated = SimulatedLoop(blocks=(block,), gil=gil, ends_at=20.0)
        simulated.run()
        assert simulated.stalls == 1, block
        [culprit] = simulated.monitor.culprits.top()
        assert culprit.worst_ms >= 200, block
        if not gil:
            assert culprit.seen == SLOTH, block
            assert len(simulated.notices) == 1, block


def test_a_long_block_has_the_samples_of_the_full_rate() -> None:
    for begin, end in phases(2.0):
        simulated = SimulatedLoop(blocks=((begin, end),), ends_at=20.0)
        simulated.run()
        late_s = [end - at for at in _ticks(begin, end)]
        assert simulated.stalls == 1
        assert simulated.culprits == [SLOTH.place]
        # Up to a quarter of a second of its begin is not known.
        assert sum(late_s[7:]) - 0.1 <= simulated.monitor.totals().lag_s <= sum(late_s) + 2.0
        assert 2.0 - 0.25 - INTERVAL_S <= simulated.monitor.totals().held_s <= 2.0 + 2 * INTERVAL_S


def test_a_block_that_a_resting_monitor_misses_is_shorter_than_its_beat() -> None:
    for block in phases(REST_S / 2 + 0.11):
        simulated = SimulatedLoop(blocks=(block,), ends_at=20.0)
        simulated.run()
        assert simulated.stalls == 1, block


def test_a_short_block_invents_no_stall_and_no_culprit() -> None:
    for block in phases(0.09):
        simulated = SimulatedLoop(blocks=(block,), ends_at=20.0)
        simulated.run()
        assert simulated.stalls == 0, block
        assert simulated.culprits == [], block
        assert simulated.monitor.totals().held_s <= 0.09 + INTERVAL_S, block


def test_nothing_is_left_on_the_loop_of_a_closed_monitor() -> None:
    simulated = SimulatedLoop()
    simulated.run()
    with simulated.kpi.activity:
        pass
    for _ in range(len(simulated.calls)):  # the answers that were on their way
        simulated.pass_over()
    assert simulated.calls == []


def test_a_stall_ends_the_rest_for_the_next_one() -> None:
    simulated = SimulatedLoop(blocks=((10.3, 10.9), (11.2, 11.35)), ends_at=20.0)
    simulated.run()
    assert simulated.stalls == 2


def _ticks(begin: float, end: float) -> list[float]:
    return [begin + INTERVAL_S * number for number in range(round((end - begin) / INTERVAL_S))]
