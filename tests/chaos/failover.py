"""Postgres fails over to its standby under load: two servers of Debian's, kill -9 of one, promote the other (A20)."""

import asyncio
import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.chaos.deployment import Database, Deployment, Service, Size, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.load import Habits
from tests.chaos.rows import Row, at_least, at_most, none_of, not_run
from tests.chaos.until import until_it
from tests.support.postgres import public_directory
from tests.support.replicas import DATABASE, Replicated

RATE = 50.0
_BOUND = re.compile(r"Postgres has failed over .*: up to (\d+) records of the last (\d+) s may be missing")
_ROWS = "SELECT count(*) FROM session_history"
_HERE = any(Path("/usr/lib/postgresql").glob("*/bin/pg_basebackup"))


async def synchronous(deployment: Deployment, size: Size) -> list[Row]:
    """A20: each commit waits for the standby, so that it has whatever has left the spool."""
    what, times = "synchronous standby promoted, primary killed", size.pick(2, 5)
    if not _HERE:
        return [not_run("A20", what, "needs Debian's Postgres")]
    took_s: list[float] = []
    async with _pair(deployment, size) as (pair, scene):
        for number in range(times):
            if number:
                await deployment.do(pair.rebuild)
            await deployment.do(pair.synchronous, on=True)
            await scene.crowd.answered(size.sessions)
            await asyncio.sleep(deployment.draw(f"A20 {number}").uniform(0, 0.5))
            took_s.append(await _failed_over(deployment, pair, scene))
        errors = sum(scene.ledger.errors.values())
        report = await scene.settle()
    return [
        loss_row("A20", f"{what} x {times}, {RATE:.0f} turns/s", report),
        none_of("A20", f"{what}: errors of sessions that the service knows", errors, of=report.acked, unit="turns"),
        at_most(
            "A20", "from the promotion until turns are written there, the longest", max(took_s), 10 * size.slack, "s"
        ),
    ]


async def asynchronous(deployment: Deployment, size: Size) -> list[Row]:
    """A20-async: the standby is held up, then promoted; what is lost is within what the service says."""
    what = "asynchronous standby, held up, promoted"
    if not _HERE:
        return [not_run("A20-async", what, "needs Debian's Postgres")]
    async with _pair(deployment, size) as (pair, scene):
        await scene.crowd.answered(size.sessions)
        await deployment.do(pair.standby.receive, on=False)
        await scene.crowd.answered(size.sessions * size.pick(2, 10))
        published = (await scene.service.metrics())["app_postgres_unreplicated_records"]
        await _failed_over(deployment, pair, scene, lagging=True)
        bound, seconds = map(int, _BOUND.findall(await scene.service.line(_BOUND.pattern))[0])
        report = await scene.settle()
        dead = (await scene.service.metrics())["app_persist_dead_letters_total"]
    others = report.wrong - report.gaps  # where turns are lost, the ranks that they had are too
    return [
        at_least("A20-async", f"{what}: app_postgres_unreplicated_records before", published, 1, "records"),
        at_least("A20-async", f"{what}: lost, of {report.acked} acknowledged", report.lost, 1, "turns"),
        at_most("A20-async", f"the same, by what the log says (of the last {seconds} s)", report.lost, bound, "turns"),
        none_of("A20-async", f"{what}: wrong otherwise", others, of=report.acked, unit="turns"),
        none_of("A20-async", f"{what}: dead letters", int(dead), of=report.acked, unit="turns"),
    ]


@asynccontextmanager
async def _pair(deployment: Deployment, size: Size) -> AsyncIterator[tuple[Replicated, Stage]]:
    """Two servers, and a service under load that has been told of both."""
    directory = public_directory("turnwise-chaos-pair-")
    pair = Replicated(directory)
    try:
        await deployment.do(pair.start)
        both = pair.database
        where = {"host": both.host, "port": both.port, "database": both.database}
        service = Service(deployment, Database(DATABASE, pair), storage={"postgres": where})
        try:
            async with stage(deployment, "A20", Habits(RATE), sessions=size.sessions, service=service) as scene:
                yield pair, scene
        finally:
            await service.close()
    finally:
        await deployment.do(pair.stop)
        shutil.rmtree(directory)


async def _failed_over(deployment: Deployment, pair: Replicated, scene: Stage, *, lagging: bool = False) -> float:
    """Kill the primary and promote the other; seconds from then until turns are written there."""
    await deployment.do(pair.fail_over, lagging=lagging)
    begun = time.perf_counter()
    before = await asyncio.to_thread(pair.primary.execute, _ROWS)

    async def written() -> bool:
        return await asyncio.to_thread(pair.primary.execute, _ROWS) > before

    await until_it(written)
    return time.perf_counter() - begun
