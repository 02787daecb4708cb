"""A circuit breaker: while a dependency is down, calls fail immediately instead of waiting for their deadlines."""

from collections import deque
from collections.abc import Callable
from typing import Final

_FAILURES: Final = 5
_WINDOW_S: Final = 10.0
_OPEN_S: Final = 5.0


class Breaker:
    """Opens after 5 calls in a row failed within 10 s, lets one call probe after 5 s, closes when one succeeds.

    It counts consecutive calls that failed after all retries: a dependency that fails one request in two still serves
    most calls and must not be cut off. `clock` is monotonic, in seconds; `refusal` builds the error of a refused call
    from the seconds until the next one may pass.
    """

    def __init__(self, clock: Callable[[], float], refusal: Callable[[float], Exception]) -> None:
        self._clock = clock
        self._refusal = refusal
        self._failures: deque[float] = deque(maxlen=_FAILURES)
        self._open_until: float | None = None
        self._probing = False

    @property
    def closed(self) -> bool:
        """Whether calls pass."""
        return self._open_until is None

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
        self._failures.clear()
        self._open_until = None
        self._probing = False

    def failed(self) -> None:
        """Record that the call failed, including its retries."""
        now = self._clock()
        self._failures.append(now)
        if self._probing or (len(self._failures) == _FAILURES and now - self._failures[0] <= _WINDOW_S):
            self._open_until = now + _OPEN_S
        self._probing = False

    def undecided(self) -> None:
        """Record a call whose end says nothing about the dependency: cancelled, or refused for its content."""
        self._probing = False
