"""The SQL of sessions and history: constant statements, so that nothing is compiled while turns run.

Each is compiled once per engine by SQLAlchemy, and prepared once per connection by psycopg. Every statement on a
user's data filters by the user.
"""

from dataclasses import dataclass
from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.postgres import types as postgres_types
from sqlalchemy import text


@dataclass(frozen=True, slots=True)
class JsonBytes:
    """A JSON parameter that is already encoded; it is sent to the server unchanged."""

    data: bytes


class _JsonBytesDumper(Dumper):
    oid = postgres_types["jsonb"].oid

    def dump(self, obj: JsonBytes) -> bytes:
        return obj.data


def register_json(connection: Any) -> None:
    """Allow `JsonBytes` as parameters of a psycopg connection."""
    connection.adapters.register_dumper(JsonBytes, _JsonBytesDumper)


SESSION_COLUMNS: Final = """session_id, user_id, agent_id, session_data::text AS data, version,
    to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS updated_at"""

# A ChatMessage in its wire format, built by the server: nothing is parsed or encoded on our event loop.
_MESSAGE = """'{"session_id":' || to_json(session_id)::text || ',"exchange_id":' || to_json(exchange_id)::text
    || ',"rank":' || rank::text || ',"timestamp":"'
    || to_char("timestamp" AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
    || '","role":' || to_json(role)::text || ',"channel":' || to_json(channel)::text
    || ',"parts":' || parts_json::text || ',"metadata":' || metadata_json::text || '}' AS message"""

# An id of ours is 64 random bits: if it exists already, our first attempt stored it and its answer was lost. One that a
# client chose may be there, even another user's, which the caller finds out. `xmax` is 0 where the row was inserted.
CREATE_SESSION = text("""
INSERT INTO session (session_id, user_id, agent_id, session_data, created_at, updated_at, version, metadata)
SELECT :session_id, :user_id, :agent_id, CAST(:data AS json), CAST(:updated_at AS timestamptz),
    CAST(:updated_at AS timestamptz), :version, CAST(:metadata AS jsonb)
WHERE EXISTS (SELECT FROM session WHERE session_id = :session_id) OR room_for_session(:user_id, :most)
ON CONFLICT (session_id) DO UPDATE SET session_id = excluded.session_id RETURNING xmax = 0 AS is_new
""")

# The server decides whether it has rested, since its clock wrote `used_at`: retention deletes by that clock too.
GET_SESSION = text(f"""
SELECT {SESSION_COLUMNS}, used_at < now() - interval '12 hours' AS rested
FROM session WHERE session_id = :session_id AND user_id = :user_id
""")  # noqa: S608 - constants

TOUCH_SESSION = text("""
UPDATE session SET used_at = now() WHERE session_id = :session_id AND user_id = :user_id RETURNING session_id
""")

# What is superseded, as ranks. A question that began behind an earlier message than the newest says so
# (`session.branches`). Of these, the line has the newest, then the newest up to where that began, and so on: whatever
# stands between one and where it began is not on the line. The index session_history_forks has these questions alone;
# its expression must equal this one. Those below `forks_below` count: `superseded` has what is pending of the others,
# or what an earlier page of the same reading found.
_MINE = "session_id = :session_id AND user_id = :user_id"
_FORK = """CASE WHEN role = 'user' AND channel = 'final'
        AND jsonb_typeof(metadata_json #> '{extras,after_rank}') = 'number'
    THEN (metadata_json #> '{extras,after_rank}')::numeric < rank - 1 ELSE false END"""
_AFTER = "(metadata_json #> '{extras,after_rank}')::integer"
_SUPERSEDED = f"""(
    WITH RECURSIVE fork AS (
        (SELECT rank, {_AFTER} AS after_rank FROM session_history
            WHERE {_MINE} AND {_FORK} AND rank < :forks_below ORDER BY rank DESC LIMIT 1)
        UNION ALL
        SELECT older.rank, older.after_rank FROM fork, LATERAL (
            SELECT rank, {_AFTER} AS after_rank FROM session_history
            WHERE {_MINE} AND {_FORK} AND rank <= fork.after_rank ORDER BY rank DESC LIMIT 1) AS older
    )
    SELECT CAST(:superseded AS int4multirange) + coalesce(range_agg(int4range(after_rank, rank, '()')), '{{}}') AS ranks
    FROM fork)"""  # noqa: S608 - constants

FORKS = text(f"""
SELECT rank, {_AFTER} AS after_rank, exchange_id FROM session_history
WHERE {_MINE} AND {_FORK} AND rank < :forks_below ORDER BY rank
""")  # noqa: S608 - constants

# How the message of a rank stands: `follows` says whether a question does, null where nothing does.
STANDING = text(f"""
SELECT NOT rank <@ {_SUPERSEDED} AS live, (
    SELECT later.role = 'user' AND later.channel = 'final' FROM session_history AS later
    WHERE later.session_id = :session_id AND later.user_id = :user_id AND later.rank > CAST(:rank AS integer)
    ORDER BY later.rank LIMIT 1) AS follows
FROM session_history WHERE {_MINE} AND rank = CAST(:rank AS integer)
""")  # noqa: S608 - constants

# One page of a window over a session's messages, which is counted from the newest below a rank: as many from its first
# on as have at most `page_bytes`, but one at least. Row by row, since nothing else stops reading at a sum: each message
# is built once, and the one that does not fit any more. That of more than `large_bytes` comes without its text. `last`
# is the rank with which the window ends. Pages behind the first one have neither limit nor offset, but their ranks.
_LIVE = "NOT rank <@ (SELECT ranks FROM superseded)"
HISTORY_PAGE = text(f"""
WITH RECURSIVE wanted AS MATERIALIZED (
    SELECT CASE WHEN CAST(:limit AS bigint) IS NULL THEN CAST(:first AS integer) ELSE coalesce((
            SELECT rank FROM session_history WHERE {_MINE} AND rank < :below AND {_LIVE}
            ORDER BY rank DESC LIMIT 1 OFFSET :offset + CAST(:limit AS bigint) - 1), 0) END AS first,
        (SELECT rank FROM session_history WHERE {_MINE} AND rank < :below AND {_LIVE}
            ORDER BY rank DESC LIMIT 1 OFFSET :offset) AS last
), page AS (
    SELECT one.rank, one.message, octet_length(one.message) AS bytes FROM wanted, LATERAL (
        SELECT rank, {_MESSAGE} FROM session_history
        WHERE {_MINE} AND rank BETWEEN wanted.first AND wanted.last AND {_LIVE} ORDER BY rank LIMIT 1) AS one
    UNION ALL
    SELECT next.rank, next.message, page.bytes + octet_length(next.message) FROM page, wanted, LATERAL (
        SELECT rank, {_MESSAGE} FROM session_history
        WHERE {_MINE} AND rank > page.rank AND rank <= wanted.last AND {_LIVE} ORDER BY rank LIMIT 1) AS next
    WHERE page.bytes + octet_length(next.message) <= :page_bytes
), superseded AS MATERIALIZED {_SUPERSEDED}
SELECT page.rank, CASE WHEN page.bytes <= :large_bytes THEN page.message END AS message, wanted.last,
    (SELECT ranks::text FROM superseded) AS superseded
FROM page, wanted ORDER BY page.rank
""")  # noqa: S608 - constants

# A message of any size, a piece at a time, by characters. `bytes` is the size of all of it. A superseded one says so.
_PIECE = "SELECT substr(message, :start, :chars) AS piece, octet_length(message) AS bytes"
_BY = """jsonb_build_object('superseded_by', CAST(:superseded_by AS text))"""
_MARKED = _MESSAGE.replace(
    "metadata_json",
    f"""(CASE WHEN CAST(:superseded_by AS text) IS NULL THEN metadata_json ELSE metadata_json
        || jsonb_build_object('extras', coalesce(metadata_json->'extras', '{{}}') || {_BY}) END)""",
)
MESSAGE_PIECE = text(f"""
{_PIECE} FROM (SELECT {_MARKED} FROM session_history WHERE {_MINE} AND rank = CAST(:rank AS integer)) AS one
""")  # noqa: S608 - constants

# The same with its texts cut to a window of characters.
_CUT_TEXTS = """(SELECT coalesce(jsonb_agg(CASE WHEN part->>'type' = 'text' THEN part || jsonb_build_object(
        'text', substr(part->>'text', :text_start, coalesce(CAST(:text_chars AS integer), 2147483647 - :text_start)))
    ELSE part END ORDER BY place), '[]') FROM jsonb_array_elements(parts_json) WITH ORDINALITY AS parts(part, place))"""
CUT_MESSAGE_PIECE = text(f"""
{_PIECE} FROM (SELECT {_MARKED.replace("parts_json", _CUT_TEXTS)} FROM session_history
    WHERE {_MINE} AND rank = CAST(:rank AS integer)) AS one
""")  # noqa: S608 - constants

# An exchange has its user's message in the final channel, once: a unique index (r0008) has one entry for each. An id
# that is not there costs one look into it. One that is begins there, and ends before the next question.
_QUESTION = "session_id = :session_id AND user_id = :user_id AND role = 'user' AND channel = 'final'"
EXCHANGE = text(f"""
WITH question AS MATERIALIZED (SELECT rank FROM session_history WHERE {_QUESTION} AND exchange_id = :exchange_id)
SELECT {_MESSAGE} FROM session_history
WHERE session_id = :session_id AND user_id = :user_id AND exchange_id = :exchange_id
    AND rank >= (SELECT rank FROM question) AND rank < coalesce((SELECT min(rank) FROM session_history
        WHERE {_QUESTION} AND rank > (SELECT rank FROM question)), {2**31 - 1})
ORDER BY rank
""")  # noqa: S608 - constants

EXCHANGE_IDS = text(f"SELECT exchange_id FROM session_history WHERE {_QUESTION} LIMIT :most")  # noqa: S608 - constants

REMEMBERED = text(f"""
SELECT exchange_id, role,
    metadata_json #> '{{extras,error}}' IS NOT NULL OR metadata_json #>> '{{extras,status}}' = 'interrupted' AS failed,
    coalesce(metadata_json #>> '{{extras,checkpoint}}', '') AS checkpoint,
    (SELECT string_agg(part->>'text', E'\\n' ORDER BY place)
     FROM jsonb_array_elements(parts_json) WITH ORDINALITY AS parts(part, place)
     WHERE part->>'type' = 'text') AS text,
    CASE WHEN role = 'user' AND parts_json @> '[{{"type":"image_url"}}]' THEN parts_json END AS with_images
FROM session_history
WHERE {_MINE} AND channel = 'final' AND role IN ('user', 'assistant') AND rank < :below AND NOT rank <@ {_SUPERSEDED}
ORDER BY rank DESC LIMIT :messages
""")  # noqa: S608 - constants

# Walks the ranks of the session backwards to the answer that names one. Without coalesce the planner expects that
# hardly any does, and would rather read and sort the whole session each time.
NEWEST_CHECKPOINT = text(f"""
SELECT metadata_json #>> '{{extras,checkpoint}}' AS checkpoint FROM session_history
WHERE {_MINE} AND channel = 'final' AND role = 'assistant' AND rank < :below AND NOT rank <@ {_SUPERSEDED}
    AND coalesce(metadata_json ->> 'agent_id' = :agent_id AND metadata_json #>> '{{extras,checkpoint}}' <> '', false)
ORDER BY rank DESC LIMIT 1
""")  # noqa: S608 - constants

# One batch of turns. :records is a JSON array of TurnRecord.encode(). In this order:
# known     the sessions that exist and are the user's, locked in one order against deletes and other writers;
#           a record without one belongs to a deleted session and is left out: a session exists from `create` on.
#           Their locks are written to the log, so that this commit waits for a synchronous standby even where all is
#           stored already, by an attempt that the primary alone had committed
# lease     the leases that records were run under, locked until the commit: nobody gets one of them before it
# fenced    records whose session another instance has got since: left out whole
# clash     records with a rank that another exchange has, stored or earlier in this batch: left out whole
# fit       one message a rank: where an interrupted exchange ran again in the same batch, or one that waited for a
#           person went on, what it became. Of two that wait the one with the higher number came later: an instance's
#           clock may have been set back since
# newest    one row a session, because an update meets each row once; preferences and a title that is there are not a
#           turn's to write
# closed    with the turn, the note on its lease goes that it runs
# written   stored messages stay, whichever writer stored them; only an exchange that a restart had interrupted is
#           overwritten, by its own rerun, and the placeholder of an answer that waits for a person
# skipped   a rank that somebody stored after this statement's snapshot: the batch must be tried again to be judged
# Returns (verdict, ord), ord being the 1-based place of the record in :records.
WRITE_TURNS = text("""
WITH record AS MATERIALIZED (
    SELECT ord, r->>'exchange_id' AS exchange_id, r->'session' AS session, r->'session'->>'id' AS session_id,
        r->'session'->>'user_id' AS user_id, (r->'session'->>'version')::bigint AS version, r->'messages' AS messages,
        (r->>'fence')::bigint AS fence
    FROM jsonb_array_elements(:records) WITH ORDINALITY AS input(r, ord)
), known AS MATERIALIZED (
    SELECT s.session_id, s.user_id FROM session AS s
    WHERE s.session_id IN (SELECT session_id FROM record) ORDER BY s.session_id FOR NO KEY UPDATE
), lease AS MATERIALIZED (
    SELECT held.session_id, held.fence FROM session_lease AS held
    WHERE held.session_id IN (SELECT record.session_id FROM record JOIN known USING (session_id, user_id)
        WHERE record.fence IS NOT NULL)
    ORDER BY held.session_id FOR NO KEY UPDATE
), fenced AS MATERIALIZED (
    SELECT record.ord FROM record JOIN lease USING (session_id) WHERE record.fence < lease.fence
), message AS MATERIALIZED (
    SELECT record.ord, record.exchange_id, known.session_id, known.user_id, m.*
    FROM record JOIN known USING (session_id, user_id)
    CROSS JOIN LATERAL jsonb_to_recordset(record.messages)
        AS m(rank integer, "timestamp" timestamptz, role text, channel text, parts jsonb, metadata jsonb)
    WHERE record.ord NOT IN (SELECT ord FROM fenced)
), clash AS MATERIALIZED (
    SELECT message.ord FROM message JOIN session_history AS stored USING (session_id, rank)
    WHERE stored.exchange_id <> message.exchange_id
    UNION
    SELECT later.ord FROM message AS later JOIN message AS earlier USING (session_id, rank)
    WHERE earlier.ord < later.ord AND earlier.exchange_id <> later.exchange_id
), fit AS MATERIALIZED (
    SELECT DISTINCT ON (session_id, rank) * FROM message WHERE ord NOT IN (SELECT ord FROM clash)
    ORDER BY session_id, rank, (metadata #>> '{extras,interrupted_by}' = 'restart') IS TRUE,
        (metadata #>> '{extras,status}' = 'awaiting_human') IS TRUE,
        CASE WHEN metadata #>> '{extras,status}' = 'awaiting_human'
            THEN metadata #> '{extras,awaiting,seq}' END DESC NULLS LAST, ord
), newest AS (
    SELECT DISTINCT ON (session_id) session_id, user_id, version, session
    FROM record WHERE ord NOT IN (SELECT ord FROM clash) AND ord NOT IN (SELECT ord FROM fenced)
    ORDER BY session_id, version DESC
), advanced AS (
    UPDATE session SET agent_id = newest.session->>'agent_id', version = newest.version,
        updated_at = (newest.session->>'updated_at')::timestamptz,
        session_data = (session.session_data::jsonb || jsonb_build_object(
            'title', coalesce(nullif(session.session_data->>'title', ''), newest.session->>'title'),
            'next_rank', newest.session->'next_rank'))::json
    FROM newest JOIN known USING (session_id, user_id)
    WHERE session.session_id = newest.session_id AND newest.version > session.version
), closed AS (
    UPDATE session_lease AS held SET exchange_id = NULL, ask = NULL, runs = 0, deaths = 0
    FROM record JOIN known USING (session_id, user_id)
    WHERE held.session_id = record.session_id AND held.exchange_id = record.exchange_id AND held.fence = record.fence
), written AS (
    INSERT INTO session_history (session_id, user_id, rank, "timestamp", role, channel, exchange_id, parts_json,
        metadata_json)
    SELECT session_id, user_id, rank, "timestamp", role, channel, exchange_id, parts, metadata FROM fit
    ON CONFLICT (session_id, user_id, rank) DO UPDATE SET "timestamp" = excluded."timestamp", role = excluded.role,
        channel = excluded.channel, parts_json = excluded.parts_json, metadata_json = excluded.metadata_json
    WHERE session_history.exchange_id = excluded.exchange_id
        AND excluded.metadata_json #>> '{extras,interrupted_by}' IS DISTINCT FROM 'restart'
        AND (session_history.metadata_json #>> '{extras,interrupted_by}' = 'restart'
            OR session_history.metadata_json #>> '{extras,status}' = 'awaiting_human'
            AND (excluded.metadata_json #>> '{extras,status}' IS DISTINCT FROM 'awaiting_human'
                OR session_history.metadata_json #> '{extras,awaiting,seq}'
                    < excluded.metadata_json #> '{extras,awaiting,seq}'))
    RETURNING session_id, rank
)
SELECT 'clash' AS verdict, ord FROM clash
UNION ALL
SELECT 'fenced', ord FROM fenced
UNION ALL
SELECT 'unknown', ord FROM record WHERE NOT EXISTS (
    SELECT FROM known WHERE known.session_id = record.session_id AND known.user_id = record.user_id)
UNION ALL
SELECT 'skipped', ord FROM fit
    LEFT JOIN written USING (session_id, rank)
    LEFT JOIN session_history AS stored USING (session_id, rank)
WHERE written.rank IS NULL AND stored.rank IS NULL
""")

# A title that no person gave does not take the place of one that a person did.
CHANGE_SESSION = text("""
UPDATE session SET updated_at = greatest(session.updated_at, (change->>'updated_at')::timestamptz),
    session_data = (session.session_data::jsonb || CASE
        WHEN session.session_data->>'named' = 'true' AND change #>> '{marks,named}' IS DISTINCT FROM 'true'
        THEN (change->'data') - 'title' ELSE change->'data' END || coalesce(change->'marks', '{}'))::json
FROM (SELECT CAST(:change AS jsonb) AS change) AS input
WHERE session.session_id = change->>'session_id' AND session.user_id = change->>'user_id'
RETURNING session.session_id
""")

# A transaction that has changed nothing commits without its standby, though what it saw may be on the primary alone.
# What the log got before this message is on a synchronous standby once the transaction is committed.
REACH_STANDBY = text("SELECT pg_logical_emit_message(true, 'turnwise', '')")

# History, attachments and feedback go with the session (ON DELETE CASCADE).
DELETE_SESSIONS = text("""
DELETE FROM session USING jsonb_to_recordset(:deletes) AS gone(session_id text, user_id text)
WHERE session.session_id = gone.session_id AND session.user_id = gone.user_id
RETURNING session.session_id, session.user_id
""")
