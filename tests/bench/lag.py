"""Does the loop monitor tell the truth? `python tests/bench/lag.py` compares it with a client outside the process.

Hypothesis: in both blocking scenarios the average of `event_loop_lag_ms` is within 15 % of what the client sees, its
95th percentile too, and the busy ratio of a busy loop is at least 0.85 (METRICS). Control: a TCP echo server on the
watched loop and a client in another process, 50 echoes a second in open loop: latency counts from when an echo was due,
whether or not the loop was there to take it. The idle scenario shows what the client measures with no lag at all.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import fmean
from typing import cast

import uvloop
from prometheus_client import CollectorRegistry

from backend_kit.kpi import Kpi, LoopMonitor
from backend_kit.kpi.rollup import Stats, nearest_rank

ECHOES_PER_S = 50
TOLERANCE = 0.15
Scenario = Callable[[float], Awaitable[None]]


async def idle(seconds: float) -> None:
    """Nothing."""
    await asyncio.sleep(seconds)


async def blocks(seconds: float) -> None:
    """A blocking call of 200 ms each second."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        await asyncio.sleep(0.8)
        time.sleep(0.2)  # noqa: ASYNC251  # the block that both must see


async def fan_in(seconds: float) -> None:
    """100 tasks that wake together each second and work for 2 ms each."""

    async def worker(start: float) -> None:
        for beat in range(int(seconds)):
            await asyncio.sleep(max(start + beat - time.perf_counter(), 0))
            _burn(0.002)

    start = time.perf_counter() + 0.5
    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(worker(start))


async def busy(seconds: float) -> None:
    """About 95 % busy, in slices of 0.9 ms."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        _burn(0.0009)
        await asyncio.sleep(0)


def _burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def __init__(self, connected: asyncio.Event) -> None:
        self._connected = connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connected.set()

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def client(port: int, seconds: float) -> None:
    """Print the latency of each echo in ms. Runs in a process of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.perf_counter()
    count = int(seconds * ECHOES_PER_S)

    async def receive() -> None:
        for number in range(count):
            await reader.readexactly(1)
            print((time.perf_counter() - start - number / ECHOES_PER_S) * 1e3)

    async with asyncio.TaskGroup() as group:
        group.create_task(receive())
        for number in range(count):
            await asyncio.sleep(max(start + number / ECHOES_PER_S - time.perf_counter(), 0))
            writer.write(b".")
    writer.close()


async def compare(scenario: Scenario, seconds: float) -> tuple[list[float], Stats, float]:
    """The client's latencies, the monitor's figures, the mean busy ratio."""
    loop = asyncio.get_running_loop()
    kpi = Kpi(CollectorRegistry(), service="bench")
    connected = asyncio.Event()
    server = await loop.create_server(lambda: Echo(connected), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monitor = LoopMonitor(kpi, notice=lambda _: None)
    command = [sys.executable, __file__, "--client", str(port), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220  # ourselves
        await connected.wait()
        monitor.start()
        await scenario(seconds)
        output, _ = await asyncio.to_thread(process.communicate)
    monitor.close()
    server.close()
    lag = kpi.gauge("event_loop_lag_ms").rollup.take()
    ratio = kpi.gauge("event_loop_busy_pct").rollup.take()
    assert lag is not None
    assert ratio is not None
    return sorted(float(line) for line in output.split()), lag, ratio.p50 / 100


def main() -> int:
    """Run every scenario; 1 where the monitor is further from the truth than it may be."""
    parser = argparse.ArgumentParser(description="The loop monitor against a client outside the process.")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a scenario (default 20)")
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--switch-interval", type=float, default=0.0005, help="as KpiOptions' (default 0.0005)")
    options = parser.parse_args()
    if options.client:
        uvloop.run(client(options.client, options.seconds))
        return 0
    sys.setswitchinterval(options.switch_interval)
    print(f"{options.seconds:.0f} s a scenario, uvloop, {os.cpu_count()} cores; ms, avg / p95 / max")
    failed = 0
    for scenario, judged in ((idle, "nothing"), (blocks, "lag"), (fan_in, "lag"), (busy, "busy")):
        truth, lag, ratio = uvloop.run(compare(scenario, options.seconds))
        true_average, true_p95 = fmean(truth), nearest_rank(truth, 0.95)
        close = all(abs(a - b) <= TOLERANCE * b for a, b in ((lag.average, true_average), (lag.p95, true_p95)))
        good = {"nothing": True, "lag": close, "busy": ratio >= 0.85}[judged]
        failed += not good
        verdict = f"{'ok' if good else 'OFF'} (judged by: {judged})"
        print(
            f"{scenario.__name__:8} client {true_average:6.1f} / {true_p95:6.1f} / {truth[-1]:6.1f}   "
            f"monitor {lag.average:6.1f} / {lag.p95:6.1f} / {lag.maximum:6.1f} ({lag.count} samples)   "
            f"busy {ratio:.2f}   {verdict}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
