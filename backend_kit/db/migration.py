"""The part of a migration that alembic does.

Importing it takes 7 MB: `backend_kit.db.schema` does so only for a schema that is behind, or ahead.
"""

from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection


class UnknownRevision(Exception):
    """The schema is at a revision that the scripts do not have: its first argument."""


def upgrade(connection: Connection, directory: Path, head: str, table_schema: str | None) -> str:
    """Run the scripts that lead to `head`, in the connection's transaction. One at a time in a process.

    Returns the revision from which on programs work with that schema. Raises `UnknownRevision`.
    """
    scripts = ScriptDirectory(str(directory))
    context = MigrationContext.configure(
        connection,
        opts={
            "fn": lambda revision, _context: scripts._upgrade_revs(head, revision),
            "version_table_schema": table_schema,
        },
    )
    current = context.get_current_revision()
    if current is not None and not _knows(scripts, current):
        raise UnknownRevision(current)
    if current != head:
        with Operations.context(context):
            context.run_migrations()
    newest = scripts.get_revision(head)
    assert newest is not None
    works_from: str = getattr(newest.module, "works_from", head)
    return works_from


def _knows(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False
