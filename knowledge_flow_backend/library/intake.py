"""The row of a document while it is ingested: found or made, its stages written down, its failure said.

A document is known by its owner, its label (`file_path`) and its libraries: a file of the same label in one of them is
a new version of it. Each upload claims the row, and the newest claim counts; an older one stops at its next step. A
document that is ready stays so, with its old content, until the new one takes its place or after that has failed.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from backend_kit.wire import dumps
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.index.database import Database
from knowledge_flow_backend.library.reasons import Reason, Refused
from knowledge_flow_backend.library.store import Statements

_OWN_TAGS = text("SELECT id FROM tags WHERE id = ANY(CAST(:tags AS text[])) AND owner_id = :user")
_FIND = text(
    """SELECT d.uid, d.status, d.content_hash, d.stages->>'pipeline' AS pipeline FROM documents d
    WHERE d.owner_id = :user AND d.session_id IS NULL AND d.file_path = :path
    AND CASE WHEN cardinality(CAST(:tags AS text[])) = 0
        THEN NOT EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid)
        ELSE EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid
                     AND o.tag_id = ANY(CAST(:tags AS text[]))) END
    ORDER BY d.ingested_at, d.uid LIMIT 1"""
)
_ADD = text(
    """WITH made AS (
        INSERT INTO documents (uid, owner_id, title, file_name, file_path, mime_type, type, source_tag, content_hash,
            size_bytes)
        VALUES (:uid, :user, :name, :name, :path, :mime, :type, :source_tag, :hash, :size)
        ON CONFLICT (uid) DO NOTHING RETURNING uid
    ), tagged AS (
        INSERT INTO document_tags (document_uid, tag_id)
        SELECT made.uid, t.id FROM made JOIN tags t ON t.id = ANY(CAST(:tags AS text[])) ORDER BY t.id
    ) SELECT uid FROM made"""
)
_TAG = text(
    """INSERT INTO document_tags (document_uid, tag_id)
    SELECT d.uid, t.id FROM documents d JOIN tags t ON t.id = ANY(CAST(:tags AS text[])) WHERE d.uid = :uid
    ON CONFLICT DO NOTHING"""
)
_CLAIM = text(
    """UPDATE documents SET stages = CAST(:stages AS jsonb), error = NULL, updated_at = now(),
    status = CASE WHEN status = 'ready' THEN 'ready' ELSE 'processing' END WHERE uid = :uid RETURNING uid"""
)
_NOTE = text(
    """UPDATE documents SET stages = CAST(:stages AS jsonb), updated_at = now()
    WHERE uid = :uid AND stages->>'claim' = :claim RETURNING uid"""
)
_FAIL = text(
    """UPDATE documents SET stages = CAST(:stages AS jsonb), error = :reason, updated_at = now(),
    status = CASE WHEN status = 'ready' THEN 'ready' ELSE 'failed' END
    WHERE uid = :uid AND stages->>'claim' = :claim RETURNING uid"""
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file that came: its label, media type and parser, the SHA-256 of its bytes, where it is to stand.

    `pipeline` names how files are read and divided: the same bytes under another one are read again.
    """

    path: str
    name: str
    mime: str
    type: str
    sha256: str
    size: int
    tags: tuple[str, ...]
    source_tag: str | None
    pipeline: str


@dataclass(slots=True)
class Claim:
    """A document in the hands of one upload. `stages` is `{step: {"status", "ms"?, …}}`."""

    uid: str
    pipeline: str
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """The parameters of a statement about it."""
        stages = {"claim": self.mark, "pipeline": self.pipeline, **self.stages}
        return {"uid": self.uid, "claim": self.mark, "stages": dumps(stages).decode()}


class Intake:
    """The rows. Every method raises `IndexUnavailable` where Postgres is away."""

    def __init__(self, database: Database) -> None:
        self._statements = Statements(database)

    async def owns(self, reader: Reader, tags: Sequence[str]) -> bool:
        """Whether all these libraries are there and the caller's own to fill."""
        if not tags:
            return True
        rows = await self._statements.rows("own_tags", _OWN_TAGS, {"tags": list(tags), "user": reader.user_id})
        return len(rows) == len(set(tags))

    async def claim(self, reader: Reader, arrival: Arrival) -> tuple[Claim, bool]:
        """Take a file in hand: the claim, and False where the document holds these very bytes already."""
        found = await self._find_or_add(reader, arrival)
        claim = Claim(found.uid, arrival.pipeline)
        same = (found.status, found.content_hash, found.pipeline) == ("ready", arrival.sha256, arrival.pipeline)
        if same:
            if arrival.tags:
                await self._statements.rows("put_tags", _TAG, {"uid": found.uid, "tags": list(arrival.tags)})
            return claim, False
        if not await self._statements.rows("claim", _CLAIM, {"uid": claim.uid, "stages": claim.row()["stages"]}):
            raise Refused(Reason.SUPERSEDED)
        return claim, True

    async def note(self, claim: Claim) -> None:
        """Write the stages down. Raises `Refused` with `superseded` where the document is no longer this upload's."""
        if not await self._statements.rows("note_stage", _NOTE, claim.row()):
            raise Refused(Reason.SUPERSEDED)

    async def fail(self, claim: Claim, reason: Reason) -> None:
        """Write down why it ended; nothing where the document is no longer this upload's."""
        await self._statements.rows("fail_document", _FAIL, {**claim.row(), "reason": reason.value})

    async def _find_or_add(self, reader: Reader, arrival: Arrival) -> Any:
        key: Mapping[str, object] = {"user": reader.user_id, "path": arrival.path, "tags": list(arrival.tags)}
        new = {
            **key,
            "name": arrival.name,
            "mime": arrival.mime,
            "type": arrival.type,
            "source_tag": arrival.source_tag,
            "hash": arrival.sha256,
            "size": arrival.size,
        }
        # The first uid is derived, so that two first uploads at once meet in one row. It is taken without being found
        # where that document was moved to another library since.
        for uid in (_derived(reader, arrival), secrets.token_hex(16)):
            if found := await self._statements.rows("find_document", _FIND, key):
                return found[0]
            await self._statements.rows("add_document", _ADD, {**new, "uid": uid})
        if found := await self._statements.rows("find_document", _FIND, key):
            return found[0]
        raise Refused(Reason.SUPERSEDED)  # its libraries were deleted this moment


def _derived(reader: Reader, arrival: Arrival) -> str:
    key = "\0".join((reader.user_id, arrival.path, *sorted(arrival.tags)[:1]))
    return hashlib.sha256(key.encode()).hexdigest()[:32]
