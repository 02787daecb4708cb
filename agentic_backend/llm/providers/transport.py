"""HTTP clients for the SDKs of providers: without redirects, and with bounds on what one answer may send at once."""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any, Final

from agentic_backend.tracing.traceparent import trace_headers
from backend_kit.client.connections import Connections

MIB: Final = 1 << 20
MAX_LINE_BYTES: Final = MIB
"""A line of a stream above this ends the call."""
MAX_BODY_BYTES: Final = 64 * MIB
"""So does an answer above this: what it says is bounded before, unless it is nothing but envelopes."""


class AnswerTooLarge(ValueError):
    """A line or an answer above its bound."""


def client_arguments(http: ModuleType, limits: Connections) -> dict[str, Any]:
    """Arguments for an `AsyncClient` of `http`, which is httpx or httpx2.

    Redirects are not followed: they would carry the
    prompt to an address that nobody configured. Answers are not compressed, so that their bytes can be counted.
    """
    return {
        "event_hooks": {"request": [_trace], "response": [_bounding(http)]},
        "follow_redirects": False,
        "headers": {"Accept-Encoding": "identity"},
        "limits": http.Limits(
            max_connections=limits.max_connections or None,
            max_keepalive_connections=limits.max_idle,
            keepalive_expiry=limits.keepalive_s,
        ),
        "timeout": timeout_of(http, limits),
    }


def timeout_of(http: ModuleType, limits: Connections) -> Any:
    """How long connecting may take, waiting for a connection, and, in between, a read and a write of no byte."""
    return http.Timeout(connect=limits.connect_s, pool=limits.pool_s, read=limits.read_s, write=limits.write_s)


async def _trace(request: Any) -> None:
    request.headers.update(trace_headers())


def _bounding(http: ModuleType) -> Callable[[Any], Awaitable[None]]:
    stream = type("BoundedStream", (_Bounded, http.AsyncByteStream), {})

    async def bound(response: Any) -> None:
        response.stream = stream(response.stream)

    return bound


class _Bounded:
    """The body of an answer, which ends with `AnswerTooLarge` where a line, or all of it, is too long."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line = whole = 0
        async for piece in self._inner:
            end = piece.rfind(b"\n")
            line = line + len(piece) if end < 0 else len(piece) - end - 1
            whole += len(piece)
            if line > MAX_LINE_BYTES or whole > MAX_BODY_BYTES:
                raise AnswerTooLarge
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
