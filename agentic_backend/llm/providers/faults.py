"""What a failure of a provider's client means, whichever library raised it, without importing one of them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

from agentic_backend.errors import TurnFailed
from agentic_backend.llm import failures
from agentic_backend.llm.failures import AttemptFailed

_LOST: Final = frozenset({"APIConnectionError", "ClientConnectionError", "HTTPClientError", "TransportError"})
"""Names of the bases of what HTTP clients and SDKs raise where a connection fails, is refused or breaks off."""
_REFUSED: Final = {"rate_limit_error": 429, "rate_limit_exceeded": 429, "overloaded_error": 529, "api_error": 500}
"""What Anthropic and OpenAI call the error of a stream that has begun."""
_LATE: Final[dict[str, Literal["read", "write"]]] = {"ReadTimeout": "read", "WriteTimeout": "write"}
"""What httpx calls a read or a write of no byte."""
_LINKS: Final = 8


class Translating:
    """A context in which what others' code raises becomes what `translate` makes of it. Exceptions in `passing`, and
    cancellation, pass as they are.

    The new one has no cause: the text of that may repeat the prompt, or a key.
    """

    def __init__(self, translate: Callable[[Exception], Exception], *passing: type[Exception]) -> None:
        self._translate = translate
        self._passing = passing

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(failure, Exception) and not isinstance(failure, self._passing):
            raise self._translate(failure) from None


def as_ours(*, begun: bool) -> Translating:
    """A context in which what a provider's client raises becomes `AttemptFailed`.

    `begun` says that the answer has begun: a connection that is lost then is no connection that failed.
    """
    return Translating(partial(failure_of, begun=begun), AttemptFailed, TurnFailed)


def failure_of(failure: Exception, *, begun: bool) -> AttemptFailed:
    """The failure behind an exception. Of its text nothing is kept, of its class the name."""
    chain = list(_chain(failure))
    for one in chain:
        status = _status(one)
        if 400 <= status < 600:
            # Ollama's own exception has no headers, but the one behind it has.
            return failures.of_status(status, next(filter(None, map(_headers, chain)), {}))
    for one in chain:
        if (code := _code_in_stream(one)) is not None:
            return failures.of_stream_error({"code": code})
    for one in chain:
        if (which := _LATE.get(type(one).__name__)) is not None:
            return failures.late(which)
    if any(map(_is_connection, chain)):
        if begun:
            return failures.broken("connection lost in the stream")
        return failures.of_exception(ConnectionError())
    return failures.broken(f"not readable: {type(failure).__name__}")


def _chain(failure: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, also where its text hides that."""
    one: BaseException | None = failure
    for _ in range(_LINKS):
        if one is None:
            return
        yield one
        one = one.__cause__ or one.__context__


def _status(failure: BaseException) -> int:
    """The HTTP status that an exception carries; 0 if none."""
    response = getattr(failure, "response", None)
    said = response.get("ResponseMetadata") if isinstance(response, dict) else None
    candidates = (
        getattr(failure, "status_code", None),
        getattr(response, "status_code", None),
        said.get("HTTPStatusCode") if isinstance(said, dict) else None,
        getattr(failure, "code", None),
    )
    return next((value for value in candidates if type(value) is int and value >= 400), 0)


def _headers(failure: BaseException) -> Mapping[str, str]:
    """The headers of the refusal, with the names as they are looked up."""
    headers: Any = getattr(getattr(failure, "response", None), "headers", None)
    wait = headers.get("retry-after") if hasattr(headers, "get") else None
    return {"Retry-After": wait} if isinstance(wait, str) else {}


def _code_in_stream(failure: BaseException) -> int | None:
    """The status that an error in a stream stands for; None where the exception is no such error."""
    body = getattr(failure, "body", None)
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        names = (error.get("type"), error.get("code"))
        return next((_REFUSED[name] for name in names if isinstance(name, str) and name in _REFUSED), 500)
    if getattr(failure, "status_code", None) == -1:  # Ollama's
        return 500
    return None


def _is_connection(failure: BaseException) -> bool:
    return isinstance(failure, OSError) or not _LOST.isdisjoint(base.__name__ for base in type(failure).__mro__)
