"""What a user's own conversations add up to, and the port through which it is counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol, get_args

Precision = Literal["sec", "min", "hour", "day"]
Field = Literal["latency_ms", "input_tokens", "output_tokens", "total_tokens"]
Operation = Literal["count", "sum", "avg", "min", "max", "p50", "p95"]
Group = Literal["agent_id", "model", "finish_reason"]

FIELDS: Final[tuple[Field, ...]] = get_args(Field)
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)
GROUPS: Final[tuple[Group, ...]] = get_args(Group)
SECONDS: Final[dict[Precision, int]] = {"sec": 1, "min": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True, slots=True)
class Summary:
    """How much there is of it. Sessions and agents are those of stored sessions, attachments those of them."""

    sessions_total: int
    agents_active_total: int
    attachments_total: int
    attachments_sessions: int
    max_attachments_per_session: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """The answers that began their step of time in one group. `values` is keyed by (field, operation)."""

    at: str
    group: dict[Group, str | None]
    values: dict[tuple[Field, Operation], float | None]


class ChatFigures(Protocol):
    """Counts in what is committed. Every method may raise `HistoryUnavailable`."""

    async def summary(self, user_id: str) -> Summary:
        """The user's sessions, agents and attachments."""

    async def buckets(
        self, user_id: str, start: datetime, end: datetime, precision: Precision, groups: Sequence[Group], limit: int
    ) -> list[Bucket]:
        """The user's answers from `start` on and before `end`, by steps of time (UTC) and groups, the earliest first.

        At most `limit` of them. Steps without an answer are left out.
        """
