"""Requests beside a load: whether the service is there, what it has, and what it says of itself."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any
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


class ServiceApi:
    """REST of the service under test. Enter it before use; whatever is not there is a `PreparationFailed`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "ServiceApi":
        connector = aiohttp.TCPConnector(ssl=not self._config.insecure, keepalive_timeout=KEPT_S)
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._http = aiohttp.ClientSession(connector=connector, headers=self._config.auth_headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

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
        if self._http is None:
            raise RuntimeError("ServiceApi is used before it is entered")
        where = f"{method} {urlsplit(url)._replace(query='').geturl()}"
        try:
            async with self._http.request(method, url, params=params, json=body) as answer:
                said = json_or_text(await answer.read())
        except aiohttp.ClientError as failure:
            raise PreparationFailed(f"the service cannot be reached: {where}: {http_failure(failure)}") from failure
        except TimeoutError as late:
            raise PreparationFailed(f"the service cannot be reached: {where}: no answer in {_TIMEOUT_S:g} s") from late
        if answer.status != 200:
            reason = _REFUSED.get(answer.status) or refusal_text(said)
            raise PreparationFailed(f"{where} answered {answer.status}: {reason}")
        return said
