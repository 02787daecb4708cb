"""Fixtures of the tests of switches."""

from collections.abc import AsyncIterator

import pytest

from tests.agentic_backend.llm.conftest import dead_end
from tests.support.agentic import start_process
from tests.support.service import start_service
from tests.switches.watched_model import WatchedModel, watched_model

__all__ = ["dead_end", "start_process", "start_service"]


@pytest.fixture
async def model() -> AsyncIterator[WatchedModel]:
    """A model that the test watches."""
    async with watched_model() as watched:
        yield watched
