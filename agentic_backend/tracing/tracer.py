"""Which turns become traces: the head's decision, which calls carry on, and the end's, which knows how it went. The
ledger of one that does is on its way out then."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from agentic_backend.settings import Sampler
from agentic_backend.tracing.exporter import TraceExporter
from agentic_backend.tracing.spans import Moment, Recorded, SpanEncoder
from agentic_backend.tracing.traceparent import SAMPLED, TraceParent, parse
from agentic_backend.tracing.turn import TracedTurn
from backend_kit.kpi import Ledger, LedgerRow

_PARENT_BASED: Final = "parentbased_"
_SPACE: Final = 1 << 64
_RANDOM: Final = 0x02


@dataclass(frozen=True, slots=True)
class Sampling:
    """`errors`: whether failed turns are kept whatever the sampler says; `slow_ms`: turns from this long on, too,
    0 = none for their length."""

    sampler: Sampler = "parentbased_always_on"
    ratio: float = 1.0
    errors: bool = True
    slow_ms: float = 0.0

    def head(self, trace_id: str, parent: TraceParent | None) -> bool:
        """Whether a trace that begins here, or goes on from `parent`, is sampled."""
        if parent is not None and self.sampler.startswith(_PARENT_BASED):
            return parent.sampled
        match self.sampler.removeprefix(_PARENT_BASED):
            case "always_on":
                return True
            case "always_off":
                return False
        # The right half of the id is its random part; every sampler with the same ratio decides the same.
        return int(trace_id[16:], 16) < self.ratio * _SPACE

    def keep(self, sampled: bool, *, failed: bool, total_ms: float) -> bool:
        """Whether a turn that has ended is sent: by its head's decision, or for how it went."""
        return sampled or (failed and self.errors) or 0 < self.slow_ms <= total_ms


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
