"""What the spool costs: two services side by side, asked in turns (A18)."""

import asyncio
from dataclasses import dataclass
from statistics import median

from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.load import Habits
from tests.chaos.outages import percentile
from tests.chaos.rows import Row, at_most

_RATE = 50.0
_SESSIONS = 40
_MODEL = "mock;ttft=50;gap=5;tokens=20"


@dataclass(frozen=True, slots=True)
class _Window:
    """p50 and p99 of final in ms, CPU ms a turn."""

    p50: float
    p99: float
    cpu: float


async def cost(deployment: Deployment, size: Size) -> list[Row]:
    """A18: `ack: spool` against `none`, interleaved, the order turned round in every other pair."""
    pairs, seconds = (4, 2.0) if size.short else (12, 5.0)
    habits = Habits(_RATE)
    more: list[_Window] = []
    async with (
        stage(deployment, "A18 spool", habits, sessions=_SESSIONS, model=_MODEL, direct=True) as spool,
        stage(
            deployment, "A18 none", habits, sessions=_SESSIONS, model=_MODEL, direct=True, persistence={"ack": "none"}
        ) as none,
    ):
        for scene in (spool, none):
            await scene.crowd.answered(_SESSIONS * 2)
            await scene.crowd.pause()
        for number in range(pairs):
            order = (spool, none) if number % 2 else (none, spool)
            seen = {id(scene): await _window(scene, seconds) for scene in order}
            with_spool, without = seen[id(spool)], seen[id(none)]
            share = (with_spool.cpu / without.cpu - 1) * 100
            more.append(_Window(with_spool.p50 - without.p50, with_spool.p99 - without.p99, share))
    what = f"ack: spool over none, median of {pairs} pairs at {_RATE:.0f} turns/s"
    return [
        at_most("A18", f"{what}: p50 of final", median(window.p50 for window in more), 1.0 * size.slack, "ms"),
        at_most("A18", f"{what}: p99 of final", median(window.p99 for window in more), 10.0 * size.slack, "ms"),
        at_most("A18", f"{what}: CPU a turn", median(window.cpu for window in more), 8.0 * size.slack, "%"),
    ]


async def _window(scene: Stage, seconds: float) -> _Window:
    """Ask for so long, and wait for the answers."""
    before, cpu = set(scene.ledger.asks), scene.service.cpu_s()
    scene.crowd.resume()
    await asyncio.sleep(seconds)
    await scene.crowd.pause()
    await scene.service.drained()
    turns = [asked for asked in scene.ledger.answered if asked.exchange_id not in before]
    used_ms = (scene.service.cpu_s() - cpu) * 1e3 / max(len(turns), 1)
    return _Window(percentile(turns, 50) * 1e3, percentile(turns, 99) * 1e3, used_ms)
