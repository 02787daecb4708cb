"""Instances of a fleet on one database, without their turns."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.fleet.membership import FleetRules
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from tests.agentic_backend.conftest import Build
from tests.agentic_backend.fleet.instances import MANY, RULES, Instance
from tests.agentic_backend.records import settings_for
from tests.support.postgres import Database

Found = Callable[..., Awaitable[Instance]]


@pytest.fixture
async def found(build: Build, database: Database, tasks: TaskRegistry) -> AsyncIterator[Found]:
    """Make an instance that has renewed. Nothing else of it runs but what the test starts."""
    made: list[Instance] = []

    async def make(name: str, rules: FleetRules = RULES, kpi: Kpi | None = None, **parts: Any) -> Instance:
        kpi = kpi or Kpi(CollectorRegistry(), service="agentic")
        persistence = build(database.settings(), persistence=MANY, own_kpi=kpi)
        await persistence.database.connect_until_ready(lambda _state: None)
        instance = Instance(name, settings_for(database.settings()), persistence, tasks, kpi, rules, **parts)
        made.append(instance)
        await instance.renew()
        return instance

    yield make
    for instance in made:
        await instance.stop()


@pytest.fixture
async def pair(found: Found) -> tuple[Instance, Instance]:
    """Two instances that record questions and have not begun to write turns."""
    one, other = await found("one"), await found("other")
    one.start_asks()
    other.start_asks()
    return one, other
