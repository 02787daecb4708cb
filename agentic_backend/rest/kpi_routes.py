"""REST of the service's own measurements: its bottleneck, the last minutes, and what blocked the event loop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query

from agentic_backend.errors import Forbidden
from agentic_backend.verdict import Slice, Windows, judge, merged
from agentic_backend.verdict.window import KEPT_S
from backend_kit.auth import Identity
from backend_kit.kpi import Culprits
from backend_kit.kpi.rollup import nearest_rank

_STEP_SLICES: Final = 10


@dataclass(frozen=True, slots=True)
class KpiViews:
    """What the routes read. `lag_s` is how late the loop is now, in seconds; `operator_roles` are the roles that may
    read the views, None if everybody may."""

    windows: Windows
    culprits: Culprits
    lag_s: Callable[[], float]
    operator_roles: frozenset[str] | None

    def open_to(self, identity: Identity) -> bool:
        """Whether this caller may see them."""
        return self.operator_roles is None or not self.operator_roles.isdisjoint(identity.roles)


def add_kpi(router: APIRouter, views: Callable[[], KpiViews], caller: Any) -> None:
    """Add the routes below `/kpi`. They compute in threads: reading them must not load a full event loop further."""

    def seen_by(identity: caller) -> KpiViews:
        seen = views()
        if not seen.open_to(identity):
            raise Forbidden
        return seen

    # A dependency, so that a caller who may see nothing is refused before the query is validated.
    operator = Annotated[KpiViews, Depends(seen_by)]

    @router.get("/kpi/verdict")
    def verdict(
        seen: operator,
        window_s: Annotated[float, Query(ge=1, le=KEPT_S)] = 60.0,
    ) -> dict[str, Any]:
        """Who bounds the service, with the milliseconds of a turn by cause: for operators."""
        return judge(seen.windows.last(window_s)).json()

    @router.get("/kpi/live")
    def live(
        seen: operator,
        window_s: Annotated[float, Query(ge=1, le=KEPT_S)] = float(KEPT_S),
    ) -> dict[str, Any]:
        """The last minutes in steps of ten seconds: latencies, lag, verdicts. For operators."""
        now = time.monotonic()
        kept = [slice_ for slice_ in seen.windows.kept() if slice_.ended_at > now - window_s]
        whole = merged(kept)
        # From the newest back, so that the steps do not shift between two requests within one of them.
        steps = [merged(kept[max(end - _STEP_SLICES, 0) : end]) for end in range(len(kept), 0, -_STEP_SLICES)]
        return {
            "now": _wall(0.0),
            "running": seen.windows.running,
            "lag_ms": round(seen.lag_s() * 1e3, 3),
            "whole": {"window_s": round(whole.seconds, 3), "turns": whole.turns, **_latencies(whole)},
            "steps": [_step(step, now) for step in reversed(steps)],
        }

    @router.get("/kpi/stalls")
    def stalls(seen: operator) -> list[dict[str, Any]]:
        """Who held the event loop since the start, and for how long: for operators."""
        now = time.perf_counter()
        return [
            {
                "place": culprit.seen.place,
                "task": culprit.seen.task,
                "phase": culprit.seen.phase or None,
                "agent": culprit.seen.agent or None,
                "stack": culprit.seen.stack,
                "stalls": culprit.stalls,
                "total_ms": round(culprit.total_ms, 1),
                "worst_ms": round(culprit.worst_ms, 1),
                "seconds_ago": round(now - culprit.last_at, 1),
            }
            for culprit in seen.culprits.top()
        ]


def _latencies(of: Slice) -> dict[str, Any]:
    return {"turn_latency_ms": _percentiles(of.turn_ms), "first_token_ms": _percentiles(of.first_token_ms)}


def _step(step: Slice, now: float) -> dict[str, Any]:
    """One step of the live view: its figures, and the verdict over it."""
    return {
        "at": _wall(now - step.ended_at),
        **_latencies(step),
        "lag_ms": round(step.lag_ms, 3),
        "pending_records": step.ended.pending,
        **judge(step).json(),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "p50": round(nearest_rank(ordered, 0.5), 3),
        "p95": round(nearest_rank(ordered, 0.95), 3),
        "p99": round(nearest_rank(ordered, 0.99), 3),
        "max": round(ordered[-1], 3),
    }


def _wall(seconds_ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="milliseconds")
