"""A circuit breaker: while a model is down, calls fail at once instead of each waiting out its retries."""

from collections import deque
from collections.abc import Callable
from typing import Final

from agentic_backend.errors import LlmUnavailable

_FAILURES: Final = 5
_WINDOW_S: Final = 10.0
_OPEN_S: Final = 5.0


class Breaker:
    """Opens after 5 calls in a row failed within 10 s, lets one call probe after 5 s, closes when one succeeds.

    What is counted are calls whose retries are used up, in a row: an endpoint that fails one request in two still
    serves most calls and must not be cut off. `clock` is monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=_FAILURES)
        self._open_until: float | None = None
        self._probing = False

    def admit(self) -> None:
        """Let a call pass, which then ends in `succeeded`, `failed` or `undecided`, or raise `LlmUnavailable`."""
        if self._open_until is None:
            return
        wait_s = self._open_until - self._clock()
        if wait_s > 0 or self._probing:
            raise LlmUnavailable("circuit open", retry_after_s=max(wait_s, 1.0))
        self._probing = True

    def succeeded(self) -> None:
        """The endpoint served a call."""
        self._failures.clear()
        self._open_until = None
        self._probing = False

    def failed(self) -> None:
        """The endpoint was not there or answered 5xx, retries included."""
        now = self._clock()
        self._failures.append(now)
        if self._probing or (len(self._failures) == _FAILURES and now - self._failures[0] <= _WINDOW_S):
            self._open_until = now + _OPEN_S
        self._probing = False

    def undecided(self) -> None:
        """The call ended in a way that says nothing about the endpoint: cancelled, refused for its content."""
        self._probing = False
