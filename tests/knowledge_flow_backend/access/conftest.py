"""The service of the access tests, on each engine."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio

from tests.knowledge_flow_backend.access.filled import FilledService, filled_service_on
from tests.knowledge_flow_backend.service import start_on
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database, new_database
from turnwise.postgres import EmbeddedPostgres

FillService = Callable[[Database], AbstractAsyncContextManager[FilledService]]


@pytest.fixture(params=["pgvector", pytest.param("opensearch", marks=pytest.mark.java)], scope="module")
def fill_service(request: pytest.FixtureRequest, mock_llm: MockModel) -> FillService:
    """Fills a service on a database, and on an index of its own."""
    engine: dict[str, Any] = {}
    if request.param == "opensearch":
        engine = {"opensearch": {"host": request.getfixturevalue("opensearch_node").url, "secure": False}}

    def make(where: Database) -> AbstractAsyncContextManager[FilledService]:
        index = {"type": request.param, "index": f"test-{secrets.token_hex(6)}"}
        storage = {"postgres": where.settings(), "vector_store": index, **engine}
        return filled_service_on(start_on(where, mock_llm.base_url), storage)

    return make


@pytest.fixture(scope="module")
def own_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database of the module's own."""
    with new_database(postgres) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def filled_service(own_database: Database, fill_service: FillService) -> AsyncIterator[FilledService]:
    """A service for tests that change nothing."""
    async with fill_service(own_database) as made:
        yield made


@pytest.fixture
async def changeable_service(database: Database, fill_service: FillService) -> AsyncIterator[FilledService]:
    """A service of the test's own."""
    async with fill_service(database) as made:
        yield made
