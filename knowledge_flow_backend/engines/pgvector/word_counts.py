"""How many passages hold a word, among those that one reader may read: counted incrementally behind every write.

Documents of an owner that stand in the same libraries, or in one session, are a *place*: who reads one of them reads
all, so that a reader's counts are the sum over the places that are theirs to read, and no document of anybody else is
in them. Writers only leave notes, by triggers; one process at a time counts the noted documents again and replaces what
each was counted as. So no writer waits for another, an interrupted count is repeated from its notes, and counting twice
changes nothing. A count lags a write by a moment; what is found never does.
"""

import logging
from typing import Final

from sqlalchemy import text

from knowledge_flow_backend.engines.scheduling import CatchUp
from knowledge_flow_backend.index.database import IndexDatabase

logger = logging.getLogger(__name__)

NOTES: Final = 50
"""Notes that are looked at for one transaction: a large one saves counts of words that documents share."""
CHUNKS: Final = 5000
"""Chunks after which a transaction takes no further document, at 0.7 ms each: it must end within its deadline."""

_LOCK = text("SELECT pg_try_advisory_xact_lock(hashtext(current_schema() || '.word_counts'))")
# With every note of a document that is there by now: a large one leaves many, and is counted once.
_TAKE = text(
    """WITH noted AS (
        SELECT document_uid, min(id) AS id FROM (SELECT id, document_uid FROM word_notes ORDER BY id LIMIT :notes) n
        GROUP BY document_uid
    ), sized AS (
        SELECT n.document_uid,
            sum(coalesce(d.chunk_count, 0)) OVER (ORDER BY n.id) - coalesce(d.chunk_count, 0) AS ahead
        FROM noted n LEFT JOIN documents d ON d.uid = n.document_uid
    ) DELETE FROM word_notes WHERE document_uid IN (SELECT document_uid FROM sized WHERE ahead < :chunks)
    RETURNING document_uid"""
)

# Each document that counts now, and the key of its place. An attachment stands in no library.
_STATE: Final = """state AS MATERIALIZED (
    SELECT d.uid, d.owner_id, d.session_id, t.tag_ids, encode(sha256(convert_to(CAST(
        jsonb_build_array(d.owner_id, d.session_id, t.tag_ids) AS text), 'UTF8')), 'hex') AS key
    FROM documents d, LATERAL (
        SELECT coalesce(array_agg(dt.tag_id ORDER BY dt.tag_id), '{}') AS tag_ids FROM document_tags dt
        WHERE dt.document_uid = d.uid AND d.session_id IS NULL
    ) t
    WHERE d.uid = ANY(CAST(:uids AS text[])) AND d.retrievable
        AND EXISTS (SELECT FROM chunks c WHERE c.document_uid = d.uid)
)"""
_PLACES = text(
    f"""WITH {_STATE} INSERT INTO word_places (key, owner_id, session_id, tag_ids)
    SELECT DISTINCT key, owner_id, session_id, tag_ids FROM state ON CONFLICT (key) DO NOTHING"""  # noqa: S608 - constants of this module
)
# A document that was moved since its place was looked for is counted as gone, and again by the note of that move.
_COUNT = text(
    f"""WITH {_STATE}, fresh AS MATERIALIZED (
        SELECT s.uid, p.id AS place, c.chunks, c.words, c.counts
        FROM state s JOIN word_places p USING (key), LATERAL (
            SELECT (SELECT count(*) FROM chunks n WHERE n.document_uid = s.uid) AS chunks,
                coalesce(array_agg(w.word), '{{}}') AS words, coalesce(array_agg(w.n), '{{}}') AS counts
            FROM (SELECT u.word, CAST(count(*) AS int) AS n FROM chunks k, unnest(tsvector_to_array(k.words)) AS u(word)
                  WHERE k.document_uid = s.uid GROUP BY u.word) w
        ) c
    ), old AS MATERIALIZED (
        SELECT document_uid, place, chunks, words, counts FROM counted_documents
        WHERE document_uid = ANY(CAST(:uids AS text[]))
    ), change AS MATERIALIZED (
        SELECT place, word, sum(n) AS n FROM (
            SELECT f.place, u.word, u.n FROM fresh f, unnest(f.words, f.counts) AS u(word, n)
            UNION ALL SELECT o.place, u.word, -u.n FROM old o, unnest(o.words, o.counts) AS u(word, n)) c
        GROUP BY place, word HAVING sum(n) <> 0
    ), result AS MATERIALIZED (
        SELECT c.place, c.word, c.n + coalesce(
            (SELECT w.chunks FROM word_counts w WHERE w.place = c.place AND w.word = c.word), 0) AS chunks FROM change c
    ), gone AS (
        DELETE FROM word_counts w USING result r WHERE r.chunks = 0 AND w.place = r.place AND w.word = r.word
    ), put AS (
        INSERT INTO word_counts (place, word, chunks) SELECT place, word, chunks FROM result WHERE chunks <> 0
        ON CONFLICT (place, word) DO UPDATE SET chunks = excluded.chunks
    ), forgotten AS (
        DELETE FROM counted_documents k USING old o
        WHERE k.document_uid = o.document_uid AND NOT EXISTS (SELECT FROM fresh f WHERE f.uid = k.document_uid)
    ), kept AS (
        INSERT INTO counted_documents (document_uid, place, chunks, words, counts)
        SELECT uid, place, chunks, words, counts FROM fresh
        ON CONFLICT (document_uid) DO UPDATE SET (place, chunks, words, counts)
            = (excluded.place, excluded.chunks, excluded.words, excluded.counts)
    ), size AS (
        SELECT place, sum(chunks) AS chunks FROM (
            SELECT place, chunks FROM fresh UNION ALL SELECT place, -chunks FROM old) c GROUP BY place
    ) UPDATE word_places p SET chunks = p.chunks + s.chunks FROM size s WHERE s.place = p.id AND s.chunks <> 0"""  # noqa: S608 - constants of this module
)
_DROP_EMPTY = text("DELETE FROM word_places WHERE chunks = 0")


class WordCounter(CatchUp):
    """Counts what was noted; of several processes one works at a time and the others skip their turn."""

    def __init__(self, database: IndexDatabase, *, notes: int = NOTES, chunks: int = CHUNKS) -> None:
        """`notes` and `chunks` bound a transaction."""
        super().__init__(database, logger, "the counts of words are behind the documents")
        self._bounds = {"notes": notes, "chunks": chunks}

    async def catch_up(self) -> bool:
        """Count everything that is noted."""
        found = False
        while await self.count():
            found = True
        return found

    async def count(self) -> int:
        """Count some of the noted documents again; how many notes were done. Raises `IndexUnavailable`."""
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                if not (await connection.execute("lock", _LOCK))[0][0]:
                    return 0
                notes = await connection.execute("take_word_notes", _TAKE, self._bounds)
                if notes:
                    uids = {"uids": sorted({uid for (uid,) in notes})}
                    await connection.execute("word_places", _PLACES, uids)
                    await connection.execute("word_counts", _COUNT, uids)
                    await connection.execute("empty_places", _DROP_EMPTY)
                    await connection.commit()
                return len(notes)
