"""JSON calls to a model's endpoint: bounded, tried again within a budget, never redirected, their content never shown.

The reranker and the embedder speak through it; decision 31 says what is tried again and what counts as down.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Literal

import aiohttp
from pydantic import SecretStr

from backend_kit.wire import InvalidJson, dumps, loads

Kind = Literal["down", "busy", "refused", "broken"]
"""`down`: no connection, no answer in time, 5xx. `busy`: 429. `refused`: another status than 200. `broken`: a 200
that is no usable answer. The first two may pass and are tried again."""

_FIRST_WAIT_S: Final = 0.1
_ROOM_BYTES: Final = 1 << 20
"""What an answer may have beside echoes of the request."""
_ECHOES: Final = 4
"""How often the size of the request: echoed text may be escaped."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is and what a call to it may take. Seconds; `max_retries` further attempts after the first.

    `read_s` is the longest silence of an answer. `max_connections` 0 = no limit; without `keepalive` each call opens
    one of its own.
    """

    url: str
    api_key: SecretStr | None
    connect_s: float
    read_s: float
    pool_s: float
    max_retries: int
    max_connections: int
    keepalive_s: float
    keepalive: bool = True


class CallFailed(Exception):
    """A call came to nothing. Its text names no content; `wait_s` is what the endpoint asked for, if anything."""

    def __init__(self, reason: str, kind: Kind, *, status: int = 0, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.status = status
        self.wait_s = wait_s


class JsonCalls:
    """The connections to one endpoint. Built on the running loop, closed by `aclose`.

    `pool_wait` is told how long a call waited for a connection, where it had to. The key goes into the request's
    header and nowhere else.
    """

    def __init__(
        self, endpoint: Endpoint, *, pool_wait: Callable[[float], None], room_bytes: int = _ROOM_BYTES
    ) -> None:
        self._endpoint = endpoint
        self._room_bytes = room_bytes
        connector = (
            aiohttp.TCPConnector(
                limit=endpoint.max_connections, keepalive_timeout=endpoint.keepalive_s, ttl_dns_cache=60
            )
            if endpoint.keepalive
            else aiohttp.TCPConnector(limit=endpoint.max_connections, force_close=True, ttl_dns_cache=60)
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=endpoint.pool_s + endpoint.connect_s + endpoint.read_s,
                connect=endpoint.pool_s + endpoint.connect_s,
                sock_connect=endpoint.connect_s,
                sock_read=endpoint.read_s,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "turnwise", "Content-Type": "application/json", "Accept-Encoding": "identity"},
            trace_configs=[_pool_wait(pool_wait)],
        )

    async def ask(self, body: Mapping[str, Any], *, budget_s: float) -> Any:
        """The decoded answer. No attempt begins later than `budget_s` after the call: what would, is not waited for.

        Raises `CallFailed`. A deadline over all of it is the caller's.
        """
        data = dumps(body)
        began = time.perf_counter()
        tries = 0
        while True:
            try:
                return await self._attempt(data)
            except CallFailed as failure:
                # Half of it is jitter: callers that failed at one moment must not come back at one moment.
                wait_s = (failure.wait_s or 0.0) + _FIRST_WAIT_S * 2**tries * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                late = time.perf_counter() - began + wait_s > budget_s
                if failure.kind not in ("down", "busy") or tries >= self._endpoint.max_retries or late:
                    raise
            tries += 1
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._session.close()

    async def _attempt(self, data: bytes) -> Any:
        key = self._endpoint.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
        try:
            # Redirects are not followed: they would carry key and text to an address that nobody configured.
            async with self._session.post(
                self._endpoint.url, data=data, headers=headers, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise _of_status(response)
                return loads(await _read(response, self._room_bytes + _ECHOES * len(data)))
        except InvalidJson:
            raise CallFailed("the answer is not JSON", "broken") from None
        except TimeoutError:
            raise CallFailed("no answer in time", "down") from None
        except aiohttp.ClientPayloadError:
            raise CallFailed("the answer is cut off", "down") from None
        except (aiohttp.ClientError, OSError) as error:
            kind: Kind = "refused" if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL) else "down"
            raise CallFailed(f"no answer: {type(error).__name__}", kind) from None


def sendable(text: str, limit: int) -> str:
    """The first `limit` characters, or a full stop where there is nothing: servers refuse texts without content."""
    return text[:limit] if text[:limit].strip() else "."


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body, up to the limit whatever its head declares."""
    if (response.content_length or 0) > limit:
        response.close()
        raise CallFailed("the answer is too large", "broken")
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            response.close()
            raise CallFailed("the answer is too large", "broken")
    return bytes(body)


def _of_status(response: aiohttp.ClientResponse) -> CallFailed:
    asked = response.headers.get("Retry-After", "")
    wait_s = float(asked) if asked.isascii() and asked.isdecimal() and len(asked) < 6 else None
    status = response.status
    kind: Kind = "busy" if status == 429 else "down" if status >= 500 else "refused"
    # The body is never looked at: it may repeat what was sent.
    return CallFailed(f"HTTP {status}", kind, status=status, wait_s=wait_s)


def _pool_wait(observe: Callable[[float], None]) -> aiohttp.TraceConfig:
    async def queued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        context.queued_at = time.perf_counter()

    async def unqueued(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
        observe(time.perf_counter() - context.queued_at)

    config = aiohttp.TraceConfig()
    config.on_connection_queued_start.append(queued)
    config.on_connection_queued_end.append(unqueued)
    return config
