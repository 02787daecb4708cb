"""What all calls of one endpoint share, whichever client makes them: bounds, circuit, retries, and how they are
counted.

Where other endpoints have been asked before this one, or will be after it: by when its first token must have come.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Self, TypeVar

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

    def call(self, *, streamed: bool) -> "CountedCall":
        """One call, which begins now."""
        return CountedCall(self, streamed=streamed)

    def begun(self, seconds: float) -> None:
        """Account for the first token. A probe has shown enough then: its end may be minutes away."""
        if not self.breaker.closed:
            self.breaker.succeeded()
        self._observer.llm_first_chunk(self.endpoint.model, seconds)

    def settle(self, error: BaseException | None, seconds: float, use: TokenUse | None, *, silent: bool) -> None:
        """Account for a call that has ended, well or with `error`; `silent` if it was streamed and had no token."""
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

    def log_failure(self, failure: AttemptFailed) -> TurnFailed:
        """Log a failed call, at most once a second and cause, and return the error to raise for it."""
        now = self.clock()
        if now - self._said.get(failure.cause, -1.0) >= 1.0:
            self._said[failure.cause] = now
            logger.warning("model %s failed: %s: %s", self.endpoint.model, failure.cause, str(failure.error))
        return failure.take()


class CountedCall:
    """One call of an endpoint, as a context: entering it raises `LlmUnavailable` while the circuit is open; leaving it
    counts the call, and raises the `TurnFailed` of an `AttemptFailed`."""

    __slots__ = ("_guard", "_silent", "_started", "use")

    def __init__(self, guard: Guard, *, streamed: bool) -> None:
        self.use: TokenUse | None = None
        """The tokens that it has used, as far as the model has said."""
        self._guard = guard
        self._silent = streamed
        self._started = guard.clock()

    @property
    def seconds(self) -> float:
        """For how long it has run."""
        return self._guard.clock() - self._started

    def begun(self) -> None:
        """Its first token has come."""
        self._silent = False
        self._guard.begun(self.seconds)

    def __enter__(self) -> Self:
        self._guard.breaker.admit()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, AttemptFailed):
            failure = self._guard.log_failure(error)
            try:
                self._settle(failure)
                # Behind a failure that a provider's own client has raised there is none: it may repeat the prompt.
                raise failure from error.__cause__
            finally:
                del failure  # its traceback holds this frame
        if error is None or isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._settle(error)
        else:
            self._settle(TurnFailed("unfinished"))  # a failure of our own

    def _settle(self, error: BaseException | None) -> None:
        self._guard.settle(error, self.seconds, self.use, silent=self._silent)


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
