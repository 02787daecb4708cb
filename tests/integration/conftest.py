"""Fixtures of the tests that run the whole service."""

from tests.support.service import service, start_service

__all__ = ["service", "start_service"]
