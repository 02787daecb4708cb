"""The statements about an index in OpenSearch that Postgres answers, as constant text."""

# ruff: noqa: S608 - the parts that are joined here are constants of this package

from typing import Final

from sqlalchemy import text

from backend_kit.db.pool import DriverStatement
from knowledge_flow_backend.engines.pgvector.statements import (
    HIT_COLUMNS,
    IN_SCOPE,
    KNOWN,
    LIBRARIES_OF_HIT,
    OVERVIEW_COLUMNS,
    RARITY,
    SCOPE,
)
from knowledge_flow_backend.index.models import READS_LIBRARY


def rights(most_pending: int) -> DriverStatement:
    """One row: OVERVIEW, and what a query filters by: libraries, pending documents (at most `most_pending`), their
    valid writings in scope, and those of them that are the session's attachments; and how rare each of `words`, as
    OpenSearch takes them, is in what the reader may read (0: it says nothing)."""
    return DriverStatement(
        f"""WITH {SCOPE}, pending AS MATERIALIZED (
            SELECT DISTINCT document_uid FROM index_pending LIMIT {most_pending}
        ) {OVERVIEW_COLUMNS},
        (SELECT array_agg(t.id ORDER BY t.id) FROM tags t WHERE {READS_LIBRARY}
            AND (CAST(:libraries AS text[]) IS NULL OR t.id = ANY(CAST(:libraries AS text[])))),
        (SELECT array_agg(document_uid) FROM pending), v.everywhere, v.attached,
        (SELECT array_agg(coalesce({RARITY.format(total="s.total", n="w.n")}, 0) ORDER BY w.position) FROM (
            SELECT u.position, (SELECT min({KNOWN.format(word="l.lexeme")}) FROM unnest(CASE WHEN u.word ~ '[._]'
                THEN ARRAY[u.word] ELSE tsvector_to_array(to_tsvector('english', u.word)) END) AS l(lexeme)) AS n
            FROM unnest(CAST(:words AS text[])) WITH ORDINALITY AS u(word, position)
        ) w, (SELECT coalesce(sum(chunks), 0) AS total FROM place) s)
        FROM (SELECT array_agg(d.generation) AS everywhere,
                array_agg(d.generation) FILTER (WHERE d.session_id IS NOT NULL) AS attached
            FROM pending p JOIN documents d ON d.uid = p.document_uid
            WHERE d.generation IS NOT NULL AND {IN_SCOPE}) v"""
    )


HITS: Final = DriverStatement(
    f"""SELECT f.key, c.uid, c.document_uid, {HIT_COLUMNS}
    FROM unnest(CAST(:keys AS text[]), CAST(:generations AS text[]), CAST(:ordinals AS int[]),
        CAST(:scores AS float8[])) AS f(key, generation, ordinal, score)
    JOIN documents d ON d.generation = f.generation
    JOIN chunks c ON c.document_uid = d.uid AND c.ordinal = f.ordinal, {LIBRARIES_OF_HIT}
    WHERE {IN_SCOPE}"""
)
"""The found chunks that are still valid and that the reader may see, in no order."""

TOKEN: Final = text("SELECT token FROM index_identity")

LOCK_WRITING: Final = text("SELECT pg_advisory_xact_lock_shared(hashtext(current_schema() || '.opensearch'))")
"""Held by a writer of the index: until it ends the index is not swapped for another one."""

LOCK_EXCHANGE: Final = text("SELECT pg_advisory_xact_lock(hashtext(current_schema() || '.opensearch'))")

LOCK_FOLLOWING: Final = text("SELECT pg_try_advisory_xact_lock(hashtext(current_schema() || '.index_pending'))")
"""One process at a time brings the index up to date: an older state must not be written after a newer one."""

INTEND: Final = text(
    "INSERT INTO index_pending (document_uid, generation, intent) VALUES (:uid, :generation, true) RETURNING id"
)
HOLD: Final = text("SELECT id FROM index_pending WHERE id = :id FOR UPDATE")
WITHDRAW: Final = text("UPDATE index_pending SET intent = false WHERE id = :id")
FULFIL: Final = text("DELETE FROM index_pending WHERE id = :id")
FULFIL_LATER: Final = text("UPDATE index_pending SET generation = NULL, intent = false WHERE id = :id")

PLACE: Final = text(
    """SELECT d.retrievable, (SELECT array_agg(dt.tag_id ORDER BY dt.tag_id) FROM document_tags dt
        WHERE dt.document_uid = d.uid)
    FROM documents d WHERE d.uid = :uid"""
)
OWNER: Final = text("SELECT owner_id, stages->>'claim' FROM documents WHERE uid = :uid")
KNOWN_TAGS: Final = text(
    """SELECT id FROM tags WHERE id = ANY(CAST(:tag_ids AS text[]))
    UNION SELECT tag_id FROM document_tags WHERE document_uid = :uid"""
)
VALIDATE: Final = text("UPDATE documents SET generation = :generation WHERE uid = :uid")

TAKE_PENDING: Final = text(
    """SELECT id, document_uid, generation FROM index_pending
    WHERE NOT intent OR noted_at < now() - make_interval(secs => :intent_s)
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED"""
)
PLACES: Final = text(
    """SELECT d.uid, d.generation, d.owner_id, d.session_id, d.retrievable,
        (SELECT array_agg(dt.tag_id ORDER BY dt.tag_id) FROM document_tags dt WHERE dt.document_uid = d.uid)
    FROM documents d WHERE d.uid = ANY(CAST(:uids AS text[])) AND d.generation IS NOT NULL"""
)
VALID: Final = text("SELECT generation FROM documents WHERE generation = ANY(CAST(:generations AS text[]))")
DONE: Final = text("DELETE FROM index_pending WHERE id = ANY(CAST(:ids AS bigint[]))")
PENDING: Final = text("SELECT count(*) FROM index_pending")

TRY_REBUILD: Final = text("SELECT pg_try_advisory_lock(hashtext(current_schema() || '.reindex'))")
END_REBUILD: Final = text("SELECT pg_advisory_unlock(hashtext(current_schema() || '.reindex'))")
STATES: Final = text(
    """SELECT d.uid, d.chunk_count, md5(CAST(ROW(d.generation, d.retrievable, d.title, d.owner_id, d.session_id,
        (SELECT array_agg(dt.tag_id ORDER BY dt.tag_id) FROM document_tags dt WHERE dt.document_uid = d.uid)) AS text))
    FROM documents d WHERE d.generation IS NOT NULL AND d.chunk_count > 0"""
)
"""Every document that belongs in the index, and a text that changes with anything that the index stores of it."""

CHUNKS: Final = text(
    """SELECT d.uid, d.generation, d.owner_id, d.session_id, d.retrievable,
        (SELECT array_agg(dt.tag_id ORDER BY dt.tag_id) FROM document_tags dt WHERE dt.document_uid = d.uid),
        c.ordinal, c.title, c.section, c.content, CAST(c.embedding AS text)
    FROM documents d JOIN chunks c ON c.document_uid = d.uid
    WHERE d.uid = ANY(CAST(:uids AS text[])) AND d.generation IS NOT NULL
        AND c.ordinal >= :first AND c.ordinal < :end"""
)
"""Chunks as the index is to hold them, from what Postgres has: no model and no old index is needed."""
