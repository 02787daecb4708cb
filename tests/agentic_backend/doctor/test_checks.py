"""What the doctor says of the Redis of a fleet."""

from typing import Any

import pytest

from agentic_backend.doctor.checks import bus_check
from backend_kit.doctor.checks import Diagnosis, Health
from tests.agentic_backend.records import settings_for
from tests.chaos.proxy import FaultProxy
from tests.support.ports import free_port
from tests.support.redis_server import redis_server, watched_pair

SECRET = "never-to-be-seen"


async def found(**redis: Any) -> Diagnosis:
    postgres = {"host": "127.0.0.1", "database": "none", "username": "nobody"}
    fleet = {"bus": "redis", "redis": {"host": "127.0.0.1", **redis}} if redis else {}
    (row,) = await bus_check(settings_for(postgres, fleet=fleet, persistence={"replicas": "many"})).look()
    assert SECRET not in repr(row)
    return row


async def test_without_redis_nothing_is_looked_at() -> None:
    assert (await found()).state is Health.NOT_USED


@pytest.mark.servers
@pytest.mark.redis
async def test_a_redis_that_is_well_slow_full_or_refuses() -> None:
    with redis_server("--requirepass", SECRET) as server:
        well = await found(port=server.port, password=SECRET)
        assert (well.state, well.figure.startswith("Redis, a word is heard in ")) == (Health.OK, True)
        for password in (None, f"{SECRET}-not"):
            assert (await found(port=server.port, password=password)).state is Health.WRONG
        proxy = FaultProxy(server.port)
        await proxy.accept()
        await proxy.command("delay both 350 0")
        assert (await found(port=proxy.port, password=SECRET)).state is Health.SLOW
        proxy.close()
        rights = ("resetchannels", "&other:*", "-@all", "+@connection", "+publish", "+subscribe")
        server.say("acl", "setuser", "few", "on", f">{SECRET}", *rights, password=SECRET)
        assert (await found(port=server.port, username="few", password=SECRET)).state is Health.WRONG


@pytest.mark.servers
@pytest.mark.redis
async def test_a_sentinel_that_refuses_is_told_from_one_that_does_not_answer() -> None:
    with watched_pair() as watched:
        watch = {"port": watched.sentinels[0].port, "sentinel_set": watched.name}
        assert (await found(**watch)).state is Health.OK
        watched.sentinels[0].say("acl", "setuser", "default", "resetpass", f">{SECRET}")
        assert (await found(**watch, sentinel_password=SECRET)).state is Health.OK
        for password in (None, f"{SECRET}-not"):
            row = await found(**watch, sentinel_password=password)
            assert (row.state, "fleet.redis.sentinel_username" in row.remedy) == (Health.WRONG, True)
        watched.sentinels[0].stop()
        assert (await found(**watch, sentinel_password=SECRET)).state is Health.AWAY


@pytest.mark.servers
async def test_a_redis_that_is_not_there_is_away() -> None:
    row = await found(port=free_port())
    assert (row.state, "Postgres carries" in row.remedy) == (Health.AWAY, True)
