"""Parts of a graph's state as the statements that store them, which LangGraph's saver would send one by one."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from langgraph.checkpoint.base import WRITES_IDX_MAP, get_serializable_checkpoint_metadata
from langgraph.checkpoint.postgres.base import BasePostgresSaver
from langgraph.checkpoint.serde import types
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from agentic_backend.agent.hosted.state_writes import CheckpointPart, StatePart, WritesPart
from agentic_backend.agent.interrupts import strict_serializer

Statement = tuple[str, tuple[Any, ...]]

_LITTLE: Final = 256
"""Parts up to this weight are encoded on the loop, where that takes less time than a round trip to a thread."""
_OBJECT: Final = 4
"""The weight of an object, such as a message; that of anything else is 1."""
_IN_ROW: Final = (str, int, float, bool, type(None))
"""Types whose values are stored in the row of the checkpoint. Others are blobs in rows of their own."""
_SERIALIZER: Final = strict_serializer()


async def encoded(parts: Sequence[StatePart]) -> list[Statement]:
    """The statements that store parts, in their order."""
    if _are_light(parts):
        return _encode(parts)
    return await asyncio.to_thread(_encode, parts)


async def execute_all(connection: AsyncConnection[DictRow], statements: Sequence[Statement]) -> None:
    """Execute statements in one round trip and, on a connection with `autocommit`, in one flush of the server's disk.

    Raises psycopg's `Error`; the first ones may be stored then.
    """
    async with connection.pipeline(), connection.cursor() as cursor:
        for query, row in statements:
            await cursor.execute(query, row)


def _encode(parts: Sequence[StatePart]) -> list[Statement]:
    return [
        statement
        for part in parts
        for statement in (_of_checkpoint(part) if isinstance(part, CheckpointPart) else _of_writes(part))
    ]


def _of_checkpoint(part: CheckpointPart) -> Iterator[Statement]:
    where, checkpoint = part.config["configurable"], part.checkpoint
    thread, namespace = where["thread_id"], where["checkpoint_ns"]
    in_row: dict[str, Any] = {}
    for channel, value in checkpoint["channel_values"].items():
        if isinstance(value, _IN_ROW):
            in_row[channel] = value
            continue
        if isinstance(value, types._DeltaSnapshot):
            in_row[channel] = True
        if (version := part.new_versions.get(channel)) is not None:
            blob = (thread, namespace, channel, version, *_SERIALIZER.dumps_typed(value))
            yield BasePostgresSaver.UPSERT_CHECKPOINT_BLOBS_SQL, blob
    yield (
        BasePostgresSaver.UPSERT_CHECKPOINTS_SQL,
        (
            thread,
            namespace,
            checkpoint["id"],
            where.get("checkpoint_id"),
            Jsonb({**checkpoint, "channel_values": in_row}),
            Jsonb(get_serializable_checkpoint_metadata(part.config, part.metadata)),
        ),
    )


def _of_writes(part: WritesPart) -> Iterator[Statement]:
    where = part.config["configurable"]
    special = all(channel in WRITES_IDX_MAP for channel, _ in part.writes)
    query = (
        BasePostgresSaver.UPSERT_CHECKPOINT_WRITES_SQL if special else BasePostgresSaver.INSERT_CHECKPOINT_WRITES_SQL
    )
    task = (where["thread_id"], where["checkpoint_ns"], where["checkpoint_id"], part.task_id, part.task_path)
    for place, (channel, value) in enumerate(part.writes):
        number = WRITES_IDX_MAP.get(channel, place)
        yield query, (*task, number, channel, *_SERIALIZER.dumps_typed(value))


def _are_light(parts: Sequence[StatePart]) -> bool:
    """Whether everything that is to be encoded weighs little. Counting stops once that is answered."""
    left = [value for part in parts for value in _values(part)]
    weight = 0
    while left:
        value = left.pop()
        weight += 1  # a container, too: it may hold itself
        if isinstance(value, dict):
            held = list(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            held = list(value)
        elif hasattr(value, "__dict__"):
            held = [one for one in vars(value).values() if isinstance(one, list | tuple | dict)]
            weight += _OBJECT - 1
        else:
            held = []
        if weight + len(held) > _LITTLE:
            return False
        left += held
    return True


def _values(part: StatePart) -> Iterator[Any]:
    if isinstance(part, WritesPart):
        return (value for _, value in part.writes)
    values = part.checkpoint["channel_values"]
    return (values[channel] for channel in part.new_versions if channel in values)
