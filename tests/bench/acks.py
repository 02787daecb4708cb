"""How long does an acknowledgement wait for the disk? The spool alone, quiet, beside a writer, and on a slow disk.

    make bench-acks                                      the disk of the current directory
    make bench-acks ARGS="--directory /var/lib --short"  another disk, shorter rows
    make bench-acks ARGS="--rate 20"                     fewer turns a second, so that mostly no flush is under way

Hypothesis: an acknowledgement waits for the flush that is under way and then for one of its own: notes, removals and
SQLite's checkpoints flush nothing that it waits for. So where each flush takes 20 ms longer, p95 stays within 50 ms, or
within two flushes of the disk alone and 10 ms, where the disk and the machine add to those 20 ms.
Control: the disk alone, a page written and flushed, in the same process before the turns and after them.

Turns come as from a service: the ask is noted, 120 ms later the turn takes its place and is awaited, and what Postgres
has taken is removed in batches. `strace` makes flushes longer (`delay_exit`), and counts them; where it is missing the
row says so. Only that row has a bound: what a real disk takes is its own affair.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from agentic_backend.spool.spool import Spool
from backend_kit.kpi.rollup import nearest_rank
from backend_kit.parent_death import with_parent_death_signal

ROOT: Final = Path(__file__).parents[2]
DELAY_MS: Final = 20
_BEYOND_MS: Final = 10.0
_ASK_TO_TURN_S: Final = 0.12
_LINGER_S: Final = 0.2
_ASK, _TURN = b"a" * 800, b"t" * 8000
_ALONE: Final = 40
_WRITES: Final = """
import os, sys
piece = bytes(1 << 20)
while True:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(64):
            file.write(piece)
            os.fsync(file.fileno())
"""


class Turns:
    """Turns of many sessions, at random moments but on average so many a second; `acks_ms` are their waits."""

    def __init__(self, spool: Spool, seconds: float, rate: float) -> None:
        self._spool = spool
        self._seconds = seconds
        self._rate = rate
        self._taken: list[int] = []
        self._draw = random.Random(49)  # noqa: S311 - seeded, not secret
        self.acks_ms: list[float] = []

    async def run(self) -> None:
        """Ask until the time is over, then wait for the last."""
        removing = asyncio.create_task(self._remove())
        end = time.perf_counter() + self._seconds
        async with asyncio.TaskGroup() as group:
            number = 0
            while time.perf_counter() < end:
                group.create_task(self._turn(number))
                number += 1
                await asyncio.sleep(self._draw.expovariate(self._rate))
        removing.cancel()

    async def _turn(self, number: int) -> None:
        key, exchange = (f"session-{number % 50}", "user"), f"exchange-{number}"
        ask = self._spool.note("ask", key, exchange, _ASK)
        await asyncio.sleep(_ASK_TO_TURN_S)
        begun = time.perf_counter()
        turn, landed = self._spool.put("turn", key, exchange, _TURN, instead_of=ask)
        await landed
        self.acks_ms.append((time.perf_counter() - begun) * 1e3)
        self._taken.append(turn)

    async def _remove(self) -> None:
        """What Postgres has taken, batch by batch."""
        while True:
            await asyncio.sleep(_LINGER_S)
            taken, self._taken = self._taken, []
            self._spool.done(taken)


def flushes_ms(directory: Path) -> list[float]:
    """What the disk takes alone for a page in a file that does not grow."""
    took = []
    path = directory / "alone"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(4096 * 64))
        os.fsync(file.fileno())
        for number in range(_ALONE):
            os.pwrite(file.fileno(), os.urandom(4096), number % 64 * 4096)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun) * 1e3)
    path.unlink()
    return took


async def measured(directory: Path, seconds: float, rate: float) -> dict[str, list[float]]:
    """The waits of the turns, and of the disk alone before and after them."""
    alone = flushes_ms(directory)
    spool = Spool(directory / "spool", lambda _took_s: None)
    spool.start()
    turns = Turns(spool, seconds, rate)
    await turns.run()
    await spool.aclose()
    return {"acks_ms": turns.acks_ms, "alone_ms": alone + flushes_ms(directory)}


def row(name: str, place: Path, load: tuple[str, ...], *before: str) -> dict[str, Any]:
    """Measure in a process of its own with these arguments, behind the program `before`."""
    with tempfile.TemporaryDirectory(dir=place, prefix="turnwise-acks-") as directory:
        command = [*before, sys.executable, "-m", "tests.bench.acks", "--child", directory, *load]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    figures: dict[str, list[float]] = json.loads(done.stdout)
    acks, alone = sorted(figures["acks_ms"]), sorted(figures["alone_ms"])
    told = {
        "acks": len(acks),
        **{f"p{share * 100:.0f}": nearest_rank(acks, share) for share in (0.5, 0.95)},
        "max": acks[-1],
        "alone_p50": nearest_rank(alone, 0.5),
        "alone_p95": nearest_rank(alone, 0.95),
    }
    print(
        f"{name:34} {told['acks']:5} {told['p50']:8.2f} {told['p95']:8.2f} {told['max']:8.2f}"
        f" {told['alone_p50']:10.2f} {told['alone_p95']:8.2f}",
        flush=True,
    )
    return told


@contextmanager
def neighbour(place: Path) -> Iterator[None]:
    """Somebody who writes a megabyte after the other to the same disk, and flushes each."""
    with tempfile.TemporaryDirectory(dir=place, prefix="turnwise-neighbour-") as directory:
        program = [sys.executable, "-c", _WRITES, str(Path(directory, "written"))]
        process = subprocess.Popen(with_parent_death_signal(program, signal.SIGKILL))
        try:
            yield
        finally:
            process.kill()
            process.wait()


def slowed(place: Path, load: tuple[str, ...]) -> bool:
    """The row with a bound: whether it is kept. True where it cannot be measured."""
    name = f"each flush {DELAY_MS} ms longer"
    strace = shutil.which("strace")
    if strace is None:
        print(f"{name:34} not measured: there is no strace (Debian: apt-get install strace)")
        return True
    with tempfile.NamedTemporaryFile("r", prefix="turnwise-flushes-") as calls:
        inject = f"inject=fdatasync,fsync:delay_exit={DELAY_MS * 1000}"
        options = ("-f", "--seccomp-bpf", "-qq", "-o", calls.name, "-e", "trace=fdatasync,fsync", "-e", inject)
        told = row(name, place, load, strace, *options)
        # A call that another thread interrupts has two lines; its begin is in one of them.
        flushes = sum("sync(" in line for line in calls) - 2 * (_ALONE + 1)
    bound = 2 * max(told["alone_p50"], DELAY_MS) + _BEYOND_MS
    kept = bool(told["p95"] <= bound)
    print(f"{flushes} flushes of the spool for {told['acks']} acknowledgements")
    print(f"p95 where each flush takes {DELAY_MS} ms longer: {told['p95']:.1f} ms, at most {bound:.1f}: ", end="")
    print("ok" if kept else "MISSED")
    return kept


def main() -> int:
    """Measure; 1 where the bound is missed."""
    parser = argparse.ArgumentParser(description="How long an acknowledgement waits for the disk.")
    parser.add_argument("--directory", type=Path, default=Path(), help="a directory of the disk (default: this one)")
    parser.add_argument("--seconds", type=float, help="length of a row (default 20, short 8)")
    parser.add_argument("--rate", type=float, default=80.0, help="turns a second (default 80)")
    parser.add_argument("--short", action="store_true", help="shorter rows")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seconds = options.seconds or (8.0 if options.short else 20.0)
    if options.child is not None:
        print(json.dumps(asyncio.run(measured(options.child, seconds, options.rate))))
        return 0
    place = options.directory.resolve()
    load = ("--seconds", f"{seconds:g}", "--rate", f"{options.rate:g}")
    print(f"{options.rate:g} turns a second for {seconds:g} s, on the disk of {place}; ms")
    print(f"{'':34} {'acks':>5} {'p50':>8} {'p95':>8} {'max':>8} {'disk p50':>10} {'p95':>8}")
    row("quiet", place, load)
    with neighbour(place):
        row("beside a process that flushes", place, load)
    return 0 if slowed(place, load) else 1


if __name__ == "__main__":
    sys.exit(main())
