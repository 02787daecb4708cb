"""A corpus of the test's own, and knowledge flow on it."""

from collections.abc import AsyncIterator

import pytest

from tests.knowledge_flow_backend.corpus import Corpus
from tests.knowledge_flow_backend.service import RunningKnowledgeFlow, StartKnowledgeFlow, start_on
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database


@pytest.fixture
async def corpus(database: Database) -> AsyncIterator[Corpus]:
    """An index without documents."""
    async with Corpus.on(database) as made:
        yield made


@pytest.fixture
def start_knowledge_flow(database: Database, mock_llm: MockModel) -> StartKnowledgeFlow:
    """Start the service on the test's database: `async with start_knowledge_flow(limits={…})`."""
    return start_on(database, mock_llm.base_url)


@pytest.fixture
async def service(start_knowledge_flow: StartKnowledgeFlow) -> AsyncIterator[RunningKnowledgeFlow]:
    """A service with the defaults, embedding by the mock model."""
    async with start_knowledge_flow() as running:
        yield running
