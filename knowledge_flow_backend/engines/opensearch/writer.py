"""Writing documents to an index in OpenSearch: chunks first, under a new name; one transaction makes them valid.

1. An intention is noted in Postgres, with the new writing's name (its generation). Searches know from now on that the
   document has chunks which do not count, and a crash leaves a note of what is to be deleted.
2. The chunks are written and made visible to searches of OpenSearch.
3. One transaction puts the rows and makes the new generation the valid one. From its commit on, readers find the new
   chunks and none of the old ones; a trigger has noted the old generation.
4. `follow.py` deletes what is noted.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.engines.opensearch import statements
from knowledge_flow_backend.engines.opensearch.body import MAX_DIMENSIONS, Place, Shape, bulk_lines, heading_of
from knowledge_flow_backend.engines.opensearch.cluster import Cluster
from knowledge_flow_backend.engines.opensearch.shape import ENGINE, make_index
from knowledge_flow_backend.engines.pgvector.rows import (
    DocumentWriter,
    IndexOrigin,
    is_shapeless,
    put_rows,
    remember,
    vector_text,
)
from knowledge_flow_backend.errors import Conflict, IndexUnavailable
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.models import Chunk, Document, DocumentContent, Vector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Intention:
    """A write that is about to begin: its row of `index_pending`, and the place of its chunks."""

    row: int
    place: Place


class OpenSearchWriter(DocumentWriter):
    """The `IndexWriter` on OpenSearch."""

    def __init__(
        self,
        database: IndexDatabase,
        cluster: Cluster,
        *,
        model: str,
        bulk_size: int = 500,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(database, model, bulk_size, wake)
        self._cluster = cluster

    async def _replace(
        self, document: Document, content: DocumentContent, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> int:
        if chunks:
            await self._fit(len(vectors[0]))
        intention = await self._intend(document)
        try:
            return await self._write(document, content, chunks, vectors, intention)
        except Conflict:
            await self._withdraw(intention)
            raise

    async def _fit(self, dimension: int) -> None:
        """Refuse vectors that are not of the index's model; the very first ones create the index."""
        wanted = IndexOrigin(self._model, dimension, ENGINE)
        async with self._database.writes.connection() as connection:
            if not await is_shapeless(connection, self._database.index, wanted, MAX_DIMENSIONS):
                return
            token = (await connection.execute("index_token", statements.TOKEN))[0][0]
            await make_index(self._cluster, self._database.index, Shape(self._model, dimension, token))
            await remember(connection, wanted)
            await connection.commit()
        logger.info("index %r holds vectors of %s, %d numbers", self._database.index, self._model, dimension)

    async def _intend(self, document: Document) -> _Intention:
        generation = secrets.token_hex(12)
        async with self._database.writes.connection() as connection:
            owner = await connection.execute("owner", statements.OWNER, {"uid": document.uid})
            if owner and owner[0][0] != document.owner_id:
                raise Conflict("the document is another owner's")
            if document.claim is not None and document.claim not in [claim for _, claim in owner]:
                raise Conflict("the document was deleted or uploaded again")
            known = {"uid": document.uid, "tag_ids": list(document.tag_ids)}
            tags = await connection.execute("known_tags", statements.KNOWN_TAGS, known)
            place = await connection.execute("place", statements.PLACE, {"uid": document.uid})
            rows = await connection.execute(
                "intend", statements.INTEND, {"uid": document.uid, "generation": generation}
            )
            await connection.commit()
        return _Intention(
            rows[0][0],
            Place(
                document_uid=document.uid,
                generation=generation,
                owner_id=document.owner_id,
                session_id=document.session_id,
                retrievable=place[0][0] if place else True,
                tag_ids=tuple(sorted(tag for (tag,) in tags)),
            ),
        )

    async def _write(
        self,
        document: Document,
        content: DocumentContent,
        chunks: Sequence[Chunk],
        vectors: Sequence[Vector],
        intention: _Intention,
    ) -> int:
        async with self._database.writes.connection() as connection:
            await connection.execute("lock", statements.LOCK_WRITING)
            if not await connection.execute("hold_intention", statements.HOLD, {"id": intention.row}):
                raise IndexUnavailable("the write began too late")
            if chunks:
                await self._cluster.write(self._database.index, self._batches(document, intention, chunks, vectors))
                await self._cluster.refresh(self._database.index)
            version = await put_rows(
                connection,
                document,
                content,
                chunks,
                vectors,
                bulk_size=self._bulk_size,
                throttle=self._cluster.throttle,
            )
            await self._validate(connection, intention)
            await connection.commit()
        return version

    async def _withdraw(self, intention: _Intention) -> None:
        """Every request of the write has been answered: what it wrote may be deleted at once."""
        async with self._database.writes.connection() as connection:
            await connection.execute("withdraw", statements.WITHDRAW, {"id": intention.row})
            await connection.commit()
        self._wake()

    async def _validate(self, connection: TimedConnection, intention: _Intention) -> None:
        """Make the new generation the document's own. Where it was moved meanwhile, its chunks follow."""
        place = intention.place
        names = {"uid": place.document_uid, "generation": place.generation}
        await connection.execute("validate", statements.VALIDATE, names)
        (now,) = await connection.execute("place", statements.PLACE, {"uid": place.document_uid})
        unmoved = (now[0], tuple(sorted(now[1] or ()))) == (place.retrievable, place.tag_ids)
        end = statements.FULFIL if unmoved else statements.FULFIL_LATER
        await connection.execute("fulfil", end, {"id": intention.row})

    def _batches(
        self, document: Document, intention: _Intention, chunks: Sequence[Chunk], vectors: Sequence[Vector]
    ) -> Iterator[Callable[[], bytes]]:
        for start in range(0, len(chunks), self._bulk_size):
            part = slice(start, start + self._bulk_size)
            yield partial(_lines, document.title, intention.place, chunks, vectors, part)


def _lines(title: str, place: Place, chunks: Sequence[Chunk], vectors: Sequence[Vector], part: slice) -> bytes:
    # The part is taken here, in the thread: chunks and vectors of a large document are read from disk for it.
    return b"".join(
        bulk_lines(place, chunk.ordinal, heading_of(title, chunk.section), chunk.content, vector_text(vector))
        for chunk, vector in zip(chunks[part], vectors[part], strict=True)
    )
