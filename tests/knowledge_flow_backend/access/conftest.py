"""The world of the access tests, on each engine."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.knowledge_flow_backend.access.world import World, world_on
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database


@pytest.fixture(params=["pgvector"])
def storage(request: pytest.FixtureRequest, database: Database) -> dict[str, Any]:
    """Where a service keeps its documents and its index."""
    return {"postgres": database.settings(), "vector_store": {"type": request.param}}


@pytest.fixture
async def world(storage: dict[str, Any], database: Database, mock_llm: MockModel) -> AsyncIterator[World]:
    """A service of the test's own, filled."""
    async with world_on(start_on(database, mock_llm.base_url), storage) as made:
        yield made
