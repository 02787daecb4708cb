"""Keys as they are stored: what their maker was answered is what is listed."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.metrics import AgenticMetrics
from backend_kit.auth import AuditAction, AuditEvent
from backend_kit.db.api_keys import PostgresKeys, key_pool
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from tests.support.api_keys import new_key, with_keys
from tests.support.postgres import Database


def moments(*times: float | None) -> list[datetime]:
    return [datetime.fromtimestamp(at, UTC) for at in times if at is not None]


# Postgres makes 871952, 837652 and 686850 microseconds of these, and Python one more or one less.
@pytest.mark.parametrize("at", [1796033673.8719525, 1796033673.8376515, 1796033673.6868505])
async def test_a_key_is_listed_with_the_times_at_which_it_was_made(database: Database, at: float) -> None:
    registry = CollectorRegistry()
    metrics = AgenticMetrics(registry, Kpi(registry, service="agentic"))
    pool = key_pool(Postgres.model_validate(with_keys(database).settings()), metrics)
    try:
        store = PostgresKeys(pool, HistoryUnavailable)
        _, record = new_key(created_at=at, expires_at=at + 90 * 86_400.0)
        assert await store.create(record, 1, AuditEvent(AuditAction.KEY_MADE, "key", record.id, record.owner))
        [stored] = await store.list(record.owner, 10)
    finally:
        await pool.aclose()
    assert moments(stored.created_at, stored.expires_at) == moments(record.created_at, record.expires_at)
