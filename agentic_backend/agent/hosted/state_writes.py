"""What a run writes of its graph's state: parts that come while others are being written are written together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from agentic_backend.errors import TurnFailed


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """The arguments of `BaseCheckpointSaver.aput`."""

    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions


@dataclass(frozen=True, slots=True)
class WritesPart:
    """The arguments of `BaseCheckpointSaver.aput_writes`."""

    config: RunnableConfig
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str


StatePart = CheckpointPart | WritesPart


@dataclass(eq=False, slots=True)
class _Waiting:
    part: StatePart
    written: bool = False
    failure: TurnFailed | None = None


class StateWrites:
    """The writes of one run.

    LangGraph hands over several parts at the end of a step, each in a task of its own. One by one, each would wait for
    a connection and for a flush of the database's disk.
    """

    def __init__(self, write: Callable[[Sequence[StatePart]], Awaitable[None]]) -> None:
        """`write` stores parts in their order, also those that are there, and raises `TurnFailed` where it cannot."""
        self._write = write
        self._alone = asyncio.Lock()
        self._waiting: list[_Waiting] = []

    async def add(self, part: StatePart) -> None:
        """Write a part: it is stored when this returns. Raises as the `write` did that the part was in."""
        mine = _Waiting(part)
        self._waiting.append(mine)
        async with self._alone:
            if not mine.written:
                await asyncio.sleep(0)  # the other parts of a step come in the same tick
                await self._write_all()
        if mine.failure is not None:
            raise mine.failure

    async def _write_all(self) -> None:
        """Write what waits. It goes on waiting where this is cancelled."""
        group = tuple(self._waiting)
        failure = None
        try:
            await self._write([one.part for one in group])
        except TurnFailed as error:
            failure = error
        for one in group:
            one.written, one.failure = True, failure
        del self._waiting[: len(group)]
