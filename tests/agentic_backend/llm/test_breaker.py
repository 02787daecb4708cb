import pytest

from agentic_backend.errors import LlmUnavailable
from agentic_backend.llm.breaker import Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock)
    for _ in range(5):
        breaker.admit()
        breaker.failed()
    return breaker


def test_opens_after_five_failures_in_a_row(clock: Clock) -> None:
    breaker = opened(clock)
    with pytest.raises(LlmUnavailable) as refused:
        breaker.admit()
    assert refused.value.retry_after_s == 5


def test_stays_closed_where_a_success_is_among_the_failures(clock: Clock) -> None:
    breaker = Breaker(clock)
    for _ in range(10):
        for _ in range(4):
            breaker.failed()
        breaker.succeeded()
    breaker.admit()


def test_stays_closed_where_failures_are_far_apart(clock: Clock) -> None:
    breaker = Breaker(clock)
    for _ in range(10):
        breaker.failed()
        clock.now += 3
    breaker.admit()


def test_lets_one_probe_through_and_closes_when_it_succeeds(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    with pytest.raises(LlmUnavailable):
        breaker.admit()
    breaker.succeeded()
    breaker.admit()
    breaker.admit()


def test_opens_again_when_the_probe_fails(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    breaker.failed()
    with pytest.raises(LlmUnavailable):
        breaker.admit()
    clock.now += 5
    breaker.admit()


def test_a_cancelled_probe_makes_room_for_another(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    breaker.undecided()
    breaker.admit()
