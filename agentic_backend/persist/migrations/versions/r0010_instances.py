"""A fleet: which instances live, the question of each turn that runs on one of them, and what users hold there."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of instances and of what users hold; a lease names its holder and the turn that runs under it,
    and expires no more."""
    op.execute("""
        CREATE TABLE instance (
            id text PRIMARY KEY,
            url text,
            token text NOT NULL,
            keeps_spool boolean NOT NULL DEFAULT false,
            heartbeat_at timestamptz NOT NULL,
            steady_since timestamptz NOT NULL,
            draining boolean NOT NULL DEFAULT false
        ) WITH (fillfactor = 50)
    """)
    op.execute("""
        ALTER TABLE session_lease
            DROP COLUMN expires_at,
            ADD COLUMN exchange_id text,
            ADD COLUMN ask text,
            ADD COLUMN runs integer NOT NULL DEFAULT 0,
            ADD COLUMN deaths integer NOT NULL DEFAULT 0,
            SET (fillfactor = 70)
    """)
    # One entry for each turn that runs now: found by its exchange, and all of them by who looks for the dead.
    op.execute("CREATE INDEX session_lease_open ON session_lease (exchange_id) WHERE exchange_id IS NOT NULL")
    # `held` is {instance: [since, …]}; a rate has `tokens` as of `changed_at`.
    op.execute("""
        CREATE TABLE user_share (
            user_id text NOT NULL,
            kind text NOT NULL,
            held jsonb NOT NULL DEFAULT '{}',
            tokens double precision NOT NULL DEFAULT 0,
            changed_at timestamptz NOT NULL,
            PRIMARY KEY (user_id, kind)
        ) WITH (fillfactor = 70)
    """)


def downgrade() -> None:
    """As it was: leases do not outlive the instances that hold them."""
    op.execute("""
        ALTER TABLE session_lease DROP COLUMN exchange_id, DROP COLUMN ask, DROP COLUMN runs, DROP COLUMN deaths,
            ADD COLUMN expires_at timestamptz NOT NULL DEFAULT '-infinity', RESET (fillfactor)
    """)
    op.execute("DROP TABLE user_share")
    op.execute("DROP TABLE instance")
