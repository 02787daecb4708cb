"""What both indexes ask Postgres: a search as the parameters of its statements, and a row of theirs as a hit."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from backend_kit.aio import FairGate, GateRules
from backend_kit.db.pool import DriverStatement
from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import UNBOUNDED
from knowledge_flow_backend.engines.pgvector.rows import vector_text
from knowledge_flow_backend.engines.pgvector.statements import SIMILARITIES
from knowledge_flow_backend.index import ChunkHit, IndexQuery, Policy, Reader, Similarity, Vector
from knowledge_flow_backend.index.database import IndexDatabase


class PostgresReads:
    """The part of a `ChunkIndex` that is the same whichever engine finds the chunks: Postgres has their vectors.

    Of all searches only a few steps, a statement or a query each, run at a time. A server with few cores that gets
    twenty at once ends them all late and together, and their answers block the event loop all at once. A few at a time
    end no later, one after the other.
    """

    def __init__(self, database: IndexDatabase, kpi: Kpi, *, parallel: int) -> None:
        """`parallel`: statements and queries of searches that run at once."""
        self._database = database
        self._kpi = kpi
        self._steps = FairGate(GateRules(parallel, waiting=UNBOUNDED, waiting_per_user=UNBOUNDED))

    async def similarities(self, chunk_uids: Sequence[str], vector: Vector, reader: Reader) -> list[Similarity]:
        """See `ChunkIndex`. Raises as there."""
        everywhere = IndexQuery("", Policy.SEMANTIC, reader, limit=0, candidates=0, libraries=reader.within(None))
        parameters = {**scope_of(everywhere), "uids": list(chunk_uids), "vector": vector_text(vector)}
        with self._database.guarded():
            rows = await self._rows("similarities", SIMILARITIES, parameters, reader)
        return [Similarity(uid, cosine) for uid, cosine in rows]

    async def _rows(
        self,
        op: str,
        statement: DriverStatement,
        parameters: Mapping[str, object],
        reader: Reader,
        *,
        first: bool = False,
    ) -> Sequence[Sequence[Any]]:
        async with self._step(reader, first=first), self._database.main.connection() as connection:
            return await connection.fetch(op, statement, parameters)

    @asynccontextmanager
    async def _step(self, reader: Reader, *, first: bool = False) -> AsyncIterator[None]:
        """Hold a place for a step in the block, after those of other readers in turn. `first`: the search begins with
        it, and lets those go before that have begun. A block must not wait for another step."""
        with self._kpi.phase("search_turn"):
            await self._steps.enter(reader.user_id, ahead=not first)
        try:
            yield
        finally:
            self._steps.leave(reader.user_id)


def scope_of(query: IndexQuery) -> dict[str, object]:
    """Who reads, and where is searched."""
    return {
        "reader": query.reader.user_id,
        "groups": list(query.reader.groups),
        "corpus": query.corpus,
        "libraries": None if query.libraries is None else list(query.libraries),
        "documents": None if query.documents is None else list(query.documents),
        "session": query.session_id,
    }


def candidates_of(query: IndexQuery) -> int:
    """Chunks of each half. At least as many as hits are wanted: with few in both, those of one must fill the list."""
    return max(query.candidates, query.limit)


def hit_of(row: Sequence[Any]) -> ChunkHit:
    """The columns stand in the order of the fields; the last three are arrays, null where there is no library."""
    return ChunkHit(*row[:-3], *(tuple(names or ()) for names in row[-3:]))


def with_attachments(hits: Sequence[ChunkHit], attached: Sequence[ChunkHit], limit: int) -> list[ChunkHit]:
    """At most `limit` hits, best first, with as many of the best attached ones as fit.

    An attachment that does not rank high enough replaces the worst hit and comes last. Its score, from another search,
    is cut to that of the hit before it, so that scores keep descending.
    """
    guaranteed = {hit.chunk_uid for hit in attached[:limit]}
    found = {hit.chunk_uid for hit in hits}
    missing = [hit for hit in attached[:limit] if hit.chunk_uid not in found]
    surplus = len(hits) + len(missing) - limit
    kept: list[ChunkHit] = []
    for hit in reversed(hits):
        if surplus > 0 and hit.chunk_uid not in guaranteed:
            surplus -= 1
        else:
            kept.append(hit)
    kept.reverse()
    for hit in missing:
        lowest = kept[-1].score if kept else hit.score
        kept.append(replace(hit, score=min(hit.score, lowest)))
    return kept
