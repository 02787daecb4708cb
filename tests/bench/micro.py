"""What one observation costs: `python tests/bench/micro.py` prints figure, bound and verdict of each, and fails above.

Hypothesis: timing a phase into rollup, histogram and ledger costs at most 2 µs, and what a turn observes at most 50 µs
(METRICS, "Cost budget per turn"). Control: the empty loop, subtracted from every figure. The process is pinned to one
core; the figure is the best of the rounds, the median stands beside it.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

from prometheus_client import CollectorRegistry

from agentic_backend.metrics import AgenticMetrics
from backend_kit.kpi import Kpi, Ledger, PhaseTimer, phase

Run = Callable[[range], None]
TURN_PHASES = 14


class Cases:
    """The operations to time, each as a function over a range of repetitions."""

    def __init__(self) -> None:
        self.kpi = Kpi(CollectorRegistry(), service="bench")
        self.metrics = AgenticMetrics(self.kpi.registry, self.kpi)

    def listed(self) -> list[tuple[str, Run, float]]:
        """Name, function, bound in µs. Bounds are METRICS' and DESIGN's where they give one."""
        return [
            ("phase timer: kpi.phase, no turn", self.phase_alone, 2.0),
            ("phase timer: phase() into a ledger", self.phase_in_turn, 2.0),
            ("phase timer: as above, a block of 3 s (+ the attribute that fakes it)", self.phase_of_3_s, 2.0),
            ("phase() where no turn is current", self.phase_nowhere, 0.5),
            ("metrics.turn(agent, status).observe, 3 s", self.labelled, 2.0),
            ("metrics.ws_send.observe", self.seconds, 1.5),
            ("metrics.db_statement(pool, op).observe (gauge + histogram)", self.gauged, 2.5),
            ("metrics.turns(agent, status).inc", self.counter, 1.5),
            ("a whole turn: 14 phases, 8 observations, 6 counts and gauges", self.turn, 50.0),
        ]

    def empty(self, times: range) -> None:
        """The loop itself."""
        for _ in times:
            pass

    def phase_alone(self, times: range) -> None:
        time_phase = self.kpi.phase
        for _ in times:
            with time_phase("llm_invoke"):
                pass

    def phase_in_turn(self, times: range) -> None:
        for ledger_times in _in_ledgers(times):
            with Ledger(self.kpi).activate():
                for _ in ledger_times:
                    with phase("llm_invoke"):
                        pass

    def phase_of_3_s(self, times: range) -> None:
        for ledger_times in _in_ledgers(times):
            with Ledger(self.kpi).activate():
                for _ in ledger_times:
                    timer = phase("llm_invoke")
                    assert isinstance(timer, PhaseTimer)
                    with timer:
                        timer._start -= 3.0

    def phase_nowhere(self, times: range) -> None:
        for _ in times:
            with phase("llm_invoke"):
                pass

    def labelled(self, times: range) -> None:
        turn = self.metrics.turn
        for _ in times:
            turn("Georges", "ok").observe(3.05)

    def seconds(self, times: range) -> None:
        send = self.metrics.ws_send
        for _ in times:
            send.observe(0.0004)

    def gauged(self, times: range) -> None:
        statement = self.metrics.db_statement
        for _ in times:
            statement("batch", "insert").observe(0.002)

    def counter(self, times: range) -> None:
        turns = self.metrics.turns
        for _ in times:
            turns("Georges", "ok").inc()

    def turn(self, times: range) -> None:
        metrics = self.metrics
        for _ in times:
            metrics.turns_in_progress.inc()
            with Ledger(self.kpi).activate():
                for _ in range(TURN_PHASES):
                    with phase("llm_invoke"):
                        pass
            metrics.turn("Georges", "ok").observe(3.05)
            metrics.first_token("Georges").observe(0.4)
            metrics.llm_request("mock", "ok").observe(3.0)
            metrics.llm_first_chunk("mock", "ok").observe(0.4)
            for observed in (metrics.stream_gap, metrics.ws_send, metrics.overhead, metrics.unattributed):
                observed.observe(0.02)
            metrics.turns("Georges", "ok").inc()
            metrics.user_messages.inc()
            metrics.llm_tokens("mock", "input").inc(200)
            metrics.llm_tokens("mock", "output").inc(50)
            metrics.turns_in_progress.dec()


def _in_ledgers(times: range) -> Iterator[range]:
    # A turn has tens of phases, not thousands: its ledger is bounded, and a full one would be cheaper to feed.
    for first in times[::100]:
        yield range(first, min(first + 100, times.stop))


def microseconds(run: Run, count: int, rounds: int) -> list[float]:
    """The cost of one repetition, once for each round."""
    run(range(count // 10 or 1))
    costs = []
    for _ in range(rounds):
        begun = perf_counter()
        run(range(count))
        costs.append((perf_counter() - begun) / count * 1e6)
    return costs


@contextmanager
def pinned() -> Iterator[str]:
    """Keep the process on the last core it may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield "not pinned: this system has no sched_setaffinity"
        return
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    try:
        yield f"pinned to core {core} of {len(allowed)}"
    finally:
        os.sched_setaffinity(0, allowed)


def main() -> int:
    """Time every case; 1 where one is above its bound."""
    parser = argparse.ArgumentParser(description="Cost of one observation, against its bound.")
    parser.add_argument("--rounds", type=int, default=9, help="rounds; the best counts (default 9)")
    parser.add_argument("--count", type=int, default=50_000, help="repetitions in a round (default 50000)")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the bounds, for noisy machines (default 1)")
    options = parser.parse_args()
    cases = Cases()
    over = 0
    with pinned() as where:
        print(f"Python {sys.version.split()[0]}, {where}, best of {options.rounds} x {options.count}")
        nothing = min(microseconds(cases.empty, options.count, options.rounds))
        print(f"{'µs':>8} {'median':>8} {'bound':>8}  verdict")
        for name, run, bound in cases.listed():
            count = options.count // 20 if bound > 10 else options.count
            costs = [cost - nothing for cost in microseconds(run, count, options.rounds)]
            best, limit = min(costs), bound * options.slack
            over += best > limit
            verdict = "ok" if best <= limit else "OVER"
            print(f"{best:8.2f} {median(costs):8.2f} {limit:8.2f}  {verdict:7} {name}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
