"""How many frames a client may send."""

import pytest

from agentic_backend.chat.frames import BURST, FRAMES_PER_S, FrameRateLimit
from agentic_backend.errors import RateLimited


def taken(limit: FrameRateLimit, count: int, at: float) -> int:
    """How many of so many frames at one moment are taken."""
    return sum(is_taken(limit, at) for _ in range(count))


def is_taken(limit: FrameRateLimit, at: float) -> bool:
    try:
        limit.take(at)
    except RateLimited:
        return False
    return True


def test_a_burst_is_taken_and_what_goes_beyond_it_refused() -> None:
    limit = FrameRateLimit()
    assert taken(limit, 600, 100.0) == int(BURST)
    assert not limit.flooding


def test_it_fills_up_again() -> None:
    limit = FrameRateLimit()
    taken(limit, int(BURST), 100.0)
    assert taken(limit, 100, 100.125) == int(FRAMES_PER_S / 8)
    assert taken(limit, 1000, 1000.0) == int(BURST)


def test_who_goes_on_at_twice_the_rate_floods() -> None:
    limit = FrameRateLimit()
    for second in range(5):
        taken(limit, int(2 * FRAMES_PER_S), 100.0 + second)
    assert limit.flooding


def test_who_stays_below_the_rate_never_waits() -> None:
    limit = FrameRateLimit()
    for step in range(10_000):
        limit.take(100.0 + step / FRAMES_PER_S)


def test_advice_is_when_there_is_room_again() -> None:
    limit = FrameRateLimit()
    taken(limit, int(BURST), 100.0)
    with pytest.raises(RateLimited) as refusal:
        limit.take(100.0)
    wait_s = refusal.value.retry_after_s
    assert wait_s is not None
    limit.take(100.0 + wait_s + 2 / FRAMES_PER_S)
