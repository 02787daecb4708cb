"""Failing dependencies: how long to wait, when to give up, how often to log, and when to fail at once."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

T = TypeVar("T")
_LOG_INTERVAL_S: Final = 1.0
_FAILURES: Final = 5
_WINDOW_S: Final = 10.0
_OPEN_S: Final = 5.0


class Backoff:
    """Waits whose bound doubles from `first_s` to `longest_s` seconds.

    `jitter` is the share of a wait that is random: with 1 (full jitter) a wait is uniform between 0 and the bound, with
    0 it is the bound. What failed at one moment must not come back at one moment.
    """

    def __init__(self, first_s: float = 0.05, longest_s: float = 2.0, *, jitter: float = 1.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self.bound_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait_s = self.bound_s * random.uniform(1.0 - self._jitter, 1.0)  # noqa: S311 - not for secrets
        self.bound_s = min(self.bound_s * 2, self._longest_s)
        return wait_s

    def reset(self) -> None:
        """Begin again at `first_s`, after a success."""
        self.bound_s = self._first_s


@dataclass(frozen=True, slots=True)
class Retries:
    """When a call is tried again: the waits of a `Backoff` from `base_s` to `cap_s`, in seconds."""

    max_retries: int = 2
    """Further attempts after the first."""
    budget_s: float = 10.0
    """No attempt begins later than this after the first: a wait that does not fit is not begun."""
    base_s: float = 0.25
    cap_s: float = 4.0
    jitter: float = 1.0


NO_RETRY: Final = Retries(max_retries=0)


class QuietLog:
    """A logger that logs a cause at most once in `interval_s` seconds, with the number of suppressed lines.

    An outage makes every reader fail; hundreds of equal lines would bury the relevant one.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        interval_s: float = _LOG_INTERVAL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._clock = clock
        self._said: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def warning(self, cause: str, message: str, *args: object) -> None:
        """Log `message` under `cause`, a word of a small set."""
        now = self._clock()
        if now - self._said.get(cause, float("-inf")) < self._interval_s:
            self._silent[cause] = self._silent.get(cause, 0) + 1
            return
        self._said[cause] = now
        silent = self._silent.pop(cause, 0)
        text = f"{message} (%d more like this not logged)" if silent else message
        self._logger.warning(text, *args, *([silent] if silent else []))


async def try_again(
    attempt: Callable[[], Awaitable[T]],
    failures: type[Exception] | tuple[type[Exception], ...],
    wait_s: Callable[[Any, int], float | None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Call until an attempt succeeds, and return its result.

    After an attempt that raises one of `failures`, `wait_s(failure, attempts)` returns the seconds to wait before the
    next, or None to give up. Raises the failure of the last attempt; other exceptions are never retried.
    """
    attempts = 0
    while True:
        try:
            return await attempt()
        except failures as failure:
            attempts += 1
            pause_s = wait_s(failure, attempts)
            if pause_s is None:
                raise
        await sleep(pause_s)


async def keep_trying(
    attempt: Callable[[], Awaitable[T]],
    failures: type[Exception] | tuple[type[Exception], ...],
    backoff: Backoff,
    *,
    on_failure: Callable[[Any], None],
) -> T:
    """`try_again` without a limit; `on_failure` gets each failure. Raises what is not in `failures`."""

    def wait_s(failure: Exception, _attempts: int) -> float:
        on_failure(failure)
        return backoff.next_s()

    return await try_again(attempt, failures, wait_s)


async def try_within(
    retries: Retries,
    attempt: Callable[[], Awaitable[T]],
    failures: type[Exception] | tuple[type[Exception], ...],
    asked_s: Callable[[Any], float | None],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """`try_again` as `retries` allows.

    `asked_s(failure)` is how many seconds the other side wants to be left alone, to which the wait is added, or None
    where another attempt would not help. `clock` is monotonic, in seconds.
    """
    began = clock()
    backoff = Backoff(retries.base_s, retries.cap_s, jitter=retries.jitter)

    def wait_s(failure: Exception, attempts: int) -> float | None:
        asked = asked_s(failure)
        if asked is None or attempts > retries.max_retries:
            return None
        pause_s = asked + backoff.next_s()
        return pause_s if clock() - began + pause_s <= retries.budget_s else None

    return await try_again(attempt, failures, wait_s, sleep=sleep)


class Breaker:
    """Opens after 5 calls in a row failed within 10 s, lets one call probe after 5 s, closes when one succeeds.

    It counts consecutive calls that failed after all retries: a dependency that fails one request in two still serves
    most calls and must not be cut off. What the calls themselves waited for in vain is no part of the 10 s: a silent
    dependency lets each of them wait for its whole deadline. Where they were all one user's and had no answer in time,
    it stays closed: they may have waited for that user's other calls. `clock` is monotonic, in seconds; `refusal`
    builds the error of a refused call from the seconds until the next one may pass.
    """

    def __init__(self, clock: Callable[[], float], refusal: Callable[[float], Exception]) -> None:
        self._clock = clock
        self._refusal = refusal
        self._failures: deque[tuple[float, float, str]] = deque(maxlen=_FAILURES)
        """When each call failed, the seconds that it had waited, and the user who had no answer in time ("" where it
        says something of everybody)."""
        self._open_until: float | None = None
        self._probing = False
        self._reached = False

    @property
    def closed(self) -> bool:
        """Whether calls pass."""
        return self._open_until is None

    @property
    def health(self) -> Literal["unknown", "up", "down"]:
        """What is known of the dependency: `down` while calls are refused, `unknown` before one has succeeded."""
        if self._open_until is not None:
            return "down"
        return "up" if self._reached else "unknown"

    def admit(self) -> None:
        """Let a call pass, or raise the refusal. After it, call `succeeded`, `failed` or `undecided`."""
        if self._open_until is None:
            return
        wait_s = self._open_until - self._clock()
        if wait_s > 0 or self._probing:
            raise self._refusal(max(wait_s, 1.0))
        self._probing = True

    def succeeded(self) -> None:
        """Record that the dependency served a call."""
        self._reached = True
        self._failures.clear()
        self._open_until = None
        self._probing = False

    def failed(self, waited_s: float = 0.0, late_for: str = "") -> None:
        """Record that the call failed, including its retries; after `waited_s`, if it had no answer by its deadline,
        `late_for` that user, if there are users."""
        now = self._clock()
        self._failures.append((now, waited_s, late_for))
        in_a_row = len(self._failures) == _FAILURES and self._in_a_row_s() <= _WINDOW_S
        if self._probing or (in_a_row and not self._of_one_user()):
            self._open_until = now + _OPEN_S
        self._probing = False

    def _of_one_user(self) -> bool:
        users = {late_for for _, _, late_for in self._failures}
        return len(users) == 1 and "" not in users

    def _in_a_row_s(self) -> float:
        """The seconds from the first failure to the last, without those that the calls after it waited."""
        (first, _, _), *between, (last, of_last, _) = self._failures
        return last - first - of_last - sum(waited_s for _, waited_s, _ in between)

    def undecided(self) -> None:
        """Record a call whose end says nothing about the dependency: cancelled, or refused for its content."""
        self._probing = False
