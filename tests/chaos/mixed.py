"""Everything at once (TRUST C12): `python -m tests.chaos.mixed [--short] [--seed N]`, `make chaos-mixed`.

150 clients ask for ten minutes while Postgres, the model and the network before both fail at random, agents have models
that refuse, stall, break off and talk nonsense, and strangers break every rule of the protocol. Then all is well again,
and it is counted: what each ask was told, what is stored, and what the process still holds against what it held after a
while of the same load without faults. Nothing is killed here: that is A1, and a process that is new holds nothing.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop

from tests.chaos.kills import loss_row
from tests.chaos.load import Habits, create_session, crowd
from tests.chaos.rows import MISSED, Row, at_least, at_most, exactly, none_of
from tests.chaos.strangers import DEEDS, Strangers
from tests.chaos.until import until_it
from tests.chaos.world import QUICK, Stage, World, stage

_TERMINAL = ("final", "error", "cancelled", "awaiting_human")
_GROWTH_PCT = 5.0
_MODELS = {
    "Refused": "mock;error=0.5;status=429;ttft=100;tokens=8",
    "Broken": "mock;error=0.5;status=500;ttft=100;tokens=8",
    "Garbled": "mock;gap=20;tokens=8;garbage=4",
    "Cut": "mock;gap=20;tokens=8;truncate=4",
    "Stalled": "mock;gap=20;tokens=8;stall=4",
}
"""Agents whose model fails in a way of its own."""
_DEADLINES = {"first_token_s": 3, "inter_token_s": 2, "turn_s": 10, "send_s": 3, "drain_s": 5}
_HEALS_S = (1.0, 4.0)
_LEFT_S = 12.0
"""Until what strangers left behind has gone: half a head stays for 10 s."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How long faults come, after how long a warm-up, how many clients and strangers there are, turns a second, by how
    much memory may grow and how long it may take to come back.

    Memory is settled after minutes only: in the short form it may grow by four times as much.
    """

    seconds: float
    warm_s: float
    clients: int
    strangers: int
    rate: float
    memory_pct: float
    rest_s: float


FULL = Extent(seconds=600.0, warm_s=150.0, clients=150, strangers=12, rate=30.0, memory_pct=5.0, rest_s=180.0)
SHORT = Extent(seconds=45.0, warm_s=15.0, clients=50, strangers=6, rate=20.0, memory_pct=20.0, rest_s=30.0)

Fault = tuple[str, Callable[[World], Awaitable[None]], Callable[[World], Awaitable[None]]]


def _tells(what: str, *, model: bool, heal: str = "normal") -> Fault:
    """A fault of the network before the model or before Postgres."""
    where = "model" if model else "Postgres"

    def proxy(world: World) -> Any:
        return world.to_model if model else world.to_postgres

    return (f"{where}: {what}", lambda world: proxy(world).tell(what), lambda world: proxy(world).tell(heal))


async def _start_postgres(world: World) -> None:
    await world.start_postgres()


FAULTS: tuple[Fault, ...] = (
    ("Postgres crashes", lambda world: world.stop_postgres(signal.SIGQUIT), _start_postgres),
    ("Postgres restarts", lambda world: world.stop_postgres(), _start_postgres),
    _tells("delay down 200 100", model=False),
    _tells("hold", model=False),
    _tells("reset", model=False),
    _tells("refuse", model=False),
    _tells("delay down 400 300", model=True),
    _tells("rate down 3000", model=True),
    _tells("hold", model=True),
    _tells("reset", model=True),
    _tells("refuse", model=True),
)


class Ends:
    """The terminal events of every exchange, as frames told them, and the exchanges that did not become a turn."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        self._refused: set[str] = set()

    def hear(self, text: str) -> None:
        """Enter a frame of the server."""
        if any(f'"{kind}"' in text[:30] for kind in _TERMINAL):
            event = json.loads(text)
            if "seq" in event:
                self._seen[event["exchange_id"]].add((event["type"], event["seq"]))
            elif "exchange_id" in event:
                self._refused.add(event["exchange_id"])

    @property
    def several(self) -> int:
        """Exchanges that were told two different ends."""
        return sum(len(ends) > 1 for ends in self._seen.values())

    @property
    def count(self) -> int:
        """Exchanges that were told an end."""
        return len(self._seen)

    def missing(self, asked: Iterable[str]) -> int:
        """Of these asks, those that were told neither an end nor that they were refused."""
        return len(set(asked) - self._seen.keys() - self._refused)


@dataclass(frozen=True, slots=True)
class Holds:
    """What the process has: descriptors, tasks, resident MiB."""

    descriptors: int
    tasks: int
    rss_mb: float


async def held(scene: Stage) -> Holds:
    """Ask the process, and the system."""
    before = scene.service.log.count("tasks=")
    scene.service.send(signal.SIGUSR1)

    async def told() -> bool:
        return scene.service.log.count("tasks=") > before

    await until_it(told, 10)
    tasks = int(scene.service.log.rpartition("tasks=")[2].split()[0])
    return Holds(psutil.Process(scene.service.process.pid).num_fds(), tasks, scene.service.rss_mb())


async def break_things(world: World, seconds: float, done: Counter[str]) -> None:
    """One fault after the other, now and then two at once, each healed after some seconds."""
    draw = world.draw("mixed faults")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.sample(FAULTS, draw.choice([1, 1, 2]))
        if sum("Postgres" in name for name, _, _ in chosen) > 1 or sum("model" in name for name, _, _ in chosen) > 1:
            continue
        for name, breaks, _ in chosen:
            await breaks(world)
            done[name] += 1
        await asyncio.sleep(draw.uniform(*_HEALS_S))
        for _, _, heals in chosen:
            await heals(world)
        await asyncio.sleep(draw.uniform(*_HEALS_S) / 2)


@asynccontextmanager
async def troubled(scene: Stage, extent: Extent, ends: Ends, world: World) -> AsyncIterator[None]:
    """A fifth of the clients, divided among the agents whose models fail, while the block runs."""
    each = max(1, extent.clients // 5 // len(_MODELS))
    sessions = {
        name: [await create_session(scene.http, scene.service.address, name) for _ in range(each)] for name in _MODELS
    }
    crowds = [
        crowd(
            scene.service.address,
            scene.ledger,
            Habits(each / 5, agent=name),
            world.draw(f"mixed {name}"),
            ids,
            ends.hear,
        )
        for name, ids in sessions.items()
    ]
    async with AsyncExitStack() as stack:
        entered = [await stack.enter_async_context(one) for one in crowds]
        yield
        for one in entered:
            await one.pause(120)


async def mixed(world: World, extent: Extent) -> list[Row]:
    """The rows of C12."""
    ends, faults = Ends(), Counter[str]()
    agents = [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}]
    agents += [{"name": name, "class_path": "agentic_backend.agent.plain", "model": name.lower()} for name in _MODELS]
    models = [{"id": name.lower(), "title": name, "name": knobs} for name, knobs in _MODELS.items()]
    settled = extent.clients - extent.clients // 5
    async with stage(
        world,
        "mixed",
        Habits(extent.rate),
        sessions=settled,
        on_frame=ends.hear,
        module="tests.chaos.counted",
        model=QUICK,
        ai={"agents": agents, "chat_models": models},
        deadlines=_DEADLINES,
        history={"cache_mb": 8},
    ) as scene:
        stranger = Strangers(scene.service.address, world.draw("mixed strangers"))
        async with troubled(scene, extent, ends, world):
            await _beside(stranger, extent.strangers, asyncio.sleep(extent.warm_s))
            await scene.settle(60)
            await asyncio.sleep(_LEFT_S)
            before = await held(scene)
            begun = time.monotonic()
            scene.crowd.resume()
            await _beside(stranger, extent.strangers, break_things(world, extent.seconds, faults))
            took_s = time.monotonic() - begun
        await world.normal()
        report = await scene.settle(120)
        after = await _as_before(scene, before, extent)
    what = f"{extent.clients} clients, {sum(faults.values())} faults of {len(faults)} kinds in {took_s:.0f} s"
    return [
        loss_row("C12", what, report),
        none_of("C12", "exchanges that were told two ends", ends.several, of=ends.count, unit="exchanges"),
        none_of("C12", "asks without an end", ends.missing(scene.ledger.asks), of=len(scene.ledger.asks), unit="asks"),
        at_least("C12", "kinds of misbehaviour of strangers", len(stranger.deeds), len(DEEDS) - 1, "kinds"),
        at_least("C12", "turns answered", report.acked, extent.seconds * extent.rate / 10, "turns"),
        *_growth_rows(before, after, extent),
        exactly("C12", "tracebacks in the log", scene.service.tracebacks, 0),
    ]


async def _beside(stranger: Strangers, count: int, what: Coroutine[Any, Any, None]) -> None:
    """Let strangers do wrong for as long as something lasts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stranger.go_on()) for _ in range(count)]
        await what
        for task in tasks:
            task.cancel()


def _growth(before: Holds, after: Holds) -> dict[str, float]:
    """By how many percent there is more of each."""
    return {
        "descriptors": (after.descriptors / before.descriptors - 1) * 100,
        "tasks": (after.tasks / before.tasks - 1) * 100,
        "memory": (after.rss_mb / before.rss_mb - 1) * 100,
    }


def _bounds(extent: Extent) -> dict[str, float]:
    return {"descriptors": _GROWTH_PCT, "tasks": _GROWTH_PCT, "memory": extent.memory_pct}


def _growth_rows(before: Holds, after: Holds, extent: Extent) -> list[Row]:
    bounds = _bounds(extent)
    was = {"descriptors": before.descriptors, "tasks": before.tasks, "memory": round(before.rss_mb)}
    return [
        at_most("C12", f"{what} after all of it, {was[what]} before", grown, bounds[what], "%")
        for what, grown in _growth(before, after).items()
    ]


async def _as_before(scene: Stage, before: Holds, extent: Extent) -> Holds:
    """What is held once connections that are kept for a while have gone: the last look, after so long at most."""
    end, bounds = time.monotonic() + extent.rest_s, _bounds(extent)
    while True:
        seen = await held(scene)
        if all(grown <= bounds[what] for what, grown in _growth(before, seen).items()) or time.monotonic() > end:
            return seen
        await asyncio.sleep(2.0)


def main() -> int:
    """1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Faults of every kind at random, among clients and strangers.")
    parser.add_argument("--short", action="store_true", help="45 s of them, with fewer clients")
    parser.add_argument("--seed", type=int, default=1, help="seed of what breaks when")
    options = parser.parse_args()
    with World(options.seed) as world:
        rows = uvloop.run(mixed(world, SHORT if options.short else FULL))
    for row in rows:
        print(row.line())
    return int(any(row.verdict == MISSED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
