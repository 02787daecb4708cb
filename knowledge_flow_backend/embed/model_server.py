"""A server that embeds or reranks: one address, a key, and answers in proportion to what was sent.

Decision 31 says what is tried again and what counts as down.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from pydantic import SecretStr

from backend_kit.aio.retry import Retries
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import HttpRequest, JsonClient
from backend_kit.wire import dumps

_ROOM_BYTES: Final = 1 << 20
"""What an answer may have beside echoes of the request."""
_ECHOES: Final = 4
"""How often the size of the request: echoed text may be escaped."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Where a model is and how it is called; `max_retries` further attempts after the first."""

    url: str
    api_key: SecretStr | None
    connections: Connections
    max_retries: int


class ModelCalls:
    """The connections to one model server. Built on the running loop, closed by `aclose`.

    `pool_wait` gets the seconds that a call waited for a connection, where it had to. The key goes into the request's
    header and nowhere else.
    """

    def __init__(
        self, server: ModelServer, *, pool_wait: Callable[[float], None], room_bytes: int = _ROOM_BYTES
    ) -> None:
        self._server = server
        self._room_bytes = room_bytes
        self._client = JsonClient(server.connections, pool_wait=pool_wait)

    async def ask(self, body: Mapping[str, Any], *, budget_s: float) -> Any:
        """The decoded answer. No attempt begins later than `budget_s` after the call: what would, is not waited for.

        Raises `CallFailed`. A deadline over all of it is the caller's.
        """
        data = dumps(body)
        key = self._server.api_key
        headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
        limit = self._room_bytes + _ECHOES * len(data)
        request = HttpRequest(self._server.url, data=data, headers=headers, max_bytes=limit)
        retries = Retries(self._server.max_retries, budget_s, base_s=0.1, cap_s=inf, jitter=0.5)
        return (await self._client.call(request, retries=retries)).json()

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._client.aclose()


def sendable(text: str, limit: int) -> str:
    """The first `limit` characters, or a full stop where there is nothing: servers refuse texts without content."""
    return text[:limit] if text[:limit].strip() else "."
