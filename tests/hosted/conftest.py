"""A service for all tests of a file, and the model of its graphs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.hosted.stage import Stage, staged
from tests.support.agentic import ServiceProcess, run_process, start_process
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database, EmbeddedPostgres, new_database
from tests.support.service import configuration, merge

__all__ = ["start_process"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """The model."""
    async with staged() as stage:
        yield stage


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres, migrated: str) -> Iterator[Database]:
    """The database of that service."""
    with new_database(postgres, migrated) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hosted(
    request: pytest.FixtureRequest,
    stage: Stage,
    shared_database: Database,
    mock_llm: MockModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ServiceProcess]:
    """The service. `SECTIONS` of the file are laid over its configuration, which has metrics."""
    place: Path = tmp_path_factory.mktemp("hosted")
    sections: dict[str, Any] = request.module.SECTIONS
    own = {
        "app": {"metrics_enabled": True},
        "ai": {"default_chat_model": {"settings": {"base_url": stage.url}}},
    }
    base = merge(configuration("scripted", shared_database, mock_llm), own)
    variables = {"MODEL_URL": stage.url, "MOCK_URL": mock_llm.base_url}
    async with run_process(merge(base, sections), place, env=variables, traceback_allowed=True) as service:
        yield service
