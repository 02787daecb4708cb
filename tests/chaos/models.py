"""A model that is away, silent, endless: when a turn is told, and what that costs the service (C2 to C5, C7)."""

import asyncio
import re
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from websockets.asyncio.client import ClientConnection

from tests.agentic_backend.llm.scripted import SSE_HEAD, Write, scripted
from tests.chaos.deployment import Deployment, Service, Size, Stage, stage
from tests.chaos.load import Habits, ask_text, create_session, hear, hear_end
from tests.chaos.rows import Row, all_of, at_most

_FIRST_S, _INTER_S = 3, 2
_FAILURES = 5
"""After so many the breaker is open."""
_MODELS = {"Silent": "mock;ttft=600000", "Stalled": "mock;gap=20;tokens=8;stall=4", "Long": "mock;gap=50;tokens=400"}
_ENDLESS = "mock;tokens=100000"
_MAX_CHARS = 200_000
_WARM = 2
"""Rounds before those that count: what is kept for all of the service, up to its bounds, is no turn's."""
_PIECE = b"x" * 65_536
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _End:
    """How a turn ended: its kind or code, and after how long."""

    code: str
    took_s: float


async def told_in_time(deployment: Deployment, size: Size) -> list[Row]:
    """C2 to C4: how soon after its deadline a turn is told, how soon where the breaker is open, how soon it heals."""
    deadlines = {"first_token_s": _FIRST_S, "inter_token_s": _INTER_S}
    async with stage(
        deployment, "C2", Habits(1.0), sessions=0, model="mock;tokens=8", ai=_agents(_MODELS), deadlines=deadlines
    ) as scene:
        silent = await _at_once(scene, "Silent", 10)
        stalled = await _at_once(scene, "Stalled", 10)
        held = await _black_hole(deployment, scene)
        open_ends, healed_s = await _breaker(deployment, scene, size.pick(50, 500))
    late = [*stalled, *held]
    quick = [end.took_s * 1e3 for end in open_ends]
    return [
        _all_told("C2", "turns behind an open breaker that are llm_unavailable", open_ends, "llm_unavailable"),
        at_most("C2", "p95 until they are told", quantiles(quick, n=20)[-1], 50 * size.slack, "ms"),
        at_most("C2", "until turns are answered again, from the model's return", healed_s, 10.0, "s"),
        _all_told("C3", "turns without a first token that are llm_timeout", silent, "llm_timeout"),
        at_most("C3", "off their deadline at most", _off(silent, _FIRST_S), size.slack, "s"),
        _all_told("C4", "turns whose stream stalls or is held that are llm_timeout", late, "llm_timeout"),
        at_most("C4", "off their deadline at most", _off(late, _INTER_S), size.slack, "s"),
    ]


async def bounded_memory(deployment: Deployment, size: Size) -> list[Row]:
    """C5 and C7: what an answer and an event without end cost in memory."""
    turns = size.pick(20, 50)

    async def one_event(write: Write) -> None:
        await write(SSE_HEAD + b"data: ")
        for _ in range(100 * _MIB // len(_PIECE)):
            await write(_PIECE)

    async with scripted(one_event) as model:
        ai = _agents({"Endless": _ENDLESS, "Huge": "huge"})
        next(one for one in ai["chat_models"] if one["id"] == "huge")["settings"] = {"base_url": model.base_url}
        history = {"cache_mb": 1}
        async with stage(deployment, "C5", Habits(1.0), sessions=0, direct=True, ai=ai, history=history) as scene:
            rows = []
            for row, agent, code, most in (
                ("C5", "Endless", "final", size.pick(4, 2) * _MAX_CHARS / _MIB),
                ("C7", "Huge", "llm_protocol", 10.0),
            ):
                for _ in range(_WARM):
                    await _at_once(scene, agent, turns)
                seen = [await _cost_mb(scene, agent, turns) for _ in range(3)]
                ends = [end for _, round_ends in seen for end in round_ends]
                each = median(grown for grown, _ in seen) / turns
                rows.append(_all_told(row, f"turns of {agent} that end with {code}", ends, code))
                rows.append(at_most(row, f"memory for each of {turns} at once, at its peak", each, most, "MiB"))
    return rows


async def _cost_mb(scene: Stage, agent: str, count: int) -> tuple[float, list[_End]]:
    """By how much the service grew at most while so many turns of an agent ran side by side, and their ends."""
    before = _peak_mb(scene.service, anew=True)
    ends = await _at_once(scene, agent, count)
    return _peak_mb(scene.service) - before, ends


def _agents(models: dict[str, str]) -> dict[str, Any]:
    """The section `ai`: Georges, and an agent for each of these models."""
    plain = "agentic_backend.agent.plain"
    agents = [{"name": "Georges", "class_path": plain}]
    agents += [{"name": name, "class_path": plain, "model": name.lower()} for name in models]
    known = [{"id": name.lower(), "title": name, "name": knobs} for name, knobs in models.items()]
    return {"agents": agents, "chat_models": known}


async def _at_once(scene: Stage, agent: str, count: int) -> list[_End]:
    """So many turns of an agent side by side."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_one(scene, agent)) for _ in range(count)]
    return [task.result() for task in tasks]


async def _one(scene: Stage, agent: str) -> _End:
    """A turn in a session and over a socket of its own."""
    session_id = await create_session(scene.http, scene.service.address, agent)
    async with scene.service.address.dial() as socket:
        return await _turn(scene, socket, session_id, agent)


async def _turn(scene: Stage, socket: ClientConnection, session_id: str, agent: str = "Georges") -> _End:
    asked = scene.ledger.ask(f"{agent}-{time.monotonic_ns()}-{session_id}", session_id, "Are you there?")
    begun = time.perf_counter()
    await socket.send(ask_text(asked, agent))
    frame = await hear_end(socket, asked.exchange_id)
    return _End(str(frame.get("code", frame["type"])), time.perf_counter() - begun)


async def _black_hole(deployment: Deployment, scene: Stage) -> list[_End]:
    """Turns in mid-stream when the network before the model swallows everything; timed from that moment."""

    async def one() -> _End:
        session_id = await create_session(scene.http, scene.service.address, "Long")
        asked = scene.ledger.ask(f"held-{session_id}", session_id, "Are you there?")
        async with scene.service.address.dial() as socket:
            await socket.send(ask_text(asked, "Long"))
            while (await hear(socket))["type"] != "delta":
                pass
            streaming.release()
            await held.wait()
            begun = time.perf_counter()
            frame = await hear_end(socket, asked.exchange_id)
            return _End(str(frame.get("code", frame["type"])), time.perf_counter() - begun)

    streaming, held, count = asyncio.Semaphore(0), asyncio.Event(), 10
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one()) for _ in range(count)]
        for _ in range(count):
            await streaming.acquire()
        await deployment.to_model.tell("hold")
        held.set()
    await deployment.to_model.tell("normal")
    return [task.result() for task in tasks]


async def _breaker(deployment: Deployment, scene: Stage, count: int) -> tuple[list[_End], float]:
    """The model goes away until the breaker is open: so many turns behind it, and how long it takes to heal."""
    session_id = await create_session(scene.http, scene.service.address)
    async with scene.service.address.dial() as socket:
        await deployment.to_model.tell("refuse")
        await deployment.to_model.tell("reset")
        for _ in range(_FAILURES):
            await _turn(scene, socket, session_id)
        ends = [await _turn(scene, socket, session_id) for _ in range(count)]
        await deployment.to_model.tell("accept")
        begun = time.perf_counter()
        while (await _turn(scene, socket, session_id)).code != "final":  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.1)
        return ends, time.perf_counter() - begun


def _all_told(row: str, what: str, ends: list[_End], code: str) -> Row:
    return all_of(row, what, sum(end.code == code for end in ends), of=len(ends), unit="turns")


def _off(ends: list[_End], deadline_s: float) -> float:
    """How far from its deadline the worst of them was."""
    return max(abs(end.took_s - deadline_s) for end in ends)


def _peak_mb(service: Service, *, anew: bool = False) -> float:
    """Most resident memory so far, MiB; `anew`: since now."""
    place = Path(f"/proc/{service.process.pid}")
    if anew:
        (place / "clear_refs").write_text("5")
    found = re.search(r"^VmHWM:\s+(\d+) kB", (place / "status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("the system does not tell how much memory a process had")
    return int(found[1]) / 1024
