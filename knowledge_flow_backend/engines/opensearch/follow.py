"""Applies to the index in OpenSearch what was deleted, replaced, moved or switched off in Postgres.

Nothing waits for it: every search asks Postgres which changes the index still lacks, and filters those documents by
Postgres. Triggers note the changes, so that no statement can forget to.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.engines.opensearch import statements
from knowledge_flow_backend.engines.opensearch.body import Place, moved, of_generations
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.engines.scheduling import CatchUp
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

INTENTION_S: Final = 180.0
"""Age at which a write without a holder counts as dead. Longer than an abandoned request may take."""
_BATCH: Final = 200


class Follower(CatchUp):
    """The work of one process; of several, one works at a time and the others skip their turn."""

    def __init__(
        self,
        database: IndexDatabase,
        cluster: Cluster,
        metrics: KnowledgeFlowMetrics,
        *,
        intention_s: float = INTENTION_S,
    ) -> None:
        super().__init__(database, logger, "the index is behind its documents")
        self._cluster = cluster
        self._metrics = metrics
        self._intention_s = intention_s

    async def catch_up(self) -> bool:
        """Follow every change that is noted, and publish how many are left."""
        found = False
        await self._count()
        while await self.follow():
            found = True
            await self._count()
        return found

    async def follow(self) -> int:
        """Apply up to a batch of the noted changes; returns how many notes were done. Raises `IndexUnavailable`."""
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                if not (await connection.execute("lock", statements.LOCK_FOLLOWING))[0][0]:
                    return 0
                limits = {"intent_s": self._intention_s, "limit": _BATCH}
                notes = await connection.execute("take_pending", statements.TAKE_PENDING, limits)
                if notes:
                    await connection.execute("lock", statements.LOCK_WRITING)
                    await self._move(connection, notes)
                    await self._delete(connection, notes)
                    await connection.execute("done_pending", statements.DONE, {"ids": [note[0] for note in notes]})
                    await connection.commit()
                return len(notes)

    async def _count(self) -> None:
        """Publish how much is left; every process does, whichever follows. Raises `IndexUnavailable`."""
        with self._database.guarded():
            async with self._database.main.connection() as connection:
                rows = await connection.execute("pending", statements.PENDING)
        self._metrics.index_pending.set(rows[0][0])

    async def _move(self, connection: TimedConnection, notes: Sequence[Sequence[Any]]) -> None:
        uids = sorted({uid for _, uid, generation in notes if generation is None})
        if not uids:
            return
        for row in await connection.execute("places", statements.PLACES, {"uids": uids}):
            place = Place(row[0], row[1], row[2], row[3], row[4], tuple(row[5] or ()))
            await self._cluster.update_where(self._database.index, moved(place))

    async def _delete(self, connection: TimedConnection, notes: Sequence[Sequence[Any]]) -> None:
        noted = {generation for _, _, generation in notes if generation is not None}
        if not noted:
            return
        rows = await connection.execute("valid", statements.VALID, {"generations": sorted(noted)})
        if old := noted - {generation for (generation,) in rows}:
            await self._cluster.refresh(self._database.index)  # what is not visible yet would not be deleted
            await self._cluster.delete_where(self._database.index, of_generations(old))
