"""What the thresholds of the garbage collector cost a turn, with and without the freeze of what the start made.

Hypothesis: with the freeze and raised thresholds a turn costs hardly more than with no collector at all, and less than
at Python's own thresholds; without the freeze each full collection walks through all imported libraries.
Control: the same service with the collector off, on the same core, asked by the same clients; round by round, the order
changing.
Command: `python -m tests.bench.collector` (`--short`: one round). The services run on the interpreter that runs this:
give another Python an environment of its own from uv.lock, and start it from there.

Nothing is judged: the figures are those behind the default in `backend_kit/service.py`. Short windows on services that
live for minutes: whether garbage stays for hours is `agentic_backend/memory_release.py`'s to see to.
"""

import argparse
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.deployment import Server, deployed
from tests.bench.driver import Load
from tests.bench.measured import Series, sample
from tests.bench.turn import SATURATED_MODEL, print_stage, with_ack

CLIENTS = 100
THRESHOLDS = {"Python's": "700,10,10", "10,000": "10000,10,10", "50,000": "50000,20,100", "off": "0"}


@dataclass(frozen=True, slots=True)
class Row:
    """One way to collect, and what a turn cost with it."""

    name: str
    server: Server
    series: Series = field(default_factory=lambda: Series([]))

    @property
    def rss_mib(self) -> float:
        """Resident memory of the process now."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def measure(rounds: int, seconds: float) -> list[Row]:
    """All rows, side by side; the last is the control."""
    with deployed() as deployment:
        rows = []
        for freeze in (False, True):
            for name, thresholds in THRESHOLDS.items():
                how = f"{name}, {'freeze' if freeze else 'no freeze'}"
                database = f"collector_{len(rows)}"
                arguments = ("agentic", "--collector", thresholds, *(() if freeze else ("--no-freeze",)))
                server = deployment.service(
                    database,
                    SATURATED_MODEL,
                    module="tests.bench.hampered",
                    arguments=arguments,
                    change=with_ack(deployment, database, "spool"),
                )
                rows.append(Row(how, server))
        for number in range(rounds):
            for row in rows if number % 2 == 0 else reversed(rows):
                row.series.samples.append(sample(deployment, row.server, Load(CLIENTS, seconds, 1.5)))
            print(f"round {number + 1} of {rounds}", flush=True)
        print_rows(rows)
    return rows


def print_rows(rows: list[Row]) -> None:
    """The table, each row beside the control."""
    control = rows[-1].series
    print(f"\n{'thresholds':24} {'CPU ms':>7} {'spread':>12} {'/ off':>6} {'p99 ms':>8} {'RSS MiB':>8}")
    for row in rows:
        series = row.series
        print(
            f"{row.name:24} {series.cpu_ms:7.2f} {series.spread:>12} {series.ratio(control):6.2f} "
            f"{series.middle('p99_ms'):8.1f} {row.rss_mib:8.0f}  {series.doubts}"
        )


def main() -> int:
    """Measure and print; 1 where a turn failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    options = parser.parse_args()
    print_stage()
    print(f"Python {platform.python_version()}, {CLIENTS} clients, model {SATURATED_MODEL!r}")
    rows = measure(1 if options.short else options.rounds, options.seconds)
    failures = [failure for row in rows for failure in row.series.failures]
    for failure in failures[:5]:
        print(failure[:300])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
