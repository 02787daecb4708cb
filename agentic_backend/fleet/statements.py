"""The SQL of a fleet. Each decision about who runs a turn is one conditional statement, by the clock of Postgres.

A lease stays with its holder between turns. While a turn runs, the lease names it (`exchange_id`) and keeps its
question (`ask`): then only the death of the holder makes it anybody else's. The fence grows with each change of the
holder.
"""

from typing import Final

from sqlalchemy import text

CHANNEL: Final = "turnwise_fleet"
"""The channel on which instances notify one another."""

# An instance that was silent for a while is not trusted to judge who is dead: while Postgres was away, nobody could
# renew (`steady_since`).
BEAT: Final = """
INSERT INTO instance (id, url, token, keeps_spool, draining, heartbeat_at, steady_since)
VALUES (%(id)s, %(url)s, %(token)s, %(keeps_spool)s, %(draining)s, clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE SET url = excluded.url, token = excluded.token, draining = excluded.draining,
    heartbeat_at = excluded.heartbeat_at,
    steady_since = CASE WHEN instance.heartbeat_at < excluded.heartbeat_at - make_interval(secs => %(gap_s)s)
        THEN excluded.heartbeat_at ELSE instance.steady_since END
"""

LEAVE: Final = "DELETE FROM instance WHERE id = %(id)s"

SWEEP: Final = "DELETE FROM instance WHERE heartbeat_at < clock_timestamp() - interval '1 day' AND NOT keeps_spool"

_ALIVE: Final = "coalesce(holder.heartbeat_at > clock_timestamp() - make_interval(secs => :dead_s), false)"

# No turn runs under a lease that names none, so any instance may take it: its holder finds out with its next question.
ACQUIRE_LEASE = text(f"""
WITH owned AS (
    SELECT session_id FROM session WHERE session_id = :session_id AND user_id = :user_id
), taken AS (
    INSERT INTO session_lease AS lease (session_id, holder, fence) SELECT session_id, :me, 1 FROM owned
    ON CONFLICT (session_id) DO UPDATE SET holder = excluded.holder,
        fence = lease.fence + CASE WHEN lease.holder = excluded.holder THEN 0 ELSE 1 END
    WHERE lease.holder = excluded.holder OR lease.exchange_id IS NULL
    RETURNING fence, xmax = 0 AS made, exchange_id AS left_open
)
SELECT taken.fence, taken.made, taken.left_open, lease.exchange_id, holder.keeps_spool AND NOT {_ALIVE} AS recovering
FROM owned LEFT JOIN taken ON true LEFT JOIN session_lease AS lease USING (session_id)
    LEFT JOIN instance AS holder ON holder.id = lease.holder
""")  # noqa: S608 - constants

# Locked in one order, as every writer of leases does.
RECORD_ASKS = text("""
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(CAST(:session_ids AS text[]), CAST(:fences AS bigint[]), CAST(:exchange_ids AS text[]),
        CAST(:asks AS text[])) AS input(session_id, fence, exchange_id, ask)
), mine AS MATERIALIZED (
    SELECT lease.session_id FROM session_lease AS lease JOIN asked USING (session_id, fence)
    WHERE lease.holder = :me ORDER BY lease.session_id FOR NO KEY UPDATE OF lease
)
UPDATE session_lease AS lease SET exchange_id = asked.exchange_id, ask = asked.ask, runs = 0, deaths = 0
FROM asked JOIN mine USING (session_id) WHERE lease.session_id = asked.session_id
RETURNING lease.session_id
""")

WITHDRAW_ASK = text("""
UPDATE session_lease SET exchange_id = NULL, ask = NULL, runs = 0, deaths = 0
WHERE session_id = :session_id AND fence = :fence AND exchange_id = :exchange_id
RETURNING session_id
""")

# No instance has this id: the next look for turns of the dead takes it at once, and counts a death that was none.
HAND_OVER = text("""
UPDATE session_lease SET holder = '', deaths = deaths - 1
WHERE session_id = :session_id AND holder = :me AND exchange_id = :exchange_id
RETURNING session_id
""")

# What its holder remembers of a session is no longer valid: it finds out with its next question, and reads it again.
VOID_LEASE = text("""
UPDATE session_lease SET fence = fence + 1
WHERE session_id = :session_id AND exchange_id IS NULL AND holder <> :me
RETURNING session_id
""")

_HOLDER: Final = f"""
SELECT lease.session_id, lease.holder, lease.fence, lease.exchange_id, lease.ask, holder.url, holder.token,
    {_ALIVE} AS alive
FROM session JOIN session_lease AS lease USING (session_id) LEFT JOIN instance AS holder ON holder.id = lease.holder
WHERE session.user_id = :user_id AND"""  # noqa: S608 - constants

HOLDER_OF_SESSION = text(f"{_HOLDER} session.session_id = :session_id")
HOLDER_OF_EXCHANGE = text(f"{_HOLDER} lease.exchange_id = :exchange_id")
"""Of a turn that runs now; `ask` is its record."""

# What an open stream here has to send: the turns of its session that others run, and have run.
NEWEST_ELSEWHERE = text("""
SELECT session.session_id, session.user_id, lease.exchange_id,
    coalesce((session.session_data->>'next_rank')::bigint, 0) AS next_rank
FROM unnest(CAST(:session_ids AS text[]), CAST(:user_ids AS text[])) AS watched(session_id, user_id)
    JOIN session ON session.session_id = watched.session_id AND session.user_id = watched.user_id
    JOIN session_lease AS lease ON lease.session_id = session.session_id
WHERE lease.holder <> :me
""")

# An instance is dead if it left, or has not renewed for a full period in which the judging instance itself was steady.
# Of many that look at once each gets others: a lease that another has just taken is judged again by its row as it is
# then, and must be that of the same dead one (an outer join there would find no instance, and take the lease of a
# living one for one of who has left). Where a spool may have the end of a turn, only who has that spool goes on with
# it.
TAKE_OVER = text("""
WITH judge AS (
    SELECT FROM instance WHERE id = :me AND heartbeat_at > clock_timestamp() - make_interval(secs => :gap_s)
        AND steady_since <= clock_timestamp() - make_interval(secs => :dead_s)
), gone AS MATERIALIZED (
    SELECT DISTINCT lease.holder, holder.heartbeat_at
    FROM session_lease AS lease LEFT JOIN instance AS holder ON holder.id = lease.holder
    WHERE lease.exchange_id IS NOT NULL AND lease.holder <> :me AND (holder.id IS NULL OR NOT holder.keeps_spool
        AND holder.heartbeat_at <= clock_timestamp() - make_interval(secs => :dead_s) AND EXISTS (SELECT FROM judge))
), dead AS (
    SELECT lease.session_id, gone.heartbeat_at FROM session_lease AS lease JOIN gone ON gone.holder = lease.holder
    WHERE lease.exchange_id IS NOT NULL ORDER BY lease.session_id LIMIT :most FOR UPDATE OF lease SKIP LOCKED
)
UPDATE session_lease AS lease SET holder = :me, fence = lease.fence + 1, runs = lease.runs + 1,
    deaths = lease.deaths + 1
FROM dead JOIN session USING (session_id) WHERE lease.session_id = dead.session_id
RETURNING lease.session_id, session.user_id, lease.exchange_id, lease.fence, lease.ask, lease.runs, lease.deaths,
    extract(epoch FROM clock_timestamp() - dead.heartbeat_at)::float AS silent_s
""")

# What this instance itself released when it could not renew, and nobody has taken.
RETAKE = text("""
UPDATE session_lease AS lease SET runs = lease.runs + 1 FROM session
WHERE lease.session_id = session.session_id AND session.user_id = :user_id AND lease.holder = :me
    AND lease.session_id = :session_id AND lease.exchange_id = :exchange_id
RETURNING lease.session_id, session.user_id, lease.exchange_id, lease.fence, lease.ask, lease.runs, lease.deaths
""")

# The same for all that neither run here, nor wait for Postgres, nor are to be withdrawn.
RETAKE_ALL = text("""
UPDATE session_lease AS lease SET runs = lease.runs + 1 FROM session
WHERE lease.session_id = session.session_id AND lease.holder = :me AND lease.exchange_id IS NOT NULL
    AND lease.exchange_id <> ALL (CAST(:here AS text[]))
RETURNING lease.session_id, session.user_id, lease.exchange_id, lease.fence, lease.ask, lease.runs, lease.deaths
""")

# Those that an earlier process of this instance left, whose spool this one has.
RECOVER = text("""
UPDATE session_lease AS lease SET runs = lease.runs + 1, deaths = lease.deaths + 1 FROM session
WHERE lease.session_id = session.session_id AND lease.holder = :me AND lease.exchange_id IS NOT NULL
RETURNING lease.session_id, session.user_id, lease.exchange_id, lease.fence, lease.ask, lease.runs, lease.deaths
""")

NOTIFY = text("SELECT pg_notify(:channel, :message)")

INSTANCES = text("""
SELECT count(*) AS alive, count(*) FILTER (WHERE NOT draining) AS staying FROM instance
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => :dead_s)
""")

SAY_DRAINING = text("UPDATE instance SET draining = true WHERE id = :me RETURNING id")

TAKERS = text("""
SELECT count(*) FROM instance
WHERE id <> :me AND NOT draining AND heartbeat_at > clock_timestamp() - make_interval(secs => :gap_s)
""")

ALIVE = text("""
SELECT id, url, token, draining FROM instance
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => :dead_s) ORDER BY id
""")
