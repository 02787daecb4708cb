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
_COMMITS = 1.5
"""A turn waits for one, that of its answer; a second would make them two."""
_MODEL = "mock;ttft=50;gap=5;tokens=20"
_MODEL_MS = 50 + 19 * 5


@dataclass(frozen=True, slots=True)
class _Window:
    """p50 and p99 of final and of a flush then, in ms; of a turn, CPU ms and the commits that were waited for."""

    p50: float
    p99: float
    disk_p50: float
    disk_p99: float
    cpu: float
    commits: float


@dataclass(frozen=True, slots=True)
class _Pair:
    """A window with the spool and one without."""

    spool: _Window
    none: _Window


async def cost(deployment: Deployment, size: Size) -> list[Row]:
    """A18: `ack: spool` against `none`, interleaved, the order turned round in every other pair.

    The short form shares its machine. Where its bound would judge nothing but the disk, twice what a flush takes in the
    windows without a spool is the bound; that of p50, where it would judge nothing but the cores, for which the spool's
    thread has to wait as the loop has, is twice what a turn without a spool takes beyond its model. Whether the spool
    itself has become dearer, the commits a turn tell, on any machine. The full form is for one that does nothing else.
    """
    pairs, seconds = (4, 2.0) if size.short else (12, 5.0)
    habits = Habits(_RATE)
    found: list[_Pair] = []
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
            found.append(_Pair(seen[id(spool)], seen[id(none)]))
    what = f"ack: spool over none, median of {pairs} pairs at {_RATE:.0f} turns/s"
    share = median(pair.spool.cpu / pair.none.cpu - 1 for pair in found) * 100
    commits = max(pair.spool.commits for pair in found)
    without = median(pair.none.p50 for pair in found) - _MODEL_MS
    busy = f"; a turn of none beyond its model: {without:.2f} ms"
    p50 = median(pair.spool.p50 - pair.none.p50 for pair in found)
    p99 = median(pair.spool.p99 - pair.none.p99 for pair in found)
    disk_p50, disk_p99 = median(pair.none.disk_p50 for pair in found), median(pair.none.disk_p99 for pair in found)
    most_p50 = max(1.0 * size.slack, 2 * disk_p50, 2 * without) if size.short else 1.0
    most_p99 = max(10.0 * size.slack, 2 * disk_p99) if size.short else 10.0
    return [
        at_most("A18", f"{what}: p50 of final (the disk alone: {disk_p50:.2f} ms{busy})", p50, most_p50, "ms"),
        at_most("A18", f"{what}: p99 of final (the disk alone: {disk_p99:.2f} ms)", p99, most_p99, "ms"),
        at_most("A18", f"{what}: CPU a turn", share, 8.0 * size.slack, "%"),
        at_most("A18", "commits of the spool that a turn waits for", commits, _COMMITS, "commits"),
    ]


async def _window(scene: Stage, seconds: float) -> _Window:
    """Ask for so long, and wait for the answers."""
    before, cpu, commits = set(scene.ledger.asks), scene.service.cpu_s(), await _commits(scene)
    scene.crowd.resume()
    disk_ms = quantiles(await asyncio.to_thread(_commits_ms, scene.service.deployment.directory, seconds), n=100)
    await scene.crowd.pause()
    await scene.service.drained()
    turns = [asked for asked in scene.ledger.answered if asked.exchange_id not in before]
    used_ms = (scene.service.cpu_s() - cpu) * 1e3 / max(len(turns), 1)
    a_turn = (await _commits(scene) - commits) / max(len(turns), 1)
    p50, p99 = (percentile(turns, percent) * 1e3 for percent in (50, 99))
    return _Window(p50, p99, disk_ms[49], disk_ms[98], used_ms, a_turn)


async def _commits(scene: Stage) -> float:
    return (await scene.service.metrics())["app_spool_commit_seconds_count"]


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
