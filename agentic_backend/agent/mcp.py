"""Tools of MCP servers: discovered once per server, called with a deadline, with answers of bounded size.

Imports the MCP SDK, which takes a second: only a service with configured servers loads this module.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import replace
from ssl import SSLContext
from time import perf_counter
from typing import Any, Final, Protocol

import anyio
import httpx2
from mcp import MCPError
from mcp.client import Client
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    TextContent,
    TextResourceContents,
    ToolListChangedNotification,
)
from mcp_types import Tool as ListedTool
from pydantic import TypeAdapter, ValidationError

from agentic_backend.agent.mcp_program import McpProgram
from agentic_backend.agent.toolbox import Offer, Tool, ToolAnswer, ToolCaller
from agentic_backend.settings import Mcp, McpServer
from agentic_backend.tracing.names import TOOL, TOOL_SERVER
from backend_kit.aio import Breaker, TaskRegistry
from backend_kit.aio.retry import try_again
from backend_kit.kpi import phase
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)

_MAX_BODY_BYTES: Final = 1024 * 1024
"""Size limit of one answer of a server: reading more would block the event loop for all turns."""
_MAX_TOOLS: Final = 64
_MAX_SCHEMA_BYTES: Final = 32 * 1024
_MAX_DESCRIPTION: Final = 2000
_MAX_PAGES: Final = 16
_RETRY_S: Final = 5.0
_SAID_EVERY_S: Final = 1.0
_LIST_EVERY_S: Final = 1.0
"""The shortest interval between listings, for a server that keeps announcing changed tools."""
_LISTEN_AGAIN_S: Final = 30.0
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_RESULT: Final[TypeAdapter[CallToolResult]] = TypeAdapter(CallToolResult)

_UNREACHABLE: Final = ToolAnswer("The tool could not be reached.", ok=False)
_LATE: Final = ToolAnswer("The tool did not answer in time. Whether it has run is not known.", ok=False)
_REFUSED: Final = ToolAnswer("The tool refused the call, or its answer was broken or too large.", ok=False)
_EMPTY: Final = "The tool answered with nothing."

_LOST: Final = (
    httpx2.HTTPError,
    OSError,
    ExceptionGroup,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
)
"""What the SDK raises if there is no connection; failures in its task groups arrive as a group."""
_SESSION_FORGOTTEN: Final = "Session terminated"
_BAD_STATUS: Final = "Server returned an error response"
"""How the SDK's transport reports a 404 within a session, and any other 4xx or 5xx status."""


class ToolObserver(Protocol):
    """Notified of calls and look-ups, on the event loop. Must not block or raise."""

    def tool_called(self, server: str, tool: str, status: str, seconds: float) -> None:
        """A call has ended: status ok, error, timeout or cancelled."""

    def tools_looked_up(self, *, hit: bool) -> None:
        """A turn wanted a server's tools; a hit needed no discovery."""


class _Unavailable(Exception):  # not an error of a turn: it becomes an answer of the tool
    """The server's breaker is open."""


class McpToolbox:
    """The configured MCP servers. Built in a thread, used on the event loop, closed by `aclose`."""

    def __init__(self, settings: Mcp, tasks: TaskRegistry, observer: ToolObserver) -> None:
        # The SDK and its HTTP client log what they send and receive, including users' text.
        for name in ("mcp", "httpx2", "httpcore2"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        enabled = [server for server in settings.servers if server.enabled]
        tls = httpx2.create_ssl_context()  # takes 0.1 s: one for all of them
        self._servers = {server.id: _Server(server, settings, tasks, observer, tls) for server in enabled}

    async def offer(self, server_ids: Sequence[str], caller: ToolCaller) -> Offer:
        """The tools of these servers; a disabled server has none. A discovery is timed as phase `mcp_discover`."""
        servers = [self._servers[server_id] for server_id in server_ids if server_id in self._servers]
        found = await asyncio.gather(*(server.tools(caller) for server in servers))
        missing = tuple(server.id for server, tools in zip(servers, found, strict=True) if tools is None)
        return Offer(_named(tool for tools in found for tool in tools or ()), missing)

    async def call(self, tool: Tool, arguments: dict[str, Any], caller: ToolCaller) -> ToolAnswer:
        """Call a tool. Phase `tool_call`."""
        return await self._servers[tool.server].call(tool.remote_name, arguments, caller)

    async def aclose(self) -> None:
        """Close the connections. Calls that are still running fail."""
        await asyncio.gather(*(server.aclose() for server in self._servers.values()))


class _Server:
    """One server: its connection, its tools as last discovered, and whether it may be called."""

    def __init__(
        self, config: McpServer, settings: Mcp, tasks: TaskRegistry, observer: ToolObserver, tls: SSLContext
    ) -> None:
        self.id = config.id
        self._config = config
        self._settings = settings
        self._tasks = tasks
        self._observer = observer
        self._breaker = Breaker(perf_counter, lambda _wait_s: _Unavailable())
        self._tools: tuple[Tool, ...] | None = None
        self._asked_at = -float("inf")
        self._discovery: asyncio.Task[None] | None = None
        self._relisting = False
        self._kept: Client | None = None
        self._release: Callable[[], None] = lambda: None
        self._opening = asyncio.Lock()
        self._said: dict[str, float] = {}
        # A reader of an answer has a deadline; a listener waits until there is a change.
        timeout = httpx2.Timeout(settings.call_s, connect=min(settings.call_s, settings.discover_s), read=None)
        self._transport = _Bounded(httpx2.AsyncHTTPTransport(verify=tls, limits=httpx2.Limits(max_connections=100)))
        self._http = httpx2.AsyncClient(transport=self._transport, timeout=timeout, trust_env=False)
        self._timeout = timeout
        self._program = McpProgram(config) if config.transport == "stdio" else None

    async def tools(self, caller: ToolCaller) -> tuple[Tool, ...] | None:
        """The tools as last discovered, None if that never succeeded. An old list is refreshed in the background."""
        age_s = perf_counter() - self._asked_at
        known = self._tools
        due = age_s > (_RETRY_S if known is None else self._settings.tools_ttl_s)
        if due and self._discovery is None:
            spawn = self._tasks.spawn
            self._discovery = Context().run(spawn, f"mcp-discover:{self.id}", lambda: self._discover(caller))
        wait = known is None and self._discovery is not None
        self._observer.tools_looked_up(hit=not wait)
        if wait and self._discovery is not None:
            with phase("mcp_discover"):
                # Shielded: it serves every waiting turn, not only the one that started it.
                await asyncio.shield(self._discovery)
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any], caller: ToolCaller) -> ToolAnswer:
        began = perf_counter()
        status = "error"
        verdict = self._breaker.undecided
        try:
            self._breaker.admit()
        except _Unavailable:
            self._observer.tool_called(self.id, name, status, 0.0)
            return _UNREACHABLE
        try:
            with phase("tool_call", {TOOL: name, TOOL_SERVER: self.id}):
                async with asyncio.timeout(self._settings.call_s):
                    result = await self._call(name, arguments, caller)
            verdict = self._breaker.succeeded
            status = "error" if result.is_error else "ok"
            return ToolAnswer(self._text_of(result), ok=not result.is_error)
        except TimeoutError:
            verdict, status = self._breaker.failed, "timeout"
            return self._failed("late", _LATE)
        except (MCPError, ValidationError, *_LOST) as failure:
            if _is_lost(failure):
                verdict = self._breaker.failed
                return self._failed(type(failure).__name__, _UNREACHABLE)
            return self._failed(type(failure).__name__, _REFUSED)
        except asyncio.CancelledError:
            status = "cancelled"
            raise
        finally:
            verdict()
            self._observer.tool_called(self.id, name, status, perf_counter() - began)

    async def aclose(self) -> None:
        self._let_go()
        await self._http.aclose()

    async def _discover(self, caller: ToolCaller) -> None:
        try:
            async with asyncio.timeout(self._settings.discover_s), self._client(caller) as client:
                self._tools = self._usable(await _list(client))
            logger.info("mcp server %s offers %d tools", self.id, len(self._tools))
        except (TimeoutError, MCPError, ValidationError, *_LOST) as failure:
            self._failed(f"discovery: {type(failure).__name__}", _UNREACHABLE)
            self._let_go()
        finally:
            self._asked_at = perf_counter()
            self._discovery = None

    async def _on_message(self, message: IncomingMessage) -> None:
        """Handle a notification of the server; only a change of its tools matters."""
        if isinstance(message, ToolListChangedNotification) and not self._relisting:
            self._relisting = True
            Context().run(self._tasks.spawn, f"mcp-changed:{self.id}", self._relist)

    async def _relist(self) -> None:
        """List the tools again, after any listing in progress, which may predate the change."""
        await asyncio.sleep(self._asked_at + _LIST_EVERY_S - perf_counter())
        while self._discovery is not None:
            await asyncio.shield(self._discovery)
        self._relisting = False
        discovery = self._tasks.spawn(f"mcp-discover:{self.id}", lambda: self._discover(ToolCaller()))
        self._discovery = discovery

    async def _listen(self, client: Client) -> None:
        """Subscribe to the server's notifications, again and again; `_on_message` receives them."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        pass
            except ListenNotSupportedError:
                return  # a server of the older protocol notifies without a subscription
            except MCPError:
                return  # it has no notifications: its tools are listed again once they are old
            except (SubscriptionLost, *_LOST):
                pass
            await asyncio.sleep(_LISTEN_AGAIN_S)
            self._asked_at = -float("inf")  # changes in the meantime were missed

    def _usable(self, listed: Iterable[ListedTool]) -> tuple[Tool, ...]:
        """The listed tools that an agent can be given. A server's own descriptions are bounded and never trusted."""
        tools: dict[str, Tool] = {}
        for tool in listed:
            schema = tool.input_schema
            if not tool.name or schema.get("type") != "object" or len(dumps(schema)) > _MAX_SCHEMA_BYTES:
                self._warn(f"tool without a usable schema: {tool.name[:64]!r}")
            elif tool.name not in tools and len(tools) < _MAX_TOOLS:
                description = (tool.description or tool.title or "")[:_MAX_DESCRIPTION]
                needs_approval = self._config.needs_approval(tool.name, read_only=_reads_only(tool))
                tools[tool.name] = Tool(tool.name, self.id, tool.name, description, schema, needs_approval)
        return tuple(tools.values())

    async def _call(self, name: str, arguments: dict[str, Any], caller: ToolCaller) -> CallToolResult:
        # Not Client.call_tool: it lists the tools again on each new connection, to check output which it then drops.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))

        async def attempt() -> CallToolResult:
            async with self._client(caller) as client:
                return await client.session.send_request(request, _RESULT)

        def wait_s(failure: Exception, attempts: int) -> float | None:
            if _is_lost(failure):
                self._let_go()
            # The server has forgotten the session, so it refused the call without looking at it.
            return 0.0 if attempts == 1 and getattr(failure, "message", "") == _SESSION_FORGOTTEN else None

        return await try_again(attempt, (MCPError, *_LOST), wait_s)

    @asynccontextmanager
    async def _client(self, caller: ToolCaller) -> AsyncIterator[Client]:
        """A connection: the shared one, or a separate one if the caller's token is sent with it."""
        if self._config.forward_token and self._config.url is not None:
            # The connection pool is shared; only the headers are the caller's.
            headers = _headers(caller)
            http = httpx2.AsyncClient(
                transport=self._transport, timeout=self._timeout, trust_env=False, headers=headers
            )
            async with Client(streamable_http_client(self._config.url, http_client=http), cache=None) as client:
                yield client
            return
        async with self._opening:
            if self._kept is None:
                self._kept = await self._open()
            client = self._kept
        yield client

    async def _open(self) -> Client:
        """Connect in a separate task: the SDK requires that the task that opened a connection closes it."""
        opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        released = asyncio.Event()
        kept: Client | None = None

        def gone() -> None:
            if self._kept is not None and self._kept is kept:
                self._kept = None  # the next call starts the program again
            released.set()

        async def keep() -> None:
            nonlocal kept
            try:
                transport = self._transport_to(gone)
                async with Client(transport, cache=None, message_handler=self._on_message) as client:
                    if not opened.done():
                        kept = client
                        opened.set_result(client)
                        await self._kept_open(client, released)
            except (MCPError, ValidationError, *_LOST) as failure:
                if not opened.done():
                    opened.set_exception(failure)
            finally:
                opened.cancel()

        # In a separate context: it outlives the turn that opened it.
        keeping = Context().run(self._tasks.spawn, f"mcp:{self.id}", keep)
        try:
            client = await opened
        except asyncio.CancelledError:
            keeping.cancel()  # the caller's time is up, and connecting has no deadline of its own
            raise
        finally:
            self._release = released.set
        return client

    def _transport_to(self, ended: Callable[[], None]) -> AbstractAsyncContextManager[Any]:
        """The way to the server; `ended` is called where it is a program that has ended."""
        if self._program is not None:
            return self._program.running(ended)
        assert self._config.url is not None  # the settings require one or the other
        return streamable_http_client(self._config.url, http_client=self._http)

    async def _kept_open(self, client: Client, released: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            listening = group.create_task(self._listen(client), name=f"mcp-listen:{self.id}")
            await released.wait()
            listening.cancel()

    def _let_go(self) -> None:
        """Close the kept connection; the next call opens another."""
        self._kept = None
        self._release()

    def _text_of(self, result: CallToolResult) -> str:
        """The text of a result, cut at the configured length. Content that is not text is only named."""
        texts = []
        for block in result.content:
            if isinstance(block, TextContent):
                texts.append(block.text)
            elif isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
                texts.append(block.resource.text)
            else:
                texts.append(f"[{block.type} content, not shown]")
        if not texts and result.structured_content is not None:
            texts.append(dumps(result.structured_content).decode())
        text = "\n".join(texts).replace("\x00", "\ufffd") or _EMPTY
        limit = self._settings.max_result_chars
        return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"

    def _failed(self, cause: str, answer: ToolAnswer) -> ToolAnswer:
        self._warn(f"failed: {cause}")
        return answer

    def _warn(self, what: str) -> None:
        """Log at most once a second per cause. A cause is a fixed text of ours or a class name, never content."""
        now = perf_counter()
        if now - self._said.get(what, -_SAID_EVERY_S) >= _SAID_EVERY_S and len(self._said) < _MAX_TOOLS:
            self._said[what] = now
            logger.warning("mcp server %s: %s", self.id, what)


class _Bounded(httpx2.AsyncBaseTransport):
    """Aborts an answer that is too large while it is being read, instead of reading all of it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        # A stream of events does not end: the SDK bounds its events.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MAX_BODY_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise httpx2.StreamError("answer too large")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _list(client: Client) -> list[ListedTool]:
    """Every page of the server's tools, up to a bound."""
    listed: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        listed += page.tools
        cursor = page.next_cursor
        if cursor is None or len(listed) >= _MAX_TOOLS:
            break
    return listed


def _is_lost(failure: BaseException) -> bool:
    """Whether a failed call means that its connection is no longer usable."""
    if isinstance(failure, MCPError):
        return failure.code == CONNECTION_CLOSED or failure.message in (_SESSION_FORGOTTEN, _BAD_STATUS)
    return isinstance(failure, _LOST)


def _reads_only(tool: ListedTool) -> bool:
    return tool.annotations is not None and tool.annotations.read_only_hint is True


def _named(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """The tools under names that a model may call: their own if valid and unique, else prefixed with the server's."""
    listed = list(tools)
    count = Counter(tool.remote_name for tool in listed)
    taken: dict[str, Tool] = {}
    for tool in listed:
        own = tool.remote_name
        name = own if count[own] == 1 and _NAME.fullmatch(own) else _fit(f"{tool.server}_{own}")
        if name not in taken:
            taken[name] = replace(tool, name=name)
    return tuple(taken.values())


def _fit(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]


def _headers(caller: ToolCaller) -> dict[str, str]:
    headers = {}
    credentials = caller.credentials
    # Never a key: it opens both services for months, and a tool server may be anybody's.
    if credentials is not None and credentials.grant is None and _TOKEN.fullmatch(token := credentials.reveal()):
        headers["Authorization"] = f"Bearer {token}"
    if caller.traceparent is not None:
        headers["traceparent"] = caller.traceparent
    return headers
