"""The database of sessions and their history: its two pools, and the revisions of its schema."""

from pathlib import Path
from typing import Any, Final

from agentic_backend.spool.statements import register_json
from backend_kit.db.database import Database
from backend_kit.db.libpq import MIGRATION_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, connect_args
from backend_kit.db.pool import Pool, PoolMetrics, PoolRules
from backend_kit.db.schema import Migrations, migrate_schema
from backend_kit.settings import Postgres

LOCK_KEY: Final = 0x7475_726E_7769_7365
"""The advisory lock of migrations: "turnwise" in ASCII."""
WHILE_WE_ARE_SILENT: Final = {"idle_in_transaction_session_timeout": STATEMENT_TIMEOUT_MS}
"""An option of connections with transactions: of a process out of reach the server ends one after so long, in
milliseconds, and nobody waits for its locks. Keepalives alone do not tell: a proxy on the way answers them."""
BATCH_CONNECTIONS: Final = 2
"""Of the batcher's pool."""
MIGRATIONS: Final = Migrations(
    scripts=Path(__file__).with_name("migrations"),
    lock_key=LOCK_KEY,
    name="the database",
    remedy="restore a backup from before the upgrade",
)


def history_database(settings: Postgres, metrics: PoolMetrics) -> Database:
    """The database with a pool `main` of reads and small writes, and one for the batcher."""
    return Database(
        settings, lambda: migrate(settings), main=request_pool(settings, metrics), writes=batch_pool(settings, metrics)
    )


def request_pool(settings: Postgres, metrics: PoolMetrics) -> Pool:
    """The pool of reads and small writes, sized by the YAML."""
    return Pool("main", settings, PoolRules.for_requests(settings), metrics, **_connecting(settings, "main"))


def batch_pool(settings: Postgres, metrics: PoolMetrics) -> Pool:
    """The batcher's pool: it and the readers cannot take each other's connections."""
    rules = PoolRules(BATCH_CONNECTIONS, 0, settings.pool_timeout, settings.pool_recycle, pre_ping=False)
    return Pool("batch", settings, rules, metrics, **_connecting(settings, "batch"))


def migrate(settings: Postgres) -> str:
    """Bring the schema to the newest revision this code knows; returns it. Blocks. Raises as `migrate_schema` does."""
    args = connect_args("turnwise-agentic-migrate", settings.connect_timeout, MIGRATION_TIMEOUT_MS)
    return migrate_schema(settings, MIGRATIONS, args)


def _connecting(settings: Postgres, name: str) -> dict[str, Any]:
    args = connect_args(f"turnwise-agentic-{name}", settings.connect_timeout, options=WHILE_WE_ARE_SILENT)
    return {"connect_args": args, "on_connect": register_json}
