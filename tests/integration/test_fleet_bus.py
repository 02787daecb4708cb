"""Two instances whose messages Redis carries, and what becomes of them while it is away."""

import asyncio
import re
from typing import Any

import pytest

from tests.agentic_backend.records import until
from tests.integration.test_cancel import SLOW, stats, until_open
from tests.integration.test_deletion import delete, left
from tests.support.agentic import start_process
from tests.support.fleet import listening, open_asks, two_instances
from tests.support.following import ask_frame, resume_frame
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import redis_server
from tests.support.service import BASE, say

__all__ = ["start_process"]

pytestmark = [pytest.mark.servers, pytest.mark.redis]

MEASURED = {"app": {"metrics_enabled": True}}


async def dependency(service: Any) -> dict[str, Any]:
    """What /ready says of the bus; the service is ready whatever that is."""
    async with service.http.get(f"{BASE}/ready") as response:
        assert response.status == 200
        return (await response.json())["dependencies"]["bus"]


async def told(service: Any, bus: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await dependency(service) != bus:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.05)


async def sent(service: Any, way: str) -> int:
    """Messages of this instance that went this way."""
    found = re.search(rf'^app_fleet_messages_total{{bus="{way}"}} (\S+)$', await service.metrics(), re.MULTILINE)
    return int(float(found[1])) if found else 0


async def cancelled_elsewhere(one: Any, other: Any, mock_llm: Any, exchange_id: str) -> None:
    """A turn at one instance ends, and its model's connection is closed, by a cancel at the other."""
    before = (await stats(one, mock_llm))["streams"]["open"]
    session_id = await one.create_session()
    async with listening(one, ask_frame(session_id, exchange_id)) as asker, other.native() as stopper:
        await asker.until("message")
        await until_open(one, mock_llm, before + 1)
        async with listening(other, resume_frame(session_id, exchange_id)) as follower:
            await follower.until("message")
            await say(stopper, type="cancel", exchange_id=exchange_id)
            ends = await asyncio.gather(asker.end(), follower.end())
        await until_open(one, mock_llm, before)
    assert [end["type"] for end in ends] == ["cancelled", "cancelled"]


async def test_what_one_tells_another_goes_by_redis_and_by_postgres_while_it_is_away(start_process, mock_llm, database):
    with redis_server() as server:
        bus = {"fleet": {"bus": "redis", "redis": {"host": "127.0.0.1", "port": server.port}}}
        async with two_instances(start_process, SLOW, **bus, **MEASURED) as (one, other):
            await asyncio.gather(*(told(service, {"status": "up"}) for service in (one, other)))
            await cancelled_elsewhere(one, other, mock_llm, "e1")
            assert await sent(other, "redis") >= 1
            server.stop()
            await asyncio.gather(*(told(service, {"status": "down"}) for service in (one, other)))
            before = await sent(other, "postgres")
            await cancelled_elsewhere(one, other, mock_llm, "e2")
            session_id = await one.create_session()
            async with listening(one, ask_frame(session_id, "e3")) as asker:
                await asker.until("message")
                assert (await delete(other, session_id))[0] == 200
            assert not any((await left(database, session_id)).values())
            assert await sent(other, "postgres") >= before + 2
            server.start()
            await asyncio.gather(*(told(service, {"status": "up"}) for service in (one, other)))
            by_redis = await sent(other, "redis")
            await cancelled_elsewhere(one, other, mock_llm, "e4")
            assert await sent(other, "redis") > by_redis
            await until(lambda: open_asks(database) == 0)
