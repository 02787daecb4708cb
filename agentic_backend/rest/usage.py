"""REST routes for what answers have used: tokens, cost and turns by day, agent and model; for operators,
everybody's."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Depends, Query

from agentic_backend.errors import BadRequest
from agentic_backend.rest.configuration import PublicSettings
from agentic_backend.rest.kpi_routes import KpiViews, seen_by_operators
from agentic_backend.session.store import ChatFigures, UsedBy, UsedFor

MOST_DAYS: Final = 92
_MOST_NAMES: Final = 200
_DEFAULT_DAYS: Final = 30
_LISTS: Final[dict[UsedBy, str]] = {"agent_id": "agents", "model": "models", "user_id": "persons"}
Day = Annotated[date | None, Query(ge=date(2000, 1, 1), le=date(2199, 12, 31))]
Zone = Annotated[str, Query(max_length=64, pattern="^[A-Za-z][A-Za-z0-9_+/-]*$")]


def add_usage(
    router: APIRouter,
    figures: Callable[[], ChatFigures],
    views: Callable[[], KpiViews],
    settings: Callable[[], PublicSettings],
    caller: Any,
) -> None:
    """Add the two routes. The callables are called at each request: their results exist once the app runs."""
    operator = Annotated[KpiViews, Depends(seen_by_operators(views, caller))]

    async def used(user_id: str | None, first: date | None, last: date | None, zone: str) -> dict[str, Any]:
        days = _days(first, last, _zone(zone))
        edges = [_begins(day, _zone(zone)) for day in (*days, days[-1] + timedelta(days=1))]
        rows = await figures().usage(user_id, edges, _MOST_NAMES + 1)
        return {
            "first": days[0],
            "last": days[-1],
            "zone": zone,
            "currency": settings().currency,
            **_lists(rows, days, everybody=user_id is None),
        }

    @router.get("/metrics/chatbot/usage")
    async def usage(identity: caller, first: Day = None, last: Day = None, zone: Zone = "UTC") -> dict[str, Any]:
        """Tokens, cost and number of the caller's own answers, by day of a time zone, agent and model."""
        return await used(identity.uid, first, last, zone)

    @router.get("/kpi/usage")
    async def usage_of_all(_seen: operator, first: Day = None, last: Day = None, zone: Zone = "UTC") -> dict[str, Any]:
        """The same for everybody, also by person: for operators."""
        return await used(None, first, last, zone)


def _lists(rows: Sequence[UsedFor], days: Sequence[date], *, everybody: bool) -> dict[str, Any]:
    lists = {by: name for by, name in _LISTS.items() if everybody or by != "user_id"}
    told: dict[str, Any] = {"total": _figures(UsedFor(None)), "days": [], **{name: [] for name in lists.values()}}
    for row in rows:
        if row.by is None:
            told["total"] = _figures(row)
        elif row.by == "day":
            told["days"].append({"day": days[int(row.name or 1) - 1], **_figures(row)})
        elif row.by in lists:
            told[lists[row.by]].append({row.by: row.name, **_figures(row)})
    told["cut"] = sorted(name for name in lists.values() if len(told[name]) > _MOST_NAMES)
    return {**told, **{name: told[name][:_MOST_NAMES] for name in lists.values()}}


def _figures(row: UsedFor) -> dict[str, float]:
    return {key: value for key, value in asdict(row).items() if key not in ("by", "name")}


def _zone(name: str) -> ZoneInfo | Any:
    """The time zone. Raises `BadRequest` for one that is not known here; UTC always is."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadRequest("no such time zone", field="zone") from None


def _days(first: date | None, last: date | None, zone: Any) -> list[date]:
    """The days from the first to the last: without them the last 30. Raises `BadRequest`."""
    until = last or datetime.now(zone).date()
    since = first or until - timedelta(days=_DEFAULT_DAYS - 1)
    if not 0 <= (until - since).days < MOST_DAYS:
        raise BadRequest(f"1 to {MOST_DAYS} days", field="last")
    return [since + timedelta(days=number) for number in range((until - since).days + 1)]


def _begins(day: date, zone: Any) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)
