"""The issuer of tokens hangs, is away and comes back with another key; the clients go on with theirs (E8)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import quantiles

import aiohttp

from tests.chaos.control import ProxyProcess
from tests.chaos.crowding import late_looks
from tests.chaos.deployment import Deployment, Size, Stage, stage
from tests.chaos.load import Habits
from tests.chaos.rows import Row, at_most, none_lost, none_of
from tests.chaos.until import until_it
from tests.support.issuer import CLIENT, JWKS, Issuer, issuer, rsa_key

_RATE = 20.0
_SESSIONS = 20
_UNKNOWN_PER_S = 20
_UNAUTHENTICATED = 401


@asynccontextmanager
async def _distant(deployment: Deployment) -> AsyncIterator[tuple[Issuer, ProxyProcess]]:
    """An issuer, and the fault proxy through which everybody knows it."""
    async with issuer() as made:
        proxy = ProxyProcess(int(made.url.split("/")[2].rpartition(":")[2]))
        await deployment.do(proxy.__enter__)
        try:
            await asyncio.to_thread(proxy.start)
            made.url = f"http://127.0.0.1:{proxy.port}/realms/test"
            yield made, proxy
        finally:
            await deployment.do(proxy.__exit__, None, None, None)


async def troubled_issuer(deployment: Deployment, size: Size) -> list[Row]:
    """Turns go on and the loop stays free while the issuer fails; keys that nobody knows make nobody ask it often."""
    seconds = size.pick(5, 30)
    async with _distant(deployment) as (made, proxy):
        security = {"user": {"enabled": True, "client_id": CLIENT, "realm_url": made.url}, "allow_query_token": True}
        async with stage(
            deployment, "E8", Habits(_RATE), sessions=_SESSIONS, direct=True, token=made.token(), security=security
        ) as scene:
            await scene.crowd.answered(_SESSIONS)
            before = await scene.service.metrics()
            async with _unknown_keys(scene, made) as waited_ms:
                for fault in (("hold",), ("normal", "delay down 30000 0"), ("normal", "refuse", "reset")):
                    await proxy.tell(*fault)
                    await asyncio.sleep(seconds)
                await proxy.tell("normal")
                await _until_up(scene)
                asked = made.asked[JWKS]
                await asyncio.sleep(seconds)
            fetched, after = made.asked[JWKS] - asked, await scene.service.metrics()
            made.keys = [made.public("k2"), *made.keys]
            rotated_s = await _until_let_in(scene, made.token("k2", sub="u-new"))
            report = await scene.settle()
            waiting = [one for one in scene.ledger.asks.values() if not one.answer]
    looks, late = late_looks(before, after)
    count = len(scene.ledger.asks)
    return [
        at_most("E8", f"of {looks:.0f} looks, the loop was later than 50 ms", late, 1.0 * size.slack, "%"),
        at_most(
            "E8",
            f"p95 of {len(waited_ms)} refusals of an unknown key",
            quantiles(waited_ms, n=20)[-1],
            100.0 * size.slack,
            "ms",
        ),
        none_of("E8", "turns of known keys without an answer", len(waiting), of=count, unit="asks"),
        none_lost("E8", "and of those answered", report.lost, report.wrong, of=report.acked, words=report.words()),
        at_most("E8", f"fetches in {seconds} s of unknown keys, the issuer well", fetched, 2.0, ""),
        at_most("E8", "until a new key is let in", rotated_s, 60.0, "s"),
    ]


@asynccontextmanager
async def _unknown_keys(scene: Stage, made: Issuer) -> AsyncIterator[list[float]]:
    """Requests with keys that nobody knows, all the while; they wait for nobody. Yields how long each took, in ms."""
    key = rsa_key("unknown")
    waited_ms: list[float] = []

    async def ask(token: str) -> None:
        begun = time.perf_counter()
        await _status(http, scene, token)
        waited_ms.append((time.perf_counter() - begun) * 1000)

    async def flood(group: asyncio.TaskGroup) -> None:
        number = 0
        while True:
            number += 1
            group.create_task(ask(made.token(f"unknown-{number}", key)))
            await asyncio.sleep(1 / _UNKNOWN_PER_S)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as group:
        flooding = group.create_task(flood(group))
        yield waited_ms
        flooding.cancel()


async def _until_up(scene: Stage) -> None:
    """The service has reached the issuer again."""

    async def up() -> bool:
        _, body = await scene.service.ask_status("/ready")
        return bool(body["dependencies"]["identity_provider"]["status"] == "up")

    await until_it(up)


async def _until_let_in(scene: Stage, token: str) -> float:
    begun = time.perf_counter()

    async def let_in() -> bool:
        return await _status(scene.http, scene, token) != _UNAUTHENTICATED

    await until_it(let_in)
    return time.perf_counter() - begun


async def _status(http: aiohttp.ClientSession, scene: Stage, token: str) -> int:
    url = f"{scene.service.address.url}/chatbot/sessions"
    async with http.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
        return response.status
