"""The long form of the fuzz tests: `python -m tests.fuzz [--seconds N] [--seed N] [-k NAME]`, seconds for each test."""

import argparse
import os
import sys

import pytest

from tests.fuzz.budget import SECONDS, SEED


def main() -> int:
    """pytest's exit code."""
    parser = argparse.ArgumentParser(description="Search for inputs that break a promise, for so long.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for each test (default: 600)")
    parser.add_argument("--seed", type=int, help="the first seed, as an earlier run printed it")
    parser.add_argument("-k", default="", help="tests to run, as pytest selects them")
    options = parser.parse_args()
    os.environ[SECONDS] = str(options.seconds)
    if options.seed is not None:
        os.environ[SEED] = str(options.seed)
    limit = ["-o", f"timeout={int(options.seconds) + 600}"]
    # A test for each core, whichever file it stands in: all take equally long.
    side_by_side = ["-n", str(os.cpu_count()), "--dist=worksteal"]
    return int(pytest.main(["-q", "tests/fuzz", *side_by_side, *limit, *(["-k", options.k] if options.k else [])]))


if __name__ == "__main__":
    sys.exit(main())
