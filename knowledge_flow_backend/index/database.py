"""The database of one index: its two pools, its schema in Postgres, and how its connections search."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from backend_kit.db.database import Database
from backend_kit.db.faults import AnyFault, Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.libpq import MIGRATION_TIMEOUT_MS, STATEMENT_TIMEOUT_MS
from backend_kit.db.libpq import connect_args as libpq_args
from backend_kit.db.pool import ANSWER_S, Pool, PoolMetrics, PoolRules
from backend_kit.db.schema import Migrations, migrate_schema
from backend_kit.settings import Postgres
from knowledge_flow_backend.errors import IndexUnavailable, SchemaMismatch, UploadProcessingFailed

LOCK_KEY: Final = 0x6B6E_6F77_666C_6F77
"""The advisory lock of migrations and of the first write: "knowflow" in ASCII."""
SCRIPTS: Final = Path(__file__).with_name("migrations")
WRITE_TIMEOUT_MS: Final = 120_000
HNSW_SEARCH: Final = 100
"""Size of the candidate list of a search in the vectors' graph; pgvector's 40 is below our 50 candidates."""

_SEARCHING: Final[dict[str, str | int]] = {
    "jit": "off",  # compiling a plan takes longer than any of our statements
    "hnsw.ef_search": HNSW_SEARCH,
    # A filter that drops candidates makes the graph be searched further, instead of leaving too few hits.
    "hnsw.iterative_scan": "relaxed_order",
}


def write_connections(writers: int) -> int:
    """Of the pool of ingestion: one for each document that is written, and one to receive a further upload."""
    return writers + 1


class IndexDatabase(Database):
    """The Postgres schema named `index`, which holds documents, libraries and chunks.

    `main` answers requests. `writes` is for the transactions of ingestion: one connection for each of the `writers`,
    the documents that are written at once, and one on which a further upload is received meanwhile.
    """

    def __init__(self, settings: Postgres, index: str, metrics: PoolMetrics, *, writers: int = 2) -> None:
        self.index = index
        # A search names its phases; single statements inside them would be rows too many.
        requests = PoolRules.for_requests(settings, in_ledger=False)
        # A write may wait for two others; a search whose wait is that long has no caller any more.
        wait_s, recycle_s, pre_ping = WRITE_TIMEOUT_MS / 1000, settings.pool_recycle, settings.pool_pre_ping
        writes = PoolRules(write_connections(writers), 0, wait_s, recycle_s, pre_ping, in_ledger=False)
        main_args = connect_args("turnwise-knowledge-main", index, settings.connect_timeout)
        write_args = connect_args("turnwise-knowledge-ingest", index, settings.connect_timeout, WRITE_TIMEOUT_MS)
        super().__init__(
            settings,
            lambda: migrate(settings, index),
            main=Pool("main", settings, requests, metrics, connect_args=main_args),
            writes=Pool("ingest", settings, writes, metrics, connect_args=write_args, answer_s=wait_s + ANSWER_S),
        )

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """For a block that asks Postgres. Raises `IndexUnavailable` before the first contact, since the tables may not
        be there yet, and in the place of a `DatabaseFault` the failure that it is to callers."""
        if not self.ready:
            refused = self.state.status == "refused"
            raise IndexUnavailable(self.state.reason if refused else "the schema is not known yet")
        try:
            yield
        except DatabaseFault as error:
            raise _failure_of(error) from error


def connect_args(
    application_name: str, index: str, connect_timeout_s: int, timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> dict[str, Any]:
    """As `backend_kit.db.libpq.connect_args`, with the schema of the index, and how vectors are searched."""
    return libpq_args(
        application_name,
        connect_timeout_s,
        timeout_ms,
        {"search_path": f'"{index}",public', **_SEARCHING},
    )


def migrate(settings: Postgres, index: str) -> str:
    """Bring the schema named `index` to the newest revision this code knows; returns it. Blocks.

    `index` must have the form that the settings check: it stands in statements as an identifier. Raises as
    `migrate_schema` does, also where Postgres has no pgvector.
    """
    migrations = Migrations(
        scripts=SCRIPTS,
        lock_key=LOCK_KEY,
        name=f"the index {index!r}",
        remedy="name another storage.vector_store.index",
        before=("CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public", f'CREATE SCHEMA IF NOT EXISTS "{index}"'),
        table_schema=index,
    )
    args = connect_args("turnwise-knowledge-migrate", index, settings.connect_timeout, MIGRATION_TIMEOUT_MS)
    return migrate_schema(settings, migrations, args)


_DIMENSIONS = "22000"
"""pgvector's SQLSTATE for two vectors of different lengths, or one that is not as long as its column."""


def _failure_of(error: AnyFault) -> IndexUnavailable | SchemaMismatch | UploadProcessingFailed:
    """The failure to raise for a database error. Its text names the SQLSTATE only: the server's may quote the
    question."""
    sqlstate, cause = sqlstate_of(error), cause_of(error)
    if sqlstate == _DIMENSIONS:
        return SchemaMismatch("the vector does not have the length of the index")
    if cause is Cause.POISON:
        return UploadProcessingFailed(f"sqlstate={sqlstate}")
    return IndexUnavailable("no free connection" if cause is Cause.POOL else f"sqlstate={sqlstate}")
