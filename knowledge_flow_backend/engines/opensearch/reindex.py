"""Rebuilds the index in OpenSearch from Postgres, beside the one in use, and swaps the two without downtime.

Searches and writes continue meanwhile. Each round copies again the documents whose rows have changed since they were
copied. The last round blocks the writers while it runs: running writes end first, later ones wait and then go to the
new index.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.engines.opensearch import statements
from knowledge_flow_backend.engines.opensearch.body import (
    Place,
    Shape,
    bulk_lines,
    heading_of,
    index_body,
    of_documents,
    token_of,
)
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.engines.opensearch.shape import ENGINE, check_index, indices_of, number_of, numbered
from knowledge_flow_backend.engines.pgvector.rows import IndexOrigin
from knowledge_flow_backend.engines.pgvector.statements import INFO
from knowledge_flow_backend.errors import IndexUnavailable, SchemaMismatch
from knowledge_flow_backend.index.database import IndexDatabase

logger = logging.getLogger(__name__)

FEW: Final = 20
"""Documents that may be left for the last round, in which writers wait."""
ROUNDS: Final = 20
GRACE_S: Final = 5.0
"""How long searches that found the old index behind the alias may still need it."""
PAGE: Final = 500


class NothingToRebuild(Exception):
    """There is no index that this could rebuild; `str()` says why."""


@dataclass(slots=True)
class Rebuild:
    """What was done: the new index, the documents in it, the rounds it took."""

    name: str
    documents: int = 0
    rounds: int = 0
    copied: dict[str, str] = field(default_factory=dict)
    """The state in which each document was copied."""


@dataclass(frozen=True, slots=True)
class _Page:
    """Chunks that are read together: of several documents, or a part of one."""

    uids: tuple[str, ...]
    first: int
    end: int


class Reindexer:
    """Rebuilds one index. `say` gets the progress, a line at a time."""

    def __init__(
        self,
        database: IndexDatabase,
        cluster: Cluster,
        *,
        say: Callable[[str], None] = logger.info,
        grace_s: float = GRACE_S,
        page: int = PAGE,
    ) -> None:
        self._database = database
        self._cluster = cluster
        self._say = say
        self._grace_s = grace_s
        self._page = page

    async def rebuild_index(self) -> Rebuild:
        """Build the new index, swap, delete the old one. Interrupted at any moment, the old or the new one is in use.

        Raises `NothingToRebuild`, `SchemaMismatch` where the index is another database's, `IndexUnavailable`.
        """
        with self._database.guarded():
            async with self._alone():
                return await self._rebuild()

    async def _rebuild(self) -> Rebuild:
        alias = self._database.index
        shape = await self._shape()
        old = await self._ours(shape)
        for name in await indices_of(self._cluster, alias):
            if name not in old:  # left by a rebuild that was cut off
                await self._cluster.drop(name)
        new = Rebuild(numbered(alias, max((number_of(name) for name in old), default=0) + 1))
        await self._cluster.create(new.name, None, index_body(shape))
        while new.rounds < ROUNDS:
            async with self._database.writes.connection() as connection:
                changed = await _differences(connection, new)
            if len(changed) <= FEW:
                break
            await self._copy(new, changed)
            new.rounds += 1
            self._say(f"round {new.rounds}: {len(new.copied)} documents are in {new.name}")
        await self._last_round(new, old)
        await check_index(self._cluster, alias, shape)
        self._say(f"{alias} stands for {new.name} now, with {new.documents} documents")
        await asyncio.sleep(self._grace_s)
        for name in old:
            await self._cluster.drop(name)
        return new

    async def _last_round(self, new: Rebuild, old: Sequence[str]) -> None:
        async with self._database.writes.connection() as connection:
            await connection.execute("lock", statements.LOCK_EXCHANGE)
            # On this connection: writers that wait for the lock may have taken every other one.
            await self._copy(new, await _differences(connection, new))
            new.rounds += 1
            new.documents = len(new.copied)
            await self._cluster.refresh(new.name)
            await self._cluster.exchange(self._database.index, old, new.name)

    async def _shape(self) -> Shape:
        async with self._database.main.connection() as connection:
            info = await connection.execute("index_info", INFO)
            token = await connection.execute("index_token", statements.TOKEN)
        if not info:
            raise NothingToRebuild(f"index {self._database.index!r} is empty: its first document makes it")
        made = IndexOrigin(*info[0])
        if made.engine != ENGINE:
            raise NothingToRebuild(f"index {self._database.index!r} is one of {made.engine}, which needs no rebuilding")
        return Shape(made.model, made.dimension, token[0][0])

    async def _ours(self, shape: Shape) -> list[str]:
        """The indices behind the alias. Raises `SchemaMismatch` where one is another database's."""
        alias = self._database.index
        mappings = await self._cluster.mappings(alias)
        for name, mapping in mappings.items():
            if name == alias:
                raise SchemaMismatch(
                    f"{alias!r} is an index in OpenSearch, it must be an alias of one: delete it first"
                )
            if token_of(mapping) not in (None, shape.token):
                raise SchemaMismatch(
                    f"index {name!r} in OpenSearch holds the chunks of another database: name another "
                    "storage.vector_store.index"
                )
        return sorted(mappings)

    async def _copy(self, new: Rebuild, changed: dict[str, tuple[int, str | None]]) -> None:
        stale = [uid for uid in changed if uid in new.copied]
        for start in range(0, len(stale), PAGE):
            await self._cluster.refresh(new.name)  # what is not visible yet would not be deleted
            await self._cluster.delete_where(new.name, of_documents(stale[start : start + PAGE]))
        for page in self._pages({uid: chunks for uid, (chunks, state) in changed.items() if state is not None}):
            async with self._database.main.connection() as connection:
                parameters = {"uids": list(page.uids), "first": page.first, "end": page.end}
                rows = await connection.execute("read_chunks", statements.CHUNKS, parameters)
            if rows:
                await self._cluster.write(new.name, [partial(_lines, rows)], alias=False)
        for uid, (_, state) in changed.items():
            if state is None:
                del new.copied[uid]
            else:
                new.copied[uid] = state

    def _pages(self, documents: dict[str, int]) -> Iterator[_Page]:
        small: list[str] = []
        held = 0
        for uid, chunks in documents.items():
            if chunks > self._page:
                for first in range(0, chunks, self._page):
                    yield _Page((uid,), first, first + self._page)
                continue
            if held + chunks > self._page:
                yield _Page(tuple(small), 0, self._page)
                small, held = [], 0
            small.append(uid)
            held += chunks
        if small:
            yield _Page(tuple(small), 0, self._page)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One rebuild at a time; a lock of the connection, which a dead process gives back."""
        async with self._database.main.connection() as connection:
            if not (await connection.execute("lock", statements.TRY_REBUILD))[0][0]:
                raise IndexUnavailable("this index is being rebuilt already")
            try:
                yield
            finally:
                await connection.execute("lock", statements.END_REBUILD)


async def _differences(connection: TimedConnection, new: Rebuild) -> dict[str, tuple[int, str | None]]:
    """Documents that have changed since they were copied: chunks and state; None: deleted."""
    states = {uid: (chunks, state) for uid, chunks, state in await connection.execute("states", statements.STATES)}
    changed: dict[str, tuple[int, str | None]] = {
        uid: found for uid, found in states.items() if new.copied.get(uid) != found[1]
    }
    return changed | {uid: (0, None) for uid in new.copied if uid not in states}


def _lines(rows: Sequence[Sequence[Any]]) -> bytes:
    return b"".join(
        bulk_lines(
            Place(uid, generation, owner, session, retrievable, tuple(tags or ())),
            ordinal,
            heading_of(title, section),
            content,
            vector,
        )
        for uid, generation, owner, session, retrievable, tags, ordinal, title, section, content, vector in rows
    )
