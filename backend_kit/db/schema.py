"""A schema in Postgres: brought to the revision of this code, by one process at a time."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, NullPool, create_engine, text

from backend_kit.db.pool import database_url
from backend_kit.settings import Postgres

LOCK_TIMEOUT_MS: Final = 5000
_TABLE: Final = "alembic_version"

# alembic's `op` refers to the process' latest migration: so only one runs at a time, also among several apps.
_ALEMBIC = threading.Lock()


class SchemaTooNew(Exception):
    """The schema was migrated by a newer version of the program. Its text is for the operator."""


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
    """Bring the schema to the newest revision this code knows, all or nothing; returns that revision.

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
        if _stands_at(connection, head, migrations.table_schema):
            return head
        from backend_kit.db.migration import UnknownRevision, upgrade  # with alembic, which nobody else needs

        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        # Released with the transaction, even if this process dies.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": migrations.lock_key})
        for statement in migrations.before:
            connection.execute(text(statement))
        try:
            upgrade(connection, migrations.scripts, head, migrations.table_schema)
        except UnknownRevision as unknown:
            raise SchemaTooNew(
                f"{migrations.name} is at schema revision {unknown}, this version of the program knows up to {head}: "
                f"start the newer version, or {migrations.remedy}"
            ) from None
    return head


def newest_revision(scripts: Path) -> str:
    """The newest revision in alembic's directory. Our scripts are one line, and named after their revisions: r0008_…"""
    return max(script.name[1:5] for script in (scripts / "versions").glob("r[0-9][0-9][0-9][0-9]_*.py"))


def _stands_at(connection: Connection, head: str, table_schema: str | None) -> bool:
    """Whether the schema is at that revision already."""
    table = f'"{table_schema}".{_TABLE}' if table_schema else _TABLE
    if connection.execute(text("SELECT to_regclass(:table)"), {"table": table}).scalar() is None:
        return False
    return list(connection.execute(text(f"SELECT version_num FROM {table}")).scalars()) == [head]  # noqa: S608 - ours
