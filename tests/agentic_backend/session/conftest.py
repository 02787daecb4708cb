"""A registry of turns for each test."""

from collections.abc import AsyncIterator

import pytest

from agentic_backend.session.registry import RegistryRules
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.session.lab import Lab, LabFactory


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry()
    yield registry
    await registry.aclose()


@pytest.fixture
def make_lab(tasks: TaskRegistry) -> LabFactory:
    def make(rules: RegistryRules | None = None, **limits: int) -> Lab:
        return Lab(tasks, rules, **limits)

    return make


@pytest.fixture
def lab(make_lab: LabFactory) -> Lab:
    return make_lab()
