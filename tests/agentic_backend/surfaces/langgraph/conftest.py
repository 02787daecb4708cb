"""A service in the test's process, for LangGraph's own client."""

from tests.support.service import service, start_service

__all__ = ["service", "start_service"]
