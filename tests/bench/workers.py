"""What a turn costs where two workers share a port, and what more of them carry; prints figure, bound and verdict.

Hypothesis: CPU a turn with two workers, each as busy as one alone and at most at 40 % of a core, is at most 1.1 times
that of one.
Control: one worker with the same configuration (`replicas: many`) on the same core, at half the rate, in turn with the
two: two, one, one, two, … The watching process' CPU counts as theirs.
Command: `python -m tests.bench.workers` (`--short`: one short pair, the bound five times as wide).

All of them have the first core, which is at most 80 % busy; model, Postgres and load share the others. Turns come at a
rate, streamed, 50 tokens 5 ms apart. What 2, 4, 16 and 64 workers carry is **computed**: workers times the turns that a
core's CPU carries at this cost, as long as nothing else is the bound (docs/operations.md#workers).
"""

import argparse
import sys

from tests.bench.bench import Verdicts
from tests.bench.deployment import Deployment, Server, deployed
from tests.bench.driver import Load
from tests.bench.matrix import FULL, SHORT, Size, both, hold_failures, setting, start
from tests.bench.measured import Sample, Series, sample
from tests.bench.turn import SATURATED_MODEL, print_stage
from tests.support.ports import free_block

CLIENTS = 50
"""Of each worker; spread over two by the kernel."""
SHARE = 0.35
"""Of a core, at which the rate is chosen; `SHARE_MOST` is what a worker may have used."""
SHARE_MOST = 0.40
BOUND = 1.1
COMPUTED = (2, 4, 16, 64)


def begin(deployment: Deployment, workers: int) -> Server:
    """A service with so many workers."""
    metrics = setting("app.metrics_port", free_block(workers))
    change = both(setting("persistence.replicas", "many"), setting("app.workers", workers), metrics)
    return start(deployment, f"workers_{workers}", change, SATURATED_MODEL)


def rate_of(deployment: Deployment, one: Server, size: Size) -> float:
    """Turns a second at which one worker takes `SHARE` of its core: CPU a turn falls with load, so by two tries."""
    rate = 10.0
    for _ in range(2):
        found = sample(deployment, one, Load(CLIENTS, size.seconds, size.warm_s, rate=rate))
        rate = SHARE * 1e3 / found.cpu_ms
    return rate


def judge(one: Series, two: Series, verdicts: Verdicts, slack: float) -> None:
    """Print what was found, and what it makes of more workers."""
    print()
    ratio = two.ratio(one)
    for name, series in (("one worker", one), ("two workers", two)):
        print(f"{name}: {series.middle('turns_per_s'):.1f} turns/s, CPU of each pair {series.spread}  {series.doubts}")
        verdicts.tell(f"CPU a turn, {name}", series.cpu_ms, "ms")
    pairs = " ".join(f"{one:.3f}" for one in two.ratios(one))
    print(f"two over one in each pair: {pairs}")
    verdicts.hold("CPU a turn, two workers / one", ratio, BOUND * slack, "x")
    verdicts.hold("share of a core of each, at most", most_of_each(one, two), SHARE_MOST * slack, "cores")
    for count in COMPUTED:
        verdicts.tell(f"turns/s of {count} workers (computed)", count * 1e3 / two.cpu_ms, "turns/s")
    hold_failures(one.failures + two.failures, verdicts)


def most_of_each(one: Series, two: Series) -> float:
    """The greatest share of its core that a worker had: of two on average."""
    return max(*(found.service_share for found in one.samples), *(found.service_share / 2 for found in two.samples))


def main() -> int:
    """All pairs; 1 where a bound was missed."""
    parser = argparse.ArgumentParser(description="What a turn costs where two workers share a port.")
    parser.add_argument("--short", action="store_true", help="one short pair, the bound five times as wide")
    size = SHORT if parser.parse_args().short else FULL
    verdicts = Verdicts()
    print_stage()
    with deployed() as deployment:
        servers = begin(deployment, 2), begin(deployment, 1)
        rate = rate_of(deployment, servers[1], size)
        print(f"{rate:.1f} turns/s for each worker, model {SATURATED_MODEL!r}, {size.pairs} pairs of {size.seconds} s")
        kept: tuple[list[Sample], list[Sample]] = ([], [])
        sides = [(servers[0], kept[0], 2), (servers[1], kept[1], 1)]
        for _ in range(size.pairs):
            for server, samples, workers in sides:
                load = Load(CLIENTS * workers, size.seconds, size.warm_s, rate=rate * workers)
                samples.append(sample(deployment, server, load))
            sides.reverse()
    judge(Series(kept[1]), Series(kept[0]), verdicts, size.slack)
    print(f"\n{'all bounds hold' if not verdicts.failed else f'{verdicts.failed} bound(s) missed'}")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
