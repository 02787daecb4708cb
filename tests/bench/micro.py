"""What the smallest pieces cost, one by one: a table of their distributions, and a verdict on the least of each.

Hypothesis: timing a phase into rollup, histogram and ledger costs at most 2 µs, and all that a turn observes at most
50 µs, its ledger, its account and its part of the verdict included (METRICS, "Cost budget per turn"); the bounds of the
other pieces stand beside them in micro_cases.py.
Control: the empty loop, subtracted from every figure.
Command: `make bench-micro` (`--short` in .ci/run: less time, bounds five times as wide; `--only jwt`).

The process is pinned to one core, and samples are taken for half a second as `ws_bench micro` takes them
(`ws_bench/record/timing.py`), whose pieces are those of a client.
"""

import argparse
import sys
from collections.abc import Iterator
from time import perf_counter

from prometheus_client import CollectorRegistry

from agentic_backend.agent import AGENT_PHASES
from agentic_backend.llm.observer import Metered, TokenUse
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.stream import Ask
from agentic_backend.session.turn_report import TURN_PHASES, TurnEnd, TurnReports
from agentic_backend.spool.statements import WRITE_TURNS
from agentic_backend.tracing.spans import Moment, Recorded, SpanEncoder
from agentic_backend.tracing.traceparent import TraceParent
from agentic_backend.tracing.turn import TracedTurn
from agentic_backend.verdict import Gauged, Windows
from backend_kit.kpi import Kpi, Ledger, Spent, phase
from backend_kit.kpi.core import PhaseTimer
from tests.bench.micro_cases import Case, service_cases
from ws_bench.record.timing import HEAD, empty, measure, pinned, row


class PhaseOf3S(PhaseTimer):
    """Says that its block took three seconds longer than it did."""

    __slots__ = ()

    def __enter__(self) -> None:
        super().__enter__()
        self._start -= 3.0


class Cases:
    """The operations to time, each as a function over a range of repetitions."""

    def __init__(self) -> None:
        self.kpi = Kpi(CollectorRegistry(), service="bench", phases=(*AGENT_PHASES, *TURN_PHASES))
        self.metrics = AgenticMetrics(self.kpi.registry, self.kpi)
        self.windows = Windows()
        self.accounts = TurnReports(self.kpi, self.metrics, self.windows)
        self.model = Metered(self.metrics)

    def observed(self) -> int:
        """Observations of one turn: samples that its rollups have taken."""
        kept = (self.kpi.timers, self.kpi.gauges, self.kpi.counters)
        rollups = [bound.rollup for keys in kept for bound in keys.values()]
        for rollup in rollups:
            rollup.take()
        self.turn(range(1))
        kept_now = [bound.rollup for keys in kept for bound in keys.values()]
        return sum(stats.count for rollup in kept_now if (stats := rollup.take()) is not None)

    def listed(self) -> list[Case]:
        """Name, function, bound in µs."""
        return [
            ("phase timer: kpi.phase, no turn", self.phase_alone, 2.0),
            ("phase timer: phase() into a ledger", self.phase_in_turn, 2.0),
            ("phase timer: as above, a block of 3 s (+ the attribute that fakes it)", self.phase_of_3_s, 2.0),
            ("phase() where no turn is current", self.phase_nowhere, 0.5),
            ("metrics.turn(agent, status).observe, 3 s", self.labelled, 2.0),
            ("metrics.ws_send.observe", self.seconds, 1.5),
            ("metrics.db_statement(pool, op).observe (gauge + histogram)", self.gauged, 2.5),
            ("metrics.statements.add, by the text of a statement", self.statement, 1.0),
            ("metrics.turns(agent, status).inc", self.counter, 1.5),
            (f"a whole turn of Georges: {self.observed()} observations, ledger, account, verdict", self.turn, 50.0),
            (f"its trace, encoded: {len(_TRACED)} rows, one of them a model call", self.trace, 250.0),
        ]

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
                    timer.__class__ = PhaseOf3S
                    with timer:
                        pass

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

    def statement(self, times: range) -> None:
        add, text = self.metrics.statements.add, WRITE_TURNS.text
        for _ in times:
            add(text, 0.001, 1, 0.0)

    def counter(self, times: range) -> None:
        turns = self.metrics.turns
        for _ in times:
            turns("Georges", "ok").inc()

    def turn(self, times: range) -> None:
        """What the service does to watch one turn: every phase and observation of an answer, and its account."""
        metrics = self.metrics
        for number in times:
            now = perf_counter()
            ask = Ask("session", "Georges", "Hello", "exchange", "user", now, request_id="request")
            ledger = Ledger(self.kpi, started=now, owner="Georges")
            with ledger.activate():
                self.accounts.begin(ledger)
                for name in ("agent_init", "history_restore", "admission_wait", "turn_open"):
                    with phase(name):
                        pass
                metrics.admission_wait.observe(0.0)
                metrics.user_messages.inc()
                metrics.cache_request("graph", hit=True)
                metrics.cache_request("history", hit=True)
                with phase("stream_agent_response"), phase("llm_invoke"):
                    self.model.llm_first_chunk("mock", 0.4)
                    self.model.llm_request("mock", "ok", 3.0)
                    self.model.llm_tokens("mock", TokenUse(200, 50))
                with phase("turn_close"):
                    ledger.rows()
                with phase("spool_ack"):
                    pass
                metrics.spool_ack.observe(0.0005)
                ledger.rows()
                self.accounts.ended(ask, TurnEnd("ok", None, "spool", "mock", now + 0.4, 0.02, 50), ledger)
            self.accounts.leave(ledger)
            metrics.ws_send.observe(0.0004)
            metrics.delivery.observe(0.0001)
            self.windows.delivered(0.0001)
            if number % 1000 == 0:
                self.windows.close_slice(Gauged())

    def trace(self, times: range) -> None:
        """What a turn that is sent costs beyond one that is not, up to the queue."""
        ledger = Ledger(self.kpi, started=100.0, owner="Georges")
        for name, depth, start_ms, ms in _TRACED:
            ledger.add(name, 100.0 + start_ms / 1e3, 100.0 + (start_ms + ms) / 1e3, depth)
        ledger.spent.append(Spent(100.29, "mock", 19, 50, 0.001))
        encoder = SpanEncoder({"service.name": "turnwise", "service.version": "1"})
        turn = TracedTurn(
            "Georges", "session", "user", "exchange", "request", "ok", "", "spool", "mock", 12.5, None, "Hello", "Hi"
        )  # fmt: skip
        moment = Moment(TraceParent("a" * 32, "b" * 16, 1), None, 1_800_000_000_000_000_000, 425.0)
        rows = ledger.rows()  # as the turn's report has them
        for _ in times:
            encoder.encode(Recorded.of(turn, moment, ledger, rows))


_TRACED = (
    ("session_wait", 0, 0.0, 0.1), ("agent_init", 0, 0.1, 0.1), ("history_restore", 0, 0.2, 0.1),
    ("admission_wait", 0, 0.3, 0.1), ("turn_open", 0, 0.4, 0.1), ("stream_agent_response", 0, 1.0, 400.0),
    ("graph", 1, 1.0, 2.0), ("llm_invoke", 1, 3.0, 290.0), ("turn_close", 0, 402.0, 0.3), ("spool_ack", 0, 403.0, 20.0),
)  # fmt: skip
"""Phase, depth, start and length in milliseconds, of the turn whose trace is encoded."""


def _in_ledgers(times: range) -> Iterator[range]:
    # A turn has tens of phases, not thousands: its ledger is bounded, and a full one would be cheaper to feed.
    for first in times[::100]:
        yield range(first, min(first + 100, times.stop))


def main() -> int:
    """Time every case; 1 where the least of one is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="less time a case, bounds five times as wide")
    parser.add_argument("--only", default="", help="the cases whose name holds this")
    options = parser.parse_args()
    seconds, slack = (0.1, 5.0) if options.short else (0.5, 1.0)
    cases = Cases()
    over = 0
    with service_cases(cases.metrics) as more, pinned() as where:
        print(
            f"Python {sys.version.split()[0]}, {where}, {seconds} s a case; times in µs, the least is held to `bound`"
        )
        nothing = measure(empty, seconds, 0.0).least
        print(HEAD)
        for name, run, bound in [*cases.listed(), *more]:
            if options.only in name:
                samples = measure(run, seconds, nothing)
                line, good = row(name, samples, bound * slack)
                over += not good
                print(line)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
