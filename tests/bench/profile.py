"""Where the CPU of a turn goes: py-spy on the service under load, by what a turn does and by library.

Command: `make profile` (`ARGS="--calm"`: 8 turns a second instead of as many as fit; `--door chat`: through a door).
Writes a flame graph (SVG), which any browser opens, beside the collapsed stacks that the two tables are made of; the
rows of each add up to the whole.
py-spy samples from outside and does not stop the service; only threads that run are counted.
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.bench.deployment import Server, deployed
from tests.bench.doors import DOORS, NATIVE, checked, opened
from tests.bench.driver import Load
from tests.bench.measured import Sample, sample
from tests.bench.turn import CALM, RATE, SATURATED, print_stage, spoken_answer, started, with_ack
from ws_bench.errors import BenchError
from ws_bench.record.stacks import Stack, find_spy, parse, record_stacks, tables

_WARM_S = 4.0


def profiled(stage_sample: Sample, output: Path, stacks: Sequence[Stack]) -> None:
    """Say what was seen."""
    if not stacks:
        raise SystemExit("py-spy found no thread at work: the window was too short")
    print(f"{stage_sample.turns:.0f} turns, {stage_sample.cpu_ms:.2f} ms of CPU each, {output} is the flame graph")
    print("", *tables(stacks, stage_sample.cpu_ms), sep="\n")


def under_load(server: Server, load: Load, deployment: object, output: Path) -> tuple[Sample, list[Stack]]:
    """One window for the stacks, one for the flame graph, both within one load."""
    collapsed = output.with_suffix(".txt")
    failed: list[BenchError] = []
    program = find_spy() or "py-spy"

    def spy() -> None:
        try:
            record_stacks(program, server.process.pid, "raw", collapsed, load.seconds / 2)
            record_stacks(program, server.process.pid, "flamegraph", output, load.seconds / 2 - 1)
        except BenchError as error:
            failed.append(error)

    watcher = threading.Timer(load.warm_s, spy)
    watcher.start()
    seen = sample(deployment, server, load)  # type: ignore[arg-type]
    watcher.join()
    if failed:
        raise SystemExit(str(failed[0]))
    return seen, parse(collapsed.read_text().splitlines())


def main() -> int:
    """Profile one of our agents, through one of the doors, or a hosted graph; the exit code."""
    parser = argparse.ArgumentParser(prog="make profile", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--calm", action="store_true", help=f"{RATE:.0f} turns a second, a token each 20 ms")
    parser.add_argument("--hosted", action="store_true", help="the graph of bench-turn, hosted, instead of our agent")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=Path("profile.svg"))
    parser.add_argument("--door", choices=sorted({*DOORS} - {NATIVE}), help="our agent through this door")
    chosen = parser.parse_args()
    case = CALM if chosen.calm else SATURATED
    load = Load(case.clients, chosen.seconds, _WARM_S, case.rate)
    with deployed() as deployment:
        print_stage()
        name = "hosted" if chosen.hosted else "ours"
        answer = spoken_answer(deployment, case.model)
        if chosen.door:
            service = deployment.service("doors", case.model, change=with_ack(deployment, "doors", "spool"))
            server = checked(opened(service, chosen.door), answer)
        else:
            server = started(deployment, name, case, "spool", answer)
        seen, stacks = under_load(server, load, deployment, chosen.output)
        profiled(seen, chosen.output, stacks)
        for failure in seen.failures[:3]:
            print(failure[:300])
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())
