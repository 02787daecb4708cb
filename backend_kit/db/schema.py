"""A schema in Postgres: brought to the revision of this code, by one process at a time.

While a deploy replaces instance by instance, programs of two versions use one schema. So a change that programs in use
cannot bear is made in three revisions, each of its own version of the program: one that only adds, one under which
nothing uses the old any more, one that removes it. A script says by `works_from` from which revision on programs work
with what it leaves; without, only its own do. The schema keeps that, for programs that do not have the script.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, NullPool, create_engine, text

from backend_kit.db.pool import database_url
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)

LOCK_TIMEOUT_MS: Final = 5000
WORKS_FROM_TABLE: Final = "schema_works_from"
_TABLE: Final = "alembic_version"

# alembic's `op` refers to the process' latest migration: so only one runs at a time, also among several apps.
_ALEMBIC = threading.Lock()
_ALEMBIC_MODULES: Final = ("alembic.migration", "alembic.operations", "alembic.script")
"""7 MB, which only a schema that is behind takes."""


class SchemaTooNew(Exception):
    """A newer version of the program has migrated the schema, and this one does not work with it. Its text is for the
    operator."""


class _UnknownRevision(Exception):
    """The schema is at a revision that the scripts do not have: its first argument."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The revisions of one schema.

    `scripts` is alembic's directory of them. `lock_key` is the advisory lock of migrating processes. `before` are
    statements to run first (`CREATE SCHEMA IF NOT EXISTS …`); `table_schema` is the schema of alembic's own table,
    None for the search path's. `name` and `remedy` appear in the error about a schema that is too new.
    """

    scripts: Path
    lock_key: int
    name: str
    remedy: str
    before: Sequence[str] = ()
    table_schema: str | None = None


def migrate_schema(settings: Postgres, migrations: Migrations, connect_args: Mapping[str, Any]) -> str:
    """Bring the schema to the newest revision this code knows, all or nothing; returns the revision that it has then:
    a newer one where a newer program has been here and says that this one works with it.

    Blocks, so it is run in a thread. Processes that start together take turns by an advisory lock. Raises
    `SchemaTooNew`, or sqlalchemy's DBAPIError where Postgres is away, refuses a statement, or the lock is not free
    within 5 s.
    """
    head = newest_revision(migrations.scripts)
    engine = create_engine(
        database_url(settings),
        poolclass=NullPool,
        connect_args=dict(connect_args),
        hide_parameters=True,
        use_native_hstore=False,
    )
    with _ALEMBIC, engine.begin() as connection:
        at = _revision(connection, migrations.table_schema)
        if at == head:
            return head
        if at is not None and at > head:
            # Before any statement that changes something: the role may be one that only uses the tables.
            return _newer(connection, at, head, migrations)
        for module in _ALEMBIC_MODULES:  # before the lock, for which others wait
            import_module(module)
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        # Released with the transaction, even if this process dies.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": migrations.lock_key})
        for statement in migrations.before:
            connection.execute(text(statement))
        try:
            works_from = _upgrade(connection, migrations.scripts, head, migrations.table_schema)
        except _UnknownRevision as unknown:  # it has become newer since
            return _newer(connection, str(unknown), head, migrations)
        _note_works_from(connection, works_from, migrations.table_schema)
    return head


def _upgrade(connection: Connection, directory: Path, head: str, table_schema: str | None) -> str:
    """Run the scripts that lead to `head`, in the connection's transaction. One at a time in a process.

    Returns the revision from which on programs work with that schema. Raises `_UnknownRevision`.
    """
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    scripts = ScriptDirectory(str(directory))
    context = MigrationContext.configure(
        connection,
        opts={
            "fn": lambda revision, _context: scripts._upgrade_revs(head, revision),
            "version_table_schema": table_schema,
        },
    )
    current = context.get_current_revision()
    if current is not None:
        try:
            scripts.get_revision(current)
        except CommandError:
            raise _UnknownRevision(current) from None
    if current != head:
        with Operations.context(context):
            context.run_migrations()
    newest = scripts.get_revision(head)
    assert newest is not None
    works_from: str = getattr(newest.module, "works_from", head)
    return works_from


def _newer(connection: Connection, revision: str, head: str, migrations: Migrations) -> str:
    """The revision of a schema that this code does not know. Raises `SchemaTooNew` unless they work together."""
    works_from = _works_from(connection, migrations.table_schema)
    at = f"{migrations.name} is at schema revision {revision}, this version of the program knows up to {head}"
    if works_from is None or works_from > head:
        raise SchemaTooNew(f"{at}: start the newer version, or {migrations.remedy}")
    logger.warning("%s and works with it, as all from %s on: a newer version has been started", at, works_from)
    return revision


def _works_from(connection: Connection, table_schema: str | None) -> str | None:
    table = _named(WORKS_FROM_TABLE, table_schema)
    if not _there(connection, table):
        return None
    return connection.execute(text(f"SELECT revision FROM {table}")).scalar()  # noqa: S608 - ours


def _note_works_from(connection: Connection, revision: str, table_schema: str | None) -> None:
    table = _named(WORKS_FROM_TABLE, table_schema)
    if not _there(connection, table):  # where it is, the right to create nothing is not asked for either
        connection.execute(text(f"CREATE TABLE {table} (revision text NOT NULL)"))
    connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608 - ours
    connection.execute(text(f"INSERT INTO {table} VALUES (:revision)"), {"revision": revision})  # noqa: S608 - ours


def newest_revision(scripts: Path) -> str:
    """The newest revision in alembic's directory. Our scripts are one line, and named after their revisions: r0008_…"""
    return max(script.name[1:5] for script in (scripts / "versions").glob("r[0-9][0-9][0-9][0-9]_*.py"))


def _revision(connection: Connection, table_schema: str | None) -> str | None:
    """The revision that the schema is at, None where it has none."""
    table = _named(_TABLE, table_schema)
    if not _there(connection, table):
        return None
    return connection.execute(text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 - ours


def _there(connection: Connection, table: str) -> bool:
    return connection.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is not None


def _named(table: str, table_schema: str | None) -> str:
    return f'"{table_schema}".{table}' if table_schema else table
