"""The index in Postgres with pgvector: words by a tsvector, vectors by an HNSW graph, rights inside each query."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sqlalchemy import text

from backend_kit.db.pool import DriverStatement
from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import gather_pair
from knowledge_flow_backend.engines.pgvector import statements
from knowledge_flow_backend.engines.pgvector.queries import (
    PostgresReads,
    candidates_of,
    hit_of,
    scope_of,
    with_attachments,
)
from knowledge_flow_backend.engines.pgvector.rows import IndexOrigin, check_origin, origin_of, vector_text
from knowledge_flow_backend.engines.pgvector.writer import ENGINE
from knowledge_flow_backend.index import ChunkHit, IndexQuery, Policy, Vector
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.models import Embed

_TRY_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext(current_schema() || '.common_words'))")


@dataclass(frozen=True, slots=True)
class PgVectorRules:
    """`word_share`: part of a hybrid score that words decide, 0 to 1. `attachment_hits`: places guaranteed to a
    session's own attachments. `parallel`: statements of searches that run at once."""

    word_share: float = 0.6
    attachment_hits: int = 3
    parallel: int = 4


@dataclass(frozen=True, slots=True)
class _Overview:
    """The scope of a search: what wrote the index, chunks in scope, chunks attached to the session.

    `lexical` and `lexical_scores` are arrays as Postgres writes them; None where no word was found or looked for.
    """

    made: IndexOrigin
    in_scope: int
    attached: int
    lexical: str | None = None
    lexical_scores: str | None = None


class _NothingInScope(Exception):
    """No chunk that this search could find: no need to wait for a vector."""


class PgVectorIndex(PostgresReads):
    """The `ChunkIndex` on Postgres. `model` is the embedder whose vectors it is asked with."""

    def __init__(self, database: IndexDatabase, *, model: str, kpi: Kpi, rules: PgVectorRules | None = None) -> None:
        self._rules = rules or PgVectorRules()
        super().__init__(database, kpi, parallel=self._rules.parallel)
        self._model = model

    async def check(self, dimension: int | None = None) -> None:
        """Raises `SchemaMismatch` where the index holds vectors of another model, or length where that is known;
        `IndexUnavailable`."""
        with self._database.guarded():
            async with self._database.main.connection() as connection:
                holds = await origin_of(connection)
        if holds is not None:
            check_origin(self._database.index, holds, IndexOrigin(self._model, dimension or holds.dimension, ENGINE))

    async def count_common_words(self) -> None:
        """Copy Postgres' statistics of words; one process at a time, the others skip it. Raises `IndexUnavailable`."""
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                rows = await connection.execute("lock", _TRY_LOCK)
                if rows[0][0]:
                    await connection.execute("common_words", statements.COUNT_COMMON_WORDS)
                    await connection.commit()

    async def search(self, query: IndexQuery, embed: Embed) -> list[ChunkHit]:
        """See `ChunkIndex`. Raises as there."""
        with self._database.guarded():
            try:
                if query.policy is Policy.STRICT:
                    return await self._strict(query)
                return await self._by_vector(query, embed)
            except _NothingInScope:
                return []

    async def _strict(self, query: IndexQuery) -> list[ChunkHit]:
        with self._kpi.phase("lexical_query"):
            hits = await self._hits("strict", statements.STRICT, query, first=True, vector=None)
        if query.session_id is None or not query.corpus:
            return hits
        overview = await self._overview(query)
        attached = await self._attached(
            query, overview, lambda own: self._hits("strict", statements.STRICT, own, vector=None)
        )
        return with_attachments(hits, attached, query.limit)

    async def _by_vector(self, query: IndexQuery, embed: Embed) -> list[ChunkHit]:
        # The words need no vector: they are searched while the question is embedded.
        overview, vector = await gather_pair(self._overview(query, first=True), _awaited(embed))
        check_origin(self._database.index, overview.made, IndexOrigin(self._model, len(vector), ENGINE))

        async def nearest(asked: IndexQuery, about: _Overview) -> list[ChunkHit]:
            exact = about.in_scope <= statements.EXACT_UP_TO
            with self._kpi.phase("vector_query"):
                if asked.policy is Policy.SEMANTIC:
                    return await self._hits("semantic", statements.SEMANTIC[exact], asked, vector=vector_text(vector))
                return await self._hits(
                    "hybrid",
                    statements.HYBRID[exact],
                    asked,
                    vector=vector_text(vector),
                    lexical=about.lexical,
                    lexical_scores=about.lexical_scores,
                    word_share=self._rules.word_share,
                )

        async def among_attached(own: IndexQuery) -> list[ChunkHit]:
            return await nearest(own, await self._overview(own))

        hits = await nearest(query, overview)
        attached = await self._attached(query, overview, among_attached)
        return with_attachments(hits, attached, query.limit)

    async def _attached(
        self, query: IndexQuery, overview: _Overview, search: Callable[[IndexQuery], Awaitable[list[ChunkHit]]]
    ) -> list[ChunkHit]:
        """The best hits in the session's own attachments; a search of its own, and only where there are some."""
        limit = min(self._rules.attachment_hits, query.limit)
        if query.session_id is None or not query.corpus or not overview.attached or not limit:
            return []
        return await search(replace(query, corpus=False, limit=limit))

    async def _overview(self, query: IndexQuery, *, first: bool = False) -> _Overview:
        """What is in scope; for a hybrid search with the best chunks by their words. Raises `_NothingInScope`."""
        if query.policy is Policy.HYBRID:
            with self._kpi.phase("lexical_query"):
                rows = await self._rows("lexical", statements.LEXICAL, _lexical(query), query.reader, first=first)
            *made, in_scope, attached, ids, scores = rows[0]
        else:
            rows = await self._rows("overview", statements.OVERVIEW, scope_of(query), query.reader, first=first)
            (*made, in_scope, attached), ids, scores = rows[0], None, None
        if made[0] is None or not in_scope:
            raise _NothingInScope
        return _Overview(IndexOrigin(*made), int(in_scope), int(attached), ids, scores)

    async def _hits(
        self, op: str, statement: DriverStatement, query: IndexQuery, *, first: bool = False, **more: object
    ) -> list[ChunkHit]:
        parameters = {**_lexical(query), "limit": query.limit, **more}
        return [hit_of(row) for row in await self._rows(op, statement, parameters, query.reader, first=first)]


def _lexical(query: IndexQuery) -> dict[str, object]:
    return {**scope_of(query), "question": query.question, "candidates": candidates_of(query)}


async def _awaited(embed: Embed) -> Vector:
    return await embed()
