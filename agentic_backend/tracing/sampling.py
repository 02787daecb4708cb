"""Which turns become traces: the head's decision, which calls carry on, and the end's, which knows how it went."""

from dataclasses import dataclass
from typing import Final

from agentic_backend.settings import Sampler
from agentic_backend.tracing.traceparent import TraceParent

_PARENT_BASED: Final = "parentbased_"
_SPACE: Final = 1 << 64


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
        # The right half of the id is what is random in it; whoever goes by the same ratio decides the same.
        return int(trace_id[16:], 16) < self.ratio * _SPACE

    def keep(self, sampled: bool, *, failed: bool, total_ms: float) -> bool:
        """Whether a turn that has ended is sent: by its head's decision, or for how it went."""
        return sampled or (failed and self.errors) or 0 < self.slow_ms <= total_ms
