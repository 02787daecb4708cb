"""Connections that ask for nothing: bodies that never come (D16), more of them than there are descriptors (D17)."""

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from tests.chaos.deployment import Deployment, Service, Size, stage
from tests.chaos.load import BASE, Habits
from tests.chaos.rows import Row, at_least, at_most, none_of
from tests.support.raw import peer

_UNFINISHED = 200
_WINDOW_S = 10.0
_GIVEN_UP_S = 40.0
_FLOOD = 1100
_COMES_BACK_S = 5.0
_SESSIONS = 20
_RATE = 10.0
_HALF = (
    f"POST {BASE}/chatbot/session HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer local\r\n"
    "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
).encode()


async def unfinished(deployment: Deployment, size: Size) -> list[Row]:
    """D16: 200 requests of which one byte of the body comes. All are ended; how late the last one is."""
    async with stage(deployment, "D16", Habits(_RATE), sessions=_SESSIONS, direct=True) as scene:
        begun = time.perf_counter()
        ends = await asyncio.gather(*(_one_byte(scene.service.address.port) for _ in range(_UNFINISHED)))
        open_still = sum(not ended for ended in ends)
        last = time.perf_counter() - begun
        report = await scene.settle()
    return [
        none_of("D16", "half requests that are open after 40 s", open_still, of=_UNFINISHED, unit="requests"),
        at_most("D16", "the last of them was ended after", last, _WINDOW_S + 1.0 * size.slack, "s"),
        none_of(
            "D16",
            "turns lost or not answered beside them",
            report.lost + report.unanswered,
            of=report.acked,
            unit="turns",
        ),
    ]


async def _one_byte(port: int) -> bool:
    """Whether the service ends it."""
    async with peer(port) as stranger:
        await stranger.send(_HALF)
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_GIVEN_UP_S):
                while await stranger.reader.read(4096):
                    pass
            return True
    return False


@dataclass(slots=True)
class _Health:
    """What was asked of an address again and again, over a connection each: seconds of each, and failures."""

    took_s: list[float] = field(default_factory=list)
    failed: int = 0


async def too_many(deployment: Deployment, size: Size) -> list[Row]:
    """D17: 1,100 half requests within 5 s at 1,024 descriptors, each of which comes back 5 s after its end."""
    seconds = size.pick(15, 60)
    module = "tests.chaos.few_files"
    async with stage(deployment, "D17", Habits(_RATE), sessions=_SESSIONS, direct=True, module=module) as scene:
        await scene.crowd.answered(_SESSIONS * 2)
        service = scene.service
        lines = service.log.count("\n")
        async with (
            _asked(f"{service.address.url}/healthz") as health,
            _asked(_metrics_of(service)) as metrics,
            asyncio.TaskGroup() as group,
        ):
            late = [_COMES_BACK_S * number / _FLOOD for number in range(_FLOOD)]
            flood = [group.create_task(_again(service.address.port, late_s)) for late_s in late]
            await asyncio.sleep(seconds)
            for one in flood:
                one.cancel()
        after, told = await service.metrics(), service.log.splitlines()[lines:]
        report = await scene.settle()
    named = [line for line in told if re.search(r"connections\.\w+", line)]
    refused = after.get('app_connections_refused_total{reason="max_open"}', 0)
    asked = len(health.took_s) + health.failed
    return [
        none_of(
            "D17", "health that failed beside 1,100 half requests at 1,024 files", health.failed, of=asked, unit=""
        ),
        at_most("D17", "the slowest answer of health", max(health.took_s, default=0) * 1e3, 250 * size.slack, "ms"),
        none_of("D17", "metrics that failed", metrics.failed, of=len(metrics.took_s) + metrics.failed, unit=""),
        none_of(
            "D17",
            "turns lost or not answered beside them",
            report.lost + report.unanswered,
            of=report.acked,
            unit="turns",
        ),
        at_least("D17", "connections ended at the bound, by the metric", refused, _FLOOD - 512, "connections"),
        at_least("D17", "lines of the log that name a bound", len(named), 1, "lines"),
        at_most("D17", "of these, for each bound in a minute", len(named) / 2 / math.ceil(seconds / 60), 1, "lines"),
    ]


async def _again(port: int, late_s: float) -> None:
    """Half a request after the other, for ever."""
    await asyncio.sleep(late_s)
    while True:
        with contextlib.suppress(ConnectionError):
            async with peer(port) as stranger:
                await stranger.send(_HALF)
                while await stranger.reader.read(4096):
                    pass
        await asyncio.sleep(_COMES_BACK_S)


def _metrics_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.metrics_port}/metrics"


@asynccontextmanager
async def _asked(url: str) -> AsyncIterator[_Health]:
    """Ask for it every 50 ms while the block runs."""
    seen = _Health()
    asking = asyncio.create_task(_ask(url, seen))
    yield seen
    asking.cancel()


async def _ask(url: str, seen: _Health) -> None:
    timeout = aiohttp.ClientTimeout(total=30)
    while True:
        begun = time.perf_counter()
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(url) as response:
                seen.failed += response.status != 200
                await response.read()
            seen.took_s.append(time.perf_counter() - begun)
        except (aiohttp.ClientError, TimeoutError):
            seen.failed += 1
        await asyncio.sleep(0.05)
