"""What the fake model costs: `python -m ws_bench.fakes.measure` prints figure, bound and verdict.

Hypothesis: 600 concurrent streams of 50 tokens 20 ms apart take less than half a core. The server runs in a process of
its own on one core, the client here on another; the figure is the server's CPU time (user and system) over the window.
Each stream is one request on a kept-alive connection, repeated as soon as it has ended.
"""

import argparse
import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil
import uvloop

from backend_kit.wire import dumps
from ws_bench.record.results import spread

_END = b"0\r\n\r\n"
_TOKEN_MARK = b'"delta":{"content":'
_START_DEADLINE_S = 20.0


@dataclass(slots=True)
class StreamCounts:
    """Finished streams, their tokens, streams with a wrong count, and the time of each stream in ms."""

    streams: int = 0
    tokens: int = 0
    wrong: int = 0
    times_ms: list[float] = field(default_factory=list)


class _Asker(asyncio.Protocol):
    """One client connection that asks for a stream, counts its tokens, and asks again."""

    def __init__(self, request: bytes, tokens: int, window: StreamCounts) -> None:
        self._request = request
        self._expected = tokens
        self._window = window
        self._transport: asyncio.Transport | None = None
        self._received = 0
        self._tail = b""
        self._begin = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without being subclasses.
        self._transport = transport  # type: ignore[assignment]
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - an early end shows as a missing stream
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data.count(_TOKEN_MARK)
        if not data.endswith(_END):
            return
        window = self._window
        window.streams += 1
        window.tokens += self._received
        window.wrong += self._received != self._expected
        window.times_ms.append((time.perf_counter() - self._begin) * 1000)
        self._ask()

    def _ask(self) -> None:
        self._received = 0
        self._begin = time.perf_counter()
        if self._transport is not None:
            self._transport.write(self._request)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure with the server on one core and the client on another. Returns 0 below the bound, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--gap", type=float, default=20.0, help="ms between tokens")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the window")
    parser.add_argument("--bound", type=float, default=0.5, help="cores")
    options = parser.parse_args(argv)
    cpus = sorted(os.sched_getaffinity(0))
    server = subprocess.Popen(
        [sys.executable, "-m", "ws_bench", "mock-llm", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        os.sched_setaffinity(server.pid, {cpus[0]})
        os.sched_setaffinity(0, {cpus[-1]})
        port = int(_first_line(server).rsplit(":", 1)[1])
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            window, cores = runner.run(_measure(options, port, psutil.Process(server.pid)))
    finally:
        server.terminate()
        server.wait(timeout=10)
    return _print_result(options, window, cores, shared=cpus[0] == cpus[-1])


def _first_line(server: "subprocess.Popen[str]") -> str:
    if server.stdout is None:
        raise RuntimeError("the server was started without a pipe")
    line = server.stdout.readline().strip()
    if "listening on" not in line:
        raise RuntimeError(f"the server did not start: {line!r}")
    return line


async def _measure(options: argparse.Namespace, port: int, server: psutil.Process) -> tuple[StreamCounts, float]:
    """Start the streams spread over one stream's length, wait for one length, then count over the window."""
    loop = asyncio.get_running_loop()
    body = dumps(
        {
            "model": f"mock;tokens={options.tokens};gap={options.gap:g}",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "Hello"}],
        }
    )
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer none\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    length_s = max(options.tokens * options.gap / 1000, 0.5)
    window = StreamCounts()
    transports: list[asyncio.BaseTransport] = []
    for _ in range(options.streams):
        asker = functools.partial(_Asker, request, options.tokens, window)
        transports.append((await loop.create_connection(asker, "127.0.0.1", port))[0])
        await asyncio.sleep(length_s / options.streams)
    await asyncio.sleep(length_s)
    before, begin = server.cpu_times(), time.perf_counter()
    window.streams = window.tokens = 0
    window.times_ms.clear()
    await asyncio.sleep(options.seconds)
    after, end = server.cpu_times(), time.perf_counter()
    used = (after.user + after.system) - (before.user + before.system)
    counted = StreamCounts(window.streams, window.tokens, window.wrong, list(window.times_ms))
    for transport in transports:
        transport.close()
    return counted, used / (end - begin)


def _print_result(options: argparse.Namespace, window: StreamCounts, cores: float, *, shared: bool) -> int:
    times = spread(window.times_ms)
    nominal = (options.tokens - 1) * options.gap
    complete = window.wrong == 0 and window.streams > 0
    met = cores < options.bound and complete
    print(f"streams: {options.streams} at a time, {options.tokens} tokens, {options.gap:g} ms apart")
    print(f"finished in {options.seconds:g} s: {window.streams} streams, {window.tokens} tokens, {window.wrong} wrong")
    if times:
        print(f"stream ms: nominal {nominal:.0f}, p50 {times.p50:.0f}, p99 {times.p99:.0f}, max {times.max:.0f}")
    if shared:
        print("note: server and client share one core")
    print(f"cores: {cores:.3f}  bound: {options.bound:g}  verdict: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
