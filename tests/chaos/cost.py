"""What the spool costs: two services side by side, asked in turns (A18)."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.load import Habits
from tests.chaos.outages import percentile
from tests.chaos.rows import Row, at_most

_RATE = 50.0
_SESSIONS = 40
_MODEL = "mock;ttft=50;gap=5;tokens=20"


@dataclass(frozen=True, slots=True)
class _Window:
    """p50 and p99 of final in ms, CPU ms a turn, and p50 and p99 of what a commit takes of the disk alone, ms."""

    p50: float
    p99: float
    cpu: float
    disk_p50: float
    disk_p99: float


async def cost(deployment: Deployment, size: Size) -> list[Row]:
    """A18: `ack: spool` against `none`, interleaved, the order turned round in every other pair.

    Where the disk itself is so slow that the short form's bound would judge nothing else, twice what it takes for a
    commit is the bound (its pace changes from one window to the next). The full form is for a disk that does nothing
    else.
    """
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
            p50, p99 = with_spool.p50 - without.p50, with_spool.p99 - without.p99
            more.append(_Window(p50, p99, share, without.disk_p50, without.disk_p99))
    what = f"ack: spool over none, median of {pairs} pairs at {_RATE:.0f} turns/s"
    rows = []
    for name, figure, bound, disk in (
        ("p50", median(window.p50 for window in more), 1.0, median(window.disk_p50 for window in more)),
        ("p99", median(window.p99 for window in more), 10.0, median(window.disk_p99 for window in more)),
    ):
        most = max(bound * size.slack, 2 * disk) if size.short else bound
        rows.append(at_most("A18", f"{what}: {name} of final (the disk alone: {disk:.2f} ms)", figure, most, "ms"))
    return [
        *rows,
        at_most("A18", f"{what}: CPU a turn", median(window.cpu for window in more), 8.0 * size.slack, "%"),
    ]


async def _window(scene: Stage, seconds: float) -> _Window:
    """Ask for so long, and wait for the answers."""
    before, cpu = set(scene.ledger.asks), scene.service.cpu_s()
    scene.crowd.resume()
    disk_ms = quantiles(await asyncio.to_thread(_commits_ms, scene.service.deployment.directory, seconds), n=100)
    await scene.crowd.pause()
    await scene.service.drained()
    turns = [asked for asked in scene.ledger.answered if asked.exchange_id not in before]
    used_ms = (scene.service.cpu_s() - cpu) * 1e3 / max(len(turns), 1)
    return _Window(percentile(turns, 50) * 1e3, percentile(turns, 99) * 1e3, used_ms, disk_ms[49], disk_ms[98])


def _commits_ms(directory: Path, seconds: float) -> list[float]:
    """How long turns would wait for the disk alone, at the rate of turns.

    Each waits for the first flush that begins after it: one that comes while the disk is at work waits for it as well.
    """
    took: list[float] = []
    begun = due = time.perf_counter()
    with (directory / "commits").open("wb", buffering=0) as file:
        while due < begun + seconds:
            time.sleep(max(due - time.perf_counter(), 0.0))
            file.write(bytes(2 * 4096))
            flushed = time.perf_counter()
            os.fdatasync(file.fileno())
            ended = time.perf_counter()
            while due <= flushed:
                took.append((ended - due) * 1e3)
                due += 1 / _RATE
    return took
