"""What a client sees of its own turns: read after write, repeats, two sockets, poison, deletes (A9-A12, A16)."""

import asyncio
import itertools
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection

from tests.chaos.deployment import Deployment, Service, Size, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Asked
from tests.chaos.load import Address, Habits, ask_text, create_session, hear, take_turn
from tests.chaos.rows import Row, all_of, at_most, exactly, none_of
from tests.support.patience import HANGS_S

INSTANT = "mock;tokens=5"
_NOBODY = Habits(1.0)
_WORKERS = 20


async def read_your_writes(deployment: Deployment, size: Size) -> list[Row]:
    """A9: history right after `final`, with Postgres there and away."""
    here, away = size.pick(350, 8000), size.pick(150, 2000)
    async with stage(deployment, "A9", _NOBODY, sessions=0, model=INSTANT) as scene:
        sessions = await _sessions(scene, _WORKERS)
        missing = await _read_after_each(scene, sessions, here, newest=False)
        await deployment.stop_postgres()
        missing_away = await _read_after_each(scene, sessions, away, newest=True)
        await deployment.start_postgres()
        report = await scene.settle()
    return [
        none_of("A9", "histories right after final that lack it", missing, of=here, unit="reads"),
        none_of(
            "A9", "the same with Postgres down, the newest exchange (?limit=2)", missing_away, of=away, unit="reads"
        ),
        loss_row("A9", "read your writes", report),
    ]


async def repeated(deployment: Deployment, size: Size) -> list[Row]:
    """A10: each ask sent again on the same socket, on a new one, and after a restart."""
    count = size.pick(100, 1000)
    async with stage(deployment, "A10", _NOBODY, sessions=0, model=INSTANT) as scene:
        sessions = await _sessions(scene, _WORKERS)
        before = (await deployment.model_stats())["requests"]["chat"]
        asks = [
            scene.ledger.ask(f"a10-{number}", sessions[number % _WORKERS], f"Question {number}?")
            for number in range(count)
        ]
        unanswered = 0
        for _ in range(2):  # twice on one socket, then on a new one
            unanswered += await _ask_all(scene, asks, times=2)
        await scene.service.kill()
        await scene.service.start()
        unanswered += await _ask_all(scene, asks, times=1)
        calls = (await deployment.model_stats())["requests"]["chat"] - before
        report = await scene.settle()
    return [
        exactly("A10", f"model calls for {count} asks, each sent five times, once after kill -9", calls, count),
        none_of(
            "A10",
            "repeats that were not answered with the first final",
            unanswered + report.changed,
            of=count * 5,
            unit="asks",
        ),
        loss_row("A10", "repeated asks", report),
    ]


async def two_sockets(deployment: Deployment, size: Size) -> list[Row]:
    """A11: 50 asks at once on one session over two sockets."""
    rounds = size.pick(5, 100)
    async with stage(deployment, "A11", _NOBODY, sessions=0, model="mock;ttft=20;tokens=3") as scene:
        address = scene.service.address
        async with address.dial() as one, address.dial() as other:
            session_id = (await _sessions(scene, 1))[0]
            odd = [await _compete(scene, (one, other), session_id, number) for number in range(rounds)]
        report = await scene.settle()
    return [
        exactly("A11", f"asks without one end, 50 at once x {rounds} on two sockets", sum(odd), 0),
        loss_row("A11", "two sockets", report),
    ]


async def two_instances(deployment: Deployment, size: Size) -> list[Row]:
    """A11 with two instances on one database (`replicas: many`)."""
    rounds = size.pick(5, 100)
    persistence = {"ack": "db", "replicas": "many"}
    database = await deployment.database()
    one = Service(deployment, database, model="mock;ttft=20;tokens=3", persistence=persistence)
    other = Service(deployment, database, model="mock;ttft=20;tokens=3", persistence=persistence)
    try:
        await one.start()
        await other.start()
        async with stage(deployment, "A11-many", _NOBODY, sessions=0, service=one) as scene:
            session_id = (await _sessions(scene, 1))[0]
            async with one.address.dial() as left, other.address.dial() as right:
                odd = [await _compete(scene, (left, right), session_id, number) for number in range(rounds)]
            report = await scene.settle()
    finally:
        await one.close()
        await other.close()
        await deployment.drop(database)
    return [
        exactly("A11", f"asks without one end, 50 at once x {rounds} on two instances", sum(odd), 0),
        loss_row("A11", "two instances, replicas: many", report),
    ]


POISON = (
    ('"Nul \\u0000 in it"', "NUL"),
    ('"Half \\ud800 a pair"', "lone surrogate"),
    ("NaN", "NaN"),
    ("1e999999", "a number beyond jsonb"),
)


async def poison(deployment: Deployment, size: Size) -> list[Row]:
    """A12 at the door: what Postgres would refuse, among good turns."""
    async with stage(deployment, "A12", Habits(40.0), sessions=20, model=INSTANT) as scene:
        address = scene.service.address
        session_id = (await _sessions(scene, 1))[0]
        taken = 0
        for number, (value, _) in enumerate(POISON):
            asked = Asked(f"poison-{number}", session_id, "@")
            async with address.dial() as socket:
                await socket.send(ask_text(asked).replace('"@"', value))
                taken += (await hear(socket)).get("code") != "bad_request"
        refused = await _poisoned_preferences(scene.http, address, session_id)
        await scene.crowd.answered(size.pick(100, 1000))
        metrics = await scene.service.metrics()
        slow = metrics["app_persist_lag_seconds_count"] - metrics['app_persist_lag_seconds_bucket{le="1.0"}']
        failures = sum(value for name, value in metrics.items() if name.startswith("app_persist_failures_total"))
        report = await scene.settle()
    return [
        none_of(
            "A12", "poisoned asks that are not refused at the door (bad_request)", taken, of=len(POISON), unit="asks"
        ),
        exactly("A12", "poisoned preferences that are answered with a failure of ours (5xx)", refused, 0),
        at_most("A12", "good turns that took longer than 1 s to Postgres", slow, 0, "turns"),
        exactly("A12", "records that were given up", failures, 0),
        loss_row("A12", "good turns among poisoned ones", report),
    ]


async def deletes(deployment: Deployment, size: Size) -> list[Row]:
    """A16: deleted while its turns wait for Postgres; kill -9; nothing of it comes back."""
    count = size.pick(10, 50)
    async with stage(deployment, "A16", _NOBODY, sessions=0, model=INSTANT) as scene:
        sessions = await _sessions(scene, count)
        for session_id in sessions:
            await _turns(scene, session_id, ["first"])
        await scene.service.drained()
        await deployment.stop_postgres()
        for session_id in sessions:
            await _turns(scene, session_id, ["second"])
        taken = await asyncio.gather(*(_delete(scene, session_id) for session_id in sessions))
        deleted = [session_id for session_id, good in zip(sessions, taken, strict=True) if good]
        await scene.service.kill()
        await scene.service.start("/healthz")
        await deployment.start_postgres()
        await scene.service.answers("/ready")
        await scene.service.drained()
        rows, known = await asyncio.to_thread(scene.service.database.stored)
        back = [session_id for session_id in deleted if session_id in rows or session_id in known]
        seen = [session_id for session_id in deleted if (await scene.history(session_id))[0] != 403]
    return [
        all_of("A16", "deletes that are taken while Postgres is down", len(deleted), of=count, unit="sessions"),
        none_of("A16", "deleted sessions that come back in Postgres", len(back), of=len(deleted), unit="sessions"),
        none_of("A16", "deleted sessions whose history still answers", len(seen), of=len(deleted), unit="sessions"),
    ]


async def _sessions(scene: Stage, count: int) -> list[str]:
    sessions = [await create_session(scene.http, scene.service.address) for _ in range(count)]
    scene.ledger.sessions.update(sessions)
    return sessions


async def _read_after_each(scene: Stage, sessions: list[str], count: int, *, newest: bool) -> int:
    """Turns, each followed at once by GET history, whole or its newest two; how many histories lacked the turn."""
    numbers = itertools.count()
    missing = 0

    async def work(session_id: str) -> None:
        nonlocal missing
        async with scene.service.address.dial() as socket:
            while (number := next(numbers)) < count:
                asked = scene.ledger.ask(f"{newest}-{number}", session_id, f"Question {number}?")
                await take_turn(socket, scene.ledger, asked)
                _, history = await scene.history(session_id, "?limit=2" if newest else "")
                missing += not asked.answer or tuple(history[-len(asked.answer) :]) != asked.answer

    async with asyncio.TaskGroup() as group:
        for session_id in sessions:
            group.create_task(work(session_id))
    return missing


async def _ask_all(scene: Stage, asks: list[Asked], times: int) -> int:
    """Ask everything so many times, each session on a socket of its own; how many asks had no final."""
    missing = 0

    async def work(mine: list[Asked]) -> None:
        nonlocal missing
        async with scene.service.address.dial() as socket:
            for asked, _ in itertools.product(mine, range(times)):
                missing += (await take_turn(socket, scene.ledger, asked))["type"] != "final"

    async with asyncio.TaskGroup() as group:
        for session_id in scene.ledger.sessions:
            group.create_task(work([asked for asked in asks if asked.session_id == session_id]))
    return missing


async def _compete(
    scene: Stage, sockets: tuple[ClientConnection, ClientConnection], session_id: str, number: int
) -> int:
    """50 asks at once; how many did not end in one final, or in session_busy."""
    asks = [scene.ledger.ask(f"r{number}-{place}", session_id, f"Ask {place} of round {number}") for place in range(50)]

    async def ends(socket: ClientConnection, mine: list[Asked], if_busy: str) -> list[str]:
        for asked in mine:
            await socket.send(ask_text(asked, if_busy=if_busy))
        kinds = []
        for _ in mine:
            frame: dict[str, Any] = {}
            while frame.get("type") not in ("final", "error", "cancelled"):
                frame = await hear(socket)
            kinds.append(str(frame.get("code", frame["type"])))
            if frame["type"] == "final":
                scene.ledger.told(scene.ledger.asks[frame["exchange_id"]], frame)
        return kinds

    async with asyncio.timeout(HANGS_S), asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ends(socket, asks[place::2], "queue" if number % 2 else "reject"))
            for place, socket in enumerate(sockets)
        ]
    kinds = [kind for task in tasks for kind in task.result()]
    return sum(kind not in ("final", "session_busy") for kind in kinds) + (kinds.count("final") < 1)


async def _poisoned_preferences(http: aiohttp.ClientSession, address: Address, session_id: str) -> int:
    """PUT preferences with each poison; how many were answered with a failure of the service's own."""
    failed = 0
    url = f"{address.url}/chatbot/session/{session_id}/preferences"
    headers = {**address.headers, "Content-Type": "application/json"}
    for value, _ in POISON:
        async with http.put(url, data=f'{{"preferences":{{"key":{value}}}}}', headers=headers) as response:
            failed += response.status >= 500
    return failed


async def _turns(scene: Stage, session_id: str, names: list[str]) -> None:
    async with scene.service.address.dial() as socket:
        for name in names:
            asked = scene.ledger.ask(f"{session_id}-{name}", session_id, f"The {name} question?")
            await take_turn(socket, scene.ledger, asked)


async def _delete(scene: Stage, session_id: str) -> bool:
    url = f"{scene.service.address.url}/chatbot/session/{session_id}"
    async with scene.http.delete(url, headers=scene.service.address.headers) as response:
        return response.status == 200
