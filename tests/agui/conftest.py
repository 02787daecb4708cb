"""Fixtures of the tests with the official client."""

from tests.support.service import start_service

__all__ = ["start_service"]
