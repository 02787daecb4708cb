"""What a thousand paced clients cost the generator: CPU of one core, and how far its figures are from the truth.

    python -m tests.ws_bench.generator_cost [--clients 1000] [--turns 5] [--bound 0.25]

A bare WebSocket server on another core sends each turn 20 tokens 150 ms apart, so that a turn lasts 3 s.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop
from websockets.asyncio.server import ServerConnection, serve

from tests.support.ports import free_port
from tests.support.processes import ROOT, ModuleProcess
from ws_bench.config.runflags import NATIVE_SUBPROTOCOL

TOKENS = 20
GAP_S = 0.15
TURN_MS = TOKENS * GAP_S * 1000


async def _answer(socket: ServerConnection) -> None:
    """Every ask on the schedule of its own clock, whatever the other sockets do."""
    loop = asyncio.get_running_loop()
    async for frame in socket:
        ask = json.loads(frame)
        head = f'"session_id":"s","exchange_id":"{ask["client_exchange_id"]}"'
        begin = loop.time()
        for number in range(TOKENS):
            await asyncio.sleep(begin + (number + 1) * GAP_S - loop.time())
            await socket.send(f'{{"type":"delta",{head},"seq":{number},"rank":1,"channel":"final","text":" token"}}')
        answer = '{"role":"assistant","channel":"final","parts":[{"type":"text","text":"' + " token" * TOKENS + '"}]}'
        await socket.send(f'{{"type":"final",{head},"seq":{TOKENS},"messages":[{answer}],"ledger":[]}}')


async def _serve(port: int) -> None:
    options = {"compression": None, "ping_interval": None, "backlog": 4096, "subprotocols": [NATIVE_SUBPROTOCOL]}
    async with serve(_answer, "127.0.0.1", port, **options):  # type: ignore[arg-type]
        print("listening", flush=True)
        await asyncio.Event().wait()


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[core % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> int:
    """Serve and load; 1 where the bound is missed."""
    parser = argparse.ArgumentParser(description="What paced clients cost the generator.")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--bound", type=float, default=0.25)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options.serve))
        return 0
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        out, port = Path(directory) / "out.json", free_port()
        with _pinned(0):
            server = ModuleProcess("tests.ws_bench.generator_cost", "--serve", str(port), stop_s=5.0)
            stack.enter_context(server).wait_for_line("listening")
        with _pinned(1):
            subprocess.run(
                [sys.executable, "-m", "ws_bench", "-native", "-url", f"ws://127.0.0.1:{port}/chatbot/query/ws",
                 "-session=s", f"-clients={options.clients}", f"-requests-per-client={options.turns}",
                 "-ramp-duration=3s", "-no-live", f"-json={out}"],
                cwd=ROOT, check=True, timeout=300, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        result = json.loads(out.read_text())
    check, latency = result["self_check"], result["steady"]["latency_ms"]
    print(f"{options.clients} clients, {result['counts']['success']} turns of {TURN_MS:.0f} ms, {TOKENS} tokens each")
    print(f"generator: CPU {check['cpu']:.1%} of a core, loop lag p99 {check['lag_p99_ms']:.2f} ms")
    print(f"latency - {TURN_MS:.0f} ms: p50 {latency['p50'] - TURN_MS:.1f}, p99 {latency['p99'] - TURN_MS:.1f} ms")
    good = check["cpu"] < options.bound and result["counts"]["errors"] == 0
    print(f"bound {options.bound:.0%}: {'ok' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
