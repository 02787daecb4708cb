"""A registry of turns for each test."""

from collections.abc import AsyncIterator

import pytest

from agentic_backend.session.registry import RegistryRules
from backend_kit.aio import TaskRegistry
from tests.agentic_backend.session.gated_turns import GatedTurns, MakeGatedTurns


@pytest.fixture
async def tasks() -> AsyncIterator[TaskRegistry]:
    registry = TaskRegistry()
    yield registry
    await registry.aclose()


@pytest.fixture
def make_gated_turns(tasks: TaskRegistry) -> MakeGatedTurns:
    def make(rules: RegistryRules | None = None, **limits: int) -> GatedTurns:
        return GatedTurns(tasks, rules, **limits)

    return make


@pytest.fixture
def gated_turns(make_gated_turns: MakeGatedTurns) -> GatedTurns:
    return make_gated_turns()
