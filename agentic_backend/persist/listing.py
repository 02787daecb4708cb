"""Pages of a user's sessions, each in one query: what is stored, overlaid with what is pending."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import text

from agentic_backend.events import ChatMessage
from agentic_backend.persist.database import Queries
from agentic_backend.session.models import Found, ListedFile, Session, SessionsWanted, TurnRecord
from agentic_backend.spool.pending import Change, Op, Pending, overlaid
from agentic_backend.spool.statements import SESSION_COLUMNS
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps, loads

_PENDING_BYTES: Final = 1024 * 1024
"""A search covers only this many bytes of the newest pending turns: an outage may leave 512 MiB of them."""
_SEARCHED_CHARS: Final = 100_000
"""Characters of a message that are searched, as in the index."""
_AT_A_TIME: Final = 50
"""Sessions that are built from their rows before the loop is yielded: a millisecond."""
_PREFIX_CHARS: Final = 3
"""The least characters of a search's last word for it to match as a prefix: `a` begins a tenth of all words."""
_SNIPPET_CHARS: Final = 160
_LEAD_CHARS: Final = 40
"""How much of a text a snippet has before the word that it shows."""
_SNIPPETS: Final = 100
"""How many sessions a search with snippets lists at most: each costs a look into a message of up to 100,000
characters."""

_Given = TypeVar("_Given", str, bool)

# Pending operations move, name, pin or hide a session, so they are applied before the page is cut. A turn never
# overwrites an existing title (`first_title`), a change does: a person's always (`set_title`), another one
# (`late_title`) where no person gave it.
_MINE: Final = """
WITH pending AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(:pending)
        AS p(session_id text, updated_at timestamptz, set_title text, late_title text, first_title text,
            set_pinned boolean, texts jsonb, gone boolean)
), mine AS (
    SELECT session.*, greatest(session.updated_at, pending.updated_at) AS shown_at,
        coalesce(set_title, CASE WHEN session_data->>'named' = 'true' THEN session_data->>'title' END, late_title,
            nullif(session_data->>'title', ''), first_title, '') AS shown_title,
        coalesce(set_pinned, session_data->>'pinned' = 'true', false) AS is_pinned,
        pending.session_id IS NOT NULL AS is_pending, texts
    FROM session LEFT JOIN pending USING (session_id)
    WHERE session.user_id = :user_id AND pending.gone IS NOT TRUE
        AND (CAST(:only AS text) IS NULL OR session.session_id = CAST(:only AS text))
)"""
_ORDER: Final = "ORDER BY is_pinned DESC, shown_at DESC, session_id"
_PAGE: Final = f"{_ORDER} LIMIT CAST(:limit AS bigint) OFFSET :offset"
# The list continues from the position of a session, whether or not that session still exists.
_BEHIND: Final = """(CAST(:behind_at AS timestamptz) IS NULL OR is_pinned < CAST(:behind_pinned AS boolean)
    OR is_pinned = CAST(:behind_pinned AS boolean) AND (shown_at < CAST(:behind_at AS timestamptz)
        OR shown_at = CAST(:behind_at AS timestamptz) AND mine.session_id > CAST(:behind_id AS text)))"""
_BEGUN: Final = """(NOT CAST(:begun AS boolean) OR shown_title <> '' OR is_pending
    OR coalesce((session_data->>'next_rank')::bigint, 0) > 0
    OR EXISTS (SELECT FROM session_attachments WHERE session_attachments.session_id = mine.session_id))"""

_COLUMNS: Final = f"""{SESSION_COLUMNS}, (
    SELECT json_agg(
        json_build_array(attachment_id, name, size_bytes,
            to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), coalesce(mime, ''))
        ORDER BY created_at, attachment_id)
    FROM session_attachments WHERE session_attachments.session_id = mine.session_id
)::text AS attachments"""  # noqa: S608 - constants

LIST_SESSIONS: Final = text(
    f"{_MINE} SELECT {_COLUMNS} FROM mine WHERE {_BEHIND} AND {_BEGUN} {_PAGE}"  # noqa: S608 - constants
)

# The expression must equal that of the index session_history_words. A search without a word finds nothing. Of
# the sessions of the page a message is read: the newest with the words, around the first that stands there as typed.
SEARCH_SESSIONS: Final = text(
    f"""{_MINE}, asked AS MATERIALIZED (
    SELECT CAST(nullif(CAST(plainto_tsquery('simple', :words) AS text), '') || :beginning AS tsquery) AS query
), told AS (
    SELECT session_id, max(rank) AS rank FROM session_history
    WHERE (array_to_tsvector(ARRAY['@' || md5(user_id)]) || to_tsvector('simple', left(
            jsonb_path_query_first(parts_json, '$[*] ? (@.type == "text").text') #>> '{{}}', 100000)))
        @@ (CAST('''@' || md5(:user_id) || '''' AS tsquery) && (SELECT query FROM asked))
        AND channel = 'final' AND user_id = :user_id
    GROUP BY session_id
), page AS (
    SELECT mine.*, told.rank AS found_rank FROM mine LEFT JOIN told USING (session_id)
    WHERE (to_tsvector('simple', shown_title) @@ (SELECT query FROM asked)
            OR told.rank IS NOT NULL
            OR EXISTS (SELECT FROM jsonb_array_elements_text(texts) AS said
                WHERE to_tsvector('simple', left(said, 100000)) @@ (SELECT query FROM asked)))
        AND {_BEHIND} AND {_BEGUN}
    {_PAGE}
)
SELECT {_COLUMNS}, found_rank, found_in, piece FROM page AS mine LEFT JOIN LATERAL (
    SELECT exchange_id AS found_in, substr(said, greatest(1, (
        SELECT min(nullif(strpos(lower(said), word), 0)) FROM unnest(CAST(:typed AS text[])) AS word
    ) - {_SNIPPET_CHARS}), {3 * _SNIPPET_CHARS}) AS piece
    FROM (
        SELECT exchange_id, left(
            jsonb_path_query_first(parts_json, '$[*] ? (@.type == "text").text') #>> '{{}}', 100000) AS said
        FROM session_history AS one
        WHERE CAST(:snippets AS boolean) AND one.session_id = mine.session_id AND one.user_id = :user_id
            AND one.rank = mine.found_rank
    ) AS message
) AS place ON true
{_ORDER}"""  # noqa: S608 - constants
)


class SessionList:
    """Reads pages of sessions, pinned ones first, then newest first."""

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
            "only": wanted.session_id,
            "begun": wanted.begun,
            "behind_at": None if wanted.behind is None else wanted.behind.updated_at,
            "behind_pinned": wanted.behind is not None and wanted.behind.pinned,
            "behind_id": None if wanted.behind is None else wanted.behind.session_id,
        }
        typed = [word.lower() for word in words]
        if words:
            asked: dict[str, object] = {
                "words": " ".join(words),
                "beginning": ":*" if len(words[-1]) >= _PREFIX_CHARS else "",
                "typed": typed,
                "snippets": wanted.snippets,
            }
            if wanted.snippets:
                asked["limit"] = min(wanted.limit or _SNIPPETS, _SNIPPETS)
            rows = await self._queries.fetch("search_sessions", SEARCH_SESSIONS, parameters | asked)
        else:
            rows = await self._queries.fetch("list_sessions", LIST_SESSIONS, parameters)
        sessions: list[Session] = []
        for start in range(0, len(rows), _AT_A_TIME):
            for row in rows[start : start + _AT_A_TIME]:
                session = _listed(row, ops.get(row.session_id, ()))
                if wanted.snippets and words:
                    session = replace(session, found=_found(row, texts.get(row.session_id, ()), typed))
                sessions.append(session)
            await asyncio.sleep(0)
        return sessions

    async def _texts(self, ops: Mapping[str, Sequence[Op]]) -> dict[str, list[ChatMessage]]:
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
        pinned=data.get("pinned") is True,
        named=data.get("named") is True,
    )


def _listed(row: AnyRow, ops: Sequence[Op]) -> Session:
    stored = session_of(row)
    session = overlaid(stored, ops) or stored
    if row.attachments is None:
        return session
    return replace(session, attachments=tuple(ListedFile(*file) for file in loads(row.attachments)))


def _found(row: AnyRow, pending: Sequence[ChatMessage], typed: Sequence[str]) -> Found | None:
    """Where the words were found: in what is pending, which is newer, or in what is stored. None if only the title has
    them."""
    for message in reversed(pending):
        text = message.text[:_SEARCHED_CHARS]
        if all(word in text.lower() for word in typed):
            return Found(snippet(text, typed), message.rank, message.exchange_id)
    if row.found_rank is None or row.piece is None:
        return None
    return Found(snippet(row.piece, typed), row.found_rank, row.found_in)


def snippet(text: str, typed: Sequence[str]) -> str:
    """At most 160 characters of a text, on one line, around the first of some words (in lower case) that is in it; an
    ellipsis stands where it is cut, at a word if there is one."""
    line = " ".join(text.split())
    places = [place for word in typed if (place := line.lower().find(word)) >= 0]
    start = max(0, min(places, default=0) - _LEAD_CHARS)
    if start:
        # A word that is longer than all of the lead is cut.
        start = max(start, line.find(" ", start, start + _LEAD_CHARS) + 1)
    piece = line[start : start + _SNIPPET_CHARS - 2]
    if start + len(piece) < len(line):
        piece = piece.rsplit(" ", 1)[0] + "…"
    return f"…{piece}" if start else piece


def _texts_of(bodies: Mapping[Op, bytes]) -> dict[str, list[ChatMessage]]:
    texts: dict[str, list[ChatMessage]] = {}
    for op, body in bodies.items():
        said = [message for message in TurnRecord.decode(body).messages if message.channel == "final"]
        texts.setdefault(op.key[0], []).extend(said)
    return texts


def _pending(
    ops: Mapping[str, Sequence[Op]], deleted: set[str], texts: Mapping[str, list[ChatMessage]]
) -> list[dict[str, Any]]:
    """The query's parameters for sessions with pending operations."""
    return [
        {
            "session_id": session_id,
            # All in one format and zone, so that they sort as text.
            "updated_at": max((one.updated_at for one in _left_by(of_session)), default=None),
            "set_title": _last(op.change.title for op in of_session if op.change is not None and op.change.named),
            "late_title": _last(op.change.title for op in of_session if op.change is not None),
            "first_title": _last(op.after.title for op in of_session if op.after is not None),
            "set_pinned": _last(op.change.pinned for op in of_session if op.change is not None),
            "texts": [message.text for message in texts.get(session_id, [])],
            "gone": session_id in deleted,
        }
        for session_id, of_session in ops.items()
    ]


def _left_by(ops: Iterable[Op]) -> list[Change | Session]:
    return [left for op in ops for left in (op.change, op.after) if left is not None]


def _last(given: Iterable[_Given | None]) -> _Given | None:
    return next(reversed([one for one in given if one is not None and one != ""]), None)
