"""Who may use, edit and share agents (docs/agents.md#who-may-use-an-agent)."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Agents may be of the configuration: no foreign key."""
    op.execute("""
        CREATE TABLE agent_grant (
            agent_id text NOT NULL,
            relation text NOT NULL CHECK (relation IN ('use', 'edit', 'share')),
            kind text NOT NULL CHECK (kind IN ('user', 'group', 'role')),
            subject text NOT NULL CHECK (subject <> ''),
            PRIMARY KEY (agent_id, relation, kind, subject)
        )
    """)


def downgrade() -> None:
    """Drop it: everybody may use every agent again."""
    op.drop_table("agent_grant")
