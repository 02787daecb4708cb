"""The Postgres schema of one index: brought to the revision of this code, by one process at a time."""

import threading
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import NullPool, create_engine, text

from backend_kit.settings import Postgres
from knowledge_flow_backend.index.engines import connect_args, database_url

VERSIONS = Path(__file__).with_name("migrations")
LOCK_KEY = 0x6B6E_6F77_666C_6F77
"""The advisory lock of migrations and of the first write: "knowflow" in ASCII."""
LOCK_TIMEOUT_MS = 5000
STATEMENT_TIMEOUT_MS = 600_000

# alembic's `op` speaks to whichever migration of the process installed itself last: one at a time, also between apps.
_ALEMBIC = threading.Lock()


class SchemaTooNew(Exception):
    """The schema was migrated by a newer version of the program. Its text is for the operator."""


def migrate(settings: Postgres, index: str) -> str:
    """Bring the schema named `index` to the newest revision this code knows, all or nothing; returns that revision.

    Blocks, so it is run in a thread. Processes that start together take turns by an advisory lock. Raises
    `SchemaTooNew`, or sqlalchemy's DBAPIError where Postgres is away, has no pgvector, or the lock is not free
    within 5 s. `index` must have the form that the settings check: it stands in statements as an identifier.
    """
    scripts = ScriptDirectory(str(VERSIONS))
    head = scripts.get_current_head()
    assert head is not None
    engine = create_engine(
        database_url(settings),
        poolclass=NullPool,
        connect_args=connect_args(
            "turnwise-knowledge-migrate",
            index,
            connect_timeout_s=settings.connect_timeout,
            statement_timeout_ms=STATEMENT_TIMEOUT_MS,
        ),
        hide_parameters=True,
        use_native_hstore=False,
    )
    with _ALEMBIC, engine.begin() as connection:
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        # Released with the transaction, whatever becomes of this process.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public"))
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{index}"'))
        context = MigrationContext.configure(
            connection,
            opts={
                "fn": lambda revision, _context: scripts._upgrade_revs(head, revision),
                "version_table_schema": index,
            },
        )
        current = context.get_current_revision()
        if current is not None and not _known(scripts, current):
            raise SchemaTooNew(
                f"the index {index!r} is at schema revision {current}, this version of the program knows up to {head}: "
                "start the newer version, or name another storage.vector_store.index"
            )
        if current != head:
            with Operations.context(context):
                context.run_migrations()
    return head


def _known(scripts: ScriptDirectory, revision: str) -> bool:
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False
