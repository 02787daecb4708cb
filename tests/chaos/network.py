"""N machines: between instances, Postgres and Redis is a network, slow, lossy, cut or cut one way (network)."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import pairwise
from time import perf_counter

from agentic_backend.peers.mirror import CONNECT_S
from agentic_backend.peers.relay import HEARTBEAT_S
from tests.chaos import bus
from tests.chaos.control import Way
from tests.chaos.deployment import Deployment, Size
from tests.chaos.fleet import STREAMED, TAKEOVER_S, Scene, instances, ledger_rows, settled, taken_for_dead
from tests.chaos.ledger import Ledger
from tests.chaos.load import create_session
from tests.chaos.paths import Paths
from tests.chaos.rows import Row, at_least, at_most, not_run
from tests.chaos.travellers import travellers
from tests.support.rest import rest_client

ID = "network"
Run = Callable[[Deployment, Size], Awaitable[list[Row]]]
_CONDITIONS = "5 ms, 1 % lost"
_RESENT = 3.0
"""How much wider bounds of durations are, at least, where a piece of each may be sent again."""
_PATIENCE_S = 8.0
"""Clients look elsewhere after so long."""
_RESTLESS = 0.4
"""So many leave in the middle of an answer: turns are followed at other instances all the time."""
_LOOKS_S = 3 * HEARTBEAT_S + 2 * CONNECT_S + 2.0
"""A peer is silent for three heartbeats, then does not answer a connect, twice; then history tells of the turn."""
_CALLS_LATE = "mock;tool=add;ttft=14000"
"""A model that calls a tool once its instance has let go of the turn (`FleetRules.renew_s`), and is taken for dead."""
_OUT_S = 16
"""Longer than `FleetRules.dead_s`, and than the wait for the locks of a transaction that nobody ends."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a path is cut, and what is said once it is whole again: what was held comes late then."""

    words: str
    begin: tuple[str, ...]
    end: tuple[str, ...]


_BROKEN = _Cut("is cut", ("refuse", "reset"), ("accept",))
_UP_HELD = _Cut("is cut one way, from whoever dials", ("hold up", "ignore"), ("accept", "release up"))
_DOWN_HELD = _Cut("is cut one way, to whoever dials", ("hold down", "ignore"), ("accept", "release down"))
_CUTS = (_BROKEN, _UP_HELD, _DOWN_HELD)


@dataclass(frozen=True, slots=True)
class _Place:
    """Which paths of an instance, for how long, and after how long at most an answer goes on, in seconds."""

    words: str
    ways: Callable[[Paths], Sequence[Way]]
    lasts_s: int
    bound_s: float


_FROM_PEERS = _Place("from the other instances to one", lambda paths: (paths.peers,), 10, _LOOKS_S)
_TO_POSTGRES = _Place("from one to Postgres", lambda paths: (paths.postgres,), _OUT_S, TAKEOVER_S + _PATIENCE_S)
_TO_REDIS = _Place("from one to Redis", lambda paths: paths.redis, 10, 5.0)
_ALL = _Place("of one to all others", lambda paths: paths.all, _OUT_S, TAKEOVER_S + _LOOKS_S + _PATIENCE_S)
_SHORT = ((_TO_POSTGRES, _UP_HELD), (_FROM_PEERS, _DOWN_HELD))
_FULL = tuple((place, cut) for place in (_FROM_PEERS, _TO_POSTGRES, _TO_REDIS, _ALL) for cut in _CUTS)


def over_network(run: Run) -> Run:
    """A scenario of fleets with its instances on machines of their own. It widens the bounds of durations."""

    @wraps(run)
    async def apart(deployment: Deployment, size: Size) -> list[Row]:
        async with _machines(deployment):
            rows = await run(deployment, replace(size, slack=max(size.slack, _RESENT)))
        return [replace(row, id=ID, what=f"{_CONDITIONS}: {row.what}") for row in rows]

    apart.__name__ = f"{run.__name__}_over_network"
    return apart


async def cuts(deployment: Deployment, size: Size) -> list[Row]:
    """Clients at three instances, many of which leave in mid-answer and resume at another one, while one path after the
    other is cut; in the full form every path in every way, and all of an instance at once."""
    if shutil.which("redis-server") is None:
        return [not_run(ID, "paths that are cut", "needs redis-server")]
    clients = size.pick(30, 60)
    struck = _SHORT if size.short else _FULL
    ledger, draw, begun = Ledger(), deployment.draw(ID), []
    async with (
        _machines(deployment),
        bus.redis_of(deployment) as redis,
        instances(deployment, 3, model=STREAMED, fleet=bus.section(redis)) as (services, paths),
        rest_client() as http,
    ):
        sessions = [await create_session(http, services[0].address) for _ in range(clients)]
        addresses = [service.address for service in services]
        habits = {"pause_s": 1.0, "patience_s": _PATIENCE_S, "restless": _RESTLESS}
        async with travellers(addresses, ledger, draw, sessions, **habits) as crowd:
            await crowd.answered(clients)
            for number, (place, cut) in enumerate(struck):
                await crowd.asked_at(number % len(paths))
                begun.append(perf_counter())
                await _strike(place, cut, paths[number % len(paths)])
                await crowd.answered(clients)
            await crowd.pause()
            found = crowd.findings()
            report = await settled(services, http, ledger)
            silences = [crowd.longest_silence_s(*span) for span in pairwise([*begun, perf_counter()])]
    what = f"{len(struck)} cuts of paths, {clients} clients"
    return [
        *(replace(row, id=ID) for row in ledger_rows(what, found, report)),
        at_least(ID, "turns that went on at another instance", found.restarted, 1, "turns"),
        *(_silence_row(*one, silent_s, size) for one, silent_s in zip(struck, silences, strict=True)),
    ]


async def one_way(deployment: Deployment, size: Size) -> list[Row]:
    """An instance reaches Postgres, and is not answered, or the other way round: others go on with its turns, and it
    calls no tool of what it has lost."""
    rows: list[Row] = []
    for cut in (_UP_HELD,) if size.short else (_UP_HELD, _DOWN_HELD):
        what = f"the path of an instance to Postgres {cut.words}, for {_OUT_S} s"

        async def trouble(scene: Scene, cut: _Cut = cut) -> None:
            await scene.paths[0].postgres.tell(*cut.begin)
            await asyncio.sleep(_OUT_S)
            await scene.paths[0].postgres.tell(*cut.end)

        async with _machines(deployment):
            rows += await taken_for_dead(deployment, size, what, [{}, {}], trouble, _CALLS_LATE)
    return [replace(row, id=ID) for row in rows]


async def _strike(place: _Place, cut: _Cut, paths: Paths) -> None:
    for way in place.ways(paths):
        await way.tell(*cut.begin)
    await asyncio.sleep(place.lasts_s)
    for way in place.ways(paths):
        await way.tell(*cut.end)


def _silence_row(place: _Place, cut: _Cut, silent_s: float, size: Size) -> Row:
    bound_s = place.bound_s * (2 if size.short else 1)
    what = f"the path {place.words} {cut.words}, for {place.lasts_s} s: until an answer goes on"
    return at_most(ID, what, silent_s, bound_s, "s")


@asynccontextmanager
async def _machines(deployment: Deployment) -> AsyncIterator[None]:
    """Its fleets are apart in the block."""
    deployment.apart = True
    try:
        yield
    finally:
        deployment.apart = False
