"""JSON over HTTP: bounded, tried again within a budget, never redirected, the content of an answer never shown."""

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable, Container, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, Literal

import aiohttp
from yarl import URL

from backend_kit.aio import Breaker
from backend_kit.aio.retry import NO_RETRY, Retries, try_within
from backend_kit.client.connections import Connections, body_of, open_session
from backend_kit.wire import InvalidJson, loads

_MIB: Final = 1 << 20
_RESET: Final = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE})

FailureKind = Literal["late", "reset", "failed", "busy", "refused", "broken"]
"""`late`: no answer in time. `reset`: the connection was refused or reset, so most likely nothing was done. `failed`:
any other loss of the connection, also within an answer, or 5xx. `busy`: 429. `refused`: another status, or an address
that cannot be called. `broken`: an answer that cannot be used."""

_DOWN: Final[frozenset[FailureKind]] = frozenset({"late", "reset", "failed"})
PASSING: Final[frozenset[FailureKind]] = _DOWN | {"busy"}
"""The kinds that may pass. Anything else would cost the same again."""


class CallFailed(Exception):
    """A call came to nothing. Its text names no content.

    `status` and `headers` are those of the answer, 0 and empty where there was none; `fault` is then the name of the
    HTTP client's error. `wait_s` is what the server asked for, if anything.
    """

    def __init__(
        self,
        reason: str,
        kind: FailureKind,
        *,
        status: int = 0,
        headers: Mapping[str, str] | None = None,
        fault: str = "",
    ) -> None:
        super().__init__(reason)
        self.kind = kind
        self.status = status
        self.headers: Mapping[str, str] = headers or {}
        self.fault = fault
        asked = self.headers.get("Retry-After", "")
        self.wait_s = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else None

    @property
    def down(self) -> bool:
        """Whether it says that the server is down: no answer, or 5xx."""
        return self.kind in _DOWN


class CallTimedOut(CallFailed, TimeoutError):
    """No answer in time: also a `TimeoutError`, as which phases count it."""

    def __init__(self) -> None:
        super().__init__("no answer in time", "late")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is sent, and what may come back.

    The body is JSON where it is bytes; one in pieces is sent as they come, with its type, and its length where that is
    known, among the headers. An answer has one of the statuses `good` and at most `max_bytes`; the body of any other
    is not looked at: it may repeat what was sent.
    """

    url: URL | str
    method: str = "POST"
    data: bytes | aiohttp.FormData | AsyncIterable[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    max_bytes: int = _MIB
    good: Container[int] = frozenset({200})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer and when its attempt began and ended, on the perf_counter clock."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    began: float
    ended: float

    def json(self) -> Any:
        """The decoded body. Raises `CallFailed` (`broken`)."""
        try:
            return loads(self.body)
        except InvalidJson:
            raise CallFailed("the answer is not JSON", "broken", status=self.status) from None


@dataclass(frozen=True, slots=True)
class HttpStream:
    """An answer that is read while it comes."""

    status: int
    headers: Mapping[str, str]
    _content: aiohttp.StreamReader

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as the network brings it. Raises `CallFailed`."""
        try:
            async for piece in self._content.iter_any():
                yield piece
        except TimeoutError:
            raise CallTimedOut from None
        except (aiohttp.ClientError, OSError) as error:
            raise _of_error(error) from None


class JsonClient:
    """A process's connections to one service. Built on the running loop, closed by `aclose`.

    `pool_wait` and `pool_wait_row` are those of `open_session`.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        pool_wait: Callable[[float], None] | None = None,
        pool_wait_row: str | None = None,
    ) -> None:
        self._write_s = connections.write_s
        self._session = open_session(connections, pool_wait=pool_wait, pool_wait_row=pool_wait_row)

    async def call(
        self,
        request: HttpRequest,
        *,
        retries: Retries = NO_RETRY,
        again: Container[FailureKind] = PASSING,
        deadline_s: float | None = None,
    ) -> HttpAnswer:
        """The answer. Failures of a kind in `again` are tried again as `retries` allows, within `deadline_s` for all.

        Raises `CallFailed`, of which lateness is a `CallTimedOut`. aiohttp itself repeats what is idempotent (not POST)
        once where a kept connection is lost: with retries of ours, two attempts would become four.
        """
        try:
            async with asyncio.timeout(deadline_s):
                return await try_within(
                    retries,
                    lambda: self._attempt(request),
                    CallFailed,
                    lambda failure: (failure.wait_s or 0.0) if failure.kind in again else None,
                )
        except CallFailed:
            raise
        except TimeoutError:
            raise CallTimedOut from None

    @asynccontextmanager
    async def open(self, request: HttpRequest, *, deadline_s: float) -> AsyncIterator[HttpStream]:
        """An answer of any status, whose body is read within the block; both `good` and `max_bytes` are its reader's.
        The answer may begin before all of a body in pieces is sent, the rest of which the end of the block calls off.

        One attempt, from the request to the end of the answer within `deadline_s`. Raises `CallFailed`.
        """
        known = self._session.timeout
        limits = aiohttp.ClientTimeout(deadline_s, known.connect, known.sock_read, known.sock_connect)
        try:
            response = await self._session.request(
                request.method,
                request.url,
                data=request.data,
                headers=_headers(request),
                allow_redirects=False,
                timeout=limits,
            )
        except TimeoutError:
            raise CallTimedOut from None
        except (aiohttp.ClientError, OSError) as error:
            raise _of_error(error) from None
        async with response:
            yield HttpStream(response.status, response.headers, response.content)

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._session.close()

    async def _attempt(self, request: HttpRequest) -> HttpAnswer:
        began = perf_counter()
        try:
            # Redirects are not followed: they would carry secrets and texts to an address that nobody configured.
            data = body_of(request.data, self._write_s) if isinstance(request.data, bytes) else request.data
            async with self._session.request(
                request.method, request.url, data=data, headers=_headers(request), allow_redirects=False
            ) as response:
                if response.status not in request.good:
                    raise _of_status(response)
                body = await _read(response, request.max_bytes)
                return HttpAnswer(response.status, response.headers, body, began, perf_counter())
        except TimeoutError:
            raise CallTimedOut from None
        except (aiohttp.ClientError, OSError) as error:
            raise _of_error(error) from None


@contextmanager
def guarded(
    breaker: Breaker, is_up: Callable[[CallFailed], bool | None] | None = None, user_id: str = ""
) -> Iterator[None]:
    """Around calls that `breaker` watches: raises its refusal while it is open, and gives it their verdict. `user_id`:
    for whom the call is made, where users wait for themselves there.

    A failed one counts as `is_up` says (None: undecided); without, `CallFailed.down` counts against the server. Passing
    a deadline counts against it too; anything else (cancelled, an answer that makes no sense) is undecided.
    """
    breaker.admit()
    verdict: Callable[[], None] = breaker.undecided
    try:
        yield
        verdict = breaker.succeeded
    except CallFailed as failure:
        up = is_up(failure) if is_up is not None else False if failure.down else None
        if up is not None:
            late_for = user_id if failure.kind == "late" else ""
            verdict = breaker.succeeded if up else partial(breaker.failed, late_for=late_for)
        raise
    except TimeoutError:
        verdict = breaker.failed
        raise
    finally:
        verdict()


def _headers(request: HttpRequest) -> dict[str, str]:
    kind = {"Content-Type": "application/json"} if isinstance(request.data, bytes) else {}
    return {"Accept-Encoding": "identity", **kind, **request.headers}


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, up to the limit whatever its head declares."""
    body = bytearray()
    if (response.content_length or 0) <= limit:
        async for part in response.content.iter_any():
            body += part
            if len(body) > limit:
                break
        else:
            return bytes(body)
    response.close()
    raise CallFailed("the answer is too large", "broken", status=response.status)


def _of_status(response: aiohttp.ClientResponse) -> CallFailed:
    status = response.status
    kind: FailureKind = "busy" if status == 429 else "failed" if status >= 500 else "refused"
    return CallFailed(f"HTTP {status}", kind, status=status, headers=response.headers)


def _of_error(error: aiohttp.ClientError | OSError) -> CallFailed:
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientPayloadError):
        return CallFailed("the answer is cut off", "failed", fault=name)
    return CallFailed(f"no answer: {name}", _kind_of(error), fault=name)


def _kind_of(error: aiohttp.ClientError | OSError) -> FailureKind:
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL):
        return "refused"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientConnectionResetError):
        return "reset"
    return "reset" if isinstance(error, OSError) and error.errno in _RESET else "failed"
