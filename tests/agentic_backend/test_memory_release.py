"""Memory is handed back in a quiet second, once a minute, and what lies in a cycle goes with it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentic_backend.memory_release import MemoryRelease, release_memory


class Turns:
    """What the release asks, and how often it was called."""

    def __init__(self) -> None:
        self.running = 0
        self.released = 0
        self.second = 0.0
        self.memory = MemoryRelease(lambda: self.running, self._release, clock=lambda: self.second)

    def look_until(self, second: int) -> None:
        """Once a second, up to and with that one. Whole seconds are exact: 60 after the begin are no less than 60."""
        while self.second < second:
            self.second += 1
            self.memory.tick()

    def _release(self) -> None:
        self.released += 1


def test_memory_is_handed_back_once_a_minute() -> None:
    turns = Turns()
    turns.look_until(59)
    assert turns.released == 0
    turns.look_until(180)
    assert turns.released == 3


def test_no_turn_waits_for_it() -> None:
    turns = Turns()
    turns.running = 1
    turns.look_until(299)
    assert turns.released == 0
    turns.running = 0
    turns.look_until(300)
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
