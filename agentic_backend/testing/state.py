"""The state of hosted graphs and what they remember of users, in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore


class MemoryState:
    """The `GraphState` of a test: LangGraph's own saver and store in memory, which are there to be looked at."""

    def __init__(self) -> None:
        self.kept = InMemorySaver()
        self.remembered = InMemoryStore()

    @asynccontextmanager
    async def saver(self, *, patient: bool = False) -> AsyncIterator[BaseCheckpointSaver[Any]]:  # noqa: ARG002 - the port
        """See `GraphState`."""
        yield self.kept

    @asynccontextmanager
    async def store(self) -> AsyncIterator[BaseStore]:
        """See `GraphState`."""
        yield self.remembered
