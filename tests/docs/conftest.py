"""Fixtures of the tests that hold the documents to the running service."""

from tests.support.service import service, start_service

__all__ = ["service", "start_service"]
