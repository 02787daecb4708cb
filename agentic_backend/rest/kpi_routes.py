"""REST of the service's own measurements: its bottleneck, the last minutes and the last day, the ledgers of its turns,
and what blocked the event loop."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathParam
from starlette.responses import Response

from agentic_backend.errors import BadRequest, ExchangeNotFound, Forbidden
from agentic_backend.rest.kpi_day import day_view
from agentic_backend.verdict import Slice, Windows, judge, merged
from agentic_backend.verdict.day import DAY_S
from agentic_backend.verdict.window import KEPT_S
from backend_kit.auth import Identity
from backend_kit.kpi import Culprits
from backend_kit.kpi.rollup import nearest_rank
from backend_kit.wire import dumps

_STEP_SLICES: Final = 10
Instance = Annotated[str | None, Query(max_length=200)]
"""The instance that a view is about; none = the one that answers."""


class OtherInstances(Protocol):
    """The instances of a fleet, as one of them knows them. Methods raise `HistoryUnavailable`."""

    @property
    def me(self) -> str:
        """The id of this one."""
        ...

    async def alive(self) -> list[dict[str, Any]]:
        """The live ones: `id`, `url`, whether each is `draining`, and whether it is the one that answers (`here`)."""
        ...

    async def view(self, instance: str, name: str, query: Mapping[str, str]) -> bytes | None:
        """The view of another one, as JSON; None if it is not alive, or has no such view."""
        ...


@dataclass(frozen=True, slots=True)
class KpiViews:
    """What the routes read. `lag_s` is how late the loop is now, in seconds; `operator_roles` are the roles that may
    read the views, None if everybody may. `worker` is the number of this process among the workers of a service, and
    `others` are the instances beside it; None where there is only one."""

    windows: Windows
    culprits: Culprits
    lag_s: Callable[[], float]
    operator_roles: frozenset[str] | None
    worker: int | None = None
    others: OtherInstances | None = None

    def open_to(self, identity: Identity) -> bool:
        """Whether this caller may see them."""
        return self.operator_roles is None or not self.operator_roles.isdisjoint(identity.roles)

    @property
    def whose(self) -> dict[str, Any]:
        """The process that they are about."""
        return {"instance": None if self.others is None else self.others.me, "worker": self.worker}


def seen_by_operators(views: Callable[[], KpiViews], caller: Any) -> Callable[..., KpiViews]:
    """What a route depends on to be given the views: others than operators are refused, `Forbidden`.

    A dependency, so that a caller who may see nothing is refused before the query is validated.
    """

    def seen_by(identity: caller) -> KpiViews:
        seen = views()
        if not seen.open_to(identity):
            raise Forbidden
        return seen

    return seen_by


def add_kpi(router: APIRouter, views: Callable[[], KpiViews], caller: Any) -> None:
    """Add the routes below `/kpi`. They compute in threads: reading them must not load a full event loop further."""
    operator = Annotated[KpiViews, Depends(seen_by_operators(views, caller))]

    @router.get("/kpi/verdict", response_model=dict[str, Any])
    async def verdict(
        seen: operator,
        window_s: Annotated[float, Query(ge=1, le=KEPT_S)] = 60.0,
        instance: Instance = None,
    ) -> Response:
        """Who bounds the service, with the milliseconds of a turn by cause: for operators."""
        return _json(await _view_of(seen, "verdict", instance, _Asked(window_s)))

    @router.get("/kpi/live", response_model=dict[str, Any])
    async def live(
        seen: operator,
        window_s: Annotated[float, Query(ge=1, le=KEPT_S)] = float(KEPT_S),
        instance: Instance = None,
    ) -> Response:
        """The last minutes in steps of ten seconds: latencies, lag, verdicts. For operators."""
        return _json(await _view_of(seen, "live", instance, _Asked(window_s)))

    @router.get("/kpi/day", response_model=dict[str, Any])
    async def day(
        seen: operator,
        window_s: Annotated[float, Query(ge=10, le=DAY_S)] = 300.0,
        instance: Instance = None,
    ) -> Response:
        """Up to 24 hours in steps of 10 s, of a minute or of five, with latencies by agent and model. For operators."""
        return _json(await _view_of(seen, "day", instance, _Asked(window_s)))

    @router.get("/kpi/turns/{exchange_id}", response_model=dict[str, Any])
    async def turn(
        seen: operator,
        exchange_id: Annotated[str, PathParam(max_length=200)],
        instance: Instance = None,
    ) -> Response:
        """The ledger and the figures of one of the newest 2,000 turns of an instance: for operators."""
        said = await _view_of(seen, "turn", instance, _Asked(exchange=exchange_id))
        if json.loads(said)["turn"] is None:
            raise ExchangeNotFound
        return _json(said)

    @router.get("/kpi/stalls", response_model=list[dict[str, Any]])
    async def stalls(seen: operator, instance: Instance = None) -> Response:
        """Who held the event loop since the start, and for how long: for operators."""
        return _json(await _view_of(seen, "stalls", instance, _Asked()))

    @router.get("/kpi/instances")
    async def instances(seen: operator) -> list[dict[str, Any]]:
        """The live instances, whose ids the other views take: for operators. None if there is only one."""
        return [] if seen.others is None else await seen.others.alive()


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parameters of a view."""

    window_s: float = float(KEPT_S)
    exchange: str = ""

    def query(self) -> dict[str, str]:
        """The same for another instance."""
        return {"window_s": repr(self.window_s), "exchange": self.exchange}


async def _view_of(seen: KpiViews, name: str, instance: str | None, asked: _Asked) -> bytes:
    """The view of this instance, or of another one. Raises `BadRequest` where no such instance lives."""
    others = seen.others
    if instance is None or (others is not None and instance == others.me):
        return await asyncio.to_thread(lambda: dumps(_VIEWS[name](seen, asked)))
    found = None if others is None else await others.view(instance, name, asked.query())
    if found is None:
        raise BadRequest("no such instance lives", field="instance")
    return found


def _json(said: bytes) -> Response:
    return Response(said, media_type="application/json")


async def view_for_peer(seen: KpiViews, name: str, query: Mapping[str, str]) -> bytes | None:
    """The view that another instance asks for; None for an unknown name, or a window that is not kept."""
    try:
        window_s = float(query.get("window_s", KEPT_S))
    except ValueError:
        return None
    if name not in _VIEWS or not 1 <= window_s <= (DAY_S if name == "day" else KEPT_S):
        return None
    asked = _Asked(window_s, query.get("exchange", ""))
    return await asyncio.to_thread(lambda: dumps(_VIEWS[name](seen, asked)))


def _verdict(seen: KpiViews, asked: _Asked) -> dict[str, Any]:
    return {**seen.whose, **judge(seen.windows.last(asked.window_s)).json()}


def _live(seen: KpiViews, asked: _Asked) -> dict[str, Any]:
    now = time.monotonic()
    kept = [slice_ for slice_ in seen.windows.kept() if slice_.ended_at > now - asked.window_s]
    whole = merged(kept)
    # From the newest back, so that the steps do not shift between two requests within one of them.
    steps = [merged(kept[max(end - _STEP_SLICES, 0) : end]) for end in range(len(kept), 0, -_STEP_SLICES)]
    return {
        **seen.whose,
        "now": _wall(0.0),
        "running": seen.windows.running,
        "lag_ms": round(seen.lag_s() * 1e3, 3),
        "whole": {"window_s": round(whole.seconds, 3), "turns": whole.turns, **_latencies(whole)},
        "steps": [_step(step, now) for step in reversed(steps)],
    }


def _day(seen: KpiViews, asked: _Asked) -> dict[str, Any]:
    return {
        **seen.whose,
        "now": _wall(0.0),
        "lag_ms": round(seen.lag_s() * 1e3, 3),
        **day_view(seen.windows, asked.window_s),
    }


def _turn(seen: KpiViews, asked: _Asked) -> dict[str, Any]:
    kept = seen.windows.ledgers.find(asked.exchange)
    return {**seen.whose, "turn": None if kept is None else json.loads(kept)}


def _stalls(seen: KpiViews, _asked: _Asked) -> list[dict[str, Any]]:
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


def _about(seen: KpiViews, _asked: _Asked) -> dict[str, Any]:
    return {**seen.whose, "version": version("turnwise"), "now": _wall(0.0)}


_VIEWS: Final[Mapping[str, Callable[[KpiViews, _Asked], Any]]] = {
    "verdict": _verdict,
    "live": _live,
    "day": _day,
    "turn": _turn,
    "stalls": _stalls,
    "about": _about,  # for the other instances and the doctor, by the token of this one alone
}


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
