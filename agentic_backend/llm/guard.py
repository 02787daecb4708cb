"""What all calls of one endpoint share, whoever speaks to it: bounds, circuit, retries, and how they are counted.

Where other endpoints have been asked before this one, or will be after it: by when its first token must have come.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import TypeVar

from agentic_backend.errors import LlmTimeout, LlmUnavailable, TurnFailed
from agentic_backend.llm.endpoint import Endpoint
from agentic_backend.llm.failures import AttemptFailed
from agentic_backend.llm.observer import CallStatus, LlmObserver, TokenUse
from backend_kit.aio import Breaker
from backend_kit.aio.retry import try_within

logger = logging.getLogger(__name__)

T = TypeVar("T")
_BY: ContextVar[float | None] = ContextVar("turnwise_first_token_by", default=None)
_LEAST_S = 0.001


class Guard:
    """The bounds of `endpoint` for its calls; their tokens do not pass here. `clock` (monotonic, seconds) times calls,
    retries and the circuit breaker; `sleep` is how a retry is waited for."""

    def __init__(
        self,
        endpoint: Endpoint,
        observer: LlmObserver,
        *,
        clock: Callable[[], float] = perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.clock = clock
        self.breaker = Breaker(clock, _circuit_open)
        self._observer = observer
        self._sleep = sleep
        self._said: dict[str, float] = {}

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make attempts until one succeeds, fails for good, or the retry budget is used up (`AttemptFailed`)."""
        return await try_within(
            self.endpoint.retries,
            attempt,
            AttemptFailed,
            lambda failure: (failure.error.retry_after_s or 0.0) if failure.retry else None,
            clock=self.clock,
            sleep=self._sleep,
        )

    def begun(self, seconds: float) -> None:
        """Account for the first token. A probe has shown enough then: its end may be minutes away."""
        if not self.breaker.closed:
            self.breaker.succeeded()
        self._observer.llm_first_chunk(self.endpoint.model, seconds)

    def settle(
        self, error: BaseException | None, seconds: float, use: TokenUse | None, *, silent: bool = False
    ) -> None:
        """Account for a call that has ended, well or with `error`; `silent` if that is that it never had a token."""
        status: CallStatus = "ok"
        if error is None:
            self.breaker.succeeded()
        elif isinstance(error, LlmUnavailable):
            status = "error"
            self.breaker.failed()
        elif isinstance(error, LlmTimeout):
            status = "timeout"
            if silent:
                # It holds turns as long as one that is down.
                self.breaker.failed(seconds)
            else:
                self.breaker.undecided()
        else:
            status = "error" if isinstance(error, TurnFailed) else "cancelled"
            self.breaker.undecided()
        self._observer.llm_request(self.endpoint.model, status, seconds)
        if use is not None:
            self._observer.llm_tokens(self.endpoint.model, use)

    def say(self, failure: AttemptFailed) -> TurnFailed:
        """Log a failed call, at most once a second and cause, and return the error to raise for it."""
        now = self.clock()
        if now - self._said.get(failure.cause, -1.0) >= 1.0:
            self._said[failure.cause] = now
            logger.warning("model %s failed: %s: %s", self.endpoint.model, failure.cause, str(failure.error))
        return failure.take()


def _circuit_open(wait_s: float) -> LlmUnavailable:
    return LlmUnavailable("circuit open", retry_after_s=wait_s)


@contextmanager
def first_token_by(moment: float) -> Iterator[None]:
    """Calls that begin in here must have their first token by that moment, on the loop's clock, if not before."""
    _BY.set(moment)
    try:
        yield
    finally:
        # Not by a token: a generator may be closed in another context than the one that it began in.
        _BY.set(None)


def first_token_within(own_s: float) -> float:
    """Seconds that a call which begins now may take to its first token; `own_s` is its own deadline."""
    moment = _BY.get()
    if moment is None:
        return own_s
    return min(own_s, max(moment - asyncio.get_running_loop().time(), _LEAST_S))
