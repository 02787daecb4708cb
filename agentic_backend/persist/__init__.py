"""Sessions and their history in Postgres: engines, schema, the batcher behind the turns, and what readers see."""

from agentic_backend.persist.batcher import BatcherStats, BatchRules, DrainReport
from agentic_backend.persist.cache import HistoryCache
from agentic_backend.persist.database import Database, DatabaseState, PoolStats, SchemaTooNew
from agentic_backend.persist.persistence import Persistence

__all__ = [
    "BatchRules",
    "BatcherStats",
    "Database",
    "DatabaseState",
    "DrainReport",
    "HistoryCache",
    "Persistence",
    "PoolStats",
    "SchemaTooNew",
]
