"""Clients in others' way: half wait for a model that stalls (C11), one floods (D11), thousands drop (D12)."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.load import BASE, Habits, ask_text, create_session, crowd
from tests.chaos.outages import percentile
from tests.chaos.rows import Row, at_least, at_most, exactly, none_of
from tests.chaos.until import until_it
from tests.support.raw import TEXT, frame, head, peer

_RATE = 30.0
_SESSIONS = 40
_STALLS = "mock;gap=20;tokens=8;stall=3"
_AT_ONCE = 20
_POOLED = 20 + 2 + 2
"""Connections to Postgres that are kept for the next: storage.postgres.pool_size, of batches, of checkpoints."""
_NATIVE = "Sec-WebSocket-Protocol: turnwise.v1"


async def bulkhead(deployment: Deployment, size: Size) -> list[Row]:
    """C11: half of the clients wait for a model that stalls in every answer; the others must not notice."""
    seconds = size.pick(5, 20)
    agents = [
        {"name": "Georges", "class_path": "agentic_backend.agent.plain"},
        {"name": "Stalled", "class_path": "agentic_backend.agent.plain", "model": "stalled"},
    ]
    models = [{"id": "stalled", "title": "Stalled", "name": _STALLS}]
    ai = {"agents": agents, "chat_models": models}
    deadlines = {"inter_token_s": seconds + 5}  # at the end, nobody is waited for that waits for nothing
    async with stage(
        deployment, "C11", Habits(_RATE), sessions=_SESSIONS, direct=True, ai=ai, deadlines=deadlines
    ) as scene:
        await scene.crowd.answered(_SESSIONS * 2)
        before = await _p95_ms(scene, seconds)
        ids = [await create_session(scene.http, scene.service.address, "Stalled") for _ in range(_SESSIONS)]
        habits = Habits(_RATE, agent="Stalled")
        async with crowd(scene.service.address, scene.ledger, habits, deployment.draw("stalled"), ids) as held:
            await asyncio.sleep(_SESSIONS / _RATE)
            waiting = held.waiting
            beside = await _p95_ms(scene, seconds)
    return [
        at_least("C11", "turns that wait for a model that stalls", waiting, _SESSIONS * 0.9, "turns"),
        at_most("C11", "p95 of the others beside them", beside / before, 1.2 * size.slack, "x"),
    ]


async def flood(deployment: Deployment, size: Size) -> list[Row]:
    """D11: one client sends 1,000 frames a second and comes back whenever it is ended; the others must not notice."""
    seconds = size.pick(5, 20)
    async with stage(deployment, "D11", Habits(_RATE), sessions=_SESSIONS, direct=True) as scene:
        await scene.crowd.answered(_SESSIONS * 2)
        before, metrics = await _p95_ms(scene, seconds), await scene.service.metrics()
        flooding = asyncio.create_task(_flood(scene))
        beside, after = await _p95_ms(scene, seconds), await scene.service.metrics()
        flooding.cancel()
    looks, late = late_looks(metrics, after)
    refused = 'app_limit_hits_total{limit="frames"}'
    return [
        at_least("D11", "frames refused", after.get(refused, 0) - metrics.get(refused, 0), 100 * seconds, "frames"),
        at_most("D11", f"of {looks:.0f} looks, the loop was later than 50 ms", late, 1.0 * size.slack, "%"),
        at_most("D11", "p95 of the others beside it", beside / before, 1.2 * size.slack, "x"),
    ]


def late_looks(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float]:
    """How often the service looked at its loop between two scrapes, and the share that found it over 50 ms late, %."""
    name = "app_event_loop_lag_seconds"
    looks, timely = (after[sample] - before[sample] for sample in (f"{name}_count", f'{name}_bucket{{le="0.05"}}'))
    return looks, (1 - timely / looks) * 100


async def _flood(scene: Stage) -> None:
    """Frames in bursts of 20 each 20 ms, for ever, over one socket after the other."""
    ask = frame(TEXT, b'{"type":"ping"}') * 20
    while True:
        async with peer(scene.service.address.port) as stranger, asyncio.TaskGroup() as group:
            await stranger.upgrade(head(f"{BASE}/chatbot/query/ws", "Authorization: Bearer local", _NATIVE))
            ended = group.create_task(stranger.close_code())
            while not ended.done():
                await stranger.send(ask)
                await asyncio.sleep(0.02)


async def _p95_ms(scene: Stage, seconds: float) -> float:
    begun = time.perf_counter()
    await asyncio.sleep(seconds)
    theirs = set(scene.crowd.sessions)
    mine = [asked for asked in scene.ledger.within(begun, time.perf_counter()) if asked.session_id in theirs]
    return percentile(mine, 95) * 1e3


@dataclass(frozen=True, slots=True)
class _Left:
    """What is there when nobody is: `pooled` connections to Postgres, and descriptors beside them.

    A pool has as many connections as were ever wanted at once, which is chance: it is compared with its size.
    """

    descriptors: int
    pooled: int
    tasks: int
    sockets: float
    turns: float
    rss_mb: float


async def cycles(deployment: Deployment, size: Size) -> list[Row]:
    """D12: connect, ask, drop, thousands of times; then nothing of them is left but their history."""
    count = size.pick(400, 10_000)
    model = "mock;ttft=20;gap=5;tokens=8"
    counted = "tests.chaos.counted"
    kept = {"default_chat_model": {"settings": {"http_client_limits": {"keepalive_expiry_seconds": 1}}}}
    async with stage(
        deployment, "D12", Habits(1.0), sessions=0, model=model, direct=True, module=counted, ai=kept
    ) as scene:
        sessions = [await create_session(scene.http, scene.service.address) for _ in range(_AT_ONCE)]
        await _drop(scene, sessions, _AT_ONCE * 5)
        before = await _left(scene)
        await _drop(scene, sessions, count)
        after = await _left(scene)
        report = await scene.settle()
    return [
        at_most(
            "D12",
            f"descriptors more after {count} sockets that asked and dropped, Postgres' aside",
            after.descriptors - before.descriptors,
            1.0,
            "",
        ),
        at_most("D12", "connections to Postgres that are kept", after.pooled, _POOLED, ""),
        at_most("D12", f"tasks more, {before.tasks} before", after.tasks - before.tasks, 1.0, ""),
        exactly("D12", "sockets and turns that are left", after.sockets + after.turns, 0),
        at_most("D12", "memory that is left", after.rss_mb - before.rss_mb, 25.0, "MiB"),
        none_of("D12", "questions without an end in history", report.unended, of=count, unit="asks"),
    ]


async def _drop(scene: Stage, sessions: list[str], count: int) -> None:
    """So many asks, each on a socket of its own that is cut right after it, in so many sessions at once."""
    numbers = iter(range(count))

    async def one_by_one(session_id: str) -> None:
        for number in numbers:
            asked = scene.ledger.ask(f"{session_id}-{time.monotonic_ns()}-{number}", session_id, "Are you there?")
            async with scene.service.address.dial() as socket:
                await socket.send(ask_text(asked, if_busy="replace", on_disconnect="cancel"))
                await socket.recv()
                socket.transport.abort()

    async with asyncio.TaskGroup() as group:
        for session_id in sessions:
            group.create_task(one_by_one(session_id))


async def _left(scene: Stage) -> _Left:
    """What is held once no socket and no turn is there, and connections to the model have gone."""
    found = await _look(scene)

    async def quiet() -> bool:
        nonlocal found
        last, found = found, await _look(scene)
        return found.sockets == found.turns == 0 and last.descriptors == found.descriptors

    await asyncio.sleep(1.0)
    await until_it(quiet)
    return found


async def _look(scene: Stage) -> _Left:
    await asyncio.sleep(1.0)
    seen = await scene.service.metrics()
    process, postgres = psutil.Process(scene.service.process.pid), scene.service.deployment.postgres.port
    pooled = sum(bool(one.raddr) and one.raddr.port == postgres for one in process.net_connections("tcp"))
    others = process.num_fds() - pooled
    tasks = await scene.service.tasks()
    return _Left(
        others, pooled, tasks, seen["app_ws_connections"], seen["app_turns_in_progress"], scene.service.rss_mb()
    )
