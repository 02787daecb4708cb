"""What a failed call to a model of somebody's own means: which of our errors it is."""

from collections.abc import Collection, Iterator

from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed


def model_failure(failure: BaseException, failed: Collection[BaseException]) -> TurnFailed | None:
    """The error of a run that ended with `failure`, if that came of one of the failed model calls; else None.

    Providers' packages name their exceptions alike: a status where there was an answer, else a class that says whether
    the connection failed or time was up. Their texts are not passed on: they may repeat the prompt.
    """
    cause = next((one for one in _chain(failure) if any(one is known for known in failed)), None)
    if cause is None:
        return None
    if isinstance(cause, TurnFailed):
        return cause
    status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
    name = type(cause).__name__
    if status == 429:
        return LlmRateLimited("HTTP 429")
    if isinstance(status, int) and status >= 500:
        return LlmUnavailable(f"HTTP {status}")
    if isinstance(status, int):
        return LlmProtocol(f"HTTP {status}")
    if isinstance(cause, TimeoutError) or "Timeout" in name:
        return LlmTimeout(name)
    if isinstance(cause, OSError) or "Connect" in name:
        return LlmUnavailable(name)
    return LlmProtocol(name)


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
