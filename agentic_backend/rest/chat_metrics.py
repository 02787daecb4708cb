"""REST of the figures of a user's own conversations; those of the whole service are on /metrics and under /kpi."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query

from agentic_backend.errors import BadRequest
from agentic_backend.session.store import (
    FIELDS,
    OPERATIONS,
    SECONDS,
    Bucket,
    ChatFigures,
    Field,
    Group,
    Operation,
    Precision,
)

_MAX_STEPS: Final = 2000
_MAX_BUCKETS: Final = 10_000
_NAMES: Final[dict[str, Operation]] = {**{operation: operation for operation in OPERATIONS}, "mean": "avg"}
"""Operations by their names; Fred's clients ask for the mean."""
_ASKED: Final[dict[str, tuple[Field, Operation]]] = {
    f"{field}:{name}": (field, operation) for field in FIELDS for name, operation in _NAMES.items()
}


def add_chat_metrics(router: APIRouter, figures: Callable[[], ChatFigures], caller: Any) -> None:
    """Add the two routes. `figures()` is called at each request: its result exists once the app runs."""

    @router.get("/metrics/chatbot/summary")
    async def chat_summary(identity: caller) -> dict[str, int]:
        """How many sessions, agents and attachments the caller has."""
        return asdict(await figures().summary(identity.uid))

    @router.get("/metrics/chatbot/numerical")
    async def chat_figures(
        identity: caller,
        start: datetime,
        end: datetime,
        precision: Precision = "hour",
        agg: Annotated[list[str], Query(max_length=len(_ASKED))] = ["latency_ms:avg"],  # noqa: B006 - read only
        groupby: Annotated[list[Group], Query(max_length=3)] = [],  # noqa: B006 - read only
    ) -> dict[str, Any]:
        """Latency and tokens of the caller's own answers, over time and by group."""
        begin, stop = _utc(start), _utc(end)
        if not set(agg) <= _ASKED.keys():
            raise BadRequest(field="agg")
        if not _fits(begin, stop, precision):
            raise BadRequest(field="end")
        groups = list(dict.fromkeys(groupby))
        buckets = await figures().buckets(identity.uid, begin, stop, precision, groups, _MAX_BUCKETS)
        return {
            "precision": precision,
            "buckets": [
                {
                    "timestamp": bucket.at,
                    "group": bucket.group,
                    "aggregations": _named_values(agg, bucket),
                }
                for bucket in buckets
            ],
        }


def _named_values(asked: list[str], bucket: Bucket) -> dict[str, float | None]:
    """Each value under the name that was asked for, and under Fred's: `total_tokens:sum`, `total_tokens_sum`."""
    values = {name: bucket.values[_ASKED[name]] for name in asked}
    return values | {name.replace(":", "_"): value for name, value in values.items()}


def _utc(moment: datetime) -> datetime:
    """The moment in UTC; one without a zone is taken as UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _fits(start: datetime, end: datetime, precision: Precision) -> bool:
    return timedelta(0) < end - start <= timedelta(seconds=SECONDS[precision] * _MAX_STEPS)
