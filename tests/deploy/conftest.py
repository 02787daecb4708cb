"""Both services for the tests of what watches them."""

import pytest

from tests.knowledge_flow_backend.service import StartKnowledgeFlow, start_on
from tests.support.agentic import start_process
from tests.support.mock_llm import MockModel
from tests.support.postgres import Database
from tests.support.service import start_service

__all__ = ["start_process", "start_service"]


@pytest.fixture
def start_knowledge_flow(database: Database, mock_llm: MockModel) -> StartKnowledgeFlow:
    """Start knowledge flow on the test's database."""
    return start_on(database, mock_llm.base_url)
