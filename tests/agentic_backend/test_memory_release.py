"""Memory is handed back once turns have run and none does, and what lies in a cycle goes with it."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentic_backend.memory_release import MemoryRelease, release_memory


class Turns:
    """What the release asks, and when it was called."""

    def __init__(self) -> None:
        self.running = 0
        self.ended = 0
        self.released: list[float] = []
        self.second = 0.0
        self.memory = MemoryRelease(lambda: self.running, lambda: self.ended, self._release, clock=lambda: self.second)

    def look_until(self, second: int) -> None:
        """Every five seconds, up to and with that one."""
        while self.second < second:
            self.second += 5
            self.memory.tick()

    def _release(self) -> None:
        self.released.append(self.second)


def test_a_service_that_nobody_uses_hands_back_nothing() -> None:
    turns = Turns()
    turns.look_until(600)
    assert turns.released == []


def test_memory_is_handed_back_once_after_a_load() -> None:
    turns = Turns()
    turns.running = 3
    turns.look_until(100)
    turns.running, turns.ended = 0, 3
    turns.look_until(110)
    turns.running = 2
    turns.look_until(130)
    turns.running, turns.ended = 0, 5
    turns.look_until(700)
    assert turns.released == [105, 150]


def test_it_comes_once_a_minute_where_there_is_no_quiet_while() -> None:
    turns = Turns()
    for second in range(5, 300, 5):
        turns.ended += 1
        turns.look_until(second)
    assert turns.released == [60, 120, 180, 240]


def test_no_turn_waits_for_it() -> None:
    turns = Turns()
    turns.running, turns.ended = 1, 5
    turns.look_until(300)
    assert turns.released == []
    turns.running = 0
    turns.look_until(305)
    assert turns.released == [305]


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
