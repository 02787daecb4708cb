"""Everything at once (docs/trust.md#C12), `make chaos-mixed`:
`python -m tests.chaos.mixed [--short] [--seconds N] [--seed N]`.

150 clients ask for ten minutes while Postgres, the model and the network before both fail at random, agents have models
that refuse, stall, break off and talk nonsense, one has a knowledge flow that does, and strangers break every rule of
the protocol. Then all is well again, and it is counted: what each ask was told, what is stored, and what the process
still holds against what it held after a while of the same load without faults, the last third of it beside a slow
model; both times every client is there, and none asks. Nothing is killed here: that is A1, and a process that is new
holds nothing.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil
import uvloop
from aiohttp import web

from tests.agentic_backend.knowledge.fake import Answer, answers, fake_knowledge, hit, raw, resets, silent
from tests.chaos.deployment import QUICK, Deployment, Stage, stage
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Report
from tests.chaos.load import Crowd, Habits, create_session, crowd
from tests.chaos.rows import MISSED, Row, at_least, at_most, exactly, none_of
from tests.chaos.strangers import DEEDS, Strangers

_TERMINAL = ("final", "error", "cancelled", "awaiting_human")
_GROWTH_PCT = 5.0
_MODELS = {
    "Refused": "mock;error=0.5;status=429;ttft=100;tokens=8",
    "Broken": "mock;error=0.5;status=500;ttft=100;tokens=8",
    "Garbled": "mock;gap=20;tokens=8;garbage=4",
    "Cut": "mock;gap=20;tokens=8;truncate=4",
    "Stalled": "mock;gap=20;tokens=8;stall=4",
}
"""Agents whose model fails in a way of its own."""
_RICO = "Rico"
"""The agent whose knowledge flow fails."""
_TROUBLED = (*_MODELS, _RICO)
_PASSAGE = hit("spool", "A finished turn is appended to the spool, and then final is sent.")
_DEADLINES = {"first_token_s": 3, "inter_token_s": 2, "turn_s": 10, "send_s": 3, "drain_s": 5}
_HEALS_S = (1.0, 4.0)
_SLOW_BYTES = 450
"""A second: a turn takes about five and meets no deadline, and every client is in one."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How long faults come, after how long a warm-up, how many clients and strangers there are, turns a second, by how
    much memory may grow and how long it may take to come back; `quiet_s` until the first look, for what strangers left
    behind (half a head stays for 10 s) and, in the full form, for idle connections to the model, which are kept for 30,
    and turns that have ended, for 120: neither look finds what the service keeps for a while.

    Memory is settled after minutes only: in the short form it may grow by four times as much.
    """

    seconds: float
    warm_s: float
    clients: int
    strangers: int
    rate: float
    memory_pct: float
    rest_s: float
    quiet_s: float


FULL = Extent(
    seconds=600.0, warm_s=150.0, clients=150, strangers=12, rate=30.0, memory_pct=5.0, rest_s=190.0, quiet_s=130.0
)
SHORT = Extent(
    seconds=45.0, warm_s=15.0, clients=50, strangers=6, rate=20.0, memory_pct=20.0, rest_s=45.0, quiet_s=12.0
)

Fault = tuple[str, Callable[[Deployment], Awaitable[None]], Callable[[Deployment], Awaitable[None]]]


def _tells(what: str, *, model: bool, heal: str = "normal") -> Fault:
    """A fault of the network before the model or before Postgres."""
    where = "model" if model else "Postgres"

    def proxy(deployment: Deployment) -> Any:
        return deployment.to_model if model else deployment.to_postgres

    return (
        f"{where}: {what}",
        lambda deployment: proxy(deployment).tell(what),
        lambda deployment: proxy(deployment).tell(heal),
    )


async def _start_postgres(deployment: Deployment) -> None:
    await deployment.start_postgres()


FAULTS: tuple[Fault, ...] = (
    ("Postgres crashes", lambda deployment: deployment.stop_postgres(signal.SIGQUIT), _start_postgres),
    ("Postgres restarts", lambda deployment: deployment.stop_postgres(), _start_postgres),
    _tells("delay down 200 100", model=False),
    _tells("hold", model=False),
    _tells("reset", model=False),
    _tells("refuse", model=False),
    _tells("delay down 400 300", model=True),
    _tells("rate down 3000", model=True),
    _tells("hold", model=True),
    _tells("reset", model=True),
    _tells("refuse", model=True),
)


class Ends:
    """The terminal events of every exchange, as frames told them, and the asks that were refused for good."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        self._refused: set[str] = set()

    def hear(self, text: str) -> None:
        """Enter a frame of the server."""
        if any(f'"{kind}"' in text[:30] for kind in _TERMINAL):
            event = json.loads(text)
            if "seq" in event:
                self._seen[event["exchange_id"]].append((event["type"], event["seq"]))
            elif "exchange_id" in event and not event["retryable"]:
                self._refused.add(event["exchange_id"])

    def several(self, asked_again: Set[str]) -> int:
        """Exchanges that were told different ends, or one end twice although they were asked for once."""
        return sum(
            len(set(ends)) > 1 or (len(ends) > 1 and exchange_id not in asked_again)
            for exchange_id, ends in self._seen.items()
        )

    @property
    def count(self) -> int:
        """Exchanges that were told an end."""
        return len(self._seen)

    def missing(self, asked: Iterable[str]) -> int:
        """Of these asks, those that were told neither an end nor that there will be none."""
        return len(set(asked) - self._seen.keys() - self._refused)


@dataclass(frozen=True, slots=True)
class Holds:
    """What the process has: descriptors, tasks, resident MiB."""

    descriptors: int
    tasks: int
    rss_mb: float


async def held(scene: Stage) -> Holds:
    """Ask the process, and the system."""
    service = scene.service
    return Holds(psutil.Process(service.process.pid).num_fds(), await service.tasks(), service.rss_mb())


async def break_things(deployment: Deployment, seconds: float, done: Counter[str]) -> None:
    """One fault after the other, now and then two at once, each healed after some seconds."""
    draw = deployment.draw("mixed faults")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chosen = draw.sample(FAULTS, draw.choice([1, 1, 2]))
        if sum("Postgres" in name for name, _, _ in chosen) > 1 or sum("model" in name for name, _, _ in chosen) > 1:
            continue
        for name, breaks, _ in chosen:
            await breaks(deployment)
            done[name] += 1
        await asyncio.sleep(draw.uniform(*_HEALS_S))
        for _, _, heals in chosen:
            await heals(deployment)
        await asyncio.sleep(draw.uniform(*_HEALS_S) / 2)


def failing_documents(draw: random.Random) -> Answer:
    """A knowledge flow that fails in a way of its own at every second search."""
    many = [hit(f"d{number}", "x" * 200) for number in range(10_000)]
    faults = (
        answers(500),
        answers(503),
        silent,
        raw(b"<html>"),
        raw(b"[{}]"),
        resets(10**9, silent),
        answers(200, many),
    )

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        well = answers(200, [_PASSAGE])
        return await draw.choice([well] * len(faults) + [*faults])(request, body)

    return answer


@asynccontextmanager
async def troubled(scene: Stage, extent: Extent, ends: Ends, deployment: Deployment) -> AsyncIterator[list[Crowd]]:
    """A fifth of the clients, divided among the agents whose models or documents fail, while the block runs."""
    each = max(1, extent.clients // 5 // len(_TROUBLED))
    async with AsyncExitStack() as stack:
        crowds = []
        for name in _TROUBLED:
            ids = [await create_session(scene.http, scene.service.address, name) for _ in range(each)]
            draw = deployment.draw(f"mixed {name}")
            habits = Habits(each / 5, agent=name)
            crowds.append(
                await stack.enter_async_context(
                    crowd(scene.service.address, scene.ledger, habits, draw, ids, ends.hear)
                )
            )
        yield crowds


async def mixed(deployment: Deployment, extent: Extent) -> list[Row]:
    """The rows of C12."""
    ends, faults = Ends(), Counter[str]()
    async with fake_knowledge(_PASSAGE) as knowledge:
        knowledge.search = failing_documents(deployment.draw("mixed documents"))
        async with (
            stage(
                deployment,
                "mixed",
                Habits(extent.rate),
                sessions=extent.clients - extent.clients // 5,
                on_frame=ends.hear,
                module="tests.chaos.counted",
                model=QUICK,
                ai=_agents(knowledge.base_url),
                deadlines=_DEADLINES,
                history={"cache_mb": 8},
            ) as scene,
            troubled(scene, extent, ends, deployment) as others,
        ):
            stranger = Strangers(scene.service.address, deployment.draw("mixed strangers"))
            await _beside(stranger, extent.strangers, _warm(deployment, extent.warm_s))
            await _settled(scene, others)
            await asyncio.sleep(extent.quiet_s)
            before, told = await held(scene), scene.ledger.told_count
            begun = time.monotonic()
            for asking in (scene.crowd, *others):
                asking.resume()
            await _beside(stranger, extent.strangers, break_things(deployment, extent.seconds, faults))
            took_s, told = time.monotonic() - begun, scene.ledger.told_count - told
            await deployment.normal()
            report = await _settled(scene, others)
            after = await _as_before(scene, before, extent)
            theirs = await scene.compared(stranger.ledger)
    what = f"{extent.clients} clients, {sum(faults.values())} faults of {len(faults)} kinds in {took_s:.0f} s"
    asks = scene.ledger.asks
    return [
        loss_row("C12", what, report),
        loss_row("C12", "what strangers asked, some of which they heard", theirs),
        none_of(
            "C12",
            "exchanges told two ends, or one twice",
            ends.several(scene.ledger.asked_again),
            of=ends.count,
            unit="exchanges",
        ),
        none_of("C12", "asks without an end", ends.missing(asks), of=len(asks), unit="asks"),
        none_of(
            "C12",
            "asks whose end an open socket did not bring in 45 s",
            len(scene.ledger.late),
            of=len(asks),
            unit="asks",
        ),
        at_least("C12", "kinds of misbehaviour of strangers", len(stranger.deeds), len(DEEDS) - 1, "kinds"),
        at_least("C12", "turns answered while things broke", told, extent.seconds * extent.rate / 3, "turns"),
        *_growth_rows(before, after, extent),
        exactly("C12", "tracebacks in the log", scene.service.tracebacks, 0),
    ]


def _agents(knowledge_flow_url: str) -> dict[str, Any]:
    """The section `ai`: an agent that is well, those whose model fails, and the one whose documents do."""
    plain = "agentic_backend.agent.plain"
    agents = [{"name": "Georges", "class_path": plain}, {"name": _RICO, "class_path": "agentic_backend.agent.rag"}]
    agents += [{"name": name, "class_path": plain, "model": name.lower()} for name in _MODELS]
    models = [{"id": name.lower(), "title": name, "name": knobs} for name, knobs in _MODELS.items()]
    return {"agents": agents, "chat_models": models, "knowledge_flow_url": knowledge_flow_url}


async def _warm(deployment: Deployment, seconds: float) -> None:
    """No fault, but for a third of the time a model so slow that every client is in a turn, as they will be beside
    faults: what so many turns hold at once is not given back to the system as a whole, and is no growth
    (docs/perf-log.md)."""
    await asyncio.sleep(seconds * 2 / 3)
    await deployment.to_model.tell(f"rate down {_SLOW_BYTES}")
    await asyncio.sleep(seconds / 3)
    await deployment.to_model.tell("normal")


async def _settled(scene: Stage, others: list[Crowd]) -> Report:
    """Let every client finish and stay connected; what the ledger then says."""
    async with asyncio.TaskGroup() as group:
        for asking in others:
            group.create_task(asking.pause())
    return await scene.settle()


async def _beside(stranger: Strangers, count: int, what: Coroutine[Any, Any, None]) -> None:
    """Let strangers do wrong for as long as something lasts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stranger.go_on()) for _ in range(count)]
        await what
        for task in tasks:
            task.cancel()


def _growth(before: Holds, after: Holds) -> dict[str, float]:
    """By how many percent there is more of each."""
    return {
        "descriptors": (after.descriptors / before.descriptors - 1) * 100,
        "tasks": (after.tasks / before.tasks - 1) * 100,
        "memory": (after.rss_mb / before.rss_mb - 1) * 100,
    }


def _bounds(extent: Extent) -> dict[str, float]:
    return {"descriptors": _GROWTH_PCT, "tasks": _GROWTH_PCT, "memory": extent.memory_pct}


def _growth_rows(before: Holds, after: Holds, extent: Extent) -> list[Row]:
    bounds = _bounds(extent)
    was = {"descriptors": before.descriptors, "tasks": before.tasks, "memory": round(before.rss_mb)}
    return [
        at_most("C12", f"{what} after all of it, {was[what]} before", grown, bounds[what], "%")
        for what, grown in _growth(before, after).items()
    ]


async def _as_before(scene: Stage, before: Holds, extent: Extent) -> Holds:
    """What is held once connections that are kept for a while have gone: the last look, after so long at most."""
    end, bounds = time.monotonic() + extent.rest_s, _bounds(extent)
    while True:
        seen = await held(scene)
        if all(grown <= bounds[what] for what, grown in _growth(before, seen).items()) or time.monotonic() > end:
            return seen
        await asyncio.sleep(2.0)


def main() -> int:
    """1 where a bound is missed."""
    parser = argparse.ArgumentParser(description="Faults of every kind at random, among clients and strangers.")
    parser.add_argument("--short", action="store_true", help="45 s of them, with fewer clients")
    parser.add_argument("--seconds", type=float, help="how long faults come, instead of the 600 or 45 of the form")
    parser.add_argument("--seed", type=int, default=1, help="seed of what breaks when")
    options = parser.parse_args()
    extent = SHORT if options.short else FULL
    if options.seconds is not None:
        extent = replace(extent, seconds=options.seconds)
    with Deployment(options.seed) as deployment:
        rows = uvloop.run(mixed(deployment, extent))
    for row in rows:
        print(row.line())
    return int(any(row.verdict == MISSED for row in rows))


if __name__ == "__main__":
    sys.exit(main())
