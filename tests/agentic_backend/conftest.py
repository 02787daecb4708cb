"""Persistence on a database of the test's own."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.spool.claim import Possessions, claim_at_start
from agentic_backend.spool.spool import Spool
from backend_kit.aio import TaskRegistry
from backend_kit.db.database import DatabaseState
from backend_kit.kpi import Kpi
from tests.agentic_backend.records import settings_for
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database

Build = Callable[..., Persistence]
Start = Callable[..., Awaitable[Persistence]]


@pytest.fixture
def kpi() -> Kpi:
    return Kpi(CollectorRegistry(), service="agentic")


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry()
    yield registry
    await registry.aclose()


@pytest.fixture
async def build(
    database: Database,
    kpi: Kpi,
    tasks: TaskRegistry,
    tmp_path: Path,
) -> AsyncIterator[Build]:
    """Make persistence for a database, each with a spool of its own; it is closed after the test."""
    numbers = itertools.count()
    async with AsyncExitStack() as stack:

        def make(
            where: dict[str, Any],
            *,
            on_state: Callable[[DatabaseState], None] | None = None,
            own_kpi: Kpi | None = None,
            rules: PersistenceRules | None = None,
            spool: Callable[..., Spool] = Spool,
            **sections: Any,
        ) -> Persistence:
            chosen = own_kpi or kpi
            own = {"spool_dir": str(tmp_path / f"spool-{next(numbers)}")}
            sections = {**sections, "persistence": own | sections.get("persistence", {})}
            metrics = AgenticMetrics(chosen.registry, chosen)
            settings = settings_for(where, **sections)
            many = settings.persistence.replicas == "many"
            claim = claim_at_start(settings.storage.postgres, shared=many)
            made = Persistence(
                settings,
                kpi=chosen,
                metrics=metrics,
                tasks=tasks,
                on_state=on_state,
                possessions=Possessions(database=claim),
                rules=rules or PersistenceRules(spool_s=PATIENCE_S),
                spool=spool,
            )
            stack.push_async_callback(made.aclose)
            return made

        yield make


@pytest.fixture
async def held(build: Build, database: Database) -> Persistence:
    """Persistence whose batcher has not been started: what is appended stays pending, and its end does not wait."""
    persistence = build(database.settings(), rules=PersistenceRules(spool_s=PATIENCE_S, close_s=0.0))
    await persistence.database.connect_until_ready(lambda _state: None)
    return persistence


@pytest.fixture
async def persistence(held: Persistence) -> Persistence:
    """Persistence that runs."""
    held.start()
    return held
