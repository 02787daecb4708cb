"""Redis carries what instances tell one another, and is in trouble: Postgres takes over, nobody is wrong (fleet)."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.chaos import fleet
from tests.chaos.deployment import Deployment, Service, Size
from tests.chaos.fleet import (
    CANCEL_MS,
    ID,
    SILENT,
    SLOW,
    Scene,
    at_once,
    cancel_elsewhere,
    cancel_rows,
    pair_of_instances,
)
from tests.chaos.proxy import FaultProxy
from tests.chaos.rows import Row, all_of, exactly, not_run
from tests.chaos.until import until_it
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer

_TOLD_AGAIN_MS = 1000.0
"""How long a stop that nobody has heard is believed."""


@dataclass(slots=True)
class _Redis:
    """The server, and the proxy by which the instances reach it."""

    deployment: Deployment
    server: RedisServer
    proxy: FaultProxy

    async def nothing(self) -> None:
        """Leave it as it is."""

    async def restart(self) -> None:
        """As an upgrade does."""
        await self.end()
        await self.begin()

    async def slow_down(self) -> None:
        """A tenth of a second each way."""
        await self.proxy.command("delay both 100 50")

    async def fill(self) -> None:
        """No client more, no byte more; and those that there are have gone."""
        with socket.create_connection(("127.0.0.1", self.server.port), PATIENCE_S) as console:
            console.sendall(b"config set maxmemory 1\r\nconfig set maxclients 1\r\n")
            await asyncio.sleep(0.1)
        await self.proxy.command("reset")

    async def make_room(self) -> None:
        """Again as it was at the start."""
        await self.restart()

    async def cut(self) -> None:
        """Nothing gets through, and no connection ends."""
        await self.proxy.command("hold")

    async def hear_nothing(self) -> None:
        """What instances say does not reach it, and what it says reaches them."""
        await self.proxy.command("hold up")

    async def be_unheard(self) -> None:
        """The other way round: it takes what they say, and counts subscribers that hear nothing."""
        await self.proxy.command("hold down")

    async def mend(self) -> None:
        """Let everything through again, on new connections."""
        await self.proxy.command("reset")
        await self.proxy.command("normal")

    async def end(self) -> None:
        """Kill it."""
        await self.deployment.do(self.server.stop)

    async def begin(self) -> None:
        """Start it, empty."""
        await self.deployment.do(self.server.start)


Act = Callable[[_Redis], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What happens to Redis, how it is undone, and within which time a cancel is obeyed meanwhile."""

    words: str
    happen: Act
    undo: Act
    bound_ms: float = CANCEL_MS


_TROUBLES = (
    _Trouble("Redis is well", _Redis.nothing, _Redis.nothing),
    _Trouble("Redis is slow (200 ms)", _Redis.slow_down, _Redis.mend, 2 * CANCEL_MS),
    _Trouble("Redis is restarted", _Redis.restart, _Redis.nothing),
    _Trouble("Redis takes no client and no byte more", _Redis.fill, _Redis.make_room),
    _Trouble("Redis is cut off in silence", _Redis.cut, _Redis.mend, 2 * _TOLD_AGAIN_MS + CANCEL_MS),
    _Trouble("Redis is gone", _Redis.end, _Redis.begin),
)
_LONG_TROUBLES = (
    _Trouble("Redis is not reached", _Redis.hear_nothing, _Redis.mend, 2 * _TOLD_AGAIN_MS + CANCEL_MS),
    _Trouble("Redis is not heard", _Redis.be_unheard, _Redis.mend, 2 * _TOLD_AGAIN_MS + CANCEL_MS),
)
"""Of the full form only."""


async def troubles(deployment: Deployment, size: Size) -> list[Row]:
    """Turns stopped at the other instance, and followed there, while Redis is in each kind of trouble."""
    if shutil.which("redis-server") is None:
        return [not_run(ID, "Redis in trouble", "needs redis-server")]
    rows: list[Row] = []
    async with redis_of(deployment) as redis, _on(deployment, redis) as scene:
        for trouble in _TROUBLES if size.short else _TROUBLES + _LONG_TROUBLES:
            await at_once(_hears(service, "up") for service in scene.services)
            rows += await _during(deployment, size, scene, redis, trouble)
        rows += scene.rows("Redis in trouble", [], await scene.settle())[:1]
        tracebacks = sum(service.tracebacks for service in scene.services)
        rows.append(exactly(ID, "Redis in trouble: tracebacks in the logs", tracebacks, 0))
    return rows


async def deaths(deployment: Deployment, size: Size) -> list[Row]:
    """Those of `fleet.deaths`, with Redis as the bus."""
    if shutil.which("redis-server") is None:
        return [not_run(ID, "kill -9 of instances on Redis", "needs redis-server")]
    async with redis_of(deployment) as redis:
        return await fleet.deaths(deployment, size, by="on Redis, ", fleet=section(redis))


async def _during(deployment: Deployment, size: Size, scene: Scene, redis: _Redis, trouble: _Trouble) -> list[Row]:
    name = trouble.words.replace(" ", "-")
    cancels, followed = size.pick(5, 50), size.pick(5, 20)
    await trouble.happen(redis)
    took_ms = [
        await cancel_elsewhere(deployment, scene, "Silent", f"{name}-cancel-{number}") for number in range(cancels)
    ]
    turns = await at_once(scene.begin("Georges", f"{name}-{number}") for number in range(followed))
    same = await at_once(scene.ends_alike(turn, "final") for turn in turns)
    ready = await at_once(service.ask_status("/ready") for service in scene.services)
    await trouble.undo(redis)
    return [
        *cancel_rows(f"{trouble.words}: a cancel at another instance", took_ms, trouble.bound_ms * size.slack),
        all_of(ID, f"{trouble.words}: turns that end in one final, the same at both instances", sum(same),
               of=followed, unit="turns"),
        all_of(ID, f"{trouble.words}: instances that are ready", sum(status == 200 for status, _ in ready),
               of=len(ready), unit="instances"),
    ]  # fmt: skip


@asynccontextmanager
async def redis_of(deployment: Deployment) -> AsyncIterator[_Redis]:
    """A server of its own, behind a proxy that is not told to fail."""
    server = RedisServer()
    redis = _Redis(deployment, server, FaultProxy(server.port, seed=deployment.seed))
    try:
        await redis.begin()
        await redis.proxy.accept()
        yield redis
    finally:
        redis.proxy.close()
        await redis.end()
        shutil.rmtree(server.directory)


def _on(deployment: Deployment, redis: _Redis) -> Any:
    """Two instances on this Redis: Georges answers, and Silent's model does not."""
    agents = [
        {"name": name, "class_path": "agentic_backend.agent.plain", "model": model}
        for name, model in (("Georges", "default"), ("Silent", "silent"))
    ]
    sections = {
        "model": SLOW,
        "ai": {"chat_models": [{"id": "silent", "name": SILENT}], "agents": agents},
        "fleet": section(redis),
    }
    return pair_of_instances(deployment, [{}, {}], [True, True], **sections)


def section(redis: _Redis) -> dict[str, Any]:
    """That of the configuration which makes it the bus."""
    return {"bus": "redis", "redis": {"host": "127.0.0.1", "port": redis.proxy.port}}


async def _hears(service: Service, status: str) -> None:
    """Wait until an instance says so of the bus."""

    async def says() -> bool:
        code, body = await service.ask_status("/ready")
        return code == 200 and body["dependencies"]["bus"]["status"] == status

    await until_it(says)
