"""What a failed call to a model of somebody's own means: which of our errors it is."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentic_backend.errors import LlmTimeout, TurnFailed
from agentic_backend.llm.providers.faults import failure_of


class FailedCall(NamedTuple):
    """A call of a model that failed; `begun` says whether its answer had begun."""

    error: BaseException
    begun: bool


def model_failure(failure: BaseException, failed: Iterable[FailedCall]) -> TurnFailed | None:
    """The error of a run that ended with `failure`, if that came of one of the failed model calls; else None.

    Of the exceptions' texts nothing is kept: they may repeat the prompt.
    """
    calls = list(failed)
    found = ((one, call.begun) for one in _chain(failure) for call in calls if call.error is one)
    cause, begun = next(found, (None, False))
    if cause is None or isinstance(cause, TurnFailed):
        return cause
    if isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__:
        return LlmTimeout(type(cause).__name__)
    return failure_of(cause, begun=begun).take() if isinstance(cause, Exception) else None


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """A failure, what it was raised from, and the parts of a group."""
    seen: set[int] = set()
    waiting: list[BaseException] = [failure]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
