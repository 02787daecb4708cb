"""The run's sessions over REST, and bounded work on many of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp

from ws_bench.config.flags import RunConfig
from ws_bench.errors import SessionCallFailed, refusal_text
from ws_bench.load.service import RestClient

T = TypeVar("T")


async def for_each(items: Collection[T], work: Callable[[T], Awaitable[None]], *, concurrency: int) -> None:
    """Do the work on every item, on at most `concurrency` at a time. Raises what the work raises, as a group."""
    todo = iter(items)

    async def worker() -> None:
        for item in todo:
            await work(item)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(items))):
            workers.create_task(worker())


class SessionApi(RestClient):
    """Client of `/chatbot/session` or `/threads`; counts what it created, deleted, left behind."""

    def __init__(self, config: RunConfig) -> None:
        # No limit on connections: the clients are the limit, and a wait here would be the generator's own.
        super().__init__(config, connections=0)
        self._url = config.threads_url if config.protocol == "langgraph" else config.session_url
        self.created = 0
        self.deleted = 0
        self.delete_failures: list[str] = []

    async def create(self) -> str:
        """Create a session and return its id. Raises `SessionCallFailed`; the caller sets the deadline."""
        config = self._config
        body: dict[str, object] = {"agent_id": config.agent, "title": config.session_title}
        key = "id"
        if config.protocol == "langgraph":
            body, key = {"metadata": {"title": config.session_title}}, "thread_id"
        status, payload = await self._call("POST", self._url, body)
        session_id = payload.get(key) if isinstance(payload, dict) else None
        if status >= 300 or not isinstance(session_id, str) or not session_id:
            why = "no session id in the answer" if status < 300 else refusal_text(payload)
            raise SessionCallFailed(f"session_create_{status}", why)
        self.created += 1
        return session_id

    async def delete(self, session_id: str) -> None:
        """Delete one session within the turn deadline. A failure is not raised but kept in `delete_failures`."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                url = f"{self._url.rstrip('/')}/{quote(session_id, safe='')}"
                status, payload = await self._call("DELETE", url, None)
        except SessionCallFailed as failure:
            self.delete_failures.append(str(failure))
        except TimeoutError:
            self.delete_failures.append("session_delete_timeout")
        else:
            if status >= 300:
                self.delete_failures.append(str(SessionCallFailed(f"session_delete_{status}", refusal_text(payload))))
            else:
                self.deleted += 1

    async def history(self, session_id: str) -> list[dict[str, Any]]:
        """The messages of a session. Raises `SessionCallFailed`; the caller sets the deadline."""
        url = f"{self._url.rstrip('/')}/{quote(session_id, safe='')}/history"
        status, payload = await self._call("GET", url, None)
        if status >= 300 or not isinstance(payload, list):
            raise SessionCallFailed(f"history_{status}", refusal_text(payload))
        return [message for message in payload if isinstance(message, dict)]

    async def _call(self, method: str, url: str, body: Mapping[str, object] | None) -> tuple[int, object]:
        try:
            return await self._request(method, url, json=body, allow_redirects=False)
        except aiohttp.ClientConnectorDNSError as failure:
            raise SessionCallFailed("dns", str(failure)) from failure
        except aiohttp.ClientConnectorError as failure:
            raise SessionCallFailed("tcp_refused", f"{failure.host}:{failure.port}") from failure
        except aiohttp.ClientError as failure:
            raise SessionCallFailed("session_call_broken", type(failure).__name__) from failure
