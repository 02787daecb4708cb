"""The verdict on what limits the service: where turns spend their time, window by window."""

from agentic_backend.verdict.causes import CAUSES, NOBODY, Cause, own_ms
from agentic_backend.verdict.judge import Verdict, judge
from agentic_backend.verdict.quantiles import TurnQuantiles
from agentic_backend.verdict.window import Gauged, Slice, Windows, merged

__all__ = [
    "CAUSES", "NOBODY", "Cause", "Gauged", "Slice", "TurnQuantiles", "Verdict", "Windows", "judge", "merged", "own_ms",
]  # fmt: skip
