"""API keys of both services (docs/keys.md)."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Knowledge flow reads it, too: `backend_kit/db/api_keys.py` has every statement."""
    op.execute("""
        CREATE TABLE api_key (
            id text PRIMARY KEY,
            digest bytea NOT NULL CHECK (octet_length(digest) = 32),
            owner text NOT NULL,
            owner_name text NOT NULL,
            name text NOT NULL,
            scopes text[] NOT NULL,
            agents text[],
            libraries text[],
            groups text[] NOT NULL,
            roles text[] NOT NULL,
            namespace text NOT NULL,
            rate_per_min integer NOT NULL CHECK (rate_per_min >= 0),
            created_at timestamptz NOT NULL DEFAULT now(),
            expires_at timestamptz,
            revoked_at timestamptz,
            last_used_at timestamptz
        )
    """)
    op.execute("CREATE INDEX api_key_of_owner ON api_key (owner, created_at)")


def downgrade() -> None:
    """Drop it with all keys."""
    op.drop_table("api_key")
