"""The statements of a search in Postgres, as constant text: every value is a parameter, the caller's rights included.

Parameters that more than one of them takes:

- `reader`, `groups`: who reads. `corpus`, `libraries`, `documents`, `session`: where (null: not narrowed, no session).
- `question`: text. `vector`: text, as pgvector reads it.
"""

# ruff: noqa: S608 - the parts that are joined here are constants of this module

from dataclasses import fields
from typing import Final

from sqlalchemy import TextualSelect, column, text

from knowledge_flow_backend.index import ChunkHit
from knowledge_flow_backend.index.rights import READS_LIBRARY

COUNTED_UP_TO: Final = 5000
"""Chunks in which a word is counted that is not among the common ones; a common one's count is in common_words."""

RANKED: Final = 2000
"""Chunks that are ranked by their words. The rarest words of a question choose them, as many words as keep within
this; the others count in the score only. It bounds the work whatever the size of the index. In a scope of up to
EXACT_UP_TO chunks every word chooses."""

MAX_WORDS: Final = 64
"""Words of a question that are searched; a page of text as question has hundreds."""

EXACT_UP_TO: Final = 3000
"""Chunks in scope up to which each is compared, at 1 µs; a graph that is filtered down to few of them finds fewer."""

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

SCOPE: Final = f"""
scope AS MATERIALIZED (
    SELECT coalesce(sum(s.chunk_count), 0) AS size FROM
        (SELECT d.chunk_count FROM documents d WHERE {IN_SCOPE} AND d.chunk_count > 0 LIMIT {EXACT_UP_TO + 1}) s
)"""

# BM25 in what it weighs: rare words more than common ones (idf), a second occurrence less than the first (ts_rank
# saturates, as BM25 does with k1 = 0.64). Frequencies are those of the whole index.
_LEXICAL: Final = f"""
{SCOPE}, word AS MATERIALIZED (
    SELECT ('''' || replace(replace(lexeme, '\\', '\\\\'), '''', '''''') || '''')::tsquery AS query, lexeme
    FROM unnest(tsvector_to_array(search_words(CAST(:question AS text)))) AS lexeme LIMIT {MAX_WORDS}
), counted AS MATERIALIZED (
    SELECT query, coalesce(
        (SELECT k.chunks FROM common_words k WHERE k.word = w.lexeme),
        (SELECT count(*) FROM (SELECT FROM chunks c WHERE c.words @@ w.query LIMIT {COUNTED_UP_TO}) l)) AS n
    FROM word w
), term AS MATERIALIZED (
    SELECT query, ln(1 + (total - n + 0.5) / (n + 0.5)) AS idf,
        sum(n) OVER rarest AS ranked, row_number() OVER rarest AS place
    FROM counted, (SELECT greatest((SELECT reltuples FROM pg_class WHERE oid = 'chunks'::regclass), max(n)) AS total
                   FROM counted) s
    WHERE n > 0 WINDOW rarest AS (ORDER BY n, CAST(query AS text))
), wanted AS MATERIALIZED (
    SELECT CAST(string_agg(CAST(query AS text), ' | ') AS tsquery) AS query FROM term
    WHERE ranked <= {RANKED} OR place = 1 OR (SELECT size FROM scope) <= {EXACT_UP_TO}
), lexical AS MATERIALIZED (
    SELECT c.id, (SELECT sum(term.idf * ts_rank({_WEIGHTS}, c.words, term.query)) FROM term) AS score
    FROM wanted JOIN chunks c ON c.words @@ wanted.query JOIN documents d ON d.uid = c.document_uid
    WHERE {IN_SCOPE}
    ORDER BY score DESC, c.id LIMIT :candidates
)"""

_DISTANCE: Final = "c.embedding <=> CAST(:vector AS vector)"

_NEAREST: Final = f"""
nearest AS MATERIALIZED (
    SELECT c.id, {_DISTANCE} AS distance
    FROM chunks c JOIN documents d ON d.uid = c.document_uid
    WHERE {IN_SCOPE}
    ORDER BY {{order}} LIMIT :candidates
)"""

_FROM_GRAPH: Final = _NEAREST.format(order=_DISTANCE)
# Any expression but the bare distance keeps the graph out: each chunk in scope is looked at, and the result is exact.
_EXACT: Final = _NEAREST.format(order=f"({_DISTANCE}) + 0")


def with_columns(statement: str, *names: str) -> TextualSelect:
    """A statement with its columns in their order: those of a bare text are found out anew on each execution."""
    return text(statement).columns(*(column(name) for name in names))


HIT_FIELDS: Final = tuple(one.name for one in fields(ChunkHit))

HIT_COLUMNS: Final = """c.content, f.score, d.title, c.section, c.page, c.token_count, d.file_name, d.file_path,
    d.mime_type, d.type, d.author, d.created, d.modified, d.language, d.license, d.repository, d.pull_location,
    d.confidential, d.session_id, l.ids, l.names, l.paths"""

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

OVERVIEW_COLUMNS: Final = f"""
SELECT (SELECT embedding_model FROM index_info), (SELECT dimension FROM index_info),
    (SELECT engine FROM index_info), (SELECT size FROM scope),
    (SELECT coalesce(sum(d.chunk_count), 0) FROM documents d WHERE d.retrievable AND {ATTACHED})"""

OVERVIEW_FIELDS: Final = ("model", "dimension", "engine", "in_scope", "attached")

INFO: Final = text("SELECT embedding_model, dimension, engine FROM index_info")
"""The embedder of the index and what searches it; no row while it is empty."""

OVERVIEW: Final = with_columns(f"WITH {SCOPE} {OVERVIEW_COLUMNS}", *OVERVIEW_FIELDS)
"""One row: model, length and engine of the index (null while empty), chunks in scope (counted up to a limit),
attached ones."""

LEXICAL: Final = with_columns(
    f"""WITH {_LEXICAL} {OVERVIEW_COLUMNS}, (SELECT CAST(array_agg(id ORDER BY score DESC, id) AS text) FROM lexical),
    (SELECT CAST(array_agg(score ORDER BY score DESC, id) AS text) FROM lexical)""",
    *OVERVIEW_FIELDS,
    "ids",
    "scores",
)
"""As OVERVIEW, and the ids of the best chunks by their words, and their scores, as Postgres writes arrays: they go back
to it as they came. Takes `candidates`."""

STRICT: Final = with_columns(f"WITH {_LEXICAL}, {_BY_WORDS} {_HITS}", *HIT_FIELDS)
"""Hits by words. Takes `candidates`, `limit`."""

SEMANTIC: Final = {
    exact: with_columns(f"WITH {nearest}, {_BY_DISTANCE} {_HITS}", *HIT_FIELDS)
    for exact, nearest in ((True, _EXACT), (False, _FROM_GRAPH))
}
"""Hits by vector; by whether each chunk in scope is looked at. Takes `candidates`, `limit`."""

HYBRID: Final = {
    exact: with_columns(f"WITH {nearest}, {_FUSED} {_HITS}", *HIT_FIELDS)
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
"""Take over what ANALYZE learnt of the commonest words. Where it has never run, there are none, and all are counted."""

SIMILARITIES: Final = text(
    f"""SELECT c.uid, 1 - ({_DISTANCE}) FROM chunks c JOIN documents d ON d.uid = c.document_uid
    WHERE c.uid = ANY(CAST(:uids AS text[])) AND d.retrievable AND (
        (d.session_id IS NOT NULL AND d.owner_id = :reader) OR {_CORPUS})"""
)
"""Cosine of given chunks."""
