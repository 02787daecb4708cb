"""What a failed call to a model means: which of our errors it is, and whether trying again may help."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import aiohttp

from agentic_backend.errors import LlmProtocol, LlmRateLimited, LlmTimeout, LlmUnavailable, TurnFailed

_RETRY_AFTER_MAX_S = 3600.0


class AttemptFailed(Exception):
    """One attempt of a call failed. `retry` says whether another one may succeed; `cause` is a bounded label; `status`
    is that of HTTP where it is what failed the call, else 0."""

    def __init__(self, error: TurnFailed, cause: str, *, retry: bool, status: int = 0) -> None:
        super().__init__(cause)
        self.error = error
        self.cause = cause
        self.retry = retry
        self.status = status

    def take(self) -> TurnFailed:
        """The error, to be raised from this and held by it no more: else both lie in a cycle, with all their frames."""
        error = self.error
        del self.error
        return error


def of_status(status: int, headers: Mapping[str, str]) -> AttemptFailed:
    """The failure behind an HTTP status other than 200. The body is never looked at: it may repeat the prompt."""
    if status == 429:
        wait_s = retry_after_s(headers.get("Retry-After"))
        return AttemptFailed(LlmRateLimited("HTTP 429", retry_after_s=wait_s), "http_429", retry=True)
    if status >= 500:
        wait_s = retry_after_s(headers.get("Retry-After"))
        return AttemptFailed(LlmUnavailable(f"HTTP {status}", retry_after_s=wait_s), "http_5xx", retry=True)
    return AttemptFailed(LlmProtocol(f"HTTP {status}"), "http_status", retry=False, status=status)


def of_exception(failure: aiohttp.ClientError | OSError) -> AttemptFailed:
    """The failure behind what the HTTP client raised: before the first token, or, where that is a timeout, after it."""
    name = type(failure).__name__
    if isinstance(failure, aiohttp.SocketTimeoutError):
        return late("read")
    if type(failure) is TimeoutError and failure.errno is None:
        return late("write")  # as `body_of` says it
    if isinstance(failure, TimeoutError):
        return AttemptFailed(LlmUnavailable(f"no connection: {name}"), "connect_timeout", retry=True)
    if isinstance(failure, aiohttp.ClientSSLError | aiohttp.InvalidURL):
        return AttemptFailed(LlmUnavailable(name), "address", retry=False)
    if isinstance(failure, OSError | aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return AttemptFailed(LlmUnavailable(f"connection lost: {name}"), "connection", retry=True)
    return AttemptFailed(LlmProtocol(f"not HTTP: {name}"), "http_garbage", retry=False)


def of_stream_error(error: Any) -> AttemptFailed:
    """The failure that a server reports inside a stream it answered with 200."""
    code = error.get("code") or error.get("status") if isinstance(error, dict) else None
    status = int(code) if isinstance(code, int | str) and str(code).isdecimal() and len(str(code)) == 3 else 500
    if status == 429 or code == "rate_limit_exceeded":
        return AttemptFailed(LlmRateLimited("error in the stream"), "stream_429", retry=True)
    if status >= 500:
        return AttemptFailed(LlmUnavailable("error in the stream"), "stream_5xx", retry=True)
    return AttemptFailed(LlmProtocol("error in the stream"), "stream_error", retry=False)


def broken(reason: str) -> AttemptFailed:
    """Bytes that are no chat completion stream. Asking again would pay for the same tokens twice."""
    return AttemptFailed(LlmProtocol(reason), "protocol", retry=False)


def silent(reason: str) -> AttemptFailed:
    """A deadline has passed."""
    return AttemptFailed(LlmTimeout(reason), "timeout", retry=False)


def late(which: Literal["read", "write"]) -> AttemptFailed:
    """The server has sent or taken no byte for the seconds of `timeout.read` or `timeout.write`."""
    return AttemptFailed(LlmTimeout(f"no byte within timeout.{which}"), f"{which}_timeout", retry=True)


def retry_after_s(value: str | None) -> float | None:
    """Seconds of a Retry-After header in either of its forms, at most an hour; None where it is unreadable."""
    if value is None:
        return None
    try:
        if value[:1].isalpha():
            # The one use of the wall clock: the header names a moment on it.
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
            return min(max(seconds, 0.0), _RETRY_AFTER_MAX_S)
        seconds = float(value)
    except (ValueError, TypeError):
        return None
    # The comparison is false for NaN too.
    return min(seconds, _RETRY_AFTER_MAX_S) if seconds >= 0 else None
