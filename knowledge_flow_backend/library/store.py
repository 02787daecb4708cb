"""Documents and libraries in Postgres, as a caller may see and change them; access is decided inside the queries."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text

from knowledge_flow_backend.errors import Conflict, Forbidden
from knowledge_flow_backend.index import IndexWriter, Reader
from knowledge_flow_backend.index.database import Database
from knowledge_flow_backend.index.faults import DatabaseFault, failure_of, sqlstate_of
from knowledge_flow_backend.library.reasons import SENTENCES, Reason

_UNIQUE = "23505"

_READS_TAG = """(t.owner_id = :user OR t.everyone OR :user = ANY(t.reader_users)
    OR t.reader_groups && CAST(:groups AS text[]))"""
_READS = f"""(d.owner_id = :user OR EXISTS (
    SELECT 1 FROM document_tags dt JOIN tags t ON t.id = dt.tag_id
    WHERE dt.document_uid = d.uid AND {_READS_TAG}))"""  # noqa: S608 - constants of this module

_DOCUMENT_COLUMNS = f"""d.uid, d.owner_id, d.title, d.file_name, d.file_path, d.mime_type, d.type, d.source_tag,
    d.author, d.language, d.license, d.confidential, d.created, d.modified, d.content_hash, d.size_bytes, d.version,
    d.retrievable, d.status, d.stages, d.error, d.chunk_count, d.token_count, d.ingested_at, d.updated_at,
    (SELECT COALESCE(json_agg(json_build_array(t.id, t.name) ORDER BY t.path, t.name), '[]')
     FROM document_tags dt JOIN tags t ON t.id = dt.tag_id WHERE dt.document_uid = d.uid AND {_READS_TAG}) AS tags"""  # noqa: S608 - as above

_DOCUMENT = text(f"SELECT {_DOCUMENT_COLUMNS} FROM documents d WHERE d.uid = :uid AND {_READS}")  # noqa: S608 - as above
_OWNER = text(f"SELECT d.owner_id FROM documents d WHERE d.uid = :uid AND {_READS}")  # noqa: S608 - as above
_RETRIEVABLE = text(
    """UPDATE documents SET retrievable = :retrievable, updated_at = now() WHERE uid = :uid AND owner_id = :user
    RETURNING uid"""
)
_MARKDOWN = text(
    f"""SELECT json_build_object('content', c.markdown)::text FROM documents d
    JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND {_READS}"""  # noqa: S608 - as above
)
_RAW = text(
    f"""SELECT d.file_name, d.mime_type, c.raw FROM documents d
    JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid AND {_READS}"""  # noqa: S608 - as above
)
_CHUNK_COLUMNS = "k.uid, k.ordinal, k.content, k.section, k.page, k.char_start, k.char_end, k.token_count"
_CHUNKS = text(
    f"""SELECT {_CHUNK_COLUMNS} FROM documents d JOIN chunks k ON k.document_uid = d.uid
    WHERE d.uid = :uid AND {_READS} ORDER BY k.ordinal LIMIT :limit OFFSET :offset"""  # noqa: S608 - as above
)
_CHUNK = text(
    f"""SELECT {_CHUNK_COLUMNS}, d.title, d.file_name, d.file_path, d.mime_type, d.version
    FROM documents d JOIN chunks k ON k.document_uid = d.uid
    WHERE d.uid = :uid AND k.uid = :chunk AND {_READS}"""  # noqa: S608 - as above
)

# One constant text for every filter: what is not asked for is NULL, and a filter's key never reaches the statement.
_FILTER = f"""d.session_id IS NULL AND {_READS}
    AND (CAST(:uids AS text[]) IS NULL OR d.uid = ANY(CAST(:uids AS text[])))
    AND (CAST(:tags AS text[]) IS NULL OR EXISTS (SELECT 1 FROM document_tags dt JOIN tags t ON t.id = dt.tag_id
         WHERE dt.document_uid = d.uid AND t.id = ANY(CAST(:tags AS text[])) AND {_READS_TAG}))
    AND (CAST(:status AS text) IS NULL OR d.status = :status)
    AND (CAST(:retrievable AS boolean) IS NULL OR d.retrievable = :retrievable)
    AND (CAST(:words AS text) IS NULL OR strpos(lower(d.file_name || ' ' || d.title), lower(:words)) > 0)"""  # noqa: S608 - as above
_COUNT = text(f"SELECT count(*) FROM documents d WHERE {_FILTER}")  # noqa: S608 - as above
SORTS = ("updated_at", "ingested_at", "title", "file_name", "size_bytes", "status")
"""What documents may be sorted by."""
_BROWSE = {
    (field, descending): text(
        f"""SELECT {_DOCUMENT_COLUMNS} FROM documents d WHERE {_FILTER}
        ORDER BY d.{field} {"DESC" if descending else "ASC"}, d.uid LIMIT :limit OFFSET :offset"""  # noqa: S608 - as above
    )
    for field in SORTS
    for descending in (False, True)
}

_TAG_COLUMNS = """t.id, t.name, t.path, t.type, t.description, t.owner_id, t.everyone, t.created_at, t.updated_at,
    (SELECT count(*) FROM document_tags dt WHERE dt.tag_id = t.id) AS documents"""
_TAGS = text(f"SELECT {_TAG_COLUMNS} FROM tags t WHERE {_READS_TAG} ORDER BY t.path, t.name, t.id")  # noqa: S608 - as above
_TAG = text(f"SELECT {_TAG_COLUMNS} FROM tags t WHERE t.id = :id AND {_READS_TAG}")  # noqa: S608 - as above
_ADD_TAG = text(
    """INSERT INTO tags (id, name, path, type, description, owner_id)
    VALUES (:id, :name, :path, :type, :description, :user)"""
)
_CHANGE_TAG = text(
    """UPDATE tags SET name = COALESCE(:name, name), path = COALESCE(:path, path),
    description = COALESCE(:description, description), updated_at = now() WHERE id = :id AND owner_id = :user"""
)
_ONLY_HERE = text(
    """SELECT d.uid FROM documents d JOIN document_tags dt ON dt.document_uid = d.uid
    WHERE dt.tag_id = :id AND d.owner_id = :user
    AND NOT EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid AND o.tag_id <> :id)"""
)
_DROP_TAG = text("DELETE FROM tags WHERE id = :id AND owner_id = :user RETURNING id")


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """Which documents are listed; None filters nothing. `words` is looked for in name and title."""

    uids: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    status: str | None = None
    retrievable: bool | None = None
    words: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of a listing, and in what order."""

    limit: int
    offset: int
    sort: str = "updated_at"
    descending: bool = True


@dataclass(frozen=True, slots=True)
class NewTag:
    """A library to be made."""

    name: str
    path: str = ""
    type: str = "document"
    description: str | None = None


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file as it was uploaded."""

    file_name: str
    mime_type: str
    data: bytes


class Statements:
    """Runs constant statements, each a transaction of its own, and names what goes wrong."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[Any]:
        """The rows. Raises `IndexUnavailable`, and `Conflict` where a name is taken."""
        self._database.require_ready()
        try:
            async with self._database.main.connection() as connection:
                return await connection.execute(op, statement, parameters)
        except DatabaseFault as error:
            if sqlstate_of(error) == _UNIQUE:
                raise Conflict("the name is taken") from error
            raise failure_of(error) from error


class Library:
    """What the routes of documents and libraries do. Every method raises `IndexUnavailable` where Postgres is away.

    What a reader may not see is not there: None, or an empty list, as for an id that nobody ever gave out.
    """

    def __init__(self, database: Database, writer: IndexWriter) -> None:
        self._statements = Statements(database)
        self._writer = writer

    async def tags(self, reader: Reader) -> list[dict[str, Any]]:
        """The libraries that the reader may see."""
        rows = await self._statements.rows("tags", _TAGS, _who(reader))
        return [_tag(row) for row in rows]

    async def tag(self, reader: Reader, tag_id: str) -> dict[str, Any] | None:
        """One library."""
        rows = await self._statements.rows("tag", _TAG, {**_who(reader), "id": tag_id})
        return _tag(rows[0]) if rows else None

    async def add_tag(self, reader: Reader, tag: NewTag) -> dict[str, Any]:
        """Make a library of the reader's own. Raises `Conflict` where they have one of that name there."""
        tag_id = secrets.token_hex(12)
        values = {"name": tag.name, "path": tag.path, "type": tag.type, "description": tag.description}
        await self._statements.rows("add_tag", _ADD_TAG, {**values, "id": tag_id, "user": reader.user_id})
        made = await self.tag(reader, tag_id)
        assert made is not None  # its owner reads it
        return made

    async def change_tag(
        self, reader: Reader, tag_id: str, *, name: str | None, path: str | None, description: str | None
    ) -> dict[str, Any] | None:
        """Rename a library or describe it; None leaves a field. Raises `Forbidden` for another owner's, `Conflict`."""
        if not await self._owns_tag(reader, tag_id):
            return None
        values = {"id": tag_id, "user": reader.user_id, "name": name, "path": path, "description": description}
        await self._statements.rows("change_tag", _CHANGE_TAG, values)
        return await self.tag(reader, tag_id)

    async def delete_tag(self, reader: Reader, tag_id: str) -> bool:
        """Delete a library with the owner's documents that stand in no other. Raises `Forbidden` for another's.

        Documents go first: what is cut in the middle is a library with fewer documents, and can be deleted again.
        """
        if not await self._owns_tag(reader, tag_id):
            return False
        key = {"id": tag_id, "user": reader.user_id}
        for row in await self._statements.rows("tag_documents", _ONLY_HERE, key):
            await self._writer.delete_document(row[0])
        return bool(await self._statements.rows("drop_tag", _DROP_TAG, key))

    async def browse(self, reader: Reader, chosen: DocumentFilter, window: Window) -> tuple[int, list[dict[str, Any]]]:
        """How many documents there are, and those of the window."""
        values = {
            **_who(reader),
            "uids": None if chosen.uids is None else list(chosen.uids),
            "tags": None if chosen.tags is None else list(chosen.tags),
            "status": chosen.status,
            "retrievable": chosen.retrievable,
            "words": chosen.words,
        }
        total = (await self._statements.rows("count_documents", _COUNT, values))[0][0]
        statement = _BROWSE[window.sort, window.descending]
        values |= {"limit": window.limit, "offset": window.offset}
        return total, [_document(row) for row in await self._statements.rows("browse", statement, values)]

    async def document(self, reader: Reader, uid: str) -> dict[str, Any] | None:
        """What is known of one document, without its content."""
        rows = await self._statements.rows("document", _DOCUMENT, _key(reader, uid))
        return _document(rows[0]) if rows else None

    async def set_retrievable(self, reader: Reader, uid: str, retrievable: bool) -> dict[str, Any] | None:
        """Let searches find a document, or not. Raises `Forbidden` where it is another's."""
        if not await self._owns_document(reader, uid):
            return None
        await self._statements.rows("set_retrievable", _RETRIEVABLE, {**_key(reader, uid), "retrievable": retrievable})
        return await self.document(reader, uid)

    async def delete_document(self, reader: Reader, uid: str) -> bool:
        """Delete a document with everything of it. Raises `Forbidden` where it is another's."""
        return await self._owns_document(reader, uid) and await self._writer.delete_document(uid)

    async def chunks(self, reader: Reader, uid: str, limit: int, offset: int) -> list[dict[str, Any]] | None:
        """The chunks in order of the text; None for an unknown document."""
        rows = await self._statements.rows("chunks", _CHUNKS, {**_key(reader, uid), "limit": limit, "offset": offset})
        if not rows and not await self._statements.rows("owner", _OWNER, _key(reader, uid)):
            return None
        return [_chunk(row) for row in rows]

    async def chunk(self, reader: Reader, uid: str, chunk_uid: str) -> dict[str, Any] | None:
        """One chunk with what a citation shows of its document."""
        rows = await self._statements.rows("chunk", _CHUNK, {**_key(reader, uid), "chunk": chunk_uid})
        if not rows:
            return None
        row = rows[0]
        document = {
            "document_uid": uid,
            "title": row.title,
            "file_name": row.file_name,
            "file_path": row.file_path,
            "mime_type": row.mime_type,
            "version": row.version,
        }
        return {**_chunk(row), "document": document}

    async def markdown(self, reader: Reader, uid: str) -> bytes | None:
        """`{"content": …}` with the canonical text that the offsets of chunks count in, as Postgres encoded it."""
        rows = await self._statements.rows("markdown", _MARKDOWN, _key(reader, uid))
        return rows[0][0].encode() if rows else None

    async def raw(self, reader: Reader, uid: str) -> RawFile | None:
        """The file as it was uploaded."""
        rows = await self._statements.rows("raw", _RAW, _key(reader, uid))
        return RawFile(rows[0][0], rows[0][1], bytes(rows[0][2])) if rows else None

    async def _owns_document(self, reader: Reader, uid: str) -> bool:
        rows = await self._statements.rows("owner", _OWNER, _key(reader, uid))
        if rows and rows[0][0] != reader.user_id:
            raise Forbidden("another owner's document")
        return bool(rows)

    async def _owns_tag(self, reader: Reader, tag_id: str) -> bool:
        found = await self.tag(reader, tag_id)
        if found is not None and found["owner_id"] != reader.user_id:
            raise Forbidden("another owner's library")
        return found is not None


def _who(reader: Reader) -> dict[str, object]:
    return {"user": reader.user_id, "groups": list(reader.groups)}


def _key(reader: Reader, uid: str) -> dict[str, object]:
    return {**_who(reader), "uid": uid}


def _document(row: Any) -> dict[str, Any]:
    """A document as routes give it."""
    values = dict(row._mapping)
    tags: list[list[str]] = values.pop("tags")
    error = values.pop("error")
    stages: dict[str, Any] = values.pop("stages")
    for name in ("created", "modified", "ingested_at", "updated_at"):
        values[name] = _time(values[name])
    return {
        "document_uid": values.pop("uid"),
        **values,
        # Beside the steps stand marks of the ingestion itself, which are nobody's business.
        "stages": {name: stage for name, stage in stages.items() if isinstance(stage, dict)},
        "error": None
        if error is None
        else {"code": error, "message": SENTENCES.get(error, SENTENCES[Reason.INTERNAL])},
        "tag_ids": [tag[0] for tag in tags],
        "tag_names": [tag[1] for tag in tags],
    }


def _chunk(row: Any) -> dict[str, Any]:
    return {
        "chunk_uid": row.uid,
        "ordinal": row.ordinal,
        "text": row.content,
        "section": row.section,
        "page": row.page,
        "start": row.char_start,
        "end": row.char_end,
        "token_count": row.token_count,
    }


def _tag(row: Any) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "path": row.path,
        "full_path": f"{row.path}/{row.name}" if row.path else row.name,
        "type": row.type,
        "description": row.description,
        "owner_id": row.owner_id,
        "everyone": row.everyone,
        "document_count": row.documents,
        "created_at": _time(row.created_at),
        "updated_at": _time(row.updated_at),
    }


def _time(value: datetime | None) -> str | None:
    """ISO 8601 with Z, as every time on the wire."""
    return None if value is None else value.isoformat().replace("+00:00", "Z")
