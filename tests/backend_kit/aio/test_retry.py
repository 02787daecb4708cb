import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from backend_kit.aio.retry import NO_RETRY, Backoff, QuietLog, Retries, keep_trying, try_again, try_within

FIRM = Retries(max_retries=3, budget_s=100.0, base_s=1.0, cap_s=2.0, jitter=0.0)


class Refused(Exception):
    pass


class Clock:
    """A clock that only sleeping moves; `slept` is every sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def failing(times: int, failure: type[Exception] = Refused) -> tuple[Callable[[], Awaitable[str]], list[int]]:
    """What fails that often and then succeeds, and its attempts."""
    attempts: list[int] = []

    async def attempt() -> str:
        attempts.append(len(attempts) + 1)
        if len(attempts) <= times:
            raise failure(len(attempts))
        return "done"

    return attempt, attempts


def test_backoff_doubles_up_to_its_bound_with_full_jitter() -> None:
    backoff = Backoff(0.05, 2.0)
    bounds = []
    for _ in range(8):
        bounds.append(backoff.bound_s)
        assert 0.0 <= backoff.next_s() <= bounds[-1]
    assert bounds == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    backoff.reset()
    assert backoff.bound_s == 0.05


@pytest.mark.parametrize(("jitter", "least"), [(1.0, 0.0), (0.5, 0.5), (2 / 3, 1 / 3)])
def test_jitter_is_the_share_of_a_wait_that_is_random(jitter: float, least: float) -> None:
    waits = [Backoff(1.0, 1.0, jitter=jitter).next_s() for _ in range(500)]
    assert least <= min(waits) < least + 0.1
    assert 0.9 < max(waits) <= 1.0


def test_without_jitter_a_wait_is_its_bound() -> None:
    backoff = Backoff(1.0, 5.0, jitter=0.0)
    assert [backoff.next_s() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]


async def test_the_first_success_is_the_result_and_each_failure_says_how_long_to_wait() -> None:
    clock = Clock()
    attempt, attempts = failing(2)
    asked: list[tuple[str, int]] = []

    def wait_s(failure: Refused, made: int) -> float:
        asked.append((str(failure), made))
        return 10.0 * made

    assert await try_again(attempt, Refused, wait_s, sleep=clock.sleep) == "done"
    assert asked == [("1", 1), ("2", 2)]
    assert clock.slept == [10.0, 20.0]
    assert attempts == [1, 2, 3]


async def test_a_failure_that_is_given_up_on_is_raised() -> None:
    clock = Clock()
    attempt, attempts = failing(9)
    with pytest.raises(Refused, match="2"):
        await try_again(attempt, Refused, lambda _failure, made: 1.0 if made < 2 else None, sleep=clock.sleep)
    assert (attempts, clock.slept) == ([1, 2], [1.0])


async def test_another_failure_is_raised_at_once() -> None:
    attempt, attempts = failing(9, LookupError)
    with pytest.raises(LookupError):
        await try_again(attempt, (Refused, OSError), lambda _failure, _made: 0.0)
    assert attempts == [1]


async def test_a_cancelled_attempt_is_not_made_again() -> None:
    begun = asyncio.Event()
    attempts = 0

    async def attempt() -> None:
        nonlocal attempts
        attempts += 1
        begun.set()
        await asyncio.Event().wait()

    trying = asyncio.ensure_future(try_again(attempt, Exception, lambda _failure, _made: 0.0))
    await begun.wait()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert attempts == 1


async def test_what_is_kept_trying_hears_of_each_failure() -> None:
    attempt, attempts = failing(20)
    heard: list[str] = []
    backoff = Backoff(0.0, 0.0)
    assert await keep_trying(attempt, Refused, backoff, on_failure=lambda failure: heard.append(str(failure))) == "done"
    assert heard == [str(number) for number in attempts[:-1]]
    assert len(heard) == 20


async def test_retries_are_counted_and_their_waits_double() -> None:
    clock = Clock()
    attempt, attempts = failing(9)
    with pytest.raises(Refused, match="4"):
        await try_within(FIRM, attempt, Refused, lambda _failure: 0.0, clock=clock, sleep=clock.sleep)
    assert (len(attempts), clock.slept) == (4, [1.0, 2.0, 2.0])


async def test_what_the_other_side_asked_for_is_added_to_the_wait() -> None:
    clock = Clock()
    attempt, _ = failing(1)
    assert await try_within(FIRM, attempt, Refused, lambda _failure: 7.0, clock=clock, sleep=clock.sleep) == "done"
    assert clock.slept == [8.0]


async def test_a_wait_that_does_not_fit_into_the_budget_is_not_begun() -> None:
    clock = Clock()
    attempt, attempts = failing(9)
    tight = Retries(max_retries=9, budget_s=2.9, base_s=1.0, cap_s=2.0, jitter=0.0)
    with pytest.raises(Refused):
        await try_within(tight, attempt, Refused, lambda _failure: 0.0, clock=clock, sleep=clock.sleep)
    assert (len(attempts), clock.slept) == (2, [1.0])


@pytest.mark.parametrize(("retries", "asked_s"), [(FIRM, None), (NO_RETRY, 0.0)])
async def test_what_cannot_help_or_is_not_wanted_is_not_tried_again(retries: Retries, asked_s: float | None) -> None:
    attempt, attempts = failing(9)
    with pytest.raises(Refused):
        await try_within(retries, attempt, Refused, lambda _failure: asked_s)
    assert attempts == [1]


def test_a_cause_is_logged_once_a_second_and_each_cause_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    quiet = QuietLog(logging.getLogger("quiet"), clock=clock)
    for _ in range(3):
        quiet.warning("away", "%s is away", "it")
    quiet.warning("full", "it is full")
    clock.now += 1.0
    quiet.warning("away", "%s is away", "it")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["it is away", "it is full", "it is away (2 more like this not logged)"]


def test_a_cause_may_be_logged_less_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    quiet = QuietLog(logging.getLogger("quiet"), interval_s=60.0, clock=clock)
    for _ in range(61):
        quiet.warning("away", "it is away")
        clock.now += 1.0
    assert len(caplog.records) == 2
