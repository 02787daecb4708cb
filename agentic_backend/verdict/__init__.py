"""The verdict on what limits the service: where turns spend their time, window by window."""

from agentic_backend.verdict.causes import CAUSES, NOBODY, Cause, own_ms
from agentic_backend.verdict.day import Day, NewestLedgers
from agentic_backend.verdict.judge import Verdict, capacity_ratio, judge
from agentic_backend.verdict.slices import Gauged, Slice, merged
from agentic_backend.verdict.window import TurnQuantiles, Windows

__all__ = [
    "CAUSES", "NOBODY", "Cause", "Day", "Gauged", "NewestLedgers", "Slice", "TurnQuantiles", "Verdict", "Windows",
    "capacity_ratio", "judge", "merged", "own_ms",
]  # fmt: skip
