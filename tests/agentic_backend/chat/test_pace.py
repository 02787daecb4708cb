"""How many frames a client may send."""

import pytest

from agentic_backend.chat.pace import BURST, FRAMES_PER_S, Pace
from agentic_backend.errors import RateLimited


def taken(pace: Pace, count: int, at: float) -> int:
    """How many of so many frames at one moment are taken."""
    return sum(is_taken(pace, at) for _ in range(count))


def is_taken(pace: Pace, at: float) -> bool:
    try:
        pace.take(at)
    except RateLimited:
        return False
    return True


def test_a_burst_is_taken_and_what_goes_beyond_it_refused() -> None:
    pace = Pace()
    assert taken(pace, 600, 100.0) == int(BURST)
    assert not pace.hopeless


def test_it_fills_up_again() -> None:
    pace = Pace()
    taken(pace, int(BURST), 100.0)
    assert taken(pace, 100, 100.125) == int(FRAMES_PER_S / 8)
    assert taken(pace, 1000, 1000.0) == int(BURST)


def test_who_goes_on_at_twice_the_rate_is_hopeless() -> None:
    pace = Pace()
    for second in range(5):
        taken(pace, int(2 * FRAMES_PER_S), 100.0 + second)
    assert pace.hopeless


def test_who_stays_below_the_rate_never_waits() -> None:
    pace = Pace()
    for step in range(10_000):
        pace.take(100.0 + step / FRAMES_PER_S)


def test_advice_is_when_there_is_room_again() -> None:
    pace = Pace()
    taken(pace, int(BURST), 100.0)
    with pytest.raises(RateLimited) as refusal:
        pace.take(100.0)
    wait_s = refusal.value.retry_after_s
    assert wait_s is not None
    pace.take(100.0 + wait_s + 2 / FRAMES_PER_S)
