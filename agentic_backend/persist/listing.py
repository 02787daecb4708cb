"""Pages of a user's sessions, each in one query: what is stored, overlaid with what is pending."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import text

from agentic_backend.persist.queries import Queries
from agentic_backend.session.models import ListedFile, Session, SessionsWanted, TurnRecord
from agentic_backend.spool.pending import Change, Op, Pending, overlaid
from agentic_backend.spool.statements import SESSION_COLUMNS
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps, loads

_PENDING_BYTES: Final = 1024 * 1024
"""A search covers only this many bytes of the newest pending turns: an outage may leave 512 MiB of them."""
_AT_A_TIME: Final = 50
"""Sessions that are made of their rows before others have their turn of the loop: a millisecond."""
_PREFIX_CHARS: Final = 3
"""The least characters of a search's last word for it to match as a prefix: `a` begins a tenth of all words."""

# Pending operations move, name or hide a session, so they are applied before the page is cut. A turn never overwrites
# an existing title (`first_title`), a change does (`set_title`).
_MINE: Final = """
WITH pending AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(:pending)
        AS p(session_id text, updated_at timestamptz, set_title text, first_title text, texts jsonb, gone boolean)
), mine AS (
    SELECT session.*, greatest(session.updated_at, pending.updated_at) AS shown_at,
        coalesce(set_title, nullif(session_data->>'title', ''), first_title, '') AS shown_title, texts
    FROM session LEFT JOIN pending USING (session_id)
    WHERE session.user_id = :user_id AND pending.gone IS NOT TRUE
)"""
_PAGE: Final = "ORDER BY shown_at DESC, session_id LIMIT CAST(:limit AS bigint) OFFSET :offset"

_COLUMNS: Final = f"""{SESSION_COLUMNS}, (
    SELECT json_agg(
        json_build_array(attachment_id, name, size_bytes,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
        ORDER BY created_at, attachment_id)
    FROM session_attachments WHERE session_attachments.session_id = mine.session_id
)::text AS attachments"""  # noqa: S608 - constants

LIST_SESSIONS: Final = text(f"{_MINE} SELECT {_COLUMNS} FROM mine {_PAGE}")  # noqa: S608 - constants

# The expression must equal that of the index session_history_words. A search without a word finds nothing.
SEARCH_SESSIONS: Final = text(
    f"""{_MINE}, asked AS MATERIALIZED (
    SELECT CAST(nullif(CAST(plainto_tsquery('simple', :words) AS text), '') || :beginning AS tsquery) AS query
), told AS (
    SELECT session_id FROM session_history
    WHERE (array_to_tsvector(ARRAY['@' || md5(user_id)]) || to_tsvector('simple', left(
            jsonb_path_query_first(parts_json, '$[*] ? (@.type == "text").text') #>> '{{}}', 100000)))
        @@ (CAST('''@' || md5(:user_id) || '''' AS tsquery) && (SELECT query FROM asked))
        AND channel = 'final' AND user_id = :user_id
)
SELECT {_COLUMNS} FROM mine
WHERE to_tsvector('simple', shown_title) @@ (SELECT query FROM asked)
    OR session_id IN (SELECT session_id FROM told)
    OR EXISTS (SELECT FROM jsonb_array_elements_text(texts) AS said
        WHERE to_tsvector('simple', left(said, 100000)) @@ (SELECT query FROM asked))
{_PAGE}"""  # noqa: S608 - constants
)


class SessionList:
    """Reads pages of sessions, newest first."""

    def __init__(self, queries: Queries, pending: Pending) -> None:
        self._queries = queries
        self._pending = pending

    async def page(self, user_id: str, wanted: SessionsWanted) -> list[Session]:
        """The user's sessions with all the words in their title or in one question or answer; the last word may be a
        prefix. Raises `HistoryUnavailable`.
        """
        # Taken before the query: what is committed while it runs would otherwise be missing from both.
        ops, deleted = self._pending.of_user(user_id)
        words = wanted.words.split()
        texts = await self._texts(ops) if words else {}
        parameters: dict[str, object] = {
            "user_id": user_id,
            "pending": dumps(_pending(ops, deleted, texts)).decode(),
            "limit": wanted.limit,
            "offset": wanted.offset,
        }
        if words:
            asked = {"words": " ".join(words), "beginning": ":*" if len(words[-1]) >= _PREFIX_CHARS else ""}
            rows = await self._queries.fetch("search_sessions", SEARCH_SESSIONS, parameters | asked)
        else:
            rows = await self._queries.fetch("list_sessions", LIST_SESSIONS, parameters)
        sessions: list[Session] = []
        for start in range(0, len(rows), _AT_A_TIME):
            sessions += [_listed(row, ops.get(row.session_id, ())) for row in rows[start : start + _AT_A_TIME]]
            await asyncio.sleep(0)
        return sessions

    async def _texts(self, ops: Mapping[str, Sequence[Op]]) -> dict[str, list[str]]:
        """Questions and answers of the newest pending turns, by session."""
        turns = [op for of_session in ops.values() for op in of_session if op.kind == "turn"]
        turns.sort(key=lambda op: op.at, reverse=True)
        chosen: list[Op] = []
        size = 0
        for op in turns:
            size += op.size
            if size > _PENDING_BYTES:
                break
            chosen.append(op)
        bodies = await self._pending.read(chosen)
        return await asyncio.to_thread(_texts_of, bodies) if bodies else {}


def session_of(row: AnyRow) -> Session:
    """The session of a row of SESSION_COLUMNS."""
    data = loads(row.data)
    return Session(
        id=row.session_id,
        user_id=row.user_id,
        agent_id=row.agent_id,
        title=data.get("title", ""),
        updated_at=row.updated_at,
        next_rank=data.get("next_rank", 0),
        preferences=data.get("preferences", {}),
        version=row.version,
    )


def _listed(row: AnyRow, ops: Sequence[Op]) -> Session:
    stored = session_of(row)
    session = overlaid(stored, ops) or stored
    if row.attachments is None:
        return session
    return replace(session, attachments=tuple(ListedFile(*file) for file in loads(row.attachments)))


def _texts_of(bodies: Mapping[Op, bytes]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for op, body in bodies.items():
        said = [message.text for message in TurnRecord.decode(body).messages if message.channel == "final"]
        texts.setdefault(op.key[0], []).extend(said)
    return texts


def _pending(
    ops: Mapping[str, Sequence[Op]], deleted: set[str], texts: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """The query's parameters for sessions with pending operations."""
    return [
        {
            "session_id": session_id,
            # All in one format and zone, so that they sort as text.
            "updated_at": max((one.updated_at for one in _left_by(of_session)), default=None),
            "set_title": _last(op.change.title for op in of_session if op.change is not None),
            "first_title": _last(op.after.title for op in of_session if op.after is not None),
            "texts": texts.get(session_id, []),
            "gone": session_id in deleted,
        }
        for session_id, of_session in ops.items()
    ]


def _left_by(ops: Iterable[Op]) -> list[Change | Session]:
    return [left for op in ops for left in (op.change, op.after) if left is not None]


def _last(titles: Iterable[str | None]) -> str | None:
    return next(reversed([title for title in titles if title]), None)
