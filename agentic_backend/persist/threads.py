"""Sessions as threads: what is stored, overlaid with what is pending and what runs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from sqlalchemy import TextClause, text

from agentic_backend.errors import HistoryUnavailable, SessionBusy, SessionNotFound, TooLarge
from agentic_backend.events import utc_now
from agentic_backend.persist.database import Queries
from agentic_backend.persist.listing import session_of
from agentic_backend.persist.store import PostgresSessionStore
from agentic_backend.session.models import Session
from agentic_backend.session.threads import (
    MAX_METADATA_BYTES,
    SortBy,
    SortOrder,
    Thread,
    ThreadsWanted,
    expect_fitting,
)
from agentic_backend.spool.batcher import Batcher
from agentic_backend.spool.pending import Change, Key, Op, Pending, overlaid
from agentic_backend.spool.statements import SESSION_COLUMNS
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps, loads

_AT_A_TIME: Final = 50
"""Threads that are built from their rows before the loop is yielded: a millisecond."""

# pending   what the user's pending turns leave: it counts where no later turn is stored already
# running   what runs here
# lease     what another instance runs, but for a turn whose end is pending here: then only the lease is open still
# The newest message determines the state of a thread. A subquery that a statement does not use is not run.
_MINE: Final = """
WITH pending AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(:pending) AS p(session_id text, updated_at timestamptz, version bigint,
        turned_at timestamptz, state text, agent_id text, ended jsonb, gone boolean)
), running AS MATERIALIZED (
    SELECT key AS session_id, value AS agent_id FROM jsonb_each_text(:running)
), seen AS NOT MATERIALIZED (
    SELECT session.*, pending.turned_at, pending.state AS pending_state,
        coalesce(pending.version >= session.version, false) AS is_pending,
        greatest(session.updated_at, pending.updated_at) AS shown_at,
        coalesce(session.created_at, (
            SELECT "timestamp" FROM session_history AS told
            WHERE told.session_id = session.session_id AND told.user_id = session.user_id ORDER BY rank LIMIT 1
        ), session.updated_at) AS made_at,
        running.session_id IS NOT NULL OR lease.session_id IS NOT NULL AS busy,
        running.session_id IS NOT NULL OR lease.session_id IS NOT NULL OR pending.version IS NOT NULL
            OR coalesce((session_data->>'next_rank')::integer, 0) > 0 AS has_run,
        coalesce(nullif(session.agent_id, ''), running.agent_id, lease.ask::json #>> '{session,agent_id}',
            pending.agent_id, '') AS shown_agent
    FROM session LEFT JOIN pending USING (session_id) LEFT JOIN running USING (session_id)
        LEFT JOIN session_lease AS lease ON lease.session_id = session.session_id AND lease.exchange_id IS NOT NULL
            AND coalesce(pending.ended ? lease.exchange_id, false) = false
    WHERE session.user_id = :user_id AND pending.gone IS NOT TRUE
), stated AS NOT MATERIALIZED (
    SELECT seen.*, coalesce(CASE WHEN is_pending THEN pending_state ELSE (
        SELECT CASE WHEN metadata_json #>> '{extras,status}' = 'awaiting_human' THEN 'interrupted'
            WHEN metadata_json #> '{extras,error}' IS NOT NULL THEN 'error' END
        FROM session_history AS told WHERE told.session_id = seen.session_id AND told.user_id = seen.user_id
        ORDER BY rank DESC LIMIT 1
    ) END, 'idle') AS state, coalesce(CASE WHEN is_pending THEN turned_at ELSE (
        SELECT "timestamp" FROM session_history AS told
        WHERE told.session_id = seen.session_id AND told.user_id = seen.user_id ORDER BY rank DESC LIMIT 1
    ) END, made_at) AS told_at
    FROM seen
), mine AS NOT MATERIALIZED (
    SELECT stated.*, CASE WHEN busy THEN 'busy' ELSE state END AS status FROM stated
)"""

_TIME: Final = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS {}"""
_COLUMNS: Final = f"""{SESSION_COLUMNS}, metadata::text AS metadata, shown_agent, busy, state,
    {_TIME.format("made_at", "created_at")}, {_TIME.format("told_at", "state_at")}"""

GET_THREAD: Final = text(f"{_MINE} SELECT {_COLUMNS} FROM mine WHERE session_id = :session_id")  # noqa: S608 - constants

# Each of `:derived` is a pair of the metadata with the agents from which it follows.
_FOUND: Final = """(CAST(:ids AS text[]) IS NULL OR session_id = ANY(CAST(:ids AS text[])))
    AND (CAST(:status AS text) IS NULL OR status = :status)
    AND NOT EXISTS (
        SELECT FROM jsonb_to_recordset(:derived) AS wanted(key text, pair jsonb, agents jsonb)
        WHERE NOT (metadata @> pair OR has_run AND agents ? shown_agent AND NOT metadata ? key))"""
# In the words of the index session_by_metadata.
_STORED: Final = f"""{_FOUND}
    AND metadata @> CAST(:metadata AS jsonb) AND metadata <> '{{}}'"""

_KEYS: Final[dict[SortBy, str]] = {
    "thread_id": "session_id",
    "status": "status",
    "created_at": "made_at",
    "updated_at": "shown_at",
    "state_updated_at": "told_at",
}


def _search(found: str, key: str, order: SortOrder) -> TextClause:
    """For each thread only what the order needs is read, the rest only for those on the page. If there is none, one row
    without a thread has the total."""
    by = f"{order.upper()}, {{}}session_id"
    return text(f"""{_MINE}, matching AS MATERIALIZED (
    SELECT session_id, {key} AS place FROM mine WHERE {found}
), page AS MATERIALIZED (
    SELECT * FROM matching ORDER BY place {by.format("")} LIMIT :limit OFFSET :offset
)
SELECT {_COLUMNS}, (SELECT count(*) FROM matching) AS total
FROM (SELECT 1) AS one LEFT JOIN page ON true LEFT JOIN mine USING (session_id)
ORDER BY page.place {by.format("page.")}""")  # noqa: S608 - constants


SEARCH_THREADS: Final = {
    (has_stored, sort_by, order): _search(_STORED if has_stored else _FOUND, key, order)
    for has_stored in (False, True)
    for sort_by, key in _KEYS.items()
    for order in ("asc", "desc")
}
COUNT_THREADS: Final = {
    has_stored: text(f"{_MINE} SELECT count(*) AS total FROM mine WHERE {found}")  # noqa: S608 - constants
    for has_stored, found in ((False, _FOUND), (True, _STORED))
}

# One that shrinks may stay too large: it was stored when it was not.
MERGE_METADATA: Final = text("""
WITH merged AS (
    UPDATE session SET metadata = metadata || CAST(:metadata AS jsonb),
        updated_at = greatest(updated_at, CAST(:updated_at AS timestamptz))
    WHERE session_id = :session_id AND user_id = :user_id
        AND octet_length((metadata || CAST(:metadata AS jsonb))::text) <= greatest(:most, octet_length(metadata::text))
    RETURNING session_id
)
SELECT EXISTS (SELECT FROM merged) AS fits FROM session WHERE session_id = :session_id AND user_id = :user_id
""")

# All of it is of one moment. The copy's exchanges are its own: a user's turns are known by their ids alone. Messages
# name states of hosted graphs by their threads, which begin with the session's id.
_COPY: Final = """
WITH source AS MATERIALIZED (
    SELECT session.*, EXISTS (
        SELECT FROM session_lease AS lease
        WHERE lease.session_id = session.session_id AND lease.exchange_id IS NOT NULL) AS busy
    FROM session WHERE session_id = :session_id AND user_id = :user_id
), made AS (
    INSERT INTO session (session_id, user_id, agent_id, session_data, updated_at, version, metadata)
    SELECT :copy_id, user_id, agent_id, (session_data::jsonb - 'pinned')::json, CAST(:updated_at AS timestamptz),
        version, metadata
    FROM source
    WHERE NOT busy
        AND (EXISTS (SELECT FROM session WHERE session_id = :copy_id) OR room_for_session(:user_id, :most))
    ON CONFLICT (session_id) DO NOTHING RETURNING session_id AS copy_id
), written AS (
    INSERT INTO session_history (session_id, user_id, rank, "timestamp", role, channel, exchange_id, parts_json,
        metadata_json)
    SELECT copy_id, user_id, rank, "timestamp", role, channel, md5(copy_id || exchange_id)::uuid::text, parts_json,
        CASE WHEN strpos(metadata_json::text, :session_id || '/') > 0
            THEN replace(metadata_json::text, :session_id || '/', copy_id || '/')::jsonb ELSE metadata_json END
    FROM made, session_history WHERE session_id = :session_id AND user_id = :user_id
)"""
_COPIED: Final = """
SELECT busy, EXISTS (SELECT FROM made) OR EXISTS (SELECT FROM session WHERE session_id = :copy_id) AS made FROM source
"""
_STATES: Final = {
    "checkpoints": "checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata",
    "checkpoint_blobs": "checkpoint_ns, channel, version, type, blob",
    "checkpoint_writes": "checkpoint_ns, checkpoint_id, task_id, idx, channel, type, blob, task_path",
}
"""LangGraph's tables, with the columns of each beside its thread."""
_COPIED_STATES: Final = "".join(
    f""", {table}_written AS (
    INSERT INTO {table} (thread_id, {columns})
    SELECT copy_id || substr(thread_id, length(:session_id) + 1), {columns}
    FROM made, {table} WHERE session_id = :session_id
)"""  # noqa: S608 - constants
    for table, columns in _STATES.items()
)

COPY_THREAD: Final = text(_COPY + _COPIED)
COPY_THREAD_AND_STATES: Final = text(_COPY + _COPIED_STATES + _COPIED)
HAS_STATES: Final = text("""
SELECT count(*) = 3 AS has_states FROM unnest(CAST(:tables AS text[])) AS wanted(name)
WHERE EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(name) AND attname = 'session_id')
""")
"""LangGraph's tables are made at their first use."""


def _nothing(_user_id: str) -> Mapping[str, str]:
    """The default of `running`."""
    return {}


class PostgresThreads:
    """Implements `ThreadStore`."""

    def __init__(
        self, queries: Queries, pending: Pending, batcher: Batcher, store: PostgresSessionStore, *, commit_s: float
    ) -> None:
        """`commit_s` is how long a copy waits for what is pending of the original, in seconds."""
        self._queries = queries
        self._pending = pending
        self._batcher = batcher
        self._store = store
        self._commit_s = commit_s
        self.running: Callable[[str], Mapping[str, str]] = _nothing
        """The sessions of a user in which a turn runs here, each with its agent."""

    async def get(self, session_id: str, user_id: str) -> Thread | None:
        """See `ThreadStore`."""
        key = (session_id, user_id)
        if not (session_id.isascii() and session_id.isprintable()) or self._pending.deletion(key) is not None:
            return None
        # Taken before the query: what is committed while it runs may be in neither.
        ops = self._pending.ops(key)
        values = {**self._overlay(user_id, {session_id: ops}, set()), "session_id": session_id}
        rows = await self._queries.fetch("get_thread", GET_THREAD, values)
        return _thread(rows[0], ops) if rows else None

    async def create(
        self, session: Session, metadata: dict[str, Any], most: int = 0
    ) -> Literal["made", "there"] | None:
        """See `ThreadStore`."""
        expect_fitting(metadata)
        return await self._store.create(session, most, metadata)

    async def merge(self, session_id: str, user_id: str, metadata: dict[str, Any]) -> bool:
        """See `ThreadStore`."""
        expect_fitting(metadata)
        if not (session_id.isascii() and session_id.isprintable()):
            return False
        values = {
            "session_id": session_id,
            "user_id": user_id,
            "metadata": dumps(metadata).decode(),
            "updated_at": utc_now(),
            "most": MAX_METADATA_BYTES,
        }
        rows = await self._queries.fetch("merge_metadata", MERGE_METADATA, values)
        if rows and not rows[0].fits:
            raise TooLarge(field="metadata")
        return bool(rows)

    async def search(self, user_id: str, wanted: ThreadsWanted) -> tuple[list[Thread], int]:
        """See `ThreadStore`."""
        ops, deleted = self._pending.of_user(user_id)
        found = _found(wanted)
        statement = SEARCH_THREADS[_has_stored(wanted), wanted.sort_by, wanted.sort_order]
        page = {"limit": wanted.limit, "offset": wanted.offset}
        rows = await self._queries.fetch(
            "search_threads", statement, {**self._overlay(user_id, ops, deleted), **found, **page}
        )
        threads: list[Thread] = []
        if rows[0].session_id is not None:
            for start in range(0, len(rows), _AT_A_TIME):
                threads += [_thread(row, ops.get(row.session_id, ())) for row in rows[start : start + _AT_A_TIME]]
                await asyncio.sleep(0)
        return threads, int(rows[0].total)

    async def count(self, user_id: str, wanted: ThreadsWanted) -> int:
        """See `ThreadStore`."""
        statement = COUNT_THREADS[_has_stored(wanted)]
        values = {**self._overlay(user_id, *self._pending.of_user(user_id)), **_found(wanted)}
        return int((await self._queries.fetch("count_threads", statement, values))[0].total)

    async def copy(self, session_id: str, user_id: str, copy_id: str, most: int = 0) -> Literal["made", "there"] | None:
        """See `ThreadStore`."""
        key = (session_id, user_id)
        if not (session_id.isascii() and session_id.isprintable()) or self._pending.deletion(key) is not None:
            raise SessionNotFound
        if session_id in self.running(user_id):
            raise SessionBusy(retry_after_s=1.0)
        await self._written(key)
        values = {
            "session_id": session_id,
            "user_id": user_id,
            "copy_id": copy_id,
            "updated_at": utc_now(),
            "most": most,
        }
        (found,) = await self._queries.fetch("has_states", HAS_STATES, {"tables": list(_STATES)})
        statement = COPY_THREAD_AND_STATES if found.has_states else COPY_THREAD
        rows = await self._queries.fetch("copy_thread", statement, values)
        if not rows:
            raise SessionNotFound
        if rows[0].made:
            return "made"
        if rows[0].busy:
            raise SessionBusy(retry_after_s=1.0)
        return None

    async def _written(self, key: Key) -> None:
        """Return once Postgres has everything pending of a session. Raises `HistoryUnavailable` if that takes long."""
        ops = self._pending.ops(key)
        if not ops:
            return
        # A change that changes nothing: it is committed after all of them.
        at = max((one.updated_at for one in _left_by(ops)), default=utc_now())
        committed, _ = self._batcher.change(Change(key, at))
        try:
            async with asyncio.timeout(self._commit_s):
                await asyncio.shield(committed)
        except TimeoutError:
            raise HistoryUnavailable("the thread waits for Postgres", retry_after_s=1.0) from None

    def _overlay(self, user_id: str, ops: Mapping[str, Sequence[Op]], deleted: set[str]) -> dict[str, object]:
        pending = [_pending(session_id, of_session, deleted) for session_id, of_session in ops.items() if of_session]
        return {
            "user_id": user_id,
            "pending": dumps(pending).decode(),
            "running": dumps(dict(self.running(user_id))).decode(),
        }


def _has_stored(wanted: ThreadsWanted) -> bool:
    return bool(wanted.metadata.keys() - wanted.agents.keys())


def _found(wanted: ThreadsWanted) -> dict[str, object]:
    """The parameters of what a statement is to find."""
    derived = [
        {"key": key, "pair": {key: wanted.metadata[key]}, "agents": list(agents)}
        for key, agents in wanted.agents.items()
    ]
    values: dict[str, object] = {
        "ids": None if wanted.ids is None else list(wanted.ids),
        "status": wanted.status,
        "derived": dumps(derived).decode(),
    }
    if _has_stored(wanted):
        stored = {key: value for key, value in wanted.metadata.items() if key not in wanted.agents}
        values["metadata"] = dumps(stored).decode()
    return values


def _left_by(ops: Sequence[Op]) -> list[Change | Session]:
    return [left for op in ops for left in (op.change, op.after) if left is not None]


def _pending(session_id: str, ops: Sequence[Op], deleted: set[str]) -> dict[str, Any]:
    """The query's parameters for a session with pending operations."""
    newest = next((op for op in reversed(ops) if op.after is not None), None)
    after = None if newest is None else newest.after
    told: dict[str, Any] = {
        "session_id": session_id,
        # All in one format and zone, so that they sort as text.
        "updated_at": max((one.updated_at for one in _left_by(ops)), default=None),
        "ended": [op.exchange_id for op in ops if op.kind == "turn"],
        "gone": session_id in deleted,
    }
    if newest is not None and after is not None:
        told |= {"version": after.version, "turned_at": newest.told_at, "state": newest.state}
        told["agent_id"] = after.agent_id
    return told


def _thread(row: AnyRow, ops: Sequence[Op]) -> Thread:
    stored = session_of(row)
    session = (overlaid(stored, ops) or stored).with_agent(row.shown_agent)
    return Thread(session, loads(row.metadata), row.created_at, row.state_at, row.state, row.busy)
