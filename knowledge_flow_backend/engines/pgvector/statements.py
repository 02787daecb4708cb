"""The statements of a search in Postgres, as constant text: every value is a parameter, the caller's rights included.

Parameters that more than one of them takes:

- `reader`, `groups`: who reads. `corpus`, `libraries`, `documents`, `session`: where (null: not narrowed, no session).
- `question`: text. `vector`: text, as pgvector reads it.
"""

# ruff: noqa: S608 - the parts that are joined here are constants of this module

from typing import Final

from sqlalchemy import text

from backend_kit.db.pool import DriverStatement
from knowledge_flow_backend.index.models import READS_LIBRARY

RANKED: Final = 2000
"""Chunks that are ranked by their words. The rarest words of a question choose them, as many words as keep within
this; the others count in the score only. In a scope of up to ALL_WORDS_UP_TO chunks every word chooses."""

ALL_WORDS_UP_TO: Final = 3000
"""Chunks in scope up to which each that holds any word of the question is ranked."""

MAX_WORDS: Final = 64
"""Words of a question that are searched; a page of text as question has hundreds."""

EXACT_UP_TO: Final = 50_000
"""Chunks in scope up to which the vector of each is compared: nothing that others wrote can change what is found. The
graph, which is asked above that, holds everybody's chunks, and what it passes over depends on all of them."""

COUNTED_DOCUMENTS: Final = 3000
"""Documents in scope up to which their chunks are counted. With more, all that the reader may read count."""

# Title and section (weight A) count a tenth more than the text. Lengths are left out of account: chunks are filled
# to one size, and a short one is rarely the better one. docs/search-quality.md has the other choices.
_WEIGHTS: Final = "'{0.9, 0.9, 0.9, 1.0}'"

# A library that is named has to be one the reader may read, also for documents of their own: an unknown library and
# a foreign one both find nothing.
_CORPUS: Final = f"""(
    :corpus AND d.session_id IS NULL
    AND (CAST(:documents AS text[]) IS NULL OR d.uid = ANY(CAST(:documents AS text[])))
    AND ((CAST(:libraries AS text[]) IS NULL AND d.owner_id = :reader) OR EXISTS (
        SELECT FROM document_tags dt JOIN tags t ON t.id = dt.tag_id
        WHERE dt.document_uid = d.uid AND {READS_LIBRARY}
        AND (CAST(:libraries AS text[]) IS NULL OR t.id = ANY(CAST(:libraries AS text[]))))))"""

ATTACHED: Final = "(d.session_id = CAST(:session AS text) AND d.owner_id = :reader)"

IN_SCOPE: Final = f"d.retrievable AND ({_CORPUS} OR {ATTACHED})"

PLACES: Final = f"""
place AS MATERIALIZED (
    SELECT p.id, p.chunks FROM word_places p WHERE p.session_id IS NULL AND p.owner_id = :reader
    UNION SELECT p.id, p.chunks FROM tags t JOIN word_places p ON p.tag_ids @> ARRAY[t.id]
        WHERE p.session_id IS NULL AND t.owner_id <> :reader AND {READS_LIBRARY}
    UNION SELECT p.id, p.chunks FROM word_places p
        WHERE p.session_id = CAST(:session AS text) AND p.owner_id = :reader
)"""
"""The places of all that the reader may read (`word_counts.py`), whatever the search is narrowed to."""

SCOPE: Final = f"""
{PLACES}, scope AS MATERIALIZED (
    SELECT CASE WHEN count(*) <= {COUNTED_DOCUMENTS} THEN coalesce(sum(s.chunk_count), 0)
        ELSE greatest(sum(s.chunk_count), (SELECT sum(chunks) FROM place)) END AS size
    FROM (SELECT d.chunk_count FROM documents d WHERE {IN_SCOPE} AND d.chunk_count > 0
          LIMIT {COUNTED_DOCUMENTS + 1}) s
)"""

KNOWN: Final = """(SELECT coalesce(sum(
    (SELECT k.chunks FROM word_counts k WHERE k.place = p.id AND k.word = {word})), 0) FROM place p)"""
"""Chunks that the reader may read and that hold a word. One look-up for each place, by the key."""

RARITY: Final = "ln(1 + (CAST({total} AS float8) - {n} + 0.5) / ({n} + 0.5))"
"""The idf of BM25, above 0 for every word. Only of what this reader may read: no other document changes a score."""

# BM25 in what it weighs: rare words more than common ones (idf), a second occurrence less than the first (ts_rank
# saturates, as BM25 does with k1 = 0.64).
#
# The chunks that hold the chosen words are found by the index of all words, or by going through what is in scope where
# that is less: `common_words` tells how many chunks of everybody the index would bring. Both find the same chunks.
_LEXICAL: Final = f"""
{SCOPE}, word AS MATERIALIZED (
    SELECT ('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''')::tsquery AS query, lexeme
    FROM unnest(tsvector_to_array(search_words(CAST(:question AS text)))) AS lexeme LIMIT {MAX_WORDS}
), counted AS MATERIALIZED (
    SELECT query, lexeme, {KNOWN.format(word="w.lexeme")} AS n FROM word w
), term AS MATERIALIZED (
    SELECT query, lexeme, n, {RARITY.format(total="total", n="n")} AS idf,
        sum(n) OVER rarest AS ranked, row_number() OVER (PARTITION BY n > 0 ORDER BY n, CAST(query AS text)) AS place
    FROM counted, (SELECT coalesce(sum(chunks), 0) AS total FROM place) s
    WINDOW rarest AS (ORDER BY n, CAST(query AS text))
    ORDER BY n, CAST(query AS text)
), chosen AS MATERIALIZED (
    SELECT query, greatest(n, (SELECT k.chunks FROM common_words k WHERE k.word = lexeme)) AS brought FROM term
    WHERE ranked <= {RANKED} OR place = 1 OR (SELECT size FROM scope) <= {ALL_WORDS_UP_TO}
), wanted AS MATERIALIZED (
    SELECT CAST(string_agg(CAST(query AS text), ' | ') AS tsquery) AS query,
        sum(brought) >= (SELECT size FROM scope) AS through_scope FROM chosen
), mine AS MATERIALIZED (
    SELECT d.uid FROM documents d WHERE (SELECT through_scope FROM wanted) AND {IN_SCOPE}
), matched AS (
    SELECT c.id, c.words FROM wanted JOIN chunks c ON c.words @@ wanted.query JOIN documents d ON d.uid = c.document_uid
    WHERE (SELECT NOT through_scope FROM wanted) AND {IN_SCOPE}
    UNION ALL
    SELECT c.id, c.words FROM mine, wanted,
        LATERAL (SELECT c.id, c.words FROM chunks c WHERE c.document_uid = mine.uid OFFSET 0) c
    WHERE c.words @@ wanted.query
), lexical AS MATERIALIZED (
    SELECT m.id, (SELECT sum(term.idf * ts_rank({_WEIGHTS}, m.words, term.query)) FROM term) AS score FROM matched m
    ORDER BY score DESC, m.id LIMIT :candidates
)"""

_DISTANCE: Final = "c.embedding <=> CAST(:vector AS vector)"

_FROM_GRAPH: Final = f"""
nearest AS MATERIALIZED (
    SELECT c.id, {_DISTANCE} AS distance
    FROM chunks c JOIN documents d ON d.uid = c.document_uid
    WHERE {IN_SCOPE}
    ORDER BY {_DISTANCE} LIMIT :candidates
)"""
# OFFSET 0: the documents in scope first, then their chunks alone, whatever else the planner thinks of it.
_EXACT: Final = f"""
nearest AS MATERIALIZED (
    SELECT c.id, c.distance FROM (SELECT d.uid FROM documents d WHERE {IN_SCOPE} OFFSET 0) d,
        LATERAL (SELECT c.id, {_DISTANCE} AS distance FROM chunks c WHERE c.document_uid = d.uid OFFSET 0) c
    ORDER BY c.distance, c.id LIMIT :candidates
)"""


# In the order of the fields of `ChunkHit`.
HIT_COLUMNS: Final = f"""c.content, f.score, 1 - ({_DISTANCE}), d.title, c.section, c.page, c.token_count,
    d.file_name, d.file_path, d.mime_type, d.type, d.author, d.created, d.modified, d.language, d.license,
    d.repository, d.pull_location, d.confidential, d.session_id, l.ids, l.names, l.paths"""

LIBRARIES_OF_HIT: Final = f"""LATERAL (
    SELECT array_agg(t.id ORDER BY t.id) AS ids, array_agg(t.name ORDER BY t.id) AS names,
        array_agg(CASE t.path WHEN '' THEN t.name ELSE t.path || '/' || t.name END ORDER BY t.id) AS paths
    FROM document_tags dt JOIN tags t ON t.id = dt.tag_id WHERE dt.document_uid = d.uid AND {READS_LIBRARY}
) l"""

_HITS: Final = f"""
SELECT c.uid, c.document_uid, {HIT_COLUMNS}
FROM found f JOIN chunks c ON c.id = f.id JOIN documents d ON d.uid = c.document_uid, {LIBRARIES_OF_HIT}
ORDER BY f.score DESC, c.id"""

# A chunk that only its words found is at most as near as the last of the nearest: it counts as that one does. Distances
# are NaN where the question's vector has no direction.
_FUSED: Final = """
worded AS (
    SELECT id, score / max(score) OVER () AS share
    FROM unnest(CAST(:lexical AS bigint[]), CAST(:lexical_scores AS float8[])) AS u(id, score)
), fused AS (
    SELECT id, CAST(:word_share AS float8) * coalesce(share, 0) + (1 - CAST(:word_share AS float8))
        * (1 - coalesce(nullif(distance, 'NaN'), (SELECT max(nullif(distance, 'NaN')) FROM nearest), 1)) AS score
    FROM nearest FULL JOIN worded USING (id)
), found AS (SELECT id, score FROM fused ORDER BY score DESC, id LIMIT :limit)"""

_BY_DISTANCE: Final = "found AS (SELECT id, 1 - distance AS score FROM nearest ORDER BY distance, id LIMIT :limit)"
_BY_WORDS: Final = "found AS (SELECT id, score FROM lexical ORDER BY score DESC, id LIMIT :limit)"

# Model, dimension, engine, in scope, attached.
OVERVIEW_COLUMNS: Final = f"""
SELECT (SELECT embedding_model FROM index_info), (SELECT dimension FROM index_info),
    (SELECT engine FROM index_info), (SELECT size FROM scope),
    (SELECT coalesce(sum(d.chunk_count), 0) FROM documents d WHERE d.retrievable AND {ATTACHED})"""

INFO: Final = text("SELECT embedding_model, dimension, engine FROM index_info")
"""The embedder of the index and what searches it; no row while it is empty."""

OVERVIEW: Final = DriverStatement(f"WITH {SCOPE} {OVERVIEW_COLUMNS}")
"""One row: model, length and engine of the index (null while empty), chunks in scope (COUNTED_DOCUMENTS), attached
ones."""

LEXICAL: Final = DriverStatement(
    f"""WITH {_LEXICAL} {OVERVIEW_COLUMNS}, (SELECT CAST(array_agg(id ORDER BY score DESC, id) AS text) FROM lexical),
    (SELECT CAST(array_agg(score ORDER BY score DESC, id) AS text) FROM lexical)"""
)
"""As OVERVIEW, and the ids of the best chunks by their words, and their scores, as Postgres writes arrays: they go back
to it as they came. Takes `candidates`."""

STRICT: Final = DriverStatement(f"WITH {_LEXICAL}, {_BY_WORDS} {_HITS}")
"""Hits by words. Takes `candidates`, `limit`, and no `vector` (null)."""

SEMANTIC: Final = {
    exact: DriverStatement(f"WITH {nearest}, {_BY_DISTANCE} {_HITS}")
    for exact, nearest in ((True, _EXACT), (False, _FROM_GRAPH))
}
"""Hits by vector; by whether each chunk in scope is looked at. Takes `candidates`, `limit`."""

HYBRID: Final = {
    exact: DriverStatement(f"WITH {nearest}, {_FUSED} {_HITS}")
    for exact, nearest in ((True, _EXACT), (False, _FROM_GRAPH))
}
"""Hits by vector and by what LEXICAL found (`lexical`, `lexical_scores`), fused. Takes `candidates`, `limit`,
`word_share`."""

COUNT_COMMON_WORDS: Final = text(
    """WITH fresh AS (
        SELECT u.word, CAST(u.share * c.reltuples AS bigint) AS chunks
        FROM pg_stats s JOIN pg_class c ON c.oid = 'chunks'::regclass,
            unnest(CAST(CAST(s.most_common_elems AS text) AS text[]), s.most_common_elem_freqs) AS u(word, share)
        WHERE s.schemaname = current_schema() AND s.tablename = 'chunks' AND s.attname = 'words'
            AND u.word IS NOT NULL AND c.reltuples > 0
    ), gone AS (DELETE FROM common_words k WHERE NOT EXISTS (SELECT FROM fresh WHERE fresh.word = k.word))
    INSERT INTO common_words SELECT word, chunks FROM fresh
    ON CONFLICT (word) DO UPDATE SET chunks = excluded.chunks
    WHERE abs(common_words.chunks - excluded.chunks) > common_words.chunks / 10"""
)
"""Copy ANALYZE's statistics of the commonest words of all chunks. They decide how chunks are found, never which ones or
in what order."""

SIMILARITIES: Final = DriverStatement(
    f"""SELECT c.uid, 1 - ({_DISTANCE}) FROM chunks c JOIN documents d ON d.uid = c.document_uid
    WHERE c.uid = ANY(CAST(:uids AS text[])) AND d.retrievable AND (
        (d.session_id IS NOT NULL AND d.owner_id = :reader) OR {_CORPUS})"""
)
"""Cosine of given chunks."""
