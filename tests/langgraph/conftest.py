"""Fixtures of the tests with LangGraph's clients."""

from tests.support.agentic import start_process
from tests.support.service import start_service

__all__ = ["start_process", "start_service"]
