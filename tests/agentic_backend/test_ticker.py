"""Once a second what others count is published, and the slice of the verdict is closed with it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import batch_pool, request_pool
from agentic_backend.ticker import Ticker, TickerSources
from agentic_backend.verdict import CAUSES, Gauged, Windows
from backend_kit.kpi import Kpi, LoopMonitor
from backend_kit.settings import Postgres
from tests.support.postgres import Database


class Lookups:
    """A cache that counts."""

    def __init__(self) -> None:
        self.hits = 3
        self.misses = 1


class Slots:
    """Turns that run, by how many may."""

    fill = 0.0


class Room:
    """A watch over real pools, and what it publishes."""

    def __init__(self, database: Database) -> None:
        self.kpi = Kpi(CollectorRegistry(), service="agentic")
        metrics = self.metrics = AgenticMetrics(self.kpi.registry, self.kpi)
        settings = Postgres.model_validate(database.settings() | {"pool_size": 2, "max_overflow": 1})
        self.main = request_pool(settings, metrics)
        self.batch = batch_pool(settings, metrics)
        self.tokens = Lookups()
        self.keys = Lookups()
        loop = LoopMonitor(self.kpi, notice=lambda _: None)
        self.windows = Windows()
        self.slots = Slots()
        sources = TickerSources(loop, self.main, self.batch, self.slots, self.tokens, self.keys)
        self.watch = Ticker(sources, self.windows, metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.kpi.registry.get_sample_value(name, labels)


@pytest.fixture
async def room(database: Database) -> AsyncIterator[Room]:
    room = Room(database)
    yield room
    await room.main.aclose()
    await room.batch.aclose()


async def test_pools_are_published_and_connections_are_counted_as_they_open(room: Room) -> None:
    room.watch.tick()
    assert room.value("app_db_connections_opened_total", pool="main") is None
    async with room.main.connection():
        room.watch.tick()
        assert room.value("app_db_pool_connections", pool="main", state="in_use") == 1
    room.watch.tick()
    assert room.value("app_db_pool_connections", pool="main", state="in_use") == 0
    assert room.value("app_db_pool_connections", pool="main", state="idle") == 1
    assert room.value("app_db_pool_connections", pool="batch", state="idle") == 0
    assert room.value("app_db_pool_waiting", pool="main") == 0
    assert room.value("app_db_connections_opened_total", pool="main") == 1
    assert room.watch.pools.lines() == [
        "db_pool=main size=2 checked_in=1 checked_out=0 overflow=0 util_pct=0.0",
        "db_pool=batch size=2 checked_in=0 checked_out=0 overflow=0 util_pct=0.0",
    ]


async def test_a_caller_that_waits_for_a_connection_shows(room: Room) -> None:
    held = asyncio.Event()
    full = asyncio.Barrier(4)

    async def hold() -> None:
        async with room.main.connection():
            if not held.is_set():
                await full.wait()
            await held.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(4):  # two of the pool, one of its overflow, one that waits
            group.create_task(hold())
        await full.wait()
        room.watch.tick()
        assert room.value("app_db_pool_waiting", pool="main") == 1
        assert room.value("app_db_pool_connections", pool="main", state="overflow") == 1
        held.set()


@pytest.mark.parametrize("cache", ["jwt", "jwks"])
async def test_look_ups_are_counted_once(room: Room, cache: str) -> None:
    lookups = {"jwt": room.tokens, "jwks": room.keys}[cache]
    room.watch.tick()
    room.watch.tick()
    assert room.value("app_cache_requests_total", cache=cache, result="hit") == 3
    assert room.value("app_cache_requests_total", cache=cache, result="miss") == 1
    lookups.hits += 2
    room.watch.tick()
    assert room.value("app_cache_requests_total", cache=cache, result="hit") == 5


async def test_the_verdict_is_published_and_ends_the_summary(room: Room) -> None:
    for _ in range(3):
        room.windows.refused("admission", 2000.0)
    room.watch.tick()
    room.watch.judge()
    assert {cause: room.value("app_bound_by", cause=cause) for cause in CAUSES} == {
        cause: float(cause == "admission") for cause in CAUSES
    }
    assert room.value("app_turn_wait_seconds_total", cause="admission") == pytest.approx(6.0)
    assert room.value("app_turn_wait_seconds_total", cause="llm_floor") is None
    [line] = room.watch.verdict_lines()
    assert line.startswith("[KPI][VERDICT] bound_by=admission share=1.00 ms_per_turn=2000.00 ")
    assert room.watch.verdict_lines()[0].startswith("[KPI][VERDICT] bound_by=nobody ")
    room.watch.judge()
    assert room.value("app_turn_wait_seconds_total", cause="admission") == pytest.approx(6.0)
    assert room.value("app_bound_by", cause="admission") == 0


async def test_what_is_in_use_of_this_process_is_published_with_the_verdict(room: Room) -> None:
    room.slots.fill = 0.4
    room.windows.close_slice(Gauged())
    room.watch.judge()
    assert room.value("app_turns_capacity_ratio") == 0.4
    room.windows.close_slice(Gauged(cpu_s=1e6))  # more than there is time
    room.watch.judge()
    assert room.value("app_turns_capacity_ratio") == pytest.approx(1 / 0.85)


async def test_what_waits_for_postgres_is_in_the_slice(room: Room) -> None:
    room.metrics.persist_queue_depth.set(7)
    room.metrics.persist_oldest_ms.set(2500.0)
    room.watch.tick()
    [seen] = room.windows.kept()
    assert (seen.ended.pending, seen.ended.oldest_s) == (7, 2.5)
