"""A fleet (`replicas: many`): its instances are killed, stand still, lose Postgres, and no answer is lost (fleet)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any, TypeVar

import aiohttp
from websockets.asyncio.client import ClientConnection

from backend_kit.wire import dumps
from tests.chaos.deployment import Deployment, Service, Size
from tests.chaos.kills import loss_row
from tests.chaos.ledger import Asked, Ledger, Report, compare, message_of
from tests.chaos.lifecycle import faketime
from tests.chaos.load import AGAIN_S, ask_text, create_session, hear, hear_end
from tests.chaos.paths import Paths, apart
from tests.chaos.rows import Row, all_of, at_least, at_most, exactly, none_of, not_run
from tests.chaos.travellers import Findings, travellers
from tests.chaos.until import until_it
from tests.support.patience import HANGS_S
from tests.support.ports import free_port
from tests.support.rest import rest_client
from tests.support.tool_server import ToolServer, counts, started

T = TypeVar("T")
ID = "fleet"
_MANY = {"ack": "db", "replicas": "many"}
STREAMED = "mock;ttft=300;gap=100;tokens=25"
"""An answer of about 3 s: a kill finds many in the middle."""
SLOW = "mock;ttft=300;gap=300;tokens=14"
"""One of 4 s, less than until an instance without Postgres gives its turns up: some end before, with nowhere to go."""
_CALLS_LATE = "mock;tool=add;ttft=12000"
"""A model that calls a tool while its instance stands still, also where the turns before it took seconds to begin."""
SILENT = "mock;ttft=600000"
LONG = "mock;ttft=300;gap=280;tokens=25"
"""One of 7.3 s."""
_DRAIN_S = 5.0
"""As the configuration of every scenario has it."""
TAKEOVER_S = 12.0
CANCEL_MS = 500.0


async def deaths(deployment: Deployment, size: Size, by: str = "", **sections: Any) -> list[Row]:
    """60 clients, 3 instances, kill -9 of a random one that runs turns every 30 s for 5 minutes, and Postgres restarted
    once. `by` says what `sections` change."""
    kills, clients = size.pick(2, 10), 60
    draw = deployment.draw(ID)
    ledger = Ledger()
    async with instances(deployment, 3, model=STREAMED, **sections) as (services, _), rest_client() as http:
        sessions = [await create_session(http, services[0].address) for _ in range(clients)]
        addresses = [service.address for service in services]
        async with travellers(addresses, ledger, draw, sessions, pause_s=1.0) as crowd:
            await crowd.answered(clients)
            struck = []
            for number in range(kills):
                due = perf_counter() + (17.0 if size.short else 30.0)
                await crowd.recovered()
                await asyncio.sleep(draw.uniform(0.5, 2.0))
                # Its clients have left one that was killed, and may be back in a while or not.
                place = draw.choice(await crowd.busy_places())
                struck.append(crowd.strike(place))
                await services[place].kill()
                await services[place].start()
                if number == (kills - 1) // 2:  # once the turns of the last kill are taken over, and before the next
                    await asyncio.sleep(max(0.0, due - perf_counter() - (3.0 if size.short else 12.0)))
                    await deployment.stop_postgres()
                    await deployment.start_postgres()
                await asyncio.sleep(max(0.0, due - perf_counter()))
            await crowd.pause()
            found = crowd.findings()
            report = await settled(services, http, ledger)
    what = f"{by}kill -9 x {kills} of one of 3 instances, Postgres restarted once, {clients} clients"
    hit = at_least(ID, "turns in the middle of which a kill came, the fewest", min(struck), 1, "turns")
    return [*ledger_rows(what, found, report), hit, *_takeover_rows(found.takeovers, size)]


async def rolling(deployment: Deployment, size: Size) -> list[Row]:
    """A deploy: 60 clients, 3 instances, each ended in order and started again, one after the other. An answer takes
    longer than a drain, and each instance has just begun one when it is told to end: where all clients were answered in
    the same moment, nothing that it runs might outlast its drain."""
    rounds, clients = size.pick(1, 5), 60
    draw = deployment.draw("rolling")
    ledger, took_s, codes = Ledger(), [], []
    async with instances(deployment, 3, model=LONG) as (services, _), rest_client() as http:
        sessions = [await create_session(http, services[0].address) for _ in range(clients)]
        async with travellers([service.address for service in services], ledger, draw, sessions, pause_s=1.0) as crowd:
            await crowd.answered(clients)
            for place, service in [*enumerate(services)] * rounds:
                await crowd.asked_at(place)
                begun = perf_counter()
                service.send(signal.SIGTERM)
                codes.append(await service.ended())
                took_s.append(perf_counter() - begun)
                await service.start()
                await asyncio.sleep(1.0)
            await crowd.pause()
            found = crowd.findings()
            report = await settled(services, http, ledger)
    what = f"a deploy x {rounds} of 3 instances, {clients} clients"
    return [
        *deploy_rows(what, found, report),
        at_least(ID, f"{what}: turns that went on at another instance", found.restarted, 1, "turns"),
        exactly(ID, f"{what}: instances that ended with another code than 0", sum(map(bool, codes)), 0),
        at_most(ID, f"{what}: the longest end of an instance (drain_s: {_DRAIN_S:.0f})", max(took_s),
                (_DRAIN_S + 2.0) * (2 if size.short else 1), "s"),
    ]  # fmt: skip


def deploy_rows(what: str, found: Findings, report: Report) -> list[Row]:
    """That no client noticed that instances were replaced."""
    return [
        loss_row(ID, what, report),
        none_of(ID, f"{what}: asks that did not end in final", found.asks - found.finals, of=found.asks, unit="asks"),
        all_of(ID, f"{what}: asks with exactly one end", found.one_end, of=found.asks, unit="asks"),
        none_of(ID, f"{what}: numbers that fall back, answers that are not what was shown", found.odd, of=found.asks,
                unit="asks"),
        none_of(ID, f"{what}: stored twice", report.duplicated, of=report.acked, unit="turns"),
    ]  # fmt: skip


def ledger_rows(what: str, found: Findings, report: Report) -> list[Row]:
    """That nothing was lost, and each client heard one answer, whatever happened."""
    ends = "".join(f", {end}: {count}" for end, count in sorted(found.ends.items()))
    return [
        loss_row(ID, what, report),
        all_of(ID, f"accepted asks that end in final and are not asked again{ends}", found.finals, of=found.accepted,
               unit="asks"),
        all_of(ID, "asks with exactly one end", found.one_end, of=found.asks, unit="asks"),
        none_of(ID, "answers whose numbers fall back, or that are not what was shown", found.odd, of=found.accepted,
                unit="asks"),
        none_of(ID, "questions or answers that are stored twice", report.duplicated, of=report.acked, unit="turns"),
        exactly(ID, "sessions whose ranks have gaps, ranks that two answers had", report.gaps + report.collisions, 0),
    ]  # fmt: skip


def _takeover_rows(seconds: list[float], size: Size) -> list[Row]:
    bound = 2 * TAKEOVER_S if size.short else TAKEOVER_S + size.slack - 1.0
    what = f"p99 of {len(seconds)} takeovers: kill -9 to restarted at another instance"
    return [at_most(ID, what, percentile(seconds, 99), bound, "s")]


async def standing_still(deployment: Deployment, size: Size) -> list[Row]:
    """SIGSTOP for 30 s, then SIGCONT; the two hosts' clocks are two hours apart."""
    frozen_s = size.pick(16, 30)
    library = faketime()
    hosts = [_host(library, offset) for offset in ("+3600", "-3600")]

    async def freeze(scene: Scene) -> None:
        scene.one.send(signal.SIGSTOP)
        await asyncio.sleep(frozen_s)
        scene.one.send(signal.SIGCONT)

    what = f"an instance stands still for {frozen_s} s"
    return [
        *await taken_for_dead(deployment, size, what, hosts, freeze, _CALLS_LATE),
        *([] if library else [not_run(ID, f"{what}, clocks two hours apart", "needs faketime")]),
    ]


async def taken_for_dead(
    deployment: Deployment,
    size: Size,
    what: str,
    hosts: Sequence[dict[str, str]],
    trouble: Callable[["Scene"], Awaitable[None]],
    calls_late: str,
) -> list[Row]:
    """Clients follow turns of an instance at both of them while it has a `trouble` that lasts longer than until the
    other one goes on with them; `calls_late` is a model that calls a tool only then."""
    calling = size.pick(5, 20)
    async with (
        started(free_port()) as tools,
        pair_of_instances(deployment, hosts, [False, False], **_agents(tools, calls_late)) as scene,
    ):
        late, turns = await asyncio.gather(
            at_once(scene.begin("Sammy", f"tool-{number}", until="message", patient=True) for number in range(calling)),
            at_once(scene.begin("Georges", f"still-{number}", patient=True) for number in range(size.pick(10, 40))),
        )
        await trouble(scene)
        same = await at_once(scene.ends_alike(turn, "final") for turn in turns)
        cut = await at_once(scene.ends_alike(turn, "cancelled") for turn in late)
        before = (await counts(tools))["counts"].get("add", 0)
        again = await at_once(scene.ask_again(turn, "Sammy") for turn in late)
        after = (await counts(tools))["counts"].get("add", 0)
        report = await scene.settle()
    return [
        *scene.rows(what, same, report),
        all_of(
            ID, f"{what}: turns of an agent that must not run again, interrupted", sum(cut), of=calling, unit="turns"
        ),
        exactly(ID, f"{what}: tools that it has called", before, 0),
        exactly(ID, f"{what}: tools called for {sum(again)} of {calling} asks that were asked again", after, calling),
    ]


async def without_postgres(deployment: Deployment, size: Size) -> list[Row]:
    """One instance is cut off from Postgres only; its clients are still there."""
    away_s = size.pick(22, 30)
    async with pair_of_instances(deployment, [{}, {}], [False, True], model=SLOW) as scene:
        away = range(size.pick(20, 60))
        turns = await at_once(scene.begin("Georges", f"away-{number}", patient=True) for number in away)
        await deployment.to_postgres.tell("hold")
        await asyncio.sleep(away_s)
        meanwhile = sum(turn.told_there for turn in turns)
        await deployment.to_postgres.tell("reset", "normal")
        same = await at_once(scene.ends_alike(turn, "final") for turn in turns)
        await scene.one.answers("/ready")
        back = await at_once(scene.ask_next(scene.one, turn, f"back-{number}") for number, turn in enumerate(turns))
        report = await scene.settle()
    what = f"an instance is cut off from Postgres for {away_s} s"
    return [
        *scene.rows(what, same, report),
        all_of(ID, f"{what}: turns whose end the other one tells meanwhile", meanwhile, of=len(turns), unit="turns"),
        all_of(ID, f"{what}: sessions that it serves again", sum(back), of=len(turns), unit="sessions"),
    ]


async def cancelled(deployment: Deployment, size: Size) -> list[Row]:
    """A cancel at one instance of a turn that runs at another closes the model's connection."""
    times = size.pick(20, 200)
    async with pair_of_instances(deployment, [{}, {}], [True, True], model=SILENT) as scene:
        took_ms = [await cancel_elsewhere(deployment, scene, "Georges", f"cancel-{number}") for number in range(times)]
    return cancel_rows("a cancel at another instance", took_ms, CANCEL_MS * size.slack)


async def cancel_elsewhere(deployment: Deployment, scene: "Scene", agent: str, name: str) -> float:
    """Milliseconds from the cancel, at the second instance, of a turn of the first one to the end of its model's
    stream, of which there is no other; infinite where the turn does not end in `cancelled`."""
    turn = await scene.begin(agent, name, until="message", followed=False)
    await open_streams(deployment, 1)
    begun = perf_counter()
    async with scene.other.address.dial() as stopper:
        await stopper.send(dumps({"type": "cancel", "exchange_id": turn.asked.exchange_id}).decode())
        await open_streams(deployment, 0)
        took_ms = (perf_counter() - begun) * 1e3
        end = await end_of(turn.here, turn.asked)
        if end["type"] != "cancelled":
            await stopper.send('{"type":"ping"}')
            answered = [frame async for frame in _until_pong(stopper)]
            print(f"{name} was not stopped: {end}; who stopped it heard {answered}", flush=True)
    await turn.here.close()
    return took_ms if end["type"] == "cancelled" else float("inf")


async def _until_pong(socket: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    """The frames before the answer to a ping."""
    async with asyncio.timeout(HANGS_S):
        while (frame := await hear(socket))["type"] != "pong":
            yield frame


def cancel_rows(what: str, took_ms: list[float], bound_ms: float) -> list[Row]:
    """Those of cancels as `cancel_elsewhere` has found them."""
    ended = sum(isfinite(ms) for ms in took_ms)
    return [
        all_of(ID, f"{what}: turns that end in cancelled", ended, of=len(took_ms), unit="turns"),
        at_most(ID, f"p99 of {what} until the model's connection is closed", percentile(took_ms, 99), bound_ms, "ms"),
    ]


@dataclass(frozen=True, slots=True)
class _Followed:
    """A turn at one instance, with its client there and one that follows it at the other."""

    asked: Asked
    here: ClientConnection
    there: ClientConnection | None = None
    end_there: "asyncio.Task[dict[str, Any]] | None" = None

    @property
    def told_there(self) -> bool:
        """Whether the other instance has told its end by now."""
        return self.end_there is not None and self.end_there.done()


@dataclass(slots=True)
class Scene:
    """Two instances, the first of which is in trouble, and what their clients were told. `paths` are those of each,
    none where they are beside one another."""

    services: list[Service]
    paths: list[Paths]
    http: aiohttp.ClientSession
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def one(self) -> Service:
        """The one in trouble."""
        return self.services[0]

    @property
    def other(self) -> Service:
        """The one that is well."""
        return self.services[1]

    async def begin(
        self, agent: str, name: str, *, until: str = "delta", followed: bool = True, patient: bool = False
    ) -> _Followed:
        """A turn in the middle at the first instance.

        `patient` before any trouble: on a busy machine instances that have just begun, and get many at once, may not
        open their connections within their time, and what they refuse so is asked again, as clients do.
        """
        session_id = await create_session(self.http, self.one.address, agent, patient=patient)
        asked = self.ledger.ask(name, session_id, f"What is 1 + 2, {name}?")
        here = await self.one.address.dial()
        await _send_until(here, ask_text(asked, agent), until, patient=patient)
        if not followed:
            return _Followed(asked, here)
        there = await self.other.address.dial()
        frame = {"type": "resume", "session_id": session_id, "exchange_id": asked.exchange_id}
        await _send_until(there, dumps(frame).decode(), until, patient=patient)
        return _Followed(asked, here, there, asyncio.create_task(end_of(there, asked)))

    async def ends_alike(self, turn: _Followed, kind: str) -> bool:
        """Whether both clients hear the same end, of this kind, and nothing after it."""
        assert turn.there is not None
        assert turn.end_there is not None
        ends = [await turn.end_there, await end_of(turn.here, turn.asked)]
        for socket, end in zip((turn.there, turn.here), ends, strict=True):
            if end["type"] == "final":
                self.ledger.told(turn.asked, end)
            await socket.send('{"type":"ping"}')
            if later := await _last_before_pong(socket, turn.asked):
                print(f"{turn.asked.exchange_id} said {later} after its end {end}", flush=True)
                return False
            await socket.close()
        alike = [end["type"] for end in ends] == [kind] * 2 and ends[0]["messages"] == ends[1]["messages"]
        if not alike:
            print(f"{turn.asked.exchange_id} is to end in {kind}: {ends}", flush=True)
        return alike

    async def ask_again(self, turn: _Followed, agent: str) -> bool:
        """Whether the same ask, at the other instance, ends in `final`."""
        async with self.other.address.dial() as socket:
            return await self._final(socket, turn.asked, agent)

    async def ask_next(self, service: Service, turn: _Followed, name: str) -> bool:
        """Whether another ask of the session ends in `final`."""
        async with service.address.dial() as socket:
            return await self._final(socket, self.ledger.ask(name, turn.asked.session_id, f"And then, {name}?"))

    async def settle(self) -> Report:
        """The ledger against what is stored."""
        return await settled(self.services, self.http, self.ledger)

    def rows(self, what: str, same: Sequence[bool], report: Report) -> list[Row]:
        """Those of every kind of trouble."""
        alike = "turns that end in one final, the same at both instances"
        return [
            loss_row(ID, what, report),
            all_of(ID, f"{what}: {alike}", sum(same), of=len(same), unit="turns"),
        ]

    async def _final(self, socket: ClientConnection, asked: Asked, agent: str = "Georges") -> bool:
        await socket.send(ask_text(asked, agent, if_busy="queue"))
        end = await end_of(socket, asked)
        if end["type"] == "final":
            self.ledger.told(asked, end)
        return bool(end["type"] == "final")


@asynccontextmanager
async def instances(
    deployment: Deployment,
    count: int,
    hosts: Sequence[dict[str, str]] = (),
    direct: Sequence[bool] = (),
    trees: Sequence[Path | None] = (),
    **sections: Any,
) -> AsyncIterator[tuple[list[Service], list[Paths]]]:
    """So many instances on a database of their own. `hosts` are their environments, `direct` those past the
    deployment's own proxies, `trees` the sources that they run, where those are others than these. With their paths
    where the deployment has them apart."""
    database = await deployment.database()
    services = [
        Service(
            deployment,
            database,
            persistence=_MANY,
            env=hosts[number] if hosts else None,
            direct=direct[number] if direct else False,
            tree=trees[number] if trees else None,
            **sections,
        )
        for number in range(count)
    ]
    try:
        async with AsyncExitStack() as stack:
            paths = await stack.enter_async_context(apart(deployment, services)) if deployment.apart else []
            for service in services:  # the first one makes the schema
                await service.start()
            yield services, paths
    finally:
        await deployment.normal()
        for service in services:
            await service.close()
        await deployment.drop(database)


@asynccontextmanager
async def pair_of_instances(
    deployment: Deployment, hosts: Sequence[dict[str, str]], direct: Sequence[bool], **sections: Any
) -> AsyncIterator[Scene]:
    """Two of them, ready; `hosts` and `direct` as above."""
    async with instances(deployment, 2, hosts, direct, **sections) as (services, paths), rest_client() as http:
        yield Scene(services, paths, http)


def _agents(tools: ToolServer, calls_late: str) -> dict[str, Any]:
    """Georges with a slow answer; Sammy, who must not run again by himself, with a tool that he calls late."""
    sammy = {
        "name": "Sammy",
        "class_path": "agentic_backend.agent.tools",
        "model": "calls",
        "tuning": {"mcp_servers": [{"id": "tools"}]},
    }
    return {
        "model": SLOW,
        "ai": {
            "chat_models": [{"id": "calls", "name": calls_late}],
            "agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}, sammy],
        },
        "mcp": {"servers": [{"id": "tools", "url": tools.url}]},
    }


def _host(library: str | None, offset: str) -> dict[str, str]:
    """The environment of a host whose wall clock is wrong by so many seconds; none without faketime."""
    if library is None:
        return {}
    monotonic = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": library, "FAKETIME": offset, **monotonic}


async def settled(services: Sequence[Service], http: aiohttp.ClientSession, ledger: Ledger) -> Report:
    """Wait until all is written, and compare the ledger with rows and history, of which each instance tells a part."""
    for service in services:
        await service.drained()
    rows, sessions = await asyncio.to_thread(services[0].database.stored)
    history = {}
    for number, session_id in enumerate(sorted(ledger.sessions)):
        address = services[number % len(services)].address
        url = f"{address.url}/chatbot/session/{session_id}/history"
        async with http.get(url, headers=address.headers) as response:
            messages = await response.json() if response.status == 200 else []
        history[session_id] = [message_of(message) for message in messages]
    return compare(ledger, rows, sessions, history)


async def at_once(work: Iterable[Awaitable[T]]) -> list[T]:
    """Everything at once."""
    return list(await asyncio.gather(*work))


async def open_streams(deployment: Deployment, count: int) -> None:
    async def so_many() -> bool:
        return bool((await deployment.model_stats())["streams"]["open"] == count)

    await until_it(so_many)


async def _send_until(socket: ClientConnection, frame: str, kind: str, *, patient: bool) -> None:
    """Send a frame, and hear its turn until an event of this kind; again, where `patient`, as long as it may be."""
    async with asyncio.timeout(HANGS_S):
        await socket.send(frame)
        while (heard := await hear(socket))["type"] != kind:
            if patient and heard.get("retryable") and "seq" not in heard:
                await asyncio.sleep(AGAIN_S)
                await socket.send(frame)
            elif heard["type"] in ("final", "error", "cancelled"):
                raise RuntimeError(f"an ask ended before its {kind}: {heard}")


async def end_of(socket: ClientConnection, asked: Asked) -> dict[str, Any]:
    async with asyncio.timeout(HANGS_S):
        return await hear_end(socket, asked.exchange_id)


async def _last_before_pong(socket: ClientConnection, asked: Asked) -> str:
    """The type of the last frame of an exchange before the answer to a ping; empty where there is none."""
    last = ""
    async for frame in _until_pong(socket):
        if frame.get("exchange_id") == asked.exchange_id:
            last = frame["type"]
    return last


def percentile(values: list[float], percent: int) -> float:
    """Infinite where there are too few."""
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else float("inf")
