"""The row of a document while it is ingested: found or created, its stages and its failure recorded.

A document is known by its owner, its label (`file_path`) and its libraries: a file of the same label in one of them is
a new version of it. Each upload claims the row, and the newest claim counts: an older one stops at its next step, and
what it has read is not written. A document that is ready stays so with its old content until new content replaces it,
and also where that fails.

The transaction of the claim also stores a job: the file's bytes and what to do with them, leased to the process that
received it. If that process dies, the lease runs out, and any process takes the job over under a mark of its own. A job
ends with its document's success, failure or deletion. A document that is read again is such a job, with the bytes that
are kept of it.
"""

import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from backend_kit.db.pool import TimedConnection
from backend_kit.wire import dumps
from knowledge_flow_backend.errors import Conflict
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.library.reasons import Reason, Refused
from knowledge_flow_backend.library.statements import label_lock
from knowledge_flow_backend.library.store import RAW_PIECE_BYTES, Statements, lock_own, refuse_changing

_OWN_TAGS = text("SELECT id FROM tags WHERE id = ANY(CAST(:tags AS text[])) AND owner_id = :user")
_LOCK_TIMEOUT = text("SET LOCAL lock_timeout = 5000")
_LOCK_LABEL = text(f"SELECT {label_lock('CAST(:user AS text)', 'CAST(:path AS text)')}")
_FIND = text(
    """SELECT d.uid, d.status, d.content_hash, d.stages->>'pipeline' AS pipeline,
        EXISTS (SELECT 1 FROM ingest_jobs j WHERE j.document_uid = d.uid) AS changing
    FROM documents d
    WHERE d.owner_id = :user AND d.session_id IS NULL AND d.file_path = :path
    AND CASE WHEN cardinality(CAST(:tags AS text[])) = 0
        THEN NOT EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid)
        ELSE EXISTS (SELECT 1 FROM document_tags o WHERE o.document_uid = d.uid
                     AND o.tag_id = ANY(CAST(:tags AS text[])))
            OR EXISTS (SELECT 1 FROM ingest_jobs j WHERE j.document_uid = d.uid
                       AND j.tag_ids && CAST(:tags AS text[])) END
    ORDER BY d.ingested_at, d.uid LIMIT 2"""
)
"""The documents that a file of this label would be a new version of, those on their way into a library too."""
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
    status = CASE WHEN status = 'ready' THEN 'ready' ELSE 'processing' END WHERE uid = :uid RETURNING version"""
)
_DROP_JOB = text("DELETE FROM ingest_jobs WHERE document_uid = :uid")
_ADD_JOB = text(
    """INSERT INTO ingest_jobs (document_uid, claim, label, content_hash, size_bytes, tag_ids, source_tag, version,
        leased_until)
    VALUES (:uid, :claim, :path, :hash, :size, CAST(:tags AS text[]), :source_tag, :version, now())"""
)
_ADD_PIECE = text("INSERT INTO ingest_pieces (document_uid, ordinal, data) VALUES (:uid, :ordinal, :data)")
_COPY_PIECES = text(
    """INSERT INTO ingest_pieces (document_uid, ordinal, data)
    SELECT c.document_uid, at.ordinal, substring(c.raw FROM at.ordinal * :piece + 1 FOR :piece)
    FROM document_contents c, generate_series(0, (octet_length(c.raw) - 1) / :piece) AS at(ordinal)
    WHERE c.document_uid = :uid"""
)
_KEPT = text(
    """SELECT COALESCE(d.file_path, d.file_name) AS label, d.content_hash, d.source_tag,
        octet_length(c.raw) AS size_bytes
    FROM documents d JOIN document_contents c ON c.document_uid = d.uid WHERE d.uid = :uid"""
)
_PIECE = text(
    """SELECT p.data FROM ingest_pieces p JOIN ingest_jobs j USING (document_uid)
    WHERE p.document_uid = :uid AND j.claim = :claim AND p.ordinal = :ordinal"""
)
_RENEW = text(
    """UPDATE ingest_jobs SET leased_until = clock_timestamp() + make_interval(secs => :lease_s)
    WHERE claim = ANY(CAST(:claims AS text[]))"""
)
_RELEASE = text("UPDATE ingest_jobs SET leased_until = '-infinity' WHERE claim = :claim")
# The document's row is locked first, as where a newer upload claims it. Its own second look at the lease decides.
_TAKE = text(
    """WITH due AS (
        SELECT d.uid, jsonb_path_exists(d.stages, '$.*.status ? (@ == "running")') AS begun
        FROM ingest_jobs j JOIN documents d ON d.uid = j.document_uid
        WHERE j.leased_until < now() AND j.claim <> ALL(CAST(:held AS text[]))
        ORDER BY j.received_at LIMIT 1 FOR UPDATE OF d SKIP LOCKED
    ), taken AS (
        UPDATE ingest_jobs j SET claim = :claim, leased_until = now() + make_interval(secs => :lease_s),
            deaths = j.deaths + CASE WHEN due.begun AND j.leased_until <> '-infinity' THEN 1 ELSE 0 END
        FROM due WHERE j.document_uid = due.uid AND j.leased_until < now() RETURNING j.*
    ), marked AS (
        UPDATE documents d SET updated_at = now(),
            stages = d.stages || jsonb_build_object('claim', CAST(:claim AS text), 'pipeline', CAST(:pipeline AS text))
        FROM taken WHERE d.uid = taken.document_uid
        RETURNING d.uid, d.owner_id, d.mime_type, d.stages,
            d.status = 'ready' AND d.version > taken.version AND d.content_hash = taken.content_hash AS written
    ) SELECT taken.document_uid, taken.label, taken.content_hash, taken.size_bytes, taken.tag_ids, taken.source_tag,
        taken.deaths, marked.owner_id, marked.stages, marked.written
    FROM taken JOIN marked ON marked.uid = taken.document_uid"""
)
_NOTE = text(
    """UPDATE documents SET stages = CAST(:stages AS jsonb), updated_at = now()
    WHERE uid = :uid AND stages->>'claim' = :claim RETURNING uid"""
)
_END_JOB = "DELETE FROM ingest_jobs j USING ended WHERE j.document_uid = ended.uid AND j.claim = :claim"
_FINISH = text(
    f"""WITH ended AS (
        UPDATE documents SET stages = CAST(:stages AS jsonb), updated_at = now()
        WHERE uid = :uid AND stages->>'claim' = :claim RETURNING uid
    ), gone AS ({_END_JOB}) SELECT uid FROM ended"""  # noqa: S608 - constants of this module
)
_FAIL = text(
    f"""WITH ended AS (
        UPDATE documents SET stages = CAST(:stages AS jsonb) - 'pipeline', error = :reason, updated_at = now(),
        status = CASE WHEN status = 'ready' THEN 'ready' ELSE 'failed' END
        WHERE uid = :uid AND stages->>'claim' = :claim RETURNING uid
    ), gone AS ({_END_JOB}) SELECT uid FROM ended"""  # noqa: S608 - constants of this module
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
    """A document that one upload has claimed. `stages` is `{step: {"status", "ms"?, …}}`."""

    uid: str
    pipeline: str
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self) -> dict[str, object]:
        """The parameters of a statement about it."""
        stages = {"claim": self.mark, "pipeline": self.pipeline, **self.stages}
        return {"uid": self.uid, "claim": self.mark, "stages": dumps(stages).decode()}


@dataclass(frozen=True, slots=True)
class Left:
    """A job whose bytes are in Postgres alone: of a process that died, or of a document that is read again.

    `deaths` is how many processes have died while they worked on it, `written` whether the document was stored before
    the last one did.
    """

    claim: Claim
    owner_id: str
    label: str
    sha256: str
    size: int
    tags: tuple[str, ...]
    source_tag: str | None
    deaths: int
    written: bool


class Intake:
    """Rows of documents being ingested, and their jobs. Every method raises `IndexUnavailable` where Postgres is away.

    `lease_s`: seconds after which a job belongs to nobody, unless its holder renews it.
    """

    def __init__(self, database: IndexDatabase, *, lease_s: float = 15.0) -> None:
        self._database = database
        self._statements = Statements(database)
        self.lease_s = lease_s

    async def owns(self, reader: Reader, tags: Sequence[str]) -> bool:
        """Whether all these libraries exist and belong to the caller; where their key is limited to some, whether the
        documents go into these alone."""
        if reader.libraries is not None and not (tags and reader.libraries.issuperset(tags)):
            return False
        if not tags:
            return True
        rows = await self._statements.rows("own_tags", _OWN_TAGS, {"tags": list(tags), "user": reader.user_id})
        return len(rows) == len(set(tags))

    async def claim(self, reader: Reader, arrival: Arrival, pieces: AsyncIterator[bytes]) -> tuple[Claim, bool]:
        """Claim the document of a file and store the file's bytes: the claim, and False where it holds the same bytes.

        All or nothing: when this returns True, the file is ingested whatever happens to this process. Raises `Refused`
        with `superseded` where its libraries are deleted meanwhile, with `ambiguous` where it would be a new version of
        several documents, and what `pieces` raises.
        """
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                await connection.execute("lock_timeout", _LOCK_TIMEOUT)
                found = await _find_or_add(connection, reader, arrival)
                claim = Claim(found.uid, arrival.pipeline)
                same = (found.status, found.content_hash, found.pipeline) == ("ready", arrival.sha256, arrival.pipeline)
                if same and not found.changing:
                    if arrival.tags:
                        await connection.execute("put_tags", _TAG, {"uid": found.uid, "tags": list(arrival.tags)})
                else:
                    await self._store(connection, claim, arrival, pieces)
                await connection.commit()
        return claim, found.changing or not same

    async def again(self, reader: Reader, uid: str, pipeline: str) -> Left | None:
        """Claim a document of the reader's to read the file that is kept of it again; None for an unknown one.

        Durable as in `claim`. Raises `Forbidden` for another's, `Conflict` for an attachment, while new content is
        written, and where no file of it is kept.
        """
        claim = Claim(uid, pipeline)
        with self._database.guarded():
            async with self._database.writes.connection() as connection:
                await connection.execute("lock_timeout", _LOCK_TIMEOUT)
                # Before any lock: the write of a large document holds its row for minutes.
                await refuse_changing(connection, reader, uid)
                if not await lock_own(connection, reader, uid):
                    return None
                kept = await connection.execute("kept", _KEPT, {"uid": uid})
                if not kept:
                    raise Conflict("no file of it is kept")
                job = {
                    "path": kept[0].label,
                    "hash": kept[0].content_hash,
                    "size": kept[0].size_bytes,
                    "tags": [],  # it stays where it is
                    "source_tag": kept[0].source_tag,
                }
                await _add_job(connection, claim, job)
                await connection.execute("copy_pieces", _COPY_PIECES, {"uid": uid, "piece": RAW_PIECE_BYTES})
                await connection.execute("renew_jobs", _RENEW, {"claims": [claim.mark], "lease_s": self.lease_s})
                await connection.commit()
        return Left(
            claim=claim,
            owner_id=reader.user_id,
            label=kept[0].label,
            sha256=kept[0].content_hash,
            size=kept[0].size_bytes,
            tags=(),
            source_tag=kept[0].source_tag,
            deaths=0,
            written=False,
        )

    async def note(self, claim: Claim) -> None:
        """Record the stages. Raises `Refused` with `superseded` where the document is no longer this upload's."""
        if not await self._statements.rows("note_stage", _NOTE, claim.row()):
            raise Refused(Reason.SUPERSEDED)

    async def finish(self, claim: Claim) -> None:
        """Record the stages and delete the job. Raises as `note`."""
        if not await self._statements.rows("finish_document", _FINISH, claim.row()):
            raise Refused(Reason.SUPERSEDED)

    async def fail(self, claim: Claim, reason: Reason) -> None:
        """Record why it failed and delete the job; nothing where the document is no longer this upload's."""
        await self._statements.rows("fail_document", _FAIL, {**claim.row(), "reason": reason.value})

    async def renew(self, claims: Sequence[str]) -> None:
        """Renew the leases of the jobs with these marks."""
        await self._statements.rows("renew_jobs", _RENEW, {"claims": list(claims), "lease_s": self.lease_s})

    async def release(self, claim: Claim) -> None:
        """Give up a job, so that another process need not wait for the end of its lease."""
        await self._statements.rows("release_job", _RELEASE, {"claim": claim.mark})

    async def take(self, pipeline: str, held: Sequence[str]) -> Left | None:
        """Take over the oldest job whose lease has run out; None where there is none.

        `held`: marks of jobs that the caller has. Their leases may have run out while Postgres was away.
        """
        mark = secrets.token_hex(8)
        wanted = {"claim": mark, "pipeline": pipeline, "lease_s": self.lease_s, "held": list(held)}
        rows = await self._statements.rows("take_job", _TAKE, wanted)
        if not rows:
            return None
        row = rows[0]
        stages = {name: stage for name, stage in row.stages.items() if isinstance(stage, dict)}
        return Left(
            claim=Claim(row.document_uid, pipeline, mark, stages),
            owner_id=row.owner_id,
            label=row.label,
            sha256=row.content_hash,
            size=row.size_bytes,
            tags=tuple(row.tag_ids),
            source_tag=row.source_tag,
            deaths=row.deaths,
            written=row.written,
        )

    async def pieces(self, claim: Claim) -> AsyncIterator[bytes]:
        """The bytes of a job in order; they end early where the document is no longer this upload's."""
        ordinal = 0
        while rows := await self._statements.rows(
            "read_piece", _PIECE, {"uid": claim.uid, "claim": claim.mark, "ordinal": ordinal}
        ):
            yield bytes(rows[0][0])
            ordinal += 1

    async def _store(
        self, connection: TimedConnection, claim: Claim, arrival: Arrival, pieces: AsyncIterator[bytes]
    ) -> None:
        job = {
            "path": arrival.path,
            "hash": arrival.sha256,
            "size": arrival.size,
            "tags": list(arrival.tags),
            "source_tag": arrival.source_tag,
        }
        await _add_job(connection, claim, job)
        ordinal = 0
        async for piece in pieces:
            await connection.execute("add_piece", _ADD_PIECE, {"uid": claim.uid, "ordinal": ordinal, "data": piece})
            ordinal += 1
        # From the commit on, not from the beginning of the transaction.
        await connection.execute("renew_jobs", _RENEW, {"claims": [claim.mark], "lease_s": self.lease_s})


async def _add_job(connection: TimedConnection, claim: Claim, job: Mapping[str, object]) -> None:
    """Claim a document for a job, `{path, hash, size, tags, source_tag}`, whose pieces follow in the same transaction.
    Raises `Refused` with `superseded`."""
    claimed = await connection.execute("claim", _CLAIM, {"uid": claim.uid, "stages": claim.row()["stages"]})
    if not claimed:
        raise Refused(Reason.SUPERSEDED)
    await connection.execute("drop_job", _DROP_JOB, {"uid": claim.uid})
    values = {**job, "uid": claim.uid, "claim": claim.mark, "version": claimed[0][0]}
    await connection.execute("add_job", _ADD_JOB, values)


async def _find_or_add(connection: TimedConnection, reader: Reader, arrival: Arrival) -> Any:
    key: Mapping[str, object] = {"user": reader.user_id, "path": arrival.path, "tags": list(arrival.tags)}
    await connection.execute("lock_label", _LOCK_LABEL, {"user": reader.user_id, "path": arrival.path})
    if found := await _find(connection, key):
        return found
    new = {
        **key,
        "name": arrival.name,
        "mime": arrival.mime,
        "type": arrival.type,
        "source_tag": arrival.source_tag,
        "hash": arrival.sha256,
        "size": arrival.size,
    }
    # The first uid is derived, so that citations of a deleted document work again once it is uploaded again. It is in
    # use where that document was moved to another library.
    for uid in (_derived(reader, arrival), secrets.token_hex(16)):
        if await connection.execute("add_document", _ADD, {**new, "uid": uid}):
            break
    if found := await _find(connection, key):
        return found
    raise Refused(Reason.SUPERSEDED)  # its libraries were deleted this moment


async def _find(connection: TimedConnection, key: Mapping[str, object]) -> Any:
    found = await connection.execute("find_document", _FIND, key)
    if len(found) > 1 and key["tags"]:
        raise Refused(Reason.AMBIGUOUS)
    return found[0] if found else None


def _derived(reader: Reader, arrival: Arrival) -> str:
    key = "\0".join((reader.user_id, arrival.path, *sorted(arrival.tags)[:1]))
    return hashlib.sha256(key.encode()).hexdigest()[:32]
