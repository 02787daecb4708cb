"""Documents and libraries in Postgres, as a caller may see and change them; access is decided inside the queries."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text

from backend_kit.auth import AuditAction, AuditEvent
from backend_kit.db.audit import add_events, events_parameter, with_events
from backend_kit.db.faults import DatabaseFault, sqlstate_of
from backend_kit.db.pool import TimedConnection
from knowledge_flow_backend.errors import Conflict, Forbidden
from knowledge_flow_backend.index import IndexWriter, Reader
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.reads import SharedReads
from knowledge_flow_backend.library import statements
from knowledge_flow_backend.library.reasons import SENTENCES, Reason

_UNIQUE = "23505"
_ATTEMPTS = 5
RAW_PIECE_BYTES = 1024 * 1024
"""The driver decodes one in 8 ms, in which the loop does nothing else."""


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
    """A library to create."""

    name: str
    path: str = ""
    type: str = "document"
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Who reads a library beside its owner: everyone who is known, or these users (`sub`) and groups of theirs."""

    everyone: bool = False
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class UnknownLibrary(Exception):
    """A named library does not exist for this reader."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Part of the canonical text of a document. `total_chars` is the length of all of it."""

    title: str
    file_name: str
    total_chars: int
    text: str


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file as it was uploaded. `pieces` raise `Conflict` where it is replaced or gone before the last of them."""

    file_name: str
    mime_type: str
    size: int
    pieces: AsyncIterator[bytes]


class Statements:
    """Runs constant statements, each a transaction of its own, and translates failures."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database

    async def rows(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[Any]:
        """The rows. Raises `IndexUnavailable`, and `Conflict` where a name is taken."""
        with self._database.guarded():
            try:
                async with self._database.main.connection() as connection:
                    return await connection.execute(op, statement, parameters)
            except DatabaseFault as error:
                if sqlstate_of(error) == _UNIQUE:
                    raise Conflict("the name is taken") from error
                raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TimedConnection]:
        """A connection whose statements take effect together, at the end of the block. Raises as `rows`."""
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                yield connection
                await connection.commit()


class Library:
    """What the routes of documents and libraries do. Every method raises `IndexUnavailable` where Postgres is away.

    What a reader may not see does not exist for them: None, or an empty list, as for an unknown id.
    """

    def __init__(
        self,
        statements: Statements,
        writer: IndexWriter,
        reads: SharedReads,
        *,
        max_libraries: int = 0,
        piece_bytes: int = RAW_PIECE_BYTES,
    ) -> None:
        """`reads` is called with who reads text of which document. `max_libraries` of one owner, 0: any number.
        `piece_bytes`: bytes of a raw file that are read at a time."""
        self._max_libraries = max_libraries
        self._reads = reads
        self._statements = statements
        self._writer = writer
        self._piece_bytes = piece_bytes

    async def tags(self, reader: Reader) -> list[dict[str, Any]]:
        """The libraries that the reader may see."""
        rows = await self._statements.rows("tags", statements.TAGS, _who(reader))
        return [_tag(row) for row in rows]

    async def tag(self, reader: Reader, tag_id: str) -> dict[str, Any] | None:
        """One library."""
        rows = await self._statements.rows("tag", statements.TAG, {**_who(reader), "id": tag_id})
        return _tag(rows[0]) if rows else None

    async def add_tag(self, reader: Reader, tag: NewTag) -> dict[str, Any]:
        """Create a library of the reader's own. Raises `Conflict` where they have one of that name there, or as
        many as they may have, `Forbidden` where their key is limited to others."""
        if reader.libraries is not None:
            raise Forbidden("the key is limited to libraries")
        tag_id = secrets.token_hex(12)
        values: dict[str, object] = {
            "name": tag.name,
            "path": tag.path,
            "type": tag.type,
            "description": tag.description,
        }
        values |= {"id": tag_id, "reader": reader.user_id, "most": self._max_libraries}
        if not await self._statements.rows("add_tag", statements.ADD_TAG, values):
            raise Conflict("as many libraries as one may have")
        made = await self.tag(reader, tag_id)
        assert made is not None  # its owner reads it
        return made

    async def change_tag(
        self, reader: Reader, tag_id: str, *, name: str | None, path: str | None, description: str | None
    ) -> dict[str, Any] | None:
        """Rename a library or describe it; None leaves a field. Raises `Forbidden` for another owner's, `Conflict`."""
        if not await self._owns_tag(reader, tag_id):
            return None
        values = {"id": tag_id, "reader": reader.user_id, "name": name, "path": path, "description": description}
        await self._statements.rows("change_tag", statements.CHANGE_TAG, values)
        return await self.tag(reader, tag_id)

    async def access(self, reader: Reader, tag_id: str) -> Access | None:
        """Who reads a library. Raises `Forbidden` for another owner's."""
        if not await self._owns_tag(reader, tag_id):
            return None
        rows = await self._statements.rows("access", statements.ACCESS, {"id": tag_id, "reader": reader.user_id})
        return Access(rows[0][0], tuple(rows[0][1]), tuple(rows[0][2])) if rows else None

    async def set_access(self, reader: Reader, tag_id: str, access: Access) -> Access | None:
        """Replace the readers of a library, from the next query on. Raises `Forbidden` for another owner's, `Conflict`
        where they are being replaced by somebody else."""
        wanted = Access(access.everyone, tuple(sorted(set(access.users))), tuple(sorted(set(access.groups))))
        for _attempt in range(_ATTEMPTS):
            was = await self.access(reader, tag_id)
            if was is None:
                return None
            values = {
                "id": tag_id,
                "reader": reader.user_id,
                "everyone": wanted.everyone,
                "users": list(wanted.users),
                "reading_groups": list(wanted.groups),
                "was_everyone": was.everyone,
                "were_users": list(was.users),
                "were_groups": list(was.groups),
                "audit": events_parameter(*_sharing(reader, tag_id, was, wanted)),
            }
            if await self._statements.rows("set_access", statements.SET_ACCESS, values):
                return wanted
        raise Conflict("its readers are being replaced")

    async def delete_tag(self, reader: Reader, tag_id: str) -> bool:
        """Delete a library with the owner's documents that stand in no other. Raises `Forbidden` for another's.

        Documents go first: interrupted, it leaves a library with fewer documents, which can be deleted again.
        """
        if not await self._owns_tag(reader, tag_id):
            return False
        key = {"id": tag_id, "reader": reader.user_id}
        for row in await self._statements.rows("tag_documents", statements.ONLY_HERE, key):
            async with self._statements.transaction() as connection:
                await connection.execute("lock_document", statements.LOCK_ROW, {"uid": row[0]})
                told = events_parameter(AuditEvent.by(reader, AuditAction.DOCUMENT_DELETED, "document", row[0]))
                values = {**key, "uid": row[0], "audit": told}
                await connection.execute("drop_document", statements.DROP_ONLY_HERE, values)
        told = events_parameter(AuditEvent.by(reader, AuditAction.LIBRARY_DELETED, "library", tag_id))
        return bool(await self._statements.rows("drop_tag", statements.DROP_TAG, {**key, "audit": told}))

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
        total = (await self._statements.rows("count_documents", statements.COUNT, values))[0][0]
        statement = statements.BROWSE[window.sort, window.descending]
        values |= {"limit": window.limit, "offset": window.offset}
        return total, [_document(row) for row in await self._statements.rows("browse", statement, values)]

    async def document(self, reader: Reader, uid: str) -> dict[str, Any] | None:
        """What is known of one document, without its content."""
        rows = await self._statements.rows("document", statements.DOCUMENT, _key(reader, uid))
        return _document(rows[0]) if rows else None

    async def set_retrievable(self, reader: Reader, uid: str, retrievable: bool) -> dict[str, Any] | None:
        """Let searches find a document, or not. Raises `Forbidden` where it is another's."""
        if not await self._owns_document(reader, uid):
            return None
        await self._statements.rows(
            "set_retrievable", statements.RETRIEVABLE, {**_key(reader, uid), "retrievable": retrievable}
        )
        return await self.document(reader, uid)

    async def place(self, reader: Reader, uid: str, tag_ids: Sequence[str]) -> dict[str, Any] | None:
        """Put a document into exactly these libraries, all or nothing; None for an unknown document.

        Raises `UnknownLibrary`; `Forbidden` where the document or a library is another's; `Conflict` for an
        attachment, while new content is written, and where a library holds another document of that path.
        """
        tags = list(dict.fromkeys(tag_ids))
        if reader.libraries is not None and not tags:
            raise UnknownLibrary  # outside all of its libraries the key could not see it any more
        async with self._statements.transaction() as connection:
            # Before any lock: the write of a large document holds its row for minutes.
            await refuse_changing(connection, reader, uid)
            await connection.execute("lock_label", statements.LOCK_LABEL, {"uid": uid, "reader": reader.user_id})
            if not await lock_own(connection, reader, uid):
                return None
            await _lock_libraries(connection, reader, tags)
            place = {"uid": uid, "tags": tags}
            if await connection.execute("name_taken", statements.NAME_TAKEN, place):
                raise Conflict("a document of that path stands there")
            await connection.execute("take_out", statements.TAKE_OUT, {**_who(reader), **place})
            await connection.execute("put_in", statements.PUT_IN, place)
            await connection.execute("touch", statements.TOUCH, {"uid": uid})
            await add_events(connection, AuditEvent.by(reader, AuditAction.DOCUMENT_PLACED, "document", uid))
        return await self.document(reader, uid)

    async def delete_document(self, reader: Reader, uid: str) -> bool:
        """Delete a document with all that belongs to it. Raises `Forbidden` where it is another's."""
        event = AuditEvent.by(reader, AuditAction.DOCUMENT_DELETED, "document", uid)
        return await self._owns_document(reader, uid) and await self._writer.delete_document(uid, event)

    async def chunks(self, reader: Reader, uid: str, limit: int, offset: int) -> list[dict[str, Any]] | None:
        """The chunks in order of the text; None for an unknown document."""
        rows = await self._statements.rows(
            "chunks", statements.CHUNKS, {**_key(reader, uid), "limit": limit, "offset": offset}
        )
        if not rows and not await self._statements.rows("owner", statements.OWNER, _key(reader, uid)):
            return None
        self._reads.of_document(reader, uid)
        return [_chunk(row) for row in rows]

    async def chunk(self, reader: Reader, uid: str, chunk_uid: str) -> dict[str, Any] | None:
        """One chunk with what a citation shows of its document."""
        rows = await self._statements.rows("chunk", statements.CHUNK, {**_key(reader, uid), "chunk": chunk_uid})
        if not rows:
            return None
        self._reads.of_document(reader, uid)
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
        rows = await self._statements.rows("markdown", statements.MARKDOWN, _key(reader, uid))
        if not rows:
            return None
        self._reads.of_document(reader, uid)
        content: str = rows[0][0]
        return content.encode()

    async def text(self, reader: Reader, uid: str, offset: int, limit: int) -> TextPart | None:
        """At most `limit` characters of the canonical text, from `offset` on; None for an unknown document."""
        key = {**_key(reader, uid), "start": offset + 1, "limit": limit}
        rows = await self._statements.rows("text", statements.TEXT, key)
        if not rows:
            return None
        self._reads.of_document(reader, uid)
        return TextPart(*rows[0])

    async def raw(self, reader: Reader, uid: str) -> RawFile | None:
        """The file as it was uploaded, read while it is sent: never whole in memory."""
        key = {**_key(reader, uid), "piece": self._piece_bytes}
        rows = await self._statements.rows("raw", statements.RAW, key)
        if not rows:
            return None
        self._reads.of_document(reader, uid)
        name, mime, version, size, first = rows[0]
        return RawFile(name, mime, size, self._pieces({**key, "version": version}, size, first))

    async def _pieces(self, key: dict[str, object], size: int, first: bytes) -> AsyncIterator[bytes]:
        yield first
        for start in range(self._piece_bytes, size, self._piece_bytes):
            rows = await self._statements.rows("raw_piece", statements.RAW_PIECE, {**key, "start": start + 1})
            if not rows:
                raise Conflict("the file was replaced or deleted while it was read")
            yield rows[0][0]

    async def _owns_document(self, reader: Reader, uid: str) -> bool:
        rows = await self._statements.rows("owner", statements.OWNER, _key(reader, uid))
        if rows and rows[0][0] != reader.user_id:
            raise Forbidden("another owner's document")
        return bool(rows)

    async def _owns_tag(self, reader: Reader, tag_id: str) -> bool:
        found = await self.tag(reader, tag_id)
        if found is not None and found["owner_id"] != reader.user_id:
            raise Forbidden("another owner's library")
        return found is not None


async def lock_own(connection: TimedConnection, reader: Reader, uid: str) -> bool:
    """Lock the reader's own document against other changes; False where it does not exist for them. Raises
    `Forbidden` for another's, `Conflict` for an attachment and while new content is written."""
    rows = await connection.execute("lock_document", statements.LOCK_DOCUMENT, _key(reader, uid))
    for own, attached in rows:
        if not own:
            raise Forbidden("another owner's document")
        if attached:
            raise Conflict("an attachment")
    if rows:
        await refuse_changing(connection, reader, uid)
    return bool(rows)


async def refuse_changing(connection: TimedConnection, reader: Reader, uid: str) -> None:
    """Raises `Conflict` for a document of the reader's that is being written: its upload decides its libraries."""
    if await connection.execute("changing", statements.CHANGING, {"uid": uid, "reader": reader.user_id}):
        raise Conflict("the document is being written")


async def _lock_libraries(connection: TimedConnection, reader: Reader, tags: Sequence[str]) -> None:
    """Lock the reader's own libraries against deletion."""
    rows = await connection.execute("lock_tags", statements.LOCK_TAGS, {**_who(reader), "tags": tags})
    if len(rows) < len(tags):
        raise UnknownLibrary
    if not all(own for _, own in rows):
        raise Forbidden("another owner's library")


def _sharing(reader: Reader, tag_id: str, was: Access, wanted: Access) -> list[AuditEvent]:
    """An event for each who reads the library from now on, and for each who does no more."""
    before, after = _subjects(was), _subjects(wanted)
    changes = [(AuditAction.LIBRARY_SHARED, after - before), (AuditAction.LIBRARY_UNSHARED, before - after)]
    return [
        AuditEvent.by(reader, action, "library", tag_id, subject=subject)
        for action, subjects in changes
        for subject in sorted(subjects)
    ]


def _subjects(access: Access) -> set[str]:
    subjects = {f"user:{user}" for user in access.users} | {f"group:{group}" for group in access.groups}
    return subjects | ({"everyone"} if access.everyone else set())


def _who(reader: Reader) -> dict[str, object]:
    within = None if reader.libraries is None else sorted(reader.libraries)
    return {"reader": reader.user_id, "groups": list(reader.groups), "within": within}


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
        # Beside the steps there are internal marks of the ingestion.
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


# Contents and chunks go with the document (ON DELETE CASCADE).
_DELETE = with_events(
    """DELETE FROM documents WHERE uid = :uid AND owner_id = :user AND session_id IS NOT NULL
    AND session_id = coalesce(CAST(:session AS text), session_id) RETURNING uid"""
)
_DELETE_SESSION = with_events("DELETE FROM documents WHERE session_id = :session AND owner_id = :user RETURNING uid")
_HELD = text("SELECT count(*) AS held FROM documents WHERE owner_id = :user AND session_id IS NOT NULL")


class Attachments:
    """Each method raises `IndexUnavailable` where Postgres is away."""

    def __init__(self, database: IndexDatabase) -> None:
        self._statements = Statements(database)

    async def delete(self, reader: Reader, uid: str, session_id: str | None) -> bool:
        """Delete one of the reader's own; False where it is not there, another's, or of another session."""
        told = events_parameter(AuditEvent.by(reader, AuditAction.ATTACHMENT_DELETED, "attachment", uid))
        values = {"uid": uid, "user": reader.user_id, "session": session_id, "audit": told}
        return bool(await self._statements.rows("delete_attachment", _DELETE, values))

    async def held(self, reader: Reader) -> int:
        """How many the reader has, in all sessions."""
        (row,) = await self._statements.rows("attachments_held", _HELD, {"user": reader.user_id})
        return int(row.held)

    async def delete_session(self, reader: Reader, session_id: str) -> int:
        """Delete all that the reader has in a session; returns how many."""
        told = events_parameter(AuditEvent.by(reader, AuditAction.ATTACHMENT_DELETED, "session", session_id))
        values = {"user": reader.user_id, "session": session_id, "audit": told}
        return len(await self._statements.rows("delete_attachments", _DELETE_SESSION, values))
