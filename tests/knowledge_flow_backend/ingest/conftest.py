"""Ingestion, on a database of the test's own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.knowledge_flow_backend.ingest.ingestion import Ingestion, running
from tests.support.postgres import Database


@pytest.fixture
async def ingestion(database: Database, tmp_path: Path) -> AsyncIterator[Ingestion]:
    async with running(database, tmp_path / "staging") as made:
        yield made
