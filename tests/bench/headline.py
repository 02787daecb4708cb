"""The figures by which Turnwise is known, in one run of at most ten minutes: figure, goal and verdict.

    make bench-headline                         all scenarios, on a machine that does nothing else
    make bench-headline ARGS="--only streams"   one of them; may be given again
    make bench-headline ARGS=--short            little load, bounds five times as wide

Hypothesis: the goals in the table at the end, which is Markdown, hold together, in one run, on two cores.
Control: the model's own floor, which the mock model is asked whether it kept; the disk's own fdatasync, timed in a
process beside; `original_like`, `naive` and `floor_asgi` (tests/bench/comparators) in turn with ours; and the machine
itself, by a fixed loop of Python and a hundred flushes before and after.

The service is alone on one core, except for Rico's; model, Postgres and load share the others. Other work on the
service's core makes every figure worse: the table tells how much of it there was (not for Rico's, who has all cores).
What speaks against a figure stands behind it as a doubt: the load's cores full, its loop late, somebody else at work.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

from tests.bench.bench import Verdicts
from tests.bench.calibration import changed
from tests.bench.deployment import deployed
from tests.bench.headline_costs import length, rico, streamed, whole
from tests.bench.headline_stage import FULL, SHORT, Clock, Stage
from tests.bench.headline_times import floor, slow_disk, streams
from tests.bench.turn import print_stage

SCENARIOS: dict[str, Callable[[Stage], None]] = {
    "floor": floor,
    "whole": whole,
    "streams": streams,
    "rico": rico,
    "streamed": streamed,
    "slow-disk": slow_disk,
    "length": length,
}
LONGEST_S = 600.0


def run(stage: Stage, names: list[str]) -> None:
    """The scenarios of these names between two calibrations."""
    clock = Clock()
    speed, disk = stage.calibrate()
    for name in names:
        begun_s = clock.seconds
        stage.scenario = name
        print(f"\n== {name}: {(SCENARIOS[name].__doc__ or '').splitlines()[0]}", flush=True)
        SCENARIOS[name](stage)
        print(f"{name} took {clock.seconds - begun_s:.0f} s", flush=True)
    print()
    last_speed, last_disk = stage.calibrate()
    if changed(speed, last_speed):
        print("doubt: the machine has changed its speed by more than a tenth")
    verdicts = stage.verdicts
    verdicts.tell("Python loop before", speed.loop_ms, "ms")
    verdicts.tell("Python loop after", last_speed.loop_ms, "ms")
    verdicts.tell("fdatasync p95 before", disk.p95_ms, "ms")
    verdicts.tell("fdatasync p95 after", last_disk.p95_ms, "ms")
    for name, share in stage.foreign.items():
        verdicts.tell(f"{name}: others on the service's core, at most", share * 100, "%")
    if len(names) == len(SCENARIOS):
        verdicts.hold("the whole run", clock.seconds, LONGEST_S, "s")


def main() -> int:
    """Run what is asked for; 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="little load, bounds five times as wide")
    parser.add_argument("--only", choices=list(SCENARIOS), action="append", help="this scenario; may be given again")
    parser.add_argument("--rounds", type=int, help=f"of what is compared in turn (default {FULL.costs.rounds})")
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    if options.rounds:
        size = replace(size, costs=replace(size.costs, rounds=options.rounds))
    verdicts = Verdicts()
    print_stage()
    with deployed() as deployment:
        run(Stage(deployment, size, verdicts), [name for name in SCENARIOS if name in (options.only or SCENARIOS)])
    print(f"\n{verdicts.markdown()}")
    print(f"\n{'all goals are met' if not verdicts.failed else f'{verdicts.failed} goal(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
