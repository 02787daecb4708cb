"""A background task or thread that the service cannot do without fails: what /ready, /metrics and the log say of it."""

from contextlib import asynccontextmanager
from functools import partial

import pytest

from agentic_backend.app import Parts
from agentic_backend.persist.database import history_database
from agentic_backend.persist.persistence import Persistence
from agentic_backend.spool.spool import Spool
from tests.agentic_backend.records import BadDisk, until
from tests.integration.test_deletion import say_and_hear
from tests.support.patience import PATIENCE_S
from tests.support.service import BASE

pytestmark = pytest.mark.one_instance("breaks a task of one process")

ESSENTIAL = [
    "agent-grants",
    "api-keys",
    "audit-log",
    "kpi-loop-monitor",
    "kpi-summary",
    "persist-batcher",
    "persist-owner",
    "persist-watch",
    "socket-clock",
    "spool-writer",
    "turn-clock",
]


class OddPool:
    """Gives no connection, for a reason that nobody foresaw, while it is `odd`."""

    def __init__(self, pool):
        self._pool = pool
        self.name, self.stats, self.aclose = pool.name, pool.stats, pool.aclose
        self.odd = False

    @asynccontextmanager
    async def connection(self):
        if self.odd:
            raise ZeroDivisionError("on purpose")
        async with self._pool.connection() as connection:
            yield connection


def odd_database(settings, metrics):
    made = history_database(settings, metrics)
    made.writes = OddPool(made.writes)
    return made


async def ready(service):
    async with service.http.get(f"{BASE}/ready") as response:
        return response.status, await response.json()


async def test_a_batcher_that_keeps_failing_takes_its_instance_out_and_what_it_holds_is_written_later(
    start_service, caplog
):
    async with start_service(parts=Parts(persistence=partial(Persistence, database=odd_database))) as service:
        running = service.service.running
        essential = set(running.tasks.vigil._essential)
        assert essential - {"kpi-metrics"} == set(ESSENTIAL)
        session_id = await service.create_session()
        running.persistence.database.writes.odd = True
        await say_and_hear(service, session_id, "e1")
        await until(lambda: bool(running.tasks.vigil.down))
        status, told = await ready(service)
        assert (status, told["status"]) == (503, "task_down")
        assert told["dependencies"]["tasks"] == {"status": "down", "down": ["persist-batcher"]}
        running.persistence.database.writes.odd = False
        assert running.tasks.failures["persist-batcher"] >= 3
        await running.persistence.flush(PATIENCE_S)
        assert len(await service.history(session_id)) == 2
    assert "task persist-batcher failed" in caplog.text


async def test_a_spool_writer_that_keeps_failing_is_down(start_service):
    disk = BadDisk(ZeroDivisionError("on purpose"))
    spool = partial(Spool, connect_to=disk.connect)
    async with start_service(parts=Parts(persistence=partial(Persistence, spool=spool))) as service:
        running = service.service.running
        disk.broken = True
        running.persistence.spool.done([])
        await until(lambda: running.tasks.vigil.down == ["spool-writer"])
        assert (await ready(service))[1]["status"] == "task_down"
        assert not running.persistence.spool.usable
        disk.broken = False
        await until(lambda: running.persistence.spool.usable)
        assert await service.create_session()
