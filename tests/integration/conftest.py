"""Fixtures of the tests that run the whole service."""

import pytest

from tests.support.behind import choose, start_service
from tests.support.service import service

__all__ = ["service", "start_service"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Behind a balancer, run what holds there."""
    choose(config, items)
