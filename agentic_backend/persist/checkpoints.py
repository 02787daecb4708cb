"""Runs that wait for a person, in LangGraph's tables of Postgres: kept, claimed once, deleted with their session."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection, Error, sql
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from agentic_backend.agent.interrupts import SavedCheckpoint, SavedRun, strict_serializer
from agentic_backend.errors import HistoryUnavailable, NotKept
from agentic_backend.persist.database import LOCK_KEY
from backend_kit.db.libpq import connect_args
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)

TABLES: Final = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
"""LangGraph's tables; `thread_id` is the session's id, so at most one run a session waits."""
_CONNECTIONS: Final = 2

_MISSING_LINKS = """
SELECT name FROM unnest(%s::text[]) AS wanted(name)
WHERE NOT EXISTS (SELECT FROM pg_constraint WHERE conname = name || '_of_session' AND conrelid = to_regclass(name))
"""
_LINK = """
ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY (thread_id) REFERENCES session (session_id) ON DELETE CASCADE
"""
_CLAIM = """
DELETE FROM checkpoints WHERE thread_id = %s AND checkpoint_ns = '' AND checkpoint_id = %s RETURNING checkpoint_id
"""


class PostgresCheckpoints:
    """Implements `Checkpoints`. Connects when the first run waits, with its own pool of two connections, since the
    saver does one thing at a time."""

    def __init__(self, settings: Postgres) -> None:
        self._settings = settings
        self._opening = asyncio.Lock()
        self._pool: AsyncConnectionPool[AsyncConnection[DictRow]] | None = None
        self._saver: AsyncPostgresSaver | None = None

    async def keep(self, session_id: str, saved: SavedRun) -> None:
        """Store a run, replacing the one that waited in its session. Raises `NotKept`."""
        try:
            saver = await self._ready()
            await saver.adelete_thread(session_id)
            for one in saved.checkpoints:
                versions = one.checkpoint["channel_versions"]
                put = await saver.aput(_config(session_id, one), one.checkpoint, one.metadata, versions)
                for task_id, writes in one.writes_by_task:
                    await saver.aput_writes(put, writes, task_id)
        except Error as failure:
            logger.warning("checkpoint not kept: sqlstate=%s", failure.sqlstate)
            raise NotKept("the checkpoint could not be stored") from None

    async def take(self, session_id: str, run_id: str) -> SavedRun | None:
        """Claim a run: of several callers only one gets it. Raises `HistoryUnavailable`."""
        try:
            saver = await self._ready()
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
            if not any(one.id == run_id for one in found) or not await self._claim(session_id, run_id):
                return None
        except Error as failure:
            logger.warning("checkpoint not read: sqlstate=%s", failure.sqlstate)
            raise HistoryUnavailable("the checkpoint could not be read") from None
        return SavedRun(tuple(found))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.close(timeout=self._settings.pool_timeout)

    async def _claim(self, session_id: str, run_id: str) -> bool:
        """Delete the run; returns whether it existed. The rest of it is deleted with the next run or the session."""
        assert self._pool is not None
        async with self._pool.connection() as connection, connection.transaction():
            claimed = await (await connection.execute(_CLAIM, (session_id, run_id))).fetchone()
            if claimed is None:
                return False
            for table in TABLES:
                delete = sql.SQL("DELETE FROM {} WHERE thread_id = %s").format(sql.Identifier(table))
                await connection.execute(delete, (session_id,))
        return True

    async def _ready(self) -> AsyncPostgresSaver:
        """The saver, after its tables were created and linked to the sessions. Raises psycopg's Error."""
        async with self._opening:
            if self._pool is None:
                self._pool = _pool(self._settings)
                await self._pool.open()
            if self._saver is None:
                saver = AsyncPostgresSaver(self._pool, serde=strict_serializer())
                async with self._alone():
                    await saver.setup()
                    await self._link()
                self._saver = saver
            return self._saver

    async def _link(self) -> None:
        """Have each table's rows deleted with their session."""
        assert self._pool is not None
        async with self._pool.connection() as connection:
            for row in await (await connection.execute(_MISSING_LINKS, (list(TABLES),))).fetchall():
                table, name = sql.Identifier(row["name"]), sql.Identifier(row["name"] + "_of_session")
                await connection.execute(sql.SQL(_LINK).format(table=table, name=name))

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Hold the lock of migrations: another instance may be starting too."""
        assert self._pool is not None
        async with self._pool.connection() as connection:
            await connection.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
            try:
                yield
            finally:
                await connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK_KEY,))


def _pool(settings: Postgres) -> "AsyncConnectionPool[AsyncConnection[DictRow]]":
    password = settings.password.get_secret_value() if settings.password else None
    return AsyncConnectionPool(
        kwargs={
            "host": settings.host,
            "port": settings.port,
            "dbname": settings.database,
            "user": settings.username,
            "password": password,
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            **connect_args("turnwise-agentic-checkpoints", settings.connect_timeout),
        },
        min_size=0,
        max_size=_CONNECTIONS,
        open=False,
        timeout=settings.pool_timeout,
        reconnect_timeout=settings.pool_timeout,
        name="checkpoints",
    )


def _config(session_id: str, one: SavedCheckpoint) -> RunnableConfig:
    configurable = {"thread_id": session_id, "checkpoint_ns": one.namespace}
    if one.parent_id is not None:
        configurable["checkpoint_id"] = one.parent_id
    return {"configurable": configurable}
