"""Fixtures of the tests that hold the documents to the running services."""

from tests.knowledge_flow_backend.conftest import start_knowledge_flow
from tests.support.service import service, start_service

__all__ = ["service", "start_knowledge_flow", "start_service"]
