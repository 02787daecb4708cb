"""The state of hosted graphs and what they remember of users, in memory."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from agentic_backend.agent.hosted.state_writes import CheckpointPart, StatePart


class MemoryState:
    """The `GraphState` of a test: LangGraph's own saver and store in memory, which are there to be looked at."""

    def __init__(self) -> None:
        self.kept = InMemorySaver()
        self.remembered = InMemoryStore()

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        """See `GraphState`."""
        yield self.kept

    async def write(self, parts: Sequence[StatePart]) -> None:
        """See `GraphState`."""
        for part in parts:
            if isinstance(part, CheckpointPart):
                await self.kept.aput(part.config, part.checkpoint, part.metadata, part.new_versions)
            else:
                await self.kept.aput_writes(part.config, part.writes, part.task_id, part.task_path)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[BaseStore]:
        """See `GraphState`."""
        yield self.remembered
