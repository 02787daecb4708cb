"""How long a fuzz test may go on, and with which seeds: short and repeatable in `make test`, long by `make fuzz`."""

import os
import random
import sys
import time
from collections.abc import Iterator

import pytest

SECONDS = "TURNWISE_FUZZ_SECONDS"
SEED = "TURNWISE_FUZZ_SEED"
SHORT_SEED = 1


def long() -> bool:
    """Whether this is `make fuzz`."""
    return SECONDS in os.environ


WITHIN_LIMIT = pytest.mark.timeout(float(os.environ.get(SECONDS, "0")) + 600)
"""For every test here: it hangs where it goes on for ten minutes beyond its budget."""


def seeds(name: str) -> Iterator[int]:
    """The seeds to run one after the other: one that never changes, or, in the long form, as many as its seconds allow.

    Each is printed before it is used: `TURNWISE_FUZZ_SECONDS=0 TURNWISE_FUZZ_SEED=<seed>` runs it again.
    """
    if not long():
        yield SHORT_SEED
        return
    dice = random.Random()  # noqa: S311 - a choice of tests
    end = time.monotonic() + float(os.environ[SECONDS])
    seed = int(os.environ.get(SEED) or dice.getrandbits(32))
    while True:
        print(f"{name}: {SEED}={seed}", file=sys.__stderr__, flush=True)
        yield seed
        if time.monotonic() > end:
            return
        seed = dice.getrandbits(32)
