"""kill -9 of the service: nothing acknowledged is lost, nothing half is left (A1, A1-busy, A2, A6)."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.deployment import Deployment, Service, Size, Stage, stage
from tests.chaos.ledger import Report
from tests.chaos.load import Habits
from tests.chaos.rows import Row, at_least, none_lost, none_of
from tests.chaos.until import until

SLOW_ANSWERS = "delay down 150 50"
"""Postgres answers in 150 ± 50 ms."""
_WITHOUT_DELAY = "mock;tokens=8"
_AT_ONCE = 1e6
"""Turns a second that nobody can answer: each client asks again as soon as it has its answer."""
_CLIENTS = 120
"""So many that the loop has turns to work on while others wait for a flush of the disk."""


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
        at_least("A2", "turns cut short and not asked again, answered all the same", last.unheard, 1, "turns"),
        none_of("A2", "turns cut short and left interrupted", last.interrupted, of=last.acked, unit="turns"),
        none_of("A2", "sessions that do not answer the next ask", again, of=size.sessions, unit="sessions"),
    ]


@dataclass(frozen=True, slots=True)
class Used:
    """Seconds of wall time, of the process's CPU time, and those that its event loop's thread ran or waited for a core.

    A thread that waits for a core has work; others have the core.
    """

    wall: float
    cpu: float
    ran: float
    waited: float

    @classmethod
    def by(cls, service: Service) -> "Used":
        """Until now, wall time from an arbitrary moment."""
        pid = service.process.pid
        schedstat = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return cls(time.perf_counter(), service.cpu_s(), int(schedstat[0]) / 1e9, int(schedstat[1]) / 1e9)

    def since(self, before: "Used") -> "Used":
        """What was used between two moments of one process."""
        return Used(self.wall - before.wall, self.cpu - before.cpu, self.ran - before.ran, self.waited - before.waited)


async def kill_while_busy(deployment: Deployment, size: Size) -> list[Row]:
    """A1-busy: no delay and no pause anywhere, so that the service's core is full, and it is killed then."""
    times = size.pick(3, 20)
    used: list[Used] = []
    left: list[int] = []
    habits = Habits(_AT_ONCE, resend=0.5)
    async with stage(deployment, "A1-busy", habits, sessions=_CLIENTS, model=_WITHOUT_DELAY, direct=True) as scene:
        for _ in range(times):
            used.append(await _kill_busy(deployment, scene))
            await scene.service.start()
            await _settled(scene)
            left.append(int((await scene.service.metrics())["app_persist_replayed_total"]))
        again = await _ask_everyone(scene)
        report = await scene.settle()
    return [
        loss_row("A1-busy", f"kill -9 x {times} while its core is full", report),
        none_of("A1-busy", "sessions that do not answer the next ask", again, of=_CLIENTS, unit="sessions"),
        at_least("A1-busy", "records that the next process found in the spool, the fewest", min(left), 1, "records"),
        *busy_rows(used, 0.5 if size.short else 0.9),  # others may hold up the disk, or the clients
    ]


def busy_rows(used: list[Used], least: float) -> list[Row]:
    """Whether the core was full before the kills, whoever shares the machine.

    The event loop always had work, and the process used what others left to it, for `least` of the time, 0 to 1.
    """
    wall, cpu, ran, waited = (sum(getattr(one, name) for one in used) for name in ("wall", "cpu", "ran", "waited"))
    shares = f"uses {cpu / wall:.2f}, waits {waited / wall:.2f} for others"
    return [
        at_least(
            "A1-busy", "share of the time before the kills in which its loop has work", (ran + waited) / wall, least, ""
        ),
        at_least("A1-busy", f"its CPU time of the core ({shares})", cpu / (wall - waited), least, "cores"),
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


async def _kill_once(deployment: Deployment, scene: Stage) -> Report:
    draw = deployment.draw(f"moment {len(scene.checked)}")
    await deployment.to_postgres.tell(SLOW_ANSWERS)
    scene.crowd.resume()
    await scene.crowd.answered(scene.crowd.size)
    await asyncio.sleep(draw.uniform(0.2, 1.5))
    await scene.service.kill()
    await deployment.to_postgres.tell("normal")
    await scene.service.start()
    return await _settled(scene)


async def _settled(scene: Stage) -> Report:
    """As `settle`, once the service has answered too what it was asked before the kill, by clients that are gone."""
    await scene.crowd.pause()
    if scene.service.ack == "spool":
        await scene.service.idle()
    return await scene.settle()


async def _kill_busy(deployment: Deployment, scene: Stage) -> Used:
    """Kill it at a random moment; what it used since it had given as many answers as there are clients."""
    draw = deployment.draw(f"busy moment {len(scene.checked)}")
    scene.crowd.resume()
    await scene.crowd.answered(_CLIENTS)  # not its size: before the first kill it may not have its seats yet
    before = Used.by(scene.service)
    await asyncio.sleep(draw.uniform(0.2, 1.5))
    used = Used.by(scene.service).since(before)
    await scene.service.kill()
    return used


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
