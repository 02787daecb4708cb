"""A background task or thread that the service cannot do without fails: what /ready, /metrics and the log say of it."""

from agentic_backend.persist.batcher import Batcher
from tests.agentic_backend.persist.support import until
from tests.integration.test_deletion import say_and_hear
from tests.support.service import BASE

ESSENTIAL = [
    "kpi-loop-monitor",
    "kpi-summary",
    "persist-batcher",
    "persist-owner",
    "persist-watch",
    "socket-clock",
    "spool-writer",
    "turn-clock",
]


async def ready(service):
    async with service.http.get(f"{BASE}/ready") as response:
        return response.status, await response.json()


async def test_a_batcher_that_keeps_failing_takes_its_instance_out_and_what_it_holds_is_written_later(
    start_service, monkeypatch, caplog
):
    async with start_service() as service:
        running = service.service.running
        essential = set(running.tasks.vigil._essential)
        assert essential - {"kpi-metrics"} == set(ESSENTIAL)
        session_id = await service.create_session()
        with monkeypatch.context() as broken:

            async def fails(_batcher, _batch):
                raise ZeroDivisionError("on purpose")

            broken.setattr(Batcher, "_write", fails)
            await say_and_hear(service, session_id, "e1")
            await until(lambda: bool(running.tasks.vigil.down))
            status, told = await ready(service)
            assert (status, told["status"]) == (503, "task_down")
            assert told["dependencies"]["tasks"] == {"status": "down", "down": ["persist-batcher"]}
        assert running.tasks.failures["persist-batcher"] >= 3
        await running.persistence.flush(20)
        assert len(await service.history(session_id)) == 2
    assert "task persist-batcher failed" in caplog.text


async def test_a_spool_writer_that_keeps_failing_is_down(start_service, monkeypatch):
    async with start_service() as service:
        running = service.service.running
        with monkeypatch.context() as broken:

            def fails(_work):
                raise ZeroDivisionError("on purpose")

            broken.setattr(running.persistence.spool, "_commit", fails)
            running.persistence.spool.done([])
            await until(lambda: running.tasks.vigil.down == ["spool-writer"])
            assert (await ready(service))[1]["status"] == "task_down"
            assert not running.persistence.spool.usable
        await until(lambda: running.persistence.spool.usable)
        assert await service.create_session()
