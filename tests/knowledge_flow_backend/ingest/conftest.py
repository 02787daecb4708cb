"""The lab of ingestion, on a database of the test's own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.knowledge_flow_backend.ingest.lab import Lab, running
from tests.support.postgres import Database


@pytest.fixture
async def lab(database: Database, tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(database, tmp_path / "staging") as made:
        yield made
