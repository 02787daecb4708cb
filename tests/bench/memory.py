"""What the agentic service holds in memory: at the start, with idle sockets, with streamed turns, and after them.

Hypothesis: a socket and a turn take what is told here, and a minute after the last turn the service holds what its
allocators could not give back; beside it, how often and how long its garbage collector stopped it.
Control: the same command in the commit before, minutes apart; resident memory hardly depends on what else runs, as
long as the load is the same.
Command: `python -m tests.bench.memory` (`--clients`, `--seconds`, `--rest`; `--collector 0` and the like for other
thresholds of the collector). Times count on a quiet machine only; the number of collections does on any.

The verdict is over what stays: a minute after the last of 1,000 clients. Under load the bounds are those of
`make bench-headline`. `make bench-memory` runs it after `tests.bench.bounded`.
"""

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bench.bench import Verdicts
from tests.bench.deployment import Deployment, Server, deployed, rss_mb
from tests.bench.driver import Load, Target, clients
from tests.bench.headline_stage import first_s, slow_model
from tests.bench.measured import above, sample
from tests.bench.pauses import Pauses
from tests.bench.turn import with_ack
from tests.support.ports import free_port

TOKENS = 50
GAP_MS = 60.0
FLOOR_S = 3.0
STAYS_MIB = 230.0


def mapped(pid: int) -> dict[str, float]:
    """Resident MiB of a process: its files, its heap, and what else it has mapped without a file."""
    found: Counter[str] = Counter()
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        key, *rest = line.split()
        if "-" in key and not key.endswith(":"):
            name = rest[4] if len(rest) > 4 else ""
            kind = "heap" if name == "[heap]" else "files" if name.startswith("/") else "other"
        elif key == "Rss:":
            found[kind] += int(rest[0])
    return {kind: kb / 1024 for kind, kb in sorted(found.items())}


def tell(what: str, server: Server) -> float:
    """Print what it holds now; MiB."""
    pid = server.process.pid
    held = rss_mb(pid)
    parts = ", ".join(f"{kind} {mib:.1f}" for kind, mib in mapped(pid).items())
    print(f"{what:28} {held:7.1f} MiB ({parts})", flush=True)
    return held


async def idle(target: Target, count: int, server: Server) -> float:
    """What it holds with so many sockets that have asked nothing."""
    async with clients(target, count):
        return tell(f"{count} idle sockets", server)


def started(deployment: Deployment, thresholds: str) -> tuple[Server, int]:
    """The service, and the port of its metrics; with other thresholds of the garbage collector where they are given."""
    metrics_port = free_port()
    ack = with_ack(deployment, "memory", "spool")

    def change(config: dict[str, Any]) -> None:
        ack(config)
        config["app"]["metrics_port"] = metrics_port

    model = slow_model(FLOOR_S, TOKENS, GAP_MS)
    if not thresholds:
        return deployment.service("memory", model, change=change), metrics_port
    hampered = ("agentic", "--collector", thresholds)
    server = deployment.service("memory", model, module="tests.bench.hampered", arguments=hampered, change=change)
    return server, metrics_port


def measure(count: int, seconds: float, rest_s: float, thresholds: str) -> int:
    """One service, from its start to the rest after the load; 1 where more stays than may."""
    verdicts = Verdicts()
    with deployed() as deployment:
        server, metrics_port = started(deployment, thresholds)
        start = tell("start", server)
        sockets = asyncio.run(idle(server.target, count, server))
        first = first_s(FLOOR_S, TOKENS, GAP_MS)
        before = Pauses.of(metrics_port)
        load = Load(count, seconds, warm_s=FLOOR_S + first + 0.5, ramp_s=FLOOR_S)
        seen = sample(deployment, server, load)
        under_load = Pauses.of(metrics_port)
        print(f"{count} streaming clients{'':11}{seen.rss_mb:7.1f} MiB; {len(seen.failures)} failed turns")
        print(f"turn above the floor, p50 / p95 / p99, ms       {above(seen.latencies_s, FLOOR_S)}")
        print(f"first token above its own, p50 / p95 / p99, ms  {above(seen.firsts_s, first)}")
        print(
            f"CPU {seen.cpu_ms:.2f} ms a turn, {seen.turns_in_all} turns; others on the core {seen.foreign_share:.0%}"
        )
        print(f"collector under load: {under_load.since(before)}")
        tell("their sockets just closed", server)
        time.sleep(rest_s)
        stays = tell(f"{rest_s:.0f} s later", server)
        print(f"collector at rest: {Pauses.of(metrics_port).since(under_load)}")
        a_socket, a_client = ((held - start) / count * 1024 for held in (sockets, seen.rss_mb))
        print(f"a socket {a_socket:.1f} KiB, a client with its turn {a_client:.1f} KiB")
        verdicts.hold(f"RSS {rest_s:.0f} s after {count} clients", stays, STAYS_MIB, "MiB")
    return int(verdicts.failed > 0)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rest", type=float, default=60.0)
    parser.add_argument("--collector", default="", help="other thresholds of the garbage collector; 0 turns it off")
    options = parser.parse_args()
    return measure(options.clients, options.seconds, options.rest, options.collector)


if __name__ == "__main__":
    sys.exit(main())
