"""Reports each ended turn: to the metrics, the window of the verdict, and as one log line."""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from agentic_backend.agent.hosted import PHASES as HOSTED_PHASES
from agentic_backend.errors import HistoryUnavailable, Overloaded, StorageFull
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.models import Durability
from agentic_backend.session.stream import Ask
from agentic_backend.tracing.turn import TracedTurn
from agentic_backend.verdict import Windows
from backend_kit.kpi import Kpi, Ledger, LedgerRow, Spent, Status
from backend_kit.wire import Code, ServiceError

if TYPE_CHECKING:
    from agentic_backend.tracing.tracer import Tracer

logger = logging.getLogger("turnwise.turn")

TURN_PHASES: Final = (
    "session_wait", "images_read", "ask_commit", "turn_open", "admission_wait", "turn_close", "spool_ack", "db_ack",
)  # fmt: skip
"""Phases of every turn beyond those of docs/contract.md#phases: waiting for earlier turns of its session, reading the
images that it shows, where several instances run the commit of its question, its own beginning, the wait for a slot,
its own end, and the acknowledgement of its record by the spool's disk or, with `persistence.ack: db`, by Postgres."""
NUMBERED: Final = frozenset({"llm_invoke", "tool_call"})
"""Phases whose rows say which call of the turn they are."""

_ELSEWHERE: Final = frozenset({"llm_invoke", "kf_vector_search"})
"""Phases spent in other processes: the rest of a turn is this service's own overhead."""
_GOOD: Final = frozenset({"ok", "cancelled"})
"""The ends of a turn that did not fail: a person may have stopped it."""
_AROUND: Final = frozenset({"llm_invoke", "stream_agent_response", *HOSTED_PHASES})
_PLAIN: Final = re.compile(r"[\w.:;/@+-]{1,200}", re.ASCII)
_QUOTABLE: Final = re.compile(r"[ !#-\[\]-~]{1,200}")


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn that ran ended. Times on the perf_counter clock, gaps in seconds; `deltas` is how many went out,
    `answer` the text."""

    status: Status
    code: Code | None
    durable: Durability
    model: str
    first_token_at: float | None
    longest_gap_s: float
    deltas: int
    answer: str = ""


class TurnReports:
    """Reports turns, each exactly once, however it ended."""

    def __init__(self, kpi: Kpi, metrics: AgenticMetrics, windows: Windows, *, tracer: "Tracer | None" = None) -> None:
        """`tracer` makes traces of turns."""
        self._tracer = tracer
        self._kpi = kpi
        self._metrics = metrics
        self.windows = windows

    def traceparent(self, ask: Ask) -> str | None:
        """The trace header of a turn's calls: a span of its own if turns are traced, else what came with the ask."""
        return ask.traceparent if self._tracer is None else self._tracer.begin(ask.traceparent)

    def begin(self, ledger: Ledger) -> None:
        """Enter a turn that left the queue of its session; `leave` must follow, however it ends."""
        now = time.perf_counter()
        ledger.add("session_wait", ledger.started, now)
        self._kpi.record_phase("session_wait", now - ledger.started)
        self.windows.begin(ledger)

    def leave(self, ledger: Ledger) -> None:
        """The turn is over."""
        self.windows.leave(ledger)

    def ended(self, ask: Ask, end: TurnEnd, ledger: Ledger) -> None:
        """Report a turn that ran."""
        metrics = self._metrics
        total_s = time.perf_counter() - ask.received_at
        rows = ledger.rows()
        unattributed_ms = ledger.unattributed_ms(total_s * 1e3)
        first_token_s = None if end.first_token_at is None else end.first_token_at - ask.received_at
        self._kpi.record_phase("stream_total", total_s, end.status)
        trace_id = (
            None if self._tracer is None else self._tracer.ended(_traced(ask, end, ledger), total_s, ledger, rows)
        )
        if trace_id is None:
            metrics.turn(ledger.owner, end.status).observe(total_s)
        else:
            metrics.turn(ledger.owner, end.status).observe_traced(total_s, trace_id)
        metrics.turns(ledger.owner, end.status).inc()
        if end.code is not None:
            metrics.exchange_errors.inc()
        if first_token_s is not None:
            metrics.first_token(ledger.owner).observe(first_token_s)
            metrics.stream_gap.observe(end.longest_gap_s)
            metrics.turn_deltas.observe(end.deltas)
        metrics.unattributed.observe(unattributed_ms / 1e3)
        elsewhere_ms = sum(row["ms"] for row in rows if row["phase"] in _ELSEWHERE)
        overhead_ms = max(0.0, total_s * 1e3 - elsewhere_ms)
        metrics.overhead.observe(overhead_ms / 1e3)
        first_token_ms = None if first_token_s is None else first_token_s * 1e3
        self.windows.ended(rows, total_ms=total_s * 1e3, unattributed_ms=unattributed_ms, first_token_ms=first_token_ms)
        failed = end.status not in _GOOD
        self.windows.day.ended(ledger.owner, end.model, (total_s * 1e3, first_token_ms, overhead_ms), failed=failed)
        fields = {
            "status": end.status,
            "code": end.code.value if end.code is not None else None,
            "durable": end.durable,
            "model": end.model or None,
            "total_ms": total_s * 1e3,
            "ttft_ms": first_token_ms,
            "gap_max_ms": end.longest_gap_s * 1e3,
            "deltas": end.deltas,
            **_sums(ledger.spent),
            "unattributed_ms": unattributed_ms,
        }
        self.windows.ledgers.keep(
            ask.exchange_id, {"agent": ledger.owner, "ended_at": time.time(), **fields, "ledger": rows}
        )
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", _line(ask, ledger.owner, fields, rows))

    def refused(self, ask: Ask, error: ServiceError, ledger: Ledger) -> None:
        """Report an ask that did not become a turn."""
        status = "error" if isinstance(error, HistoryUnavailable) else "rejected"
        self._metrics.turns(ledger.owner, status).inc()
        waited_ms = (time.perf_counter() - ask.received_at) * 1e3
        if isinstance(error, Overloaded | StorageFull):
            # A refusal carries the time after which to retry: that wait is the cost of the missing room.
            cost_ms = max(waited_ms, (error.retry_after_s or 0.0) * 1e3)
            self.windows.refused("admission" if isinstance(error, Overloaded) else "stored", cost_ms)
        if logger.isEnabledFor(logging.INFO):
            fields = {"status": status, "code": error.code.value, "total_ms": waited_ms}
            logger.info("%s", _line(ask, ledger.owner, fields, ledger.rows()))


def _traced(ask: Ask, end: TurnEnd, ledger: Ledger) -> TracedTurn:
    return TracedTurn(
        agent_id=ledger.owner,
        session_id=ask.session_id,
        user_id=ask.user_id,
        exchange_id=ask.exchange_id,
        request_id=ask.request_id,
        status=end.status,
        error=end.code.value if end.code is not None else "",
        durable=end.durable,
        model=end.model,
        first_token_ms=None if end.first_token_at is None else (end.first_token_at - ask.received_at) * 1e3,
        parent=ask.traceparent,
        question=ask.message,
        answer=end.answer,
    )


def loggable(text: str) -> str:
    """Text that is safe in a log line: unchanged, quoted, or replaced (`unprintable`)."""
    if _PLAIN.fullmatch(text):
        return text
    # Ids come from clients: characters that could end a value or a line are omitted rather than escaped.
    return f'"{text}"' if _QUOTABLE.fullmatch(text) else "unprintable"


def usage_of(ledger: Ledger) -> dict[str, Any] | None:
    """The token use of a turn's model calls, for `metadata.extras.usage`: in total, and each call with its step.
    `cached_tokens` and `reasoning_tokens` are parts of input and output, left out where 0. None if no model reported
    any."""
    if not ledger.spent:
        return None
    rows = ledger.rows()
    steps = [
        {
            "step": _step(spent.at, rows, ledger.started),
            "model": spent.model,
            "input_tokens": spent.input_tokens,
            "output_tokens": spent.output_tokens,
            "cost": round(spent.cost, 9),
            **_parts([spent]),
        }
        for spent in ledger.spent
    ]
    sums = _sums(ledger.spent)
    return {**sums, "cost": round(sums["cost"], 9), **_parts(ledger.spent), "steps": steps}


def _sums(spent: Sequence[Spent]) -> dict[str, Any]:
    return {
        "input_tokens": sum(one.input_tokens for one in spent),
        "output_tokens": sum(one.output_tokens for one in spent),
        "cost": sum(one.cost for one in spent),
    }


def _parts(spent: Sequence[Spent]) -> dict[str, int]:
    """What of the tokens was cached or reasoning, each only where there was any."""
    parts = {
        "cached_tokens": sum(one.cached_tokens for one in spent),
        "reasoning_tokens": sum(one.reasoning_tokens for one in spent),
    }
    return {name: count for name, count in parts.items() if count}


def _step(at: float, rows: Sequence[LedgerRow], started: float) -> str:
    """The innermost phase around a model call that is the agent's own."""
    at_ms = (at - started) * 1e3
    around = [row for row in rows if row["start_ms"] <= at_ms <= row["start_ms"] + row["ms"] + 1.0]
    steps = [row for row in around if row["phase"] not in _AROUND]
    return max(steps, key=lambda row: row["depth"])["phase"] if steps else "answer"


def _line(ask: Ask, agent_id: str, fields: Mapping[str, Any], rows: Sequence[LedgerRow]) -> str:
    """One line in logfmt: whose turn, how it ended, the milliseconds of each phase; no text of users or models."""
    took: dict[str, float] = {}
    for row in rows:
        took[row["phase"]] = took.get(row["phase"], 0.0) + row["ms"]
    named = {
        "exchange_id": ask.exchange_id,
        "session_id": ask.session_id,
        "request_id": ask.request_id,
        "agent": agent_id,
        **fields,
        **{f"phase.{phase}": ms for phase, ms in took.items()},
    }
    return " ".join(f"{key}={_value(value)}" for key, value in named.items())


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        # Prices of a token have more leading zeros than times; never an exponent, which no reader of logs expects.
        return f"{value:.3f}" if value >= 1 or value == 0 else f"{value:.9f}".rstrip("0").rstrip(".")
    return loggable(str(value))
