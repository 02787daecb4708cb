"""Starting, draining, ending, and clocks that jump (B1-B9)."""

import asyncio
import logging
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import jwt
import psycopg
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from backend_kit.aio import TaskRegistry
from tests.chaos.deployment import QUICK, Deployment, Service, Size, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Asked
from tests.chaos.load import Habits, ask_text, create_session, hear, hear_end
from tests.chaos.rows import Row, all_of, at_least, at_most, exactly, not_run
from tests.chaos.until import until_it
from tests.checks.source import modules, stray_tasks
from tests.support.patience import HANGS_S

ROOT = Path(__file__).parents[2]
_FAKETIME = Path("/usr/lib")
_NOBODY = Habits(1.0)
_DRAIN_S = 5.0
_STREAMS = 150
_MODEL = "mock;ttft=2000;gap=20;tokens=10"
_HELD = "mock;ttft=1500;tokens=5"
_SILENT = "mock;ttft=30000"
_UNTIDY = re.compile(r"pool is closed|was destroyed but it is pending|never retrieved|never awaited|Unclosed ")


async def drain(deployment: Deployment, size: Size) -> list[Row]:
    """B1 and B2: SIGTERM with 150 streams and idle sockets; every answer ends, in the order of
    docs/operations.md#stopping-without-loss."""
    async with stage(deployment, "B1", _NOBODY, sessions=0, model=_MODEL) as scene:
        service = scene.service
        streams = await _streams(scene, _STREAMS)
        idle = [await service.address.dial() for _ in range(20)]
        events: list[str] = []
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(_end(scene, socket, asked, events)) for socket, asked in streams]
            left = [group.create_task(_leaves(socket, events)) for socket in idle]
            service.send(signal.SIGTERM)
            await service.line("drain 1/5")
            ready, body = await service.ask_status("/ready")
            live, _ = await service.ask_status("/healthz")
            refused = await _refused(service)
            code = await service.ended()
            took_s = time.perf_counter() - begun
        codes = {task.result() for task in (*ends, *left)}
        log = service.log
        await service.start()
        report = await scene.settle()
    order = re.findall(r"drain (\d)/5", log)
    finals = sum(asked.durable == "spool" for _, asked in streams)
    early = events.index("final") if "final" in events else 0
    return [
        all_of("B1", "finals of streams in flight at SIGTERM", finals, of=_STREAMS, unit="streams"),
        at_most("B1", f"exit (code {code}) after SIGTERM, drain_s {_DRAIN_S:.0f}", took_s, _DRAIN_S + 5, "s"),
        loss_row("B1", "drained, started again", report),
        exactly("B2", f"/ready while draining ({body.get('status', 'silent')})", ready, 503),
        exactly("B2", "/healthz while draining", live, 200),
        exactly("B2", "a new socket while draining", refused, 503),
        exactly("B2", "close codes other than 1012", len(codes - {1012}), 0),
        exactly("B2", "idle sockets that were closed before the first final", early, len(idle)),
        exactly("B2", "steps of the drain out of order", int(order != ["1", "2", "3", "4", "5"]), 0),
        exactly("B2", "lines of things left behind, tracebacks", len(_UNTIDY.findall(log)) + log.count("Traceback"), 0),
    ]


async def drain_without_postgres(deployment: Deployment, size: Size) -> list[Row]:
    """B3: the same with Postgres away; the next process replays."""
    async with stage(deployment, "B3", _NOBODY, sessions=0, model=_MODEL) as scene:
        streams = await _streams(scene, _STREAMS)
        await deployment.stop_postgres()
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for socket, asked in streams:
                group.create_task(_end(scene, socket, asked, []))
            scene.service.send(signal.SIGTERM)
            code = await scene.service.ended()
            took_s = time.perf_counter() - begun
        await deployment.start_postgres()
        await scene.service.start()
        report = await scene.settle()
    finals = sum(bool(asked.answer) for _, asked in streams)
    return [
        all_of("B3", "finals at SIGTERM with Postgres down", finals, of=_STREAMS, unit="streams"),
        at_most("B3", f"exit (code {code}) with Postgres down", took_s, _DRAIN_S + 5, "s"),
        loss_row("B3", "drained with Postgres down, started again", report),
    ]


async def second_signal(deployment: Deployment, size: Size) -> list[Row]:
    """B4: a second signal ends it at once; what was acknowledged is in the spool."""
    rows = []
    for name in (signal.SIGINT,) if size.short else (signal.SIGTERM, signal.SIGINT):
        async with stage(deployment, f"B4 {name}", Habits(30.0), sessions=60, model=_HELD) as scene:
            await scene.crowd.answered(30)
            await deployment.stop_postgres()
            await scene.crowd.answered(60)
            scene.service.send(signal.SIGTERM)
            await scene.service.line("drain 2/5")
            begun = time.perf_counter()
            scene.service.send(name)
            code = await scene.service.ended()
            took_s = time.perf_counter() - begun
            await deployment.start_postgres()
            await scene.service.start()
            report = await scene.settle()
        rows += [
            at_most("B4", f"exit (code {code}) after a second signal ({name.name})", took_s, 1.0 * size.slack, "s"),
            loss_row("B4", f"second signal ({name.name}), Postgres down", report),
        ]
    return rows


async def live_and_ready(deployment: Deployment, size: Size) -> list[Row]:
    """B5 and B6: what is down is told, and takes nobody out; a start without Postgres waits for it."""
    database = await deployment.database()
    service = Service(deployment, database)
    rows = []
    try:
        await deployment.stop_postgres()
        begun = time.perf_counter()
        await service.start("/healthz")
        rows.append(
            at_most("B6", "live after a start with Postgres down", time.perf_counter() - begun, 10 * size.slack, "s")
        )
        status, body = await service.ask_status("/ready")
        rows.append(exactly("B6", f"/ready until Postgres answered once ({body.get('status')})", status, 503))
        await deployment.start_postgres()
        await service.answers("/ready")
        rows.append(exactly("B6", "/ready after Postgres answered", (await service.ask_status("/ready"))[0], 200))
        async with stage(deployment, "B5", Habits(20.0), sessions=10, service=service) as scene:
            await scene.crowd.answered(10)
            rows += await _dependency(scene, "Postgres", deployment.stop_postgres, deployment.start_postgres, "down")
            rows += await _dependency(
                scene,
                "the model",
                lambda: deployment.to_model.tell("refuse", "reset"),
                lambda: deployment.to_model.tell("normal"),
            )
            rows.append(loss_row("B5", "dependencies that went and came", await scene.settle()))
    finally:
        await deployment.normal()
        await service.close()
        await deployment.drop(database)
    return rows


async def _dependency(
    scene: Stage, what: str, breaks: Callable[[], Awaitable[None]], heals: Callable[[], Awaitable[None]], told: str = ""
) -> list[Row]:
    await breaks()

    async def said() -> bool:
        _, body = await scene.service.ask_status("/ready")
        return bool(body["dependencies"]["postgres"]["status"] == told)

    await asyncio.sleep(0.5)
    if told:
        await until_it(said)
    ready, _ = await scene.service.ask_status("/ready")
    live, _ = await scene.service.ask_status("/healthz")
    await heals()
    return [
        exactly("B5", f"/healthz with {what} down", live, 200),
        exactly("B5", f"/ready with {what} down" + (", told in its body" if told else ""), ready, 200),
    ]


async def tasks(deployment: Deployment, size: Size) -> list[Row]:
    """B7: every task has a holder, and one that dies is seen, counted and started again."""
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "RUF006", "agentic_backend", "backend_kit"]
    done = await asyncio.to_thread(subprocess.run, ruff, cwd=ROOT, capture_output=True, text=True, check=False)
    strays = [
        stray
        for module in modules("agentic_backend", "knowledge_flow_backend", "backend_kit")
        if module.path.parts[:2] != ("backend_kit", "aio")
        for stray in stray_tasks(module)
    ]
    registry = TaskRegistry()
    ran = asyncio.Event()
    attempts = 0

    async def dies_twice() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ZeroDivisionError("on purpose")
        ran.set()

    logging.getLogger("backend_kit.aio.vigil").setLevel(logging.CRITICAL + 1)
    registry.spawn("dies", dies_twice, restart=True)
    async with asyncio.timeout(HANGS_S):
        await ran.wait()
    await registry.aclose()
    return [
        exactly(
            "B7", "tasks that nobody holds (ruff RUF006, stray create_task)", len(strays) + (done.returncode != 0), 0
        ),
        exactly(
            "B7",
            "failures counted and restarts of a task that died twice",
            registry.failures["dies"] + attempts - 1,
            4,
        ),
    ]


async def stopped(deployment: Deployment, size: Size) -> list[Row]:
    """B8: three ways to stop a turn during a slow first token; the model's connection must close."""
    rows = []
    async with stage(deployment, "B8", _NOBODY, sessions=0, model=_SILENT) as scene:
        ways: dict[str, tuple[bool, dict[str, str], Callable[[ClientConnection, str], Awaitable[None]]]] = {
            "cancel": (True, {}, _send_cancel),
            "on_disconnect: cancel": (True, {"on_disconnect": "cancel"}, lambda socket, _: socket.close()),
            "close 4000 (compatible)": (False, {}, lambda socket, _: socket.close(4000)),
        }
        for way, (native, more, stop) in ways.items():
            cut = (await deployment.model_stats())["streams"]["cut"]
            async with scene.service.address.dial(native=native) as socket:
                asked = await _begin(scene, socket, way, **more)
                await asyncio.sleep(0.3)
                begun = time.perf_counter()
                await stop(socket, asked.exchange_id)

                async def is_cut(before: int = cut) -> bool:
                    return bool((await deployment.model_stats())["streams"]["cut"] > before)

                await until_it(is_cut)
                took_ms = (time.perf_counter() - begun) * 1e3
            rows.append(at_most("B8", f"{way}: the model's connection closes after", took_ms, 500 * size.slack, "ms"))
        report = await scene.settle()
    rows.append(exactly("B8", "their rows say interrupted", report.interrupted, 3))
    return rows


async def _send_cancel(socket: ClientConnection, exchange_id: str) -> None:
    await socket.send(f'{{"type":"cancel","exchange_id":"{exchange_id}"}}')


_SECRET = "a shared secret of thirty-two characters"
_SECURITY = {"user": {"enabled": True}, "hs256_secret_env": "TEST_SECRET"}


def _token(expires_in_s: int) -> str:
    now = int(time.time())
    return jwt.encode({"sub": "ann", "iat": now - 600, "exp": now + expires_in_s}, _SECRET, algorithm="HS256")


async def clock_jumps(deployment: Deployment, size: Size) -> list[Row]:
    """B9: the wall clock jumps an hour ahead and back under load; the monotonic one does not."""
    library = faketime()
    if library is None:
        return [not_run("B9", "clock jumps of one hour under load", "needs faketime")]
    file = deployment.directory / "clock"
    file.write_text("+0")
    env = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_CACHE_DURATION": "1",
        "TEST_SECRET": _SECRET,
    }
    token = _token(12 * 3600)
    async with stage(
        deployment, "B9", Habits(40.0), sessions=20, model=QUICK, env=env, token=token, security=_SECURITY
    ) as scene:
        leeway = [await _status_with(scene, _token(seconds)) for seconds in (-20, -70)]
        await scene.crowd.answered(40)
        jumped = 0
        for jump in ("+3600", "-3600", "+0"):
            file.write_text(jump)
            await scene.crowd.answered(120)
            jumped += jump != "+0"
        errors, cuts = sum(scene.ledger.errors.values()), scene.ledger.cuts
        report = await scene.settle()
        jumps = await asyncio.to_thread(_hours_apart, scene.service.database.dsn)
    return [
        exactly("B9", f"errors and cuts while the clock jumped {jumped} times by 1 h", errors + cuts, 0),
        at_least("B9", "hours that stored times are apart: the jumps were seen", jumps, 1.9, "h"),
        loss_row("B9", "clock jumps under load", report),
        exactly("B9", "a token 20 s past its end is taken, 70 s past it is not", int(leeway == [200, 401]), 1),
    ]


def faketime() -> str | None:
    """The library that gives a process another wall clock; None where there is none."""
    return next((str(path) for path in _FAKETIME.glob("*/faketime/libfaketimeMT.so.1")), None)


def _hours_apart(dsn: str) -> float:
    with psycopg.connect(dsn) as connection:
        query = 'SELECT extract(epoch FROM max("timestamp") - min("timestamp")) / 3600 FROM session_history'
        row = connection.execute(query).fetchone()
        return float(row[0]) if row else 0.0


async def _status_with(scene: Stage, token: str) -> int:
    url = f"{scene.service.address.url}/chatbot/sessions"
    async with scene.http.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
        return response.status


async def _streams(scene: Stage, count: int) -> list[tuple[ClientConnection, Asked]]:
    """Sockets with a turn each, of which the model has been asked."""
    found = []
    for number in range(count):
        socket = await scene.service.address.dial()
        session_id = await create_session(scene.http, scene.service.address)
        asked = scene.ledger.ask(f"stream-{number}", session_id, f"Question {number}?")
        found.append((socket, asked))
    for socket, asked in found:
        await socket.send(ask_text(asked))
    for socket, _ in found:
        while (await hear(socket))["type"] != "message":
            pass
    return found


async def _begin(scene: Stage, socket: ClientConnection, name: str, **more: str) -> Asked:
    """One turn that has begun."""
    session_id = await create_session(scene.http, scene.service.address)
    asked = scene.ledger.ask(f"{name}-{session_id}", session_id, "Will you answer?")
    await socket.send(ask_text(asked, **more))
    while (await hear(socket))["type"] not in ("message", "stream"):
        pass
    return asked


async def _end(scene: Stage, socket: ClientConnection, asked: Asked, events: list[str]) -> int:
    """The rest of a stream; its close code."""
    try:
        frame = await hear_end(socket, asked.exchange_id)
    except ConnectionClosed:
        return socket.close_code or 0
    events.append(frame["type"])
    if frame["type"] != "error":
        scene.ledger.told(asked, frame)
    return await _closed(socket)


async def _leaves(socket: ClientConnection, events: list[str]) -> int:
    code = await _closed(socket)
    events.append("idle")
    return code


async def _closed(socket: ClientConnection) -> int:
    async with asyncio.timeout(HANGS_S):
        await socket.wait_closed()
    return socket.close_code or 0


async def _refused(service: Service) -> int:
    """The status of a handshake that is refused, 101 where it is not."""
    try:
        async with service.address.dial():
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code
