"""What answers have used over REST: the caller's own, and everybody's for operators."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import jwt
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService

SECRET = "0123456789abcdef0123456789abcdef"
MARCH = "first=2026-03-01&last=2026-03-03"
OWN = "/metrics/chatbot/usage"


def used(
    agent: str | None, model: str | None, tokens: tuple[float, float] | None, cost: float | None = None
) -> dict[str, Any]:
    usage = {} if tokens is None else {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    named = {"agent_id": agent, "model": model}
    return {**named, "extras": {"usage": {**usage, "cost": cost}}}


def answers(database: Database, user: str, session_id: str, *told: tuple[str, dict[str, Any]]) -> None:
    """Answers of a session of the user, (moment, metadata) each."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at)"
            " VALUES (%s, %s, 'Georges', '{}', now()) ON CONFLICT DO NOTHING",
            (session_id, user),
        )
        for rank, (moment, metadata) in enumerate(told):
            connection.execute(
                "INSERT INTO session_history VALUES (%s, %s, %s, %s, 'assistant', 'final', %s, '[]', %s)",
                (session_id, user, rank, datetime.fromisoformat(moment), f"e{rank}", Jsonb(metadata)),
            )


@pytest.fixture
async def asked(service: RunningService, database: Database) -> RunningService:
    session_id = await service.create_session()
    older = {"agent_id": "Rico", "token_usage": {"input_tokens": 7, "output_tokens": 3}}
    mine = [
        ("2026-03-01T12:00:00Z", used("Georges", "m", (10, 5), 0.5)),
        ("2026-03-01T23:30:00Z", used("Georges", "m", (20, 5), 0.25)),
        ("2026-03-02T12:00:00Z", older),
        ("2026-03-03T23:59:59Z", used("Rico", "m", ("many", 10**40), -1)),  # type: ignore[arg-type]
        ("2026-02-28T23:59:59Z", used("Georges", "m", (1000, 1000), 1.0)),
        ("2026-03-04T00:00:00Z", used("Georges", "m", (1000, 1000), 1.0)),
    ]
    await asyncio.to_thread(answers, database, "admin", session_id, *mine)
    others = [("2026-03-01T12:00:00Z", used("Georges", None, (100, 50), 2.0))]
    await asyncio.to_thread(answers, database, "bob", "of-bob", *others)
    return service


def figures(turns: int, tokens: tuple[int, int], cost: float) -> dict[str, float]:
    return {"turns": turns, "input_tokens": tokens[0], "output_tokens": tokens[1], "cost": cost}


async def test_it_is_by_day_agent_and_model(asked: RunningService) -> None:
    assert await asked.get(f"{OWN}?{MARCH}") == {
        "first": "2026-03-01",
        "last": "2026-03-03",
        "zone": "UTC",
        "currency": None,
        "total": figures(4, (37, 13), -0.25),
        "days": [
            {"day": "2026-03-01", **figures(2, (30, 10), 0.75)},
            {"day": "2026-03-02", **figures(1, (7, 3), 0)},
            {"day": "2026-03-03", **figures(1, (0, 0), -1)},
        ],
        "agents": [
            {"agent_id": "Georges", **figures(2, (30, 10), 0.75)},
            {"agent_id": "Rico", **figures(2, (7, 3), -1)},
        ],
        "models": [{"model": "m", **figures(3, (30, 10), -0.25)}, {"model": None, **figures(1, (7, 3), 0)}],
        "cut": [],
    }


@pytest.mark.parametrize(
    ("zone", "by_day"),
    [("Europe/Paris", {1: 2, 2: 2}), ("America/New_York", {1: 2, 2: 1, 3: 2}), ("UTC", {1: 2, 2: 1, 3: 1})],
)
async def test_days_are_those_of_the_person(asked: RunningService, zone: str, by_day: dict[int, int]) -> None:
    told = await asked.get(f"{OWN}?{MARCH}&zone={zone}")
    days = {int(day["day"][-2:]): day["turns"] for day in told["days"]}
    assert days == by_day


async def test_without_days_it_is_of_the_last_thirty(asked: RunningService) -> None:
    told = await asked.get(OWN)
    first, last = (datetime.fromisoformat(told[key]) for key in ("first", "last"))
    assert (last - first).days == 29
    assert abs((datetime.now(UTC).replace(tzinfo=None) - last).total_seconds()) < 2 * 86_400


@pytest.mark.parametrize(
    "query",
    [
        "first=2026-03-02&last=2026-03-01",
        "first=2026-01-01&last=2026-04-03",
        "first=1999-12-31&last=2000-01-01",
        "last=2200-01-01",
        "first=x",
        "zone=Nowhere/Land",
        "zone=Europe",
        "zone=../../etc/passwd",
        "zone=%00",
        "zone=" + "A" * 65,
    ],
)
async def test_anything_else_is_refused(service: RunningService, query: str) -> None:
    async with service.http.get(f"{BASE}{OWN}?{query}") as response:
        assert (response.status, (await response.json())["detail"]["code"]) == (422, "bad_request")


async def test_operators_see_everybody_by_person(asked: RunningService) -> None:
    told = await asked.get(f"/kpi/usage?{MARCH}")
    assert told["persons"] == [
        {"user_id": "admin", **figures(4, (37, 13), -0.25)},
        {"user_id": "bob", **figures(1, (100, 50), 2)},
    ]
    assert told["total"] == figures(5, (137, 63), 1.75)
    assert told["agents"][0] == {"agent_id": "Georges", **figures(3, (130, 60), 2.75)}


async def test_others_see_their_own_alone(start_service: StartService, database: Database) -> None:
    security = {"user": {"enabled": True, "client_id": "turnwise"}, "hs256_secret": SECRET}
    async with start_service(security=security) as service:
        await asyncio.to_thread(
            answers, database, "bob", "of-bob", ("2026-03-01T12:00:00Z", used("Georges", None, (100, 50), 2.0))
        )
        now = int(time.time())
        token = jwt.encode({"sub": "ann", "aud": "turnwise", "iat": now, "exp": now + 600}, SECRET)
        headers = {"Authorization": f"Bearer {token}"}
        async with service.http.get(f"{BASE}/kpi/usage?zone=nonsense/", headers=headers) as response:
            assert (response.status, (await response.json())["detail"]["code"]) == (403, "forbidden")
        async with service.http.get(f"{BASE}{OWN}?{MARCH}", headers=headers) as response:
            told = await response.json()
    assert (told["total"]["turns"], told["days"]) == (0, [])
    assert "persons" not in told


async def test_long_lists_are_cut(asked: RunningService, database: Database) -> None:
    many = [("2026-03-02T12:00:00Z", used(f"agent-{number}", f"m{number % 3}", (1, 1))) for number in range(205)]
    await asyncio.to_thread(answers, database, "admin", "many", *many)
    told = await asked.get(f"{OWN}?{MARCH}")
    assert (len(told["agents"]), len(told["models"]), told["cut"]) == (200, 5, ["agents"])
    assert told["agents"][0]["agent_id"] == "Georges"
    assert told["total"]["turns"] == 209


async def test_the_currency_is_told_where_there_are_prices(start_service: StartService) -> None:
    price = {"model": "mock", "input_per_million": 1e6, "output_per_million": 2e6}
    async with start_service(ai={"prices": [price], "currency": "EUR"}) as service:
        assert (await service.get(OWN))["currency"] == "EUR"
