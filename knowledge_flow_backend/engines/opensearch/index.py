"""The index in OpenSearch: words by BM25, vectors by an HNSW graph, rights from Postgres inside each query.

A search is one statement (what may be read, and which changes the index lacks), the two queries at once, and one
statement that reads the text of the hits and checks rights and validity again. Where something changed in between, the
search is repeated.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from backend_kit.kpi import Kpi
from knowledge_flow_backend.concurrency import gather_pair
from knowledge_flow_backend.engines.opensearch import statements as opensearch_statements
from knowledge_flow_backend.engines.opensearch.body import Rights, Shape, by_vector, by_words, parts_of, words_of
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.engines.opensearch.shape import ENGINE, check_index
from knowledge_flow_backend.engines.pgvector import statements
from knowledge_flow_backend.engines.pgvector.queries import (
    PostgresReads,
    candidates_of,
    hit_of,
    scope_of,
    with_attachments,
)
from knowledge_flow_backend.engines.pgvector.rows import IndexOrigin, check_origin, origin_of, vector_text
from knowledge_flow_backend.index import ChunkHit, IndexQuery, Policy, Reader, Vector
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.models import Embed

TRIES: Final = 3
"""Searches that one question may cost while documents are replaced, deleted or shared."""
SPARE: Final = 8
"""Hits that are asked for beyond the limit, for those that Postgres no longer knows."""

Ranked = list[tuple[str, float]]
"""Keys of chunks with their scores, best first."""


def ordered(found: Sequence[tuple[str, float]]) -> Ranked:
    """Best first; equal scores in the order of their keys, so that the same search gives the same list."""
    return sorted(found, key=lambda one: (-one[1], one[0]))


def fused(words: Ranked, nearest: Ranked, word_share: float) -> Ranked:
    """What words found and what is nearest, as one list.

    A score is `word_share` of what the best passage by words scored, and for the rest the cosine. A passage that is
    not among the nearest is at most as near as the last of them, and counts as that one does.
    """
    best = max((score for _, score in words), default=0.0) or 1.0
    shares = {key: score / best for key, score in words}
    cosines = dict(nearest)
    furthest = min(cosines.values(), default=0.0)
    return ordered(
        [
            (key, word_share * shares.get(key, 0.0) + (1.0 - word_share) * cosines.get(key, furthest))
            for key in {**shares, **cosines}
        ]
    )


@dataclass(frozen=True, slots=True)
class OpenSearchRules:
    """`word_share`: part of a hybrid score that words decide. `attachment_hits`: places guaranteed to attachments.
    `parallel`: statements and queries of searches that run at once. `exact_up_to`: chunks in scope up to which each is
    compared. `most_pending`: pending documents that a query names; beyond that, only the second check in Postgres keeps
    it exact."""

    word_share: float = 0.6
    attachment_hits: int = 3
    parallel: int = 4
    exact_up_to: int = statements.EXACT_UP_TO
    most_pending: int = 1000


@dataclass(frozen=True, slots=True)
class _Overview:
    """The scope of a search: what wrote the index, chunks in scope, chunks attached to the session, the filter.

    `rarities`: of the words that are searched.
    """

    made: IndexOrigin
    in_scope: int
    attached: int
    rights: Rights
    pending_attached: tuple[str, ...]
    rarities: dict[str, float]

    def of_attached(self) -> "_Overview":
        """The same for a search among the session's attachments alone."""
        rights = replace(self.rights, corpus=False, generations=self.pending_attached)
        return replace(self, in_scope=self.attached, rights=rights)


class _NothingInScope(Exception):
    """No chunk that this search could find: no need for a vector."""


class _Question:
    """A question's vector: made when it is first needed, and once."""

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._alone = asyncio.Lock()
        self._made: Vector | None = None

    async def vector(self) -> Vector:
        async with self._alone:
            if self._made is None:
                self._made = await self._embed()
            return self._made

    @property
    def text(self) -> str | None:
        """The vector for a statement; None where none was made."""
        return None if self._made is None else vector_text(self._made)


class OpenSearchChunks(PostgresReads):
    """The `ChunkIndex` on OpenSearch. `model` is the embedder whose vectors it is asked with."""

    def __init__(
        self, database: IndexDatabase, cluster: Cluster, *, model: str, kpi: Kpi, rules: OpenSearchRules | None = None
    ) -> None:
        self._rules = rules or OpenSearchRules()
        super().__init__(database, kpi, parallel=self._rules.parallel)
        self._cluster = cluster
        self._model = model
        self._rights = opensearch_statements.rights(self._rules.most_pending)

    async def check(self, dimension: int | None = None) -> None:
        """Raises `SchemaMismatch` where the index is missing, or not as this service creates it; `IndexUnavailable`.

        An empty one needs no index yet: the first write makes it.
        """
        with self._database.guarded():
            async with self._database.main.connection() as connection:
                holds = await origin_of(connection)
                token = await connection.execute("index_token", opensearch_statements.TOKEN)
        if holds is None:
            await self._cluster.mappings(self._database.index)  # first contact: is there a cluster at all
            return
        check_origin(self._database.index, holds, IndexOrigin(self._model, dimension or holds.dimension, ENGINE))
        await check_index(self._cluster, self._database.index, Shape(holds.model, holds.dimension, token[0][0]))

    async def search(self, query: IndexQuery, embed: Embed) -> list[ChunkHit]:
        """See `ChunkIndex`. Raises as there."""
        question = _Question(embed)
        with self._database.guarded():
            try:
                for _ in range(TRIES):
                    hits, changed = await self._search_once(query, question)
                    if not changed:
                        break
                return hits
            except _NothingInScope:
                return []

    async def _search_once(self, query: IndexQuery, question: _Question) -> tuple[list[ChunkHit], bool]:
        """The hits, and whether some may be missing because documents changed in Postgres meanwhile."""
        overview = await self._overview(query)
        own = self._own_attachments(query, overview)
        attached: Ranked = []
        if own is None:
            found = await self._ranked(query, overview, question)
        else:
            found, attached = await gather_pair(
                self._ranked(query, overview, question), self._ranked(own, overview.of_attached(), question)
            )
        wanted = attached[: own.limit + SPARE] if own else []
        hits = await self._hits(query, question, found[: query.limit + SPARE], wanted)
        lacking = {key for key, _ in [*found[: query.limit + SPARE], *wanted]} - hits.keys()
        # Chunks of outdated documents may have taken the places of valid ones: ask for more.
        rest = found[query.limit + SPARE :]
        while rest and sum(key in hits for key, _ in found) < query.limit:
            hits |= await self._hits(query, question, rest[: query.limit + SPARE], [])
            rest = rest[query.limit + SPARE :]
        best = [replace(hits[key], score=score) for key, score in found if key in hits][: query.limit]
        guaranteed = [replace(hits[key], score=score) for key, score in wanted if key in hits]
        return with_attachments(best, guaranteed[: own.limit] if own else [], query.limit), bool(lacking)

    async def _overview(self, query: IndexQuery) -> _Overview:
        """What is in scope. Raises `_NothingInScope`."""
        words = [] if query.policy is Policy.SEMANTIC else words_of(query.question)
        parameters = {**scope_of(query), "words": words}
        rows = await self._rows("rights", self._rights, parameters, query.reader, first=True)
        model, dimension, engine, in_scope, attached, libraries, pending, valid, valid_attached, rarities = rows[0]
        if model is None or not in_scope:
            raise _NothingInScope
        rights = Rights(
            reader=query.reader.user_id,
            corpus=query.corpus,
            own=query.libraries is None,
            libraries=tuple(libraries or ()),
            documents=query.documents,
            session=query.session_id,
            pending=tuple(pending or ()),
            generations=tuple(valid or ()),
        )
        return _Overview(
            IndexOrigin(model, dimension, engine),
            int(in_scope),
            int(attached),
            rights,
            tuple(valid_attached or ()),
            dict(zip(words, rarities or (), strict=True)),
        )

    def _own_attachments(self, query: IndexQuery, overview: _Overview) -> IndexQuery | None:
        """A separate search among the session's attachments, where they have guaranteed places."""
        limit = min(self._rules.attachment_hits, query.limit)
        if query.session_id is None or not query.corpus or not overview.attached or not limit:
            return None
        return replace(query, corpus=False, limit=limit)

    async def _ranked(self, query: IndexQuery, overview: _Overview, question: _Question) -> Ranked:
        """Keys of chunks by the policy, best first."""
        if query.policy is Policy.STRICT:
            return await self._by_words(query, overview)
        if query.policy is Policy.SEMANTIC:
            return await self._by_vector(query, overview, question)
        # The words need no vector: they are searched while the question is embedded.
        words, nearest = await gather_pair(self._by_words(query, overview), self._by_vector(query, overview, question))
        return fused(words, nearest, self._rules.word_share)

    async def _by_words(self, query: IndexQuery, overview: _Overview) -> Ranked:
        with self._kpi.phase("lexical_query"):
            body = by_words(overview.rarities, overview.rights, candidates_of(query))
            return ordered(await self._found(body, query.reader))

    async def _by_vector(self, query: IndexQuery, overview: _Overview, question: _Question) -> Ranked:
        vector = await question.vector()
        check_origin(self._database.index, overview.made, IndexOrigin(self._model, len(vector), ENGINE))
        if not vector.any():
            return []  # it has no direction
        exact = overview.in_scope <= self._rules.exact_up_to
        with self._kpi.phase("vector_query"):
            body = by_vector(vector.tolist(), overview.rights, candidates_of(query), exact=exact)
            found = await self._found(body, query.reader)
        return ordered([(key, 2 * score - 1) for key, score in found])

    async def _hits(self, query: IndexQuery, question: _Question, *lists: Ranked) -> dict[str, ChunkHit]:
        """Those of these chunks that are valid and that the reader may see, by key."""
        keys = sorted({key for ranked in lists for key, _ in ranked})
        if not keys:
            return {}
        parts = [parts_of(key) for key in keys]
        parameters = {
            **scope_of(query),
            "keys": keys,
            "generations": [generation for generation, _ in parts],
            "ordinals": [ordinal for _, ordinal in parts],
            "scores": [0.0] * len(keys),
            "vector": question.text,
        }
        rows = await self._rows("hits", opensearch_statements.HITS, parameters, query.reader)
        return {row[0]: hit_of(row[1:]) for row in rows}

    async def _found(self, body: dict[str, Any], reader: Reader) -> list[tuple[str, float]]:
        async with self._step(reader):
            with self._kpi.phase("os_query"):
                return await self._cluster.search(self._database.index, body)
