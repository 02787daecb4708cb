import pytest

from backend_kit.aio import Breaker


class Refused(Exception):
    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(clock: Clock) -> Breaker:
    breaker = Breaker(clock, Refused)
    for _ in range(5):
        breaker.admit()
        breaker.failed()
    return breaker


def test_opens_after_five_failures_in_a_row(clock: Clock) -> None:
    breaker = opened(clock)
    with pytest.raises(Refused) as refused:
        breaker.admit()
    assert refused.value.wait_s == 5
    assert not breaker.closed


def test_stays_closed_where_a_success_is_among_the_failures(clock: Clock) -> None:
    breaker = Breaker(clock, Refused)
    for _ in range(10):
        for _ in range(4):
            breaker.failed()
        breaker.succeeded()
    breaker.admit()


def test_stays_closed_where_failures_are_far_apart(clock: Clock) -> None:
    breaker = Breaker(clock, Refused)
    for _ in range(10):
        breaker.failed()
        clock.now += 3
    breaker.admit()


def test_calls_nothing_up_that_has_served_no_call(clock: Clock) -> None:
    breaker = Breaker(clock, Refused)
    told = [breaker.health]
    breaker.failed()
    told.append(breaker.health)
    breaker.undecided()
    told.append(breaker.health)
    breaker.succeeded()
    told.append(breaker.health)
    for _ in range(5):
        breaker.failed()
    told.append(breaker.health)
    assert told == ["unknown", "unknown", "unknown", "up", "down"]
    assert opened(clock).health == "down"


def test_lets_one_probe_through_and_closes_when_it_succeeds(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    with pytest.raises(Refused):
        breaker.admit()
    breaker.succeeded()
    assert breaker.closed
    breaker.admit()
    breaker.admit()


def test_opens_again_when_the_probe_fails(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    breaker.failed()
    with pytest.raises(Refused):
        breaker.admit()
    clock.now += 5
    breaker.admit()


def test_a_cancelled_probe_makes_room_for_another(clock: Clock) -> None:
    breaker = opened(clock)
    clock.now += 5
    breaker.admit()
    breaker.undecided()
    breaker.admit()


@pytest.mark.parametrize(("waited_s", "closed"), [(30.0, False), (0.0, True), (27.0, True)])
def test_what_calls_waited_in_vain_does_not_part_their_failures(clock: Clock, waited_s: float, closed: bool) -> None:
    """One caller alone: each call waits for its whole deadline before the next one fails."""
    breaker = Breaker(clock, Refused)
    for _ in range(5):
        breaker.admit()
        clock.now += 30
        breaker.failed(waited_s)
    assert breaker.closed is closed
