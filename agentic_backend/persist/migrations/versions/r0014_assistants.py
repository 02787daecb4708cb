"""Versions of made agents (docs/agents.md), and when each agent was made."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

works_from = "0012"


def upgrade() -> None:
    """Create the table and the columns. An agent that was made before has no version."""
    op.execute("ALTER TABLE agent ADD COLUMN version integer, ADD COLUMN created_at timestamptz")
    op.execute("UPDATE agent SET created_at = updated_at")
    op.execute("ALTER TABLE agent ALTER COLUMN created_at SET DEFAULT now(), ALTER COLUMN created_at SET NOT NULL")
    op.execute("""
        CREATE TABLE agent_version (
            agent_id text NOT NULL REFERENCES agent (id) ON DELETE CASCADE,
            version integer NOT NULL CHECK (version > 0),
            graph_id text NOT NULL,
            name text NOT NULL,
            description text,
            config_json jsonb NOT NULL,
            context_json jsonb NOT NULL,
            metadata_json jsonb NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (agent_id, version)
        )
    """)


def downgrade() -> None:
    """Drop them: each agent stays as it is."""
    op.drop_table("agent_version")
    op.execute("ALTER TABLE agent DROP COLUMN version, DROP COLUMN created_at")
