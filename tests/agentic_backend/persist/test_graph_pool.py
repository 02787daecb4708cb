"""LangGraph's tables: linked to the sessions, taken over from an earlier release, on a bounded pool."""

import asyncio

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint

from agentic_backend.errors import NotKept
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.checkpoints import PostgresGraphState
from agentic_backend.persist.graph_pool import TABLES, GraphPool
from agentic_backend.persist.persistence import Persistence
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from tests.agentic_backend.records import new_session, rows
from tests.support.ports import free_port
from tests.support.postgres import Database

CONSTRAINTS = "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'f' AND conrelid::regclass::text LIKE 'checkpoint%' ORDER BY 1"


def graph_pool(database: Database, kpi: Kpi, size: int = 4, **changes: object) -> GraphPool:
    return GraphPool(Postgres.model_validate({**database.settings(), **changes}), AgenticMetrics(kpi), size)


def where(thread: str) -> dict[str, object]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
