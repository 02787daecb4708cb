"""Requests beside a load: whether the service is there, what it has, and what it says of itself."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from ws_bench.config.flags import RunConfig
from ws_bench.errors import PreparationFailed, json_or_text, refusal_text
from ws_bench.load.streams import KEPT_S, http_failure
from ws_bench.record.dialects import clock

_TIMEOUT_S = 10.0
_REFUSED = {
    401: "-token is not accepted",
    403: "-token must be of somebody with one of its security.operator_roles, or a key of the scope that this needs",
    404: "the service does not have it",
}


class RestClient:
    """Requests beside the sockets of a run, with its credentials. Enter it before use."""

    def __init__(self, config: RunConfig, *, connections: int = 100, timeout_s: float | None = None) -> None:
        """`connections` at once, 0: without a limit. A request may take `timeout_s`, None: as long as it takes."""
        self._config = config
        self._connections = connections
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=self._connections, ssl=not self._config.insecure, keepalive_timeout=KEPT_S
        )
        headers = self._config.auth_headers
        self._http = aiohttp.ClientSession(connector=connector, headers=headers, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def _request(self, method: str, url: str, **options: Any) -> tuple[int, Any]:
        """Status and decoded body, `options` as those of aiohttp. Raises its errors, TimeoutError, and RuntimeError
        before it is entered."""
        if self._http is None:
            raise RuntimeError("a client is used before it is entered")
        async with self._http.request(method, url, **options) as answer:
            return answer.status, json_or_text(await answer.read())


class ServiceApi(RestClient):
    """REST of the service under test; whatever is not there is a `PreparationFailed`."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config, timeout_s=_TIMEOUT_S)

    async def require_alive(self) -> None:
        """Raise `PreparationFailed` unless the service's loop answers."""
        await self.get("/healthz")

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The decoded answer to a GET below the base path. Raises `PreparationFailed`."""
        return await self._call("GET", self._config.rest_url(path), params, None)

    async def timed_get(self, path: str) -> float:
        """Milliseconds of a GET below the base path, its answer read. Raises `PreparationFailed`."""
        begin = clock()
        await self.get(path)
        return (clock() - begin) * 1e3

    async def timed_post(self, url: str, body: Mapping[str, Any]) -> float:
        """Milliseconds of a POST to any address, its answer read. Raises `PreparationFailed`."""
        begin = clock()
        await self._call("POST", url, None, body)
        return (clock() - begin) * 1e3

    async def _call(self, method: str, url: str, params: Mapping[str, str] | None, body: object) -> Any:
        where = f"{method} {urlsplit(url)._replace(query='').geturl()}"
        try:
            status, said = await self._request(method, url, params=params, json=body)
        except aiohttp.ClientError as failure:
            raise PreparationFailed(f"the service cannot be reached: {where}: {http_failure(failure)}") from failure
        except TimeoutError as late:
            raise PreparationFailed(f"the service cannot be reached: {where}: no answer in {_TIMEOUT_S:g} s") from late
        if status != 200:
            reason = _REFUSED.get(status) or refusal_text(said)
            raise PreparationFailed(f"{where} answered {status}: {reason}")
        return said
