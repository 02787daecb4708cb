from collections.abc import AsyncIterator

import pytest

from agentic_backend.llm import ModelPool


@pytest.fixture
async def pool() -> AsyncIterator[ModelPool]:
    pool = ModelPool()
    yield pool
    await pool.aclose()
