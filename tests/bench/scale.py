"""What bounds 1, 4, 16, 64 and 1,000 workers, computed from parts that are measured here; figure, bound and verdict.

Hypothesis: two runs agree in every figure within 10 %, since parts are counts and CPU times, not times on a clock.
Control: the second run of `--twice`, on processes of its own.
Command: `make bench-scale` (`ARGS=--twice` runs it twice and compares; without it nothing is judged).

Measured, in five rounds that take turns: CPU of a turn at a worker (alone on the first core) and at Postgres; the
statements of a fleet's upkeep on filled tables; messages by NOTIFY and by Redis; the embedding model; the issuer's
keys. **Computed** from them, for as many workers as nobody has here: docs/scale.md has the tables that this prints.
"""

import argparse
import sys
from collections.abc import Mapping
from statistics import median

from tests.bench.bench import Verdicts
from tests.bench.calibration import measure_speed
from tests.bench.deployment import deployed
from tests.bench.scale_parts import Found, Times, standing
from tests.bench.scale_steps import BOUND, Parts, apart, figures, markdown, remedies, shown, table
from tests.bench.turn import print_stage

SHORT = Times(rounds=1, turns_s=2.0, warm_s=1.0, settle_s=1.0, idle_s=4.0, messages_s=0.5, many=64)
MEASURED = ("measured", "figure", "of the rounds")


def measured(found: Mapping[str, list[float]]) -> str:
    """Each part with its spread, in Markdown."""
    rows = [
        (f"`{name}`", shown(median(found[name])), f"{shown(min(found[name]))} to {shown(max(found[name]))}")
        for name in Parts.__slots__
    ]
    return markdown(MEASURED, rows)


def tell(parts: Parts, found: Found) -> None:
    """Print all of it."""
    print(f"\n{measured(found)}\n\nComputed from these, by workers that are 70 % in use:\n")
    print(f"{table(parts)}\n\n{remedies()}")


def compare(one: Parts, other: Parts, verdicts: Verdicts) -> None:
    """Hold every figure of two runs to one another."""
    print()
    for name, share in apart(figures(one), figures(other)).items():
        verdicts.hold(name, share * 100, BOUND * 100, "% apart")


def main() -> int:
    """1 where two runs differ by more than they may."""
    parser = argparse.ArgumentParser(description="What bounds 1 to 1,000 workers, computed from measured parts.")
    parser.add_argument("--twice", action="store_true", help="measure twice, and hold each figure to the other run's")
    parser.add_argument("--short", action="store_true", help="one short round: whether it works, not what comes out")
    options = parser.parse_args()
    times = SHORT if options.short else Times()
    verdicts = Verdicts()
    print_stage()
    runs = []
    for _ in range(2 if options.twice else 1):
        print(f"\n{measure_speed()}")
        with deployed() as deployment, standing(deployment) as bench:
            parts, found = bench.measure(times)
        tell(parts, found)
        runs.append(parts)
    if options.twice:
        compare(runs[0], runs[1], verdicts)
        print("all bounds hold" if not verdicts.failed else f"{verdicts.failed} bound(s) missed")
    return 1 if verdicts.failed else 0


if __name__ == "__main__":
    sys.exit(main())
