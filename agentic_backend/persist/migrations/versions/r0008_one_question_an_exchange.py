"""An exchange is asked once: its question is unique in its session, and found without reading the session."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index. Who writes waits for it; an operator may have made it before, without.

    Earlier versions ran an ask again that came long after its answer. Users saw both runs, so both stay in the history:
    the first keeps the id, each later one gets an id of its own. A message belongs to the question before it.
    """
    op.execute("""
        WITH question AS MATERIALIZED (
            SELECT session_id, rank, exchange_id, lead(rank) OVER of_session AS next_rank,
                row_number() OVER (PARTITION BY session_id, user_id, exchange_id ORDER BY rank) AS run
            FROM session_history WHERE role = 'user' AND channel = 'final'
            WINDOW of_session AS (PARTITION BY session_id ORDER BY rank)
        ), again AS MATERIALIZED (
            SELECT *, gen_random_uuid()::text AS own_id FROM question WHERE run > 1
        )
        UPDATE session_history SET exchange_id = again.own_id FROM again
        WHERE session_history.session_id = again.session_id AND session_history.exchange_id = again.exchange_id
            AND session_history.rank >= again.rank
            AND (again.next_rank IS NULL OR session_history.rank < again.next_rank)
    """)
    op.execute("""
        CREATE UNIQUE INDEX IF NOT EXISTS session_history_one_question_an_exchange
        ON session_history (session_id, user_id, exchange_id) WHERE role = 'user' AND channel = 'final'
    """)


def downgrade() -> None:
    """Drop the index; the ids stay."""
    op.drop_index("session_history_one_question_an_exchange")
