"""The real service, for the test that runs the load tester against it."""

from tests.support.service import start_service

__all__ = ["start_service"]
