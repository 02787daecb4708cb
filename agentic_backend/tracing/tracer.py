"""What becomes of a turn's ledger when it has ended: nothing, or a trace on its way out."""

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from agentic_backend.tracing.exporter import TraceExporter
from agentic_backend.tracing.sampling import Sampling
from agentic_backend.tracing.spans import Moment, Recorded, SpanEncoder
from agentic_backend.tracing.traceparent import SAMPLED, TraceParent, parse
from agentic_backend.tracing.turn import TracedTurn
from backend_kit.kpi import Ledger, LedgerRow

_RANDOM: Final = 0x02


class Tracer:
    """Decides and hands over. A turn costs two random ids at its start and a decision at its end; one that is sent,
    its encoding later, with others."""

    def __init__(self, sampling: Sampling, encoder: SpanEncoder, exporter: TraceExporter) -> None:
        self.exporter = exporter
        self._sampling = sampling
        self._encoder = encoder

    def begin(self, traceparent: str | None) -> str:
        """The `traceparent` of the calls that a turn makes: of the trace that its ask came with, else of a new one; its
        span is the turn's own."""
        parent = None if traceparent is None else parse(traceparent)
        random = secrets.token_hex(24)
        trace_id = random[16:] if parent is None else parent.trace_id
        flags = _RANDOM if parent is None else parent.flags & _RANDOM
        if self._sampling.head(trace_id, parent):
            flags |= SAMPLED
        return str(TraceParent(trace_id, random[:16], flags))

    def ended(self, turn: TracedTurn, total_s: float, ledger: Ledger, rows: Sequence[LedgerRow]) -> str | None:
        """The id of the trace that a turn has become, with these rows of its ledger; None where it is not sent."""
        span = None if ledger.traceparent is None else TraceParent.read(ledger.traceparent)
        total_ms = total_s * 1e3
        if span is None or not self._sampling.keep(span.sampled, failed=turn.failed, total_ms=total_ms):
            return None
        if not self.exporter.has_room(len(rows) + 1):
            return None
        began_ns = time.time_ns() - int((time.perf_counter() - ledger.started) * 1e9)
        parent = None if turn.parent is None else parse(turn.parent)
        recorded = Recorded.of(turn, Moment(span, parent, began_ns, total_ms), ledger, rows)
        self.exporter.offer(partial(self._encoder.encode, recorded), recorded.spans)
        return span.trace_id
