"""Instances as if each had a machine of its own: whatever one says to another server goes through a bad network."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.chaos.control import ProxyProcess, Way
from tests.chaos.deployment import Deployment, Service

CONDITIONS = ("delay both 5 1", "loss both 1")
"""Of each path: 5 ± 1 ms each way, and one piece of a hundred is sent again."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Those of one instance. `up` is away from it, but for `peers`, by which the others reach it."""

    postgres: Way
    peers: Way
    redis: tuple[Way, ...] = ()
    """None where Postgres is the bus."""

    @property
    def all(self) -> tuple[Way, ...]:
        """Each of them."""
        return (self.postgres, self.peers, *self.redis)


@asynccontextmanager
async def apart(deployment: Deployment, services: Sequence[Service]) -> AsyncIterator[list[Paths]]:
    """Have services reach Postgres, Redis and one another through paths of their own, from their next start on. What
    else stands on the way to these stays there. They keep their clients and their model beside them."""
    targets = [_targets(service) for service in services]
    proxy = ProxyProcess(*(target for of_one in targets for target in of_one), seed=deployment.seed)
    await deployment.do(proxy.__enter__)
    try:
        await asyncio.to_thread(proxy.start)
        ways = iter(proxy.ways)
        found = [
            _lead(service, [next(ways) for _ in of_one]) for service, of_one in zip(services, targets, strict=True)
        ]
        for paths in found:
            for way in paths.all:
                await way.tell(*CONDITIONS)
        yield found
    finally:
        await deployment.do(proxy.__exit__, None, None, None)


def _targets(service: Service) -> list[int]:
    settings = service.settings
    redis = settings.get("fleet", {}).get("redis")
    return [settings["storage"]["postgres"]["port"], service.address.port, *([redis["port"]] if redis else [])]


def _lead(service: Service, ways: list[Way]) -> Paths:
    paths = Paths(ways[0], ways[1], tuple(ways[2:]))
    fleet: dict[str, object] = {"url": f"http://127.0.0.1:{paths.peers.port}"}
    for way in paths.redis:
        fleet["redis"] = {"port": way.port}
    service.change(storage={"postgres": {"port": paths.postgres.port}}, fleet=fleet)
    return paths
