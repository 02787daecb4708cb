"""What a message between instances costs the server that carries it, by how many hear it; figure, bound, verdict.

Hypothesis: up to 4 instances and 200 messages a second, Postgres has a tenth of a core to do for them, so that a
bus of their own is worth nothing (`fleet.bus`); with the number of instances its work grows, and that of Redis less.
Control: the same messages to one instance alone, which is what Redis does with one for an instance; the servers idle.
Command: `python -m tests.bench.bus` (`--short`: two seconds each, the bound five times as wide).

200 messages a second of 150 bytes by one sender, each to all, for ten seconds. The CPU is that of all processes of the
server. The instances that hear are connections of this process, whose CPU is not counted; latency is theirs.
"""

import argparse
import asyncio
import contextlib
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field

import psutil
import psycopg
import uvloop
from redis.asyncio import Redis

from tests.bench.bench import Verdicts
from tests.support.ports import free_port
from tests.support.postgres import public_directory
from tests.support.redis_server import redis_server
from turnwise.postgres import EmbeddedPostgres

RATE = 200.0
HEARERS = (1, 4, 16, 64)
BOUND_CORES = 0.10
"""Of a core, with 4 instances on Postgres."""
CHANNEL = "turnwise_bench_bus"
_FILLER = "x" * 130

Send = Callable[[str], Awaitable[object]]


@dataclass(slots=True)
class Ears:
    """What has been heard: the milliseconds of each message at each of them."""

    took_ms: list[float] = field(default_factory=list)

    def receive(self, payload: str | bytes) -> None:
        """Take one: it begins with when it was sent."""
        self.took_ms.append((time.perf_counter() - float(payload.split()[0])) * 1e3)


@asynccontextmanager
async def by_postgres(dsn: str, count: int, ears: Ears) -> AsyncIterator[Send]:
    """NOTIFY, to so many connections."""

    async def hear(connection: "psycopg.AsyncConnection[object]") -> None:
        async for notice in connection.notifies():
            ears.receive(notice.payload)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(count):
            connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
            stack.push_async_callback(connection.close)
            await connection.execute(f"LISTEN {CHANNEL}")
            tasks.append(group.create_task(hear(connection)))
        sender = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=0)
        stack.push_async_callback(sender.close)
        yield lambda payload: sender.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def by_redis(port: int, count: int, ears: Ears) -> AsyncIterator[Send]:
    """PUBLISH, to so many connections."""

    subscribed = asyncio.Semaphore(0)

    async def hear() -> None:
        async with client.pubsub(push_handler_func=lambda _pushed: None) as channel:
            await channel.subscribe(CHANNEL)
            async for came in channel.listen():
                if came["type"] == "message":
                    ears.receive(came["data"])
                else:
                    subscribed.release()

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        client = Redis(host="127.0.0.1", port=port, protocol=2)
        stack.push_async_callback(client.aclose)
        tasks = [group.create_task(hear()) for _ in range(count)]
        for _ in tasks:
            await subscribed.acquire()
        yield lambda payload: client.publish(CHANNEL, payload)
        for task in tasks:
            task.cancel()


async def send_for(seconds: float, send: Send) -> int:
    """Send at the rate; how many that were."""
    begun, sent = time.perf_counter(), 0
    while sent < seconds * RATE:
        await asyncio.sleep(max(0.0, begun + sent / RATE - time.perf_counter()))
        await send(f"{time.perf_counter()!r} {_FILLER}")
        sent += 1
    return sent


def cpu_s(server: psutil.Process) -> float:
    """CPU seconds of a process and its children by now."""
    total = 0.0
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def measure(
    name: str, server: psutil.Process, way: Callable[[int, Ears], AbstractAsyncContextManager[Send]], seconds: float
) -> dict[int, float]:
    """Cores of the server that the rate takes, by how many hear it."""
    found = {}
    for count in HEARERS:
        ears = Ears()
        async with way(count, ears) as send:
            await send_for(0.5, send)
            begun, before = time.perf_counter(), cpu_s(server)
            sent = await send_for(seconds, send)
            await asyncio.sleep(0.2)
            used, took = cpu_s(server) - before, time.perf_counter() - begun
        found[count] = used / took
        p50, p99 = statistics.median(ears.took_ms), statistics.quantiles(ears.took_ms, n=100)[98]
        print(
            f"{name:9} {count:3} hear: {used / sent * 1e6:6.0f} us a message, {used / took:6.3f} cores,"
            f" p50 {p50:5.2f} ms, p99 {p99:6.2f} ms"
        )
    return found


async def run(short: bool) -> int:
    """Both servers, one after the other; 1 where the bound is missed."""
    seconds = 2.0 if short else 10.0
    verdicts = Verdicts()
    with ExitStack() as stack:
        place = public_directory("turnwise-bench-bus-")
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        postgres = EmbeddedPostgres(place, free_port())
        postgres.start()
        stack.callback(postgres.stop)
        redis = stack.enter_context(redis_server())
        assert postgres.pid is not None
        assert redis.process is not None
        dsn = postgres.dsn
        notified = await measure(
            "postgres", psutil.Process(postgres.pid), lambda count, ears: by_postgres(dsn, count, ears), seconds
        )
        published = await measure(
            "redis", psutil.Process(redis.process.pid), lambda count, ears: by_redis(redis.port, count, ears), seconds
        )
    print()
    verdicts.hold("Postgres, 4 instances, 200 messages/s", notified[4], BOUND_CORES * (5 if short else 1), "cores")
    for count in HEARERS[1:]:
        verdicts.tell(f"{count} instances: Redis / Postgres", published[count] / notified[count], "x")
    print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


def main() -> int:
    """1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What a message between instances costs by Postgres and by Redis.")
    parser.add_argument("--short", action="store_true", help="two seconds each, the bound five times as wide")
    return uvloop.run(run(parser.parse_args().short))


if __name__ == "__main__":
    sys.exit(main())
