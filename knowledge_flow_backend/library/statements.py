"""The statements of libraries and documents, as constant text: each value is a parameter, the caller's rights too.

`reader`, `groups`: who asks. `within`: the ids of the libraries that their key is limited to, null without a limit.
`uid`: a document. `id`: a library.
"""

# ruff: noqa: S608 - the parts that are joined here are constants of this project

from typing import Final

from sqlalchemy import text

from backend_kit.db.audit import with_events
from knowledge_flow_backend.index.models import READS_LIBRARY

_WITHIN: Final = "(CAST(:within AS text[]) IS NULL OR t.id = ANY(CAST(:within AS text[])))"
_READS_TAG: Final = f"({READS_LIBRARY} AND {_WITHIN})"
_OWN: Final = "(d.owner_id = :reader AND (CAST(:within AS text[]) IS NULL OR d.session_id IS NOT NULL))"
_READS: Final = f"""({_OWN} OR EXISTS (
    SELECT 1 FROM document_tags dt JOIN tags t ON t.id = dt.tag_id
    WHERE dt.document_uid = d.uid AND {_READS_TAG}))"""

_DOCUMENT_COLUMNS: Final = f"""d.uid, d.owner_id, d.title, d.file_name, d.file_path, d.mime_type, d.type, d.source_tag,
    d.author, d.language, d.license, d.confidential, d.created, d.modified, d.content_hash, d.size_bytes, d.version,
    d.retrievable, d.status, d.stages, d.error, d.chunk_count, d.token_count, d.ingested_at, d.updated_at,
    (SELECT COALESCE(json_agg(json_build_array(t.id, t.name) ORDER BY t.path, t.name), '[]')
     FROM document_tags dt JOIN tags t ON t.id = dt.tag_id WHERE dt.document_uid = d.uid AND {_READS_TAG}) AS tags"""

DOCUMENT: Final = text(f"SELECT {_DOCUMENT_COLUMNS} FROM documents d WHERE d.uid = :uid AND {_READS}")
OWNER: Final = text(f"SELECT d.owner_id FROM documents d WHERE d.uid = :uid AND {_READS}")
RETRIEVABLE: Final = text(
    """UPDATE documents SET retrievable = :retrievable, updated_at = now() WHERE uid = :uid AND owner_id = :reader
    RETURNING uid"""
)
MARKDOWN: Final = text(
    f"""SELECT json_build_object('content', c.markdown)::text FROM documents d
    JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND {_READS}"""
)
TEXT: Final = text(
    f"""SELECT d.title, d.file_name, length(c.markdown), substr(c.markdown, :start, :limit) FROM documents d
    JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND {_READS}"""
)
# With the first piece: most files have no other. `version` keeps the pieces of two uploads apart.
RAW: Final = text(
    f"""SELECT d.file_name, d.mime_type, d.version, octet_length(c.raw), substring(c.raw FROM 1 FOR :piece)
    FROM documents d JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND {_READS}"""
)
RAW_PIECE: Final = text(
    f"""SELECT substring(c.raw FROM :start FOR :piece) FROM documents d
    JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND d.version = :version AND {_READS}"""
)
_CHUNK_COLUMNS: Final = "k.uid, k.ordinal, k.content, k.section, k.page, k.char_start, k.char_end, k.token_count"
CHUNKS: Final = text(
    f"""SELECT {_CHUNK_COLUMNS} FROM documents d JOIN chunks k ON k.document_uid = d.uid
    WHERE d.uid = :uid AND {_READS} ORDER BY k.ordinal LIMIT :limit OFFSET :offset"""
)
CHUNK: Final = text(
    f"""SELECT {_CHUNK_COLUMNS}, d.title, d.file_name, d.file_path, d.mime_type, d.version
    FROM documents d JOIN chunks k ON k.document_uid = d.uid
    WHERE d.uid = :uid AND k.uid = :chunk AND {_READS}"""
)

# One constant text for every filter: what is not asked for is NULL, and a filter's key never reaches the statement.
_FILTER: Final = f"""d.session_id IS NULL AND {_READS}
    AND (CAST(:uids AS text[]) IS NULL OR d.uid = ANY(CAST(:uids AS text[])))
    AND (CAST(:tags AS text[]) IS NULL OR EXISTS (SELECT 1 FROM document_tags dt JOIN tags t ON t.id = dt.tag_id
         WHERE dt.document_uid = d.uid AND t.id = ANY(CAST(:tags AS text[])) AND {_READS_TAG}))
    AND (CAST(:status AS text) IS NULL OR d.status = :status)
    AND (CAST(:retrievable AS boolean) IS NULL OR d.retrievable = :retrievable)
    AND (CAST(:words AS text) IS NULL OR strpos(lower(d.file_name || ' ' || d.title), lower(:words)) > 0)"""
COUNT: Final = text(f"SELECT count(*) FROM documents d WHERE {_FILTER}")
SORTS: Final = ("updated_at", "ingested_at", "title", "file_name", "size_bytes", "status")
"""What documents may be sorted by."""
BROWSE: Final = {
    (field, descending): text(
        f"""SELECT {_DOCUMENT_COLUMNS} FROM documents d WHERE {_FILTER}
        ORDER BY d.{field} {"DESC" if descending else "ASC"}, d.uid LIMIT :limit OFFSET :offset"""
    )
    for field in SORTS
    for descending in (False, True)
}

_TAG_COLUMNS: Final = """t.id, t.name, t.path, t.type, t.description, t.owner_id, t.everyone, t.created_at,
    t.updated_at, (SELECT count(*) FROM document_tags dt WHERE dt.tag_id = t.id) AS documents"""
TAGS: Final = text(f"SELECT {_TAG_COLUMNS} FROM tags t WHERE {_READS_TAG} ORDER BY t.path, t.name, t.id")
TAG: Final = text(f"SELECT {_TAG_COLUMNS} FROM tags t WHERE t.id = :id AND {_READS_TAG}")
ADD_TAG: Final = text(
    """INSERT INTO tags (id, name, path, type, description, owner_id)
    SELECT :id, :name, :path, :type, :description, :reader
    WHERE :most = 0 OR (SELECT count(*) FROM tags WHERE owner_id = :reader) < :most RETURNING id"""
)
CHANGE_TAG: Final = text(
    """UPDATE tags SET name = COALESCE(:name, name), path = COALESCE(:path, path),
    description = COALESCE(:description, description), updated_at = now() WHERE id = :id AND owner_id = :reader"""
)
ONLY_HERE: Final = text(
    """SELECT d.uid FROM documents d JOIN document_tags dt ON dt.document_uid = d.uid
    WHERE dt.tag_id = :id AND d.owner_id = :reader
    AND NOT EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid AND o.tag_id <> :id)"""
)
ACCESS: Final = text(
    "SELECT t.everyone, t.reader_users, t.reader_groups FROM tags t WHERE t.id = :id AND t.owner_id = :reader"
)
# Only what the events were made from is changed: a concurrent change of the sharing has events of its own.
SET_ACCESS: Final = with_events(
    """UPDATE tags SET everyone = :everyone, reader_users = CAST(:users AS text[]),
    reader_groups = CAST(:reading_groups AS text[]), updated_at = now() WHERE id = :id AND owner_id = :reader
    AND everyone = :was_everyone AND reader_users = CAST(:were_users AS text[])
    AND reader_groups = CAST(:were_groups AS text[]) RETURNING id"""
)
LOCK_ROW: Final = text("SELECT uid FROM documents WHERE uid = :uid FOR UPDATE")
# A statement of its own, as CHANGING is: a document that was moved while this waited for the lock stays.
DROP_ONLY_HERE: Final = with_events(
    """DELETE FROM documents d WHERE d.uid = :uid AND d.owner_id = :reader
    AND EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid AND o.tag_id = :id)
    AND NOT EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid AND o.tag_id <> :id)
    RETURNING d.uid"""
)
DROP_TAG: Final = with_events("DELETE FROM tags WHERE id = :id AND owner_id = :reader RETURNING id")


def label_lock(owner: str, path: str) -> str:
    """An expression that locks an owner's label to the end of the transaction: taken before looking for other documents
    of that label in a library and putting one into it."""
    return f"pg_advisory_xact_lock(hashtextextended(current_schema() || '/' || {owner} || '/' || {path}, 0))"


# Placing a document: one transaction, in this order. The lock on the document's row keeps two of them apart, and each
# from a write of new content.
LOCK_LABEL: Final = text(
    f"""SELECT {label_lock("d.owner_id", "d.file_path")} FROM documents d
    WHERE d.uid = :uid AND d.owner_id = :reader AND d.file_path IS NOT NULL"""
)
LOCK_DOCUMENT: Final = text(
    f"""SELECT d.owner_id = :reader AS own, d.session_id IS NOT NULL AS attached
    FROM documents d WHERE d.uid = :uid AND {_READS} FOR UPDATE"""
)
# A statement of its own: one that waited for the lock still sees the jobs of before.
CHANGING: Final = text(
    "SELECT 1 FROM ingest_jobs j JOIN documents d ON d.uid = j.document_uid WHERE d.uid = :uid AND d.owner_id = :reader"
)
# Locked against deletion: a document that is put into a library stays in it.
LOCK_TAGS: Final = text(
    f"""SELECT t.id, t.owner_id = :reader AS own FROM tags t
    WHERE t.id = ANY(CAST(:tags AS text[])) AND {_READS_TAG} ORDER BY t.id FOR SHARE"""
)
NAME_TAKEN: Final = text(
    """SELECT 1 FROM documents d JOIN documents o
        ON o.owner_id = d.owner_id AND o.file_path = d.file_path AND o.uid <> d.uid
    WHERE d.uid = :uid AND EXISTS (SELECT 1 FROM unnest(CAST(:tags AS text[])) AS u(id)
        WHERE NOT EXISTS (SELECT 1 FROM document_tags s WHERE s.document_uid = d.uid AND s.tag_id = u.id)
        AND (EXISTS (SELECT 1 FROM document_tags t WHERE t.document_uid = o.uid AND t.tag_id = u.id)
            OR EXISTS (SELECT 1 FROM ingest_jobs j WHERE j.document_uid = o.uid AND u.id = ANY(j.tag_ids)))) LIMIT 1"""
)
# What stands in a library outside the key's limit stays there.
TAKE_OUT: Final = text(
    """DELETE FROM document_tags t WHERE t.document_uid = :uid AND t.tag_id <> ALL(CAST(:tags AS text[]))
    AND (CAST(:within AS text[]) IS NULL OR t.tag_id = ANY(CAST(:within AS text[])))"""
)
PUT_IN: Final = text(
    """INSERT INTO document_tags (document_uid, tag_id) SELECT :uid, u.id FROM unnest(CAST(:tags AS text[])) AS u(id)
    ON CONFLICT DO NOTHING"""
)
TOUCH: Final = text("UPDATE documents SET updated_at = now() WHERE uid = :uid")
