"""The figures of a user's conversations, computed by Postgres from the stored history."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from agentic_backend.persist.database import Queries
from agentic_backend.session.store import (
    FIELDS,
    GROUPS,
    OPERATIONS,
    Bucket,
    ConversationTotals,
    Group,
    Precision,
    UsedBy,
    UsedFor,
)

_UNITS: Final[dict[Precision, str]] = {
    "sec": "second", "min": "minute", "minute": "minute", "hour": "hour", "day": "day", "month": "month"
}  # fmt: skip
_VALUES: Final = {
    "latency_ms": "metadata_json->>'latency_ms'",
    "input_tokens": "metadata_json->'token_usage'->>'input_tokens'",
    "output_tokens": "metadata_json->'token_usage'->>'output_tokens'",
    "total_tokens": "metadata_json->'token_usage'->>'total_tokens'",
}
_AGGREGATES: Final = {
    "count": "count({0})",
    "sum": "sum({0})",
    "avg": "avg({0})",
    "min": "min({0})",
    "max": "max({0})",
    "p50": "percentile_cont(0.5) WITHIN GROUP (ORDER BY {0})",
    "p95": "percentile_cont(0.95) WITHIN GROUP (ORDER BY {0})",
}

SUMMARY: Final = text("""
SELECT count(*) AS sessions_total, count(DISTINCT nullif(agent_id, '')) AS agents_active_total,
    coalesce(sum(attached), 0) AS attachments_total, count(attached) AS attachments_sessions,
    coalesce(max(attached), 0) AS max_attachments_per_session
FROM session LEFT JOIN (
    SELECT session_id, count(*) AS attached FROM session_attachments WHERE user_id = :user_id GROUP BY session_id
) AS attachments USING (session_id)
WHERE user_id = :user_id
""")


def _buckets_statement() -> str:
    """One constant statement for all queries: each aggregate is cheap compared with reading the rows."""
    # An agent may write anything into its answer's metadata: what is not a number in range is ignored.
    number = """CASE WHEN jsonb_typeof({place}) = 'number' THEN
        CASE WHEN abs(CAST({value} AS numeric)) < 1e15 THEN CAST({value} AS double precision) END END AS {name}"""
    values = ", ".join(
        number.format(place="->".join(value.rsplit("->>", 1)), value=value, name=name)
        for name, value in _VALUES.items()
    )
    groups = ", ".join(f"CASE WHEN :by_{group} THEN metadata_json->>'{group}' END AS {group}" for group in GROUPS)
    aggregates = ", ".join(
        f"CAST({_AGGREGATES[operation].format(field)} AS double precision) AS {field}_{operation}"
        for field in FIELDS
        for operation in OPERATIONS
    )
    return f"""
WITH answer AS (
    SELECT date_trunc(:unit, "timestamp" AT TIME ZONE 'UTC') AS step, {groups}, {values}
    FROM session_history JOIN session USING (session_id, user_id)
    WHERE user_id = :user_id AND session.updated_at >= :start
        AND "timestamp" >= :start AND "timestamp" < :end AND role = 'assistant' AND channel = 'final'
)
SELECT to_char(step, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS at, {", ".join(GROUPS)}, {aggregates}
FROM answer GROUP BY step, {", ".join(GROUPS)} ORDER BY step, {", ".join(GROUPS)} LIMIT :limit
"""  # noqa: S608 - constants


BUCKETS: Final = text(_buckets_statement())


def _usage_statement(whose: str) -> str:
    """One statement for all groups: what costs is reading the rows. `whose` is a condition."""
    # An agent may write anything into its answer's metadata: what is not a number in range is ignored. What all calls
    # of a turn used is in its usage, which older answers, and those of some hosted agents, have not.
    used, older = "metadata_json->'extras'->'usage'", "metadata_json->'token_usage'"
    number = """CASE WHEN jsonb_typeof({place}->'{key}') = 'number' THEN
        CASE WHEN abs(CAST({place}->>'{key}' AS numeric)) < 1e15 THEN CAST({place}->>'{key}' AS double precision) END
        END"""
    tokens = ", ".join(
        f"coalesce({number.format(place=used, key=key)}, {number.format(place=older, key=key)}) AS {key}"
        for key in ("input_tokens", "output_tokens")
    )
    sums = ", ".join(f"coalesce(sum({key}), 0) AS {key}" for key in ("input_tokens", "output_tokens", "cost"))
    return f"""
WITH answer AS (
    SELECT width_bucket("timestamp", CAST(:edges AS timestamptz[])) AS day,
        left(metadata_json->>'agent_id', 200) AS agent_id, left(metadata_json->>'model', 200) AS model, user_id,
        {tokens}, {number.format(place=used, key="cost")} AS cost
    FROM session_history JOIN session USING (session_id, user_id)
    WHERE {whose} AND session.updated_at >= :start
        AND "timestamp" >= :start AND "timestamp" < :end AND role = 'assistant' AND channel = 'final'
), summed AS (
    SELECT grouping(day, agent_id, model, user_id) AS left_out, day, agent_id, model, user_id, count(*) AS turns, {sums}
    FROM answer GROUP BY GROUPING SETS ((), (day), (agent_id), (model), (user_id))
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY left_out ORDER BY day, turns DESC, agent_id, model, user_id
    ) AS place FROM summed
)
SELECT left_out, coalesce(CAST(day AS text), agent_id, model, user_id) AS name, turns, input_tokens, output_tokens, cost
FROM ranked WHERE place <= :limit ORDER BY left_out, place
"""  # noqa: S608 - constants


USAGE: Final = text(_usage_statement("user_id = :user_id"))
USAGE_OF_ALL: Final = text(_usage_statement("true"))
_USED_BY: Final[dict[int, UsedBy | None]] = {
    0b1111: None, 0b0111: "day", 0b1011: "agent_id", 0b1101: "model", 0b1110: "user_id"
}  # fmt: skip
"""By the bits of the columns that a row is not grouped by."""


class PostgresFigures:
    """Implements `ChatFigures`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def summary(self, user_id: str) -> ConversationTotals:
        """The user's sessions, agents and attachments."""
        (row,) = await self._queries.fetch("chat_summary", SUMMARY, {"user_id": user_id})
        return ConversationTotals(**{name: int(value) for name, value in row._mapping.items()})

    async def buckets(
        self, user_id: str, start: datetime, end: datetime, precision: Precision, groups: Sequence[Group], limit: int
    ) -> list[Bucket]:
        """The user's answers from `start` on and before `end`, by steps of time (UTC) and groups, in their order."""
        parameters: dict[str, object] = {
            "user_id": user_id,
            "start": start,
            "end": end,
            "unit": _UNITS[precision],
            "limit": limit,
            **{f"by_{group}": group in groups for group in GROUPS},
        }
        rows = await self._queries.fetch("chat_buckets", BUCKETS, parameters)
        return [
            Bucket(
                row.at,
                {group: row._mapping[group] for group in groups},
                {
                    (field, operation): row._mapping[f"{field}_{operation}"]
                    for field in FIELDS
                    for operation in OPERATIONS
                },
            )
            for row in rows
        ]

    async def usage(self, user_id: str | None, edges: Sequence[datetime], limit: int) -> list[UsedFor]:
        """What the user's answers used, or those of everybody: together, by day, agent, model and person."""
        parameters: dict[str, object] = {"edges": list(edges), "start": edges[0], "end": edges[-1], "limit": limit}
        if user_id is None:
            rows = await self._queries.fetch("usage_of_all", USAGE_OF_ALL, parameters)
        else:
            rows = await self._queries.fetch("usage", USAGE, {**parameters, "user_id": user_id})
        return [
            UsedFor(
                _USED_BY[row.left_out], row.name, int(row.turns), row.input_tokens, row.output_tokens, float(row.cost)
            )
            for row in rows
        ]
