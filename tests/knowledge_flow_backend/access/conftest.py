"""The world of the access tests, on each engine."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.postgres import EmbeddedPostgres
from tests.knowledge_flow_backend.access.world import World, world_on
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database, new_database


@pytest.fixture(params=["pgvector"], scope="module")
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The part of `storage` that says which engine searches."""
    return {"vector_store": {"type": request.param}}


@pytest.fixture(scope="module")
def own_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database of the module's own."""
    with new_database(postgres) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(own_database: Database, mock_llm: MockModel, engine: dict[str, Any]) -> AsyncIterator[World]:
    """A service for tests that change nothing."""
    async with world_on(start_on(own_database, mock_llm.base_url), own_database, engine) as made:
        yield made


@pytest.fixture
async def changing_world(database: Database, mock_llm: MockModel, engine: dict[str, Any]) -> AsyncIterator[World]:
    """A service of the test's own."""
    async with world_on(start_on(database, mock_llm.base_url), database, engine) as made:
        yield made
