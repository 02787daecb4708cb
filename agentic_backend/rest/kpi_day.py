"""What the Live view of the page shows: up to 24 hours of the service's own measurements, as JSON-ready values."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agentic_backend.verdict import Windows, judge
from agentic_backend.verdict.day import LEVELS, MEASURES, OTHERS, DayStep, KeptTally, Kind, Tally, joined, quantile
from agentic_backend.verdict.slices import Slice

_QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_NOW_S: Final = 60.0


def day_view(windows: Windows, window_s: float) -> dict[str, Any]:
    """The last `window_s`, whole, by agent and model, and in steps; the levels and the verdict of now. From any thread:
    some milliseconds for a day, since steps that have ended are computed once."""
    day = windows.day
    steps = day.steps(window_s)
    whole = joined(steps)
    return {
        "window_s": window_s,
        "verdict": judge(windows.last(_NOW_S)).json(),
        "levels": dict(zip(LEVELS, day.latest, strict=True)),
        "whole": _step_view(whole),
        "agents": _by_name(whole, "agent"),
        "models": _by_name(whole, "model"),
        "steps": [*map(_cached_step, steps[:-1]), *([_step_view(steps[-1])] if steps[-1].time.seconds > 0 else ())],
    }


def _cached_step(step: DayStep) -> dict[str, Any]:
    if step.rendered is None:
        step.rendered = _step_view(step)
    return step.rendered


def _step_view(step: DayStep) -> dict[str, Any]:
    time = step.time
    every = step.tallies.get(("all", OTHERS)) or Tally().kept()
    verdict = judge(time).json()
    return {
        "at": datetime.fromtimestamp(step.ended_at, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.seconds, 1),
        "turns_per_s": round(every.turns / time.seconds, 4) if time.seconds > 0 else 0.0,
        "refused": time.refused,
        **_figures(every),
        "lag_ms": round(time.lag_ms, 3),
        "loop": round(time.occupied, 4),
        "starved": round(time.starved, 4),
        **_waits(time),
        **{key: verdict[key] for key in ("bound_by", "share", "ms_per_turn", "next", "next_share")},
        "levels": {name: round(level, 3) for name, level in zip(LEVELS, step.levels, strict=True)},
    }


def _waits(time: Slice) -> dict[str, float]:
    """How long the average use of a pool waited for a connection."""
    reads = time.ended.reads - time.begun.reads
    batches = time.ended.batch_statements - time.begun.batch_statements
    waited = (time.ended.read_wait_s - time.begun.read_wait_s, time.ended.batch_wait_s - time.begun.batch_wait_s)
    return {
        "db_wait_ms": round(waited[0] * 1e3 / reads, 3) if reads > 0 else 0.0,
        "batch_wait_ms": round(waited[1] * 1e3 / batches, 3) if batches > 0 else 0.0,
    }


def _figures(of: KeptTally) -> dict[str, Any]:
    whole = Tally()
    whole.add(of)
    return {
        "turns": of.turns,
        "failed": of.failed,
        **{measure: _quantiles(counts) for measure, counts in zip(MEASURES, whole.counts, strict=True)},
    }


def _quantiles(counts: Mapping[int, int]) -> dict[str, float] | None:
    if not counts:
        return None
    return {name: round(quantile(counts, share) or 0.0, 3) for name, share in _QUANTILES}


def _by_name(whole: DayStep, kind: Kind) -> list[dict[str, Any]]:
    """Those with most turns first; at the end the sum of the others, with `name` null."""
    found = {name: kept for (of, name), kept in whole.tallies.items() if of == kind}
    ordered = sorted(found, key=lambda name: (name == OTHERS, -found[name].turns, name))
    return [{"name": name if name != OTHERS else None, **_figures(found[name])} for name in ordered]
