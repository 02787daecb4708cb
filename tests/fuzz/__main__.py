"""The long form of the fuzz tests: `python -m tests.fuzz [--seconds N] [--seed N] [-k NAME]`, seconds for each test.

A process for each test, as many at once as there are cores.
"""

import argparse
import re
import subprocess
import sys

from tests.fuzz.budget import SECONDS, SEED
from tests.support.side_by_side import ROOT, Program, all_good

_PYTEST = (sys.executable, "-m", "pytest", "-q")


def main() -> int:
    """0 where no test has found anything."""
    parser = argparse.ArgumentParser(description="Search for inputs that break a promise, for so long.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each test (default: 600)")
    parser.add_argument("--seed", type=int, help="the first seed, as an earlier run printed it")
    parser.add_argument("-k", default="", help="tests to run, as pytest selects them")
    options = parser.parse_args()
    env = {SECONDS: str(options.seconds)}
    if options.seed is not None:
        env[SEED] = str(options.seed)
    # Not captured: a search that takes its process with it has told its seed before.
    tests = [Program(test, (*_PYTEST, "--capture=no", test), env) for test in names_of(options.k)]
    return 0 if all_good(tests) else 1


def names_of(chosen: str) -> list[str]:
    """The tests that pytest selects by these words, all where there are none."""
    command = [*_PYTEST, "--collect-only", "tests/fuzz", "-k", chosen]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return re.findall(r"^tests/fuzz/\S+::.+$", listed, re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
