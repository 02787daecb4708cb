"""kill -9 of the service: nothing acknowledged is lost, nothing half is left (A1, A1-full, A2, A6)."""

import asyncio
import contextlib
import time
from statistics import median

from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.ledger import Report
from tests.chaos.load import Habits
from tests.chaos.rows import Row, at_least, none_lost, none_of
from tests.chaos.until import until

SLOW_ANSWERS = "delay down 150 50"
"""Postgres answers in 150 ± 50 ms."""
_BRISK = "mock;tokens=20"
_FULL_CORE_PCT = 75.0
"""Of one core. Clients, model and Postgres have the other of two, and make the service wait now and then; where others
use the machine too, as the short form allows, it gets less."""
_AT_ONCE = 100_000.0
"""Turns a second that clients would like: each asks again as soon as it is answered."""


async def kill_at_random(deployment: Deployment, size: Size) -> list[Row]:
    """A1 and A2: Postgres answers slowly, the service is killed in mid-stream, again and again."""
    times = size.pick(3, 20)
    async with stage(deployment, "A1", Habits(size.rate, resend=0.5), sessions=size.sessions) as scene:
        reports = [await _kill_once(deployment, scene) for _ in range(times)]
        again = await _ask_everyone(scene)
    last = reports[-1]
    return [
        loss_row("A1", f"kill -9 x {times}, Postgres answers in 150±50 ms", last),
        none_of("A2", "user rows without a terminal row after kill -9", last.unended, of=last.acked, unit="turns"),
        at_least("A2", "open asks at the kills, asked again and answered", len(scene.ledger.asked_again), 1, "asks"),
        at_least("A2", "turns cut short and not asked again, marked interrupted", last.interrupted, 1, "turns"),
        none_of("A2", "sessions that do not answer the next ask", again, of=size.sessions, unit="sessions"),
    ]


async def kill_at_full_core(deployment: Deployment, size: Size) -> list[Row]:
    """A1-full: everybody asks again at once, so that the service has no core to spare when it is killed."""
    times = size.pick(3, 20)
    shares: list[float] = []
    pending: list[int] = []
    habits = Habits(_AT_ONCE, resend=0.5)
    async with stage(deployment, "A1-full", habits, sessions=size.sessions, model=_BRISK, direct=True) as scene:
        draw = deployment.draw("moments at a full core")
        for _ in range(times):
            scene.crowd.resume()
            await scene.crowd.answered(scene.crowd.size)
            shares.append(await _share_of_core(scene, draw.uniform(0.5, 1.5)))
            pending.append(await scene.service.pending())
            await scene.service.kill()
            await scene.service.start()
            report = await scene.settle()
        again = await _ask_everyone(scene)
    least = _FULL_CORE_PCT / 2 if size.short else _FULL_CORE_PCT
    what = f"kill -9 x {times} at {min(shares):.0%} to {max(shares):.0%} of a core"
    return [
        loss_row("A1-full", what, report),
        none_of("A1-full", "user rows without a terminal row", report.unended, of=report.acked, unit="turns"),
        none_of("A1-full", "sessions that do not answer the next ask", again, of=size.sessions, unit="sessions"),
        at_least("A1-full", "CPU of the service before a kill, median", median(shares) * 100, least, "%"),
        at_least("A1-full", "records not yet in Postgres just before a kill, most", max(pending), 1, "records"),
    ]


async def kill_without_spool(deployment: Deployment, size: Size) -> list[Row]:
    """A1's control: with `ack: none` the same harness must see losses, or it proves nothing."""
    habits = Habits(size.rate, resend=0.0)
    persistence = {"ack": "none"}
    async with stage(deployment, "A1-none", habits, sessions=size.sessions, persistence=persistence) as scene:
        report = await _kill_once(deployment, scene)
    what = "control: losses that the harness sees with ack: none, kill -9"
    return [at_least("A1-none", f"{what} (of {report.acked} acked)", report.lost, 1, "turns")]


async def kill_while_down(deployment: Deployment, size: Size) -> list[Row]:
    """A6: Postgres away and kill -9; the service comes back first, lives, and is ready once Postgres answered."""
    async with stage(deployment, "A6", Habits(size.rate), sessions=size.sessions) as scene:
        await scene.crowd.answered(size.sessions)
        await deployment.stop_postgres()
        await scene.crowd.answered(size.sessions)
        await scene.service.kill()
        await scene.service.start("/healthz")
        ready, body = await scene.service.ask_status("/ready")
        await deployment.start_postgres()
        await scene.service.answers("/ready")
        report = await scene.settle()
    early = int(ready == 200)
    return [
        loss_row("A6", "Postgres down and kill -9, service first", report),
        none_of(
            "A6", f"ready before Postgres answered once ({body.get('status', 'silent')})", early, of=1, unit="starts"
        ),
    ]


def loss_row(row: str, what: str, report: Report) -> Row:
    """What a ledger found: nothing acknowledged is lost, and no duplicate, gap, collision or other text."""
    return none_lost(row, what, report.lost, report.wrong, of=report.acked, words=report.words())


async def _share_of_core(scene: Stage, seconds: float) -> float:
    """What the service uses of one core in the next seconds."""
    began, used_s = time.perf_counter(), scene.service.cpu_s()
    await asyncio.sleep(seconds)
    return (scene.service.cpu_s() - used_s) / (time.perf_counter() - began)


async def _kill_once(deployment: Deployment, scene: Stage) -> Report:
    draw = deployment.draw(f"moment {len(scene.checked)}")
    await deployment.to_postgres.tell(SLOW_ANSWERS)
    scene.crowd.resume()
    await scene.crowd.answered(scene.crowd.size)
    await asyncio.sleep(draw.uniform(0.2, 1.5))
    await scene.service.kill()
    await deployment.to_postgres.tell("normal")
    await scene.service.start()
    return await scene.settle()


async def _ask_everyone(scene: Stage) -> int:
    """One more turn of each session; how many were not answered."""
    sessions = scene.crowd.sessions
    known = set(scene.ledger.asks)
    scene.crowd.resume()

    def answering() -> set[str]:
        return {asked.session_id for asked in scene.ledger.answered if asked.exchange_id not in known}

    with contextlib.suppress(TimeoutError):
        await until(lambda: len(answering()) == len(sessions), 120)
    return len(sessions) - len(answering())
