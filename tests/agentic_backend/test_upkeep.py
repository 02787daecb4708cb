"""Memory is handed back in a quiet second, once a minute, and what lies in a cycle goes with it."""

import gc
import math
import time
import weakref
from collections.abc import Iterator

import pytest

from agentic_backend.upkeep import Upkeep, release_memory


class Turns:
    """What the upkeep asks, and how often it has acted."""

    def __init__(self) -> None:
        self.running = 0
        self.released = 0
        self.upkeep = Upkeep(lambda: self.running, self._release)
        self.later = math.ceil(time.monotonic()) + 3600.0
        """Long after the start, in whole seconds: their sums and differences are exact."""

    def _release(self) -> None:
        self.released += 1


def test_memory_is_handed_back_once_a_minute() -> None:
    turns = Turns()
    for second in range(60):
        turns.upkeep.tick(turns.later + second)
    assert turns.released == 1
    turns.upkeep.tick(turns.later + 60)
    assert turns.released == 2
    for second in range(61, 181):
        turns.upkeep.tick(turns.later + second)
    assert turns.released == 4


def test_no_memory_is_handed_back_in_the_first_minute() -> None:
    turns = Turns()
    turns.upkeep.tick(time.monotonic())
    assert turns.released == 0


def test_no_turn_waits_for_it() -> None:
    turns = Turns()
    turns.running = 1
    for second in range(300):
        turns.upkeep.tick(turns.later + second)
    assert turns.released == 0
    turns.running = 0
    turns.upkeep.tick(turns.later + 300)
    assert turns.released == 1


@pytest.fixture
def thresholds_of_production() -> Iterator[None]:
    """Nothing is collected by itself in the time of a test."""
    before = gc.get_threshold()
    gc.set_threshold(50_000_000, 20, 100)
    yield
    gc.set_threshold(*before)


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("thresholds_of_production")
def test_what_lies_in_a_cycle_goes() -> None:
    left = [weakref.ref(Knot()) for _ in range(100)]
    assert sum(one() is not None for one in left) == 100
    release_memory()
    assert sum(one() is not None for one in left) == 0
