"""Runs that wait for a person, and the state of hosted graphs, in LangGraph's tables of Postgres."""

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore
from psycopg import AsyncConnection, DataError, Error, sql
from psycopg.rows import DictRow

from agentic_backend.agent.hosted.state_writes import StatePart
from agentic_backend.agent.interrupts import SavedCheckpoint, SavedRun
from agentic_backend.errors import HistoryUnavailable, NotKept, TurnFailed
from agentic_backend.persist.graph_pool import TABLES, GraphPool
from agentic_backend.persist.graph_statements import encoded, execute_all

logger = logging.getLogger(__name__)

_STATE: Final = "state of a graph"

_CLAIM = """
DELETE FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = '' AND checkpoint_id = %s RETURNING checkpoint_id
"""


class PostgresGraphState:
    """Implements `GraphState`."""

    def __init__(self, pool: GraphPool) -> None:
        self._pool = pool

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        """See `GraphState`. Raises `NotKept`."""
        with _translated_errors(_STATE):
            async with self._pool.saver() as saver:
                yield saver

    async def write(self, parts: Sequence[StatePart]) -> None:
        """See `GraphState`. Raises `NotKept`: a turn whose state cannot be stored does not end well."""
        statements = await encoded(parts)
        with _translated_errors(_STATE):
            async with self._pool.connection(patient=True) as connection:
                await execute_all(connection, statements)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[BaseStore]:
        """See `GraphState`. Raises `NotKept`."""
        with _translated_errors("store of a graph"):
            async with self._pool.store() as store:
                yield store


class PostgresCheckpoints:
    """Implements `Checkpoints`."""

    def __init__(self, pool: GraphPool) -> None:
        self._pool = pool

    async def keep(self, session_id: str, saved: SavedRun) -> None:
        """Store a run, replacing the one that waited in its session. Raises `NotKept`."""
        with _translated_errors("run that waits"):
            async with self._pool.saver() as saver:
                await saver.adelete_thread(session_id)
                for one in saved.checkpoints:
                    versions = one.checkpoint["channel_versions"]
                    put = await saver.aput(_config(session_id, one), one.checkpoint, one.metadata, versions)
                    for task_id, writes in one.writes_by_task:
                        await saver.aput_writes(put, writes, task_id)

    async def take(self, session_id: str, run_id: str) -> SavedRun | None:
        """Claim a run: of several callers only one gets it. Raises `HistoryUnavailable`."""
        try:
            async with self._pool.saver() as saver:
                found = [
                    SavedCheckpoint(
                        namespace=one.config["configurable"]["checkpoint_ns"],
                        parent_id=one.parent_config["configurable"]["checkpoint_id"] if one.parent_config else None,
                        checkpoint=one.checkpoint,
                        metadata=one.metadata,
                        writes=tuple(one.pending_writes or ()),
                    )
                    async for one in saver.alist({"configurable": {"thread_id": session_id}})
                ]
            if not any(one.id == run_id for one in found):
                return None
            async with self._pool.connection() as connection, connection.transaction():
                if not await _claimed(connection, session_id, run_id):
                    return None
        except Error as failure:
            logger.warning("checkpoint not read: sqlstate=%s", failure.sqlstate)
            raise HistoryUnavailable("the checkpoint could not be read") from None
        return SavedRun(tuple(found))


@contextmanager
def _translated_errors(what: str) -> Iterator[None]:
    """Psycopg's errors become `NotKept`; those about a value that Postgres cannot hold, such as a NUL in a text, the
    failure of the turn: to try again would not help."""
    try:
        yield
    except DataError as failure:
        logger.warning("%s cannot be stored: sqlstate=%s", what, failure.sqlstate)
        raise TurnFailed(f"the {what} has a value that cannot be stored") from None
    except Error as failure:
        logger.warning("%s not kept: sqlstate=%s", what, failure.sqlstate)
        raise NotKept(f"the {what} could not be read or stored") from None


async def _claimed(connection: AsyncConnection[DictRow], session_id: str, run_id: str) -> bool:
    """Delete the run; returns whether it existed. The rest of it is deleted with the next run or the session."""
    claimed = await (await connection.execute(_CLAIM, (session_id, run_id))).fetchone()
    if claimed is None:
        return False
    for table in TABLES:
        delete = sql.SQL("DELETE FROM {} WHERE thread_id = %s").format(sql.Identifier(table))
        await connection.execute(delete, (session_id,))
    return True


def _config(session_id: str, one: SavedCheckpoint) -> RunnableConfig:
    configurable = {"thread_id": session_id, "checkpoint_ns": one.namespace}
    if one.parent_id is not None:
        configurable["checkpoint_id"] = one.parent_id
    return {"configurable": configurable}
