"""The figures of a user's own conversations over REST, and what they may be asked for."""

import asyncio
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.service import BASE

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RANGE = "start=2026-03-01T00:00:00Z&end=2026-03-02T00:00:00Z"


def answers(database, session_id, *told):
    """Answers of the session: (minutes after noon, agent, latency in ms, other metadata)."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for rank, (minutes, agent_id, latency_ms, more) in enumerate(told):
            connection.execute(
                "INSERT INTO session_history VALUES (%s, 'admin', %s, %s, 'assistant', 'final', %s, '[]', %s)",
                (
                    session_id,
                    rank,
                    NOON + timedelta(minutes=minutes),
                    f"e{rank}",
                    Jsonb({"agent_id": agent_id, "latency_ms": latency_ms, **more}),
                ),
            )


@pytest.fixture
async def asked(service, database):
    session_id = await service.create_session()
    usage = {"token_usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}, "model": "mock"}
    told = [(0, "Georges", 100, usage), (1, "Georges", 300, usage), (61, "Rico", 50, {}), (62, "Rico", "odd", {})]
    await asyncio.to_thread(answers, database, session_id, *told)
    return service


async def buckets(service, query):
    answer = await service.get(f"/metrics/chatbot/numerical?{RANGE}&{query}")
    assert answer["precision"] == dict(parse_qsl(query)).get("precision", "hour")
    return [(b["timestamp"][11:16], b["group"], ours(b["aggregations"])) for b in answer["buckets"]]


def ours(aggregations):
    """The values by the names that were asked for; each is there under Fred's name, too."""
    named = {name: value for name, value in aggregations.items() if ":" in name}
    assert aggregations == named | {name.replace(":", "_"): value for name, value in named.items()}
    return named


async def test_steps_groups_and_aggregates(asked):
    assert await buckets(asked, "precision=hour&agg=latency_ms:avg&agg=latency_ms:count&agg=total_tokens:sum") == [
        ("12:00", {}, {"latency_ms:avg": 200, "latency_ms:count": 2, "total_tokens:sum": 30}),
        ("13:00", {}, {"latency_ms:avg": 50, "latency_ms:count": 1, "total_tokens:sum": None}),
    ]
    assert await buckets(asked, "precision=day&groupby=agent_id&groupby=model&agg=latency_ms:max") == [
        ("00:00", {"agent_id": "Georges", "model": "mock"}, {"latency_ms:max": 300}),
        ("00:00", {"agent_id": "Rico", "model": None}, {"latency_ms:max": 50}),
    ]
    assert await buckets(asked, "precision=day&agg=latency_ms:p50&agg=latency_ms:p95&agg=latency_ms:min") == [
        ("00:00", {}, {"latency_ms:p50": 100, "latency_ms:p95": 280, "latency_ms:min": 50}),
    ]
    for minutes in ("min", "minute"):
        steps = await buckets(asked, f"precision={minutes}")
        assert [at for at, _, _ in steps] == ["12:00", "12:01", "13:01", "13:02"]


async def test_what_fred_s_clients_ask_for_is_answered_under_their_names(asked):
    query = "start=2026-01-15&end=2026-04-02&precision=month&agg=total_tokens:sum&agg=latency_ms:mean"
    answer = await asked.get(f"/metrics/chatbot/numerical?{query}")
    (bucket,) = answer["buckets"]
    assert (answer["precision"], bucket["timestamp"]) == ("month", "2026-03-01T00:00:00Z")
    assert bucket["aggregations"] == {
        "total_tokens:sum": 30, "total_tokens_sum": 30, "latency_ms:mean": 150, "latency_ms_mean": 150
    }  # fmt: skip


async def test_the_end_is_not_part_of_the_range_and_a_moment_without_zone_is_utc(asked):
    path = "/metrics/chatbot/numerical?start=2026-03-01T12:00:00&end=2026-03-01T12:01:00&agg=latency_ms:count"
    answer = await asked.get(path)
    assert answer == {
        "precision": "hour",
        "buckets": [
            {
                "timestamp": "2026-03-01T12:00:00Z",
                "group": {},
                "aggregations": {"latency_ms:count": 1, "latency_ms_count": 1},
            },
        ],
    }


@pytest.mark.parametrize(
    "query",
    [
        "",
        "start=2026-03-01",
        "start=2026-03-02&end=2026-03-01",
        "start=2026-03-01&end=2026-03-01",
        "start=a&end=b",
        "start=2026-03-01&end=2026-03-02&precision=sec",
        "start=0001-01-01&end=9999-12-31&precision=day",
        "start=2026-03-01&end=2026-03-02&precision=week",
        "start=2026-03-01&end=2026-03-02&agg=latency_ms",
        "start=2026-03-01&end=2026-03-02&agg=latency_ms:stddev",
        "start=2026-03-01&end=2026-03-02&agg=rank:max",
        "start=2026-03-01&end=2026-03-02&groupby=user_id",
        "start=2026-03-01&end=2026-03-02&" + "&".join(["agg=latency_ms:avg"] * 33),
        "start=0001-01-01&end=9999-12-31&precision=month",
    ],
)
async def test_anything_else_is_refused(service, query):
    async with service.http.get(f"{BASE}/metrics/chatbot/numerical?{query}") as response:
        assert (response.status, (await response.json())["detail"]["code"]) == (422, "bad_request")


@pytest.mark.parametrize("start", ["0001-01-01T00:00:00%2B14:00", "9999-12-31T00:00:00Z"])
async def test_the_ends_of_time_are_no_trouble(service, start):
    end = start.replace("T00:", "T01:")
    answer = await service.get(f"/metrics/chatbot/numerical?start={start}&end={end}")
    assert answer["buckets"] == []


async def test_the_summary(service, database):
    empty = await service.get("/metrics/chatbot/summary")
    assert empty == dict.fromkeys(empty, 0)
    first, second = await service.create_session(), await service.create_session()

    def attach():
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            for number, session_id in enumerate((first, first, second)):
                connection.execute(
                    "INSERT INTO session_attachments (attachment_id, session_id, user_id, name, size_bytes)"
                    " VALUES (%s, %s, 'admin', 'a.txt', 1)",
                    (f"a{number}", session_id),
                )

    await asyncio.to_thread(attach)
    await service.create_session()
    assert await service.get("/metrics/chatbot/summary") == {
        "sessions_total": 3,
        "agents_active_total": 1,
        "attachments_total": 3,
        "attachments_sessions": 2,
        "max_attachments_per_session": 2,
    }
