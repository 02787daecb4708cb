"""The HTTP endpoint of an MCP server, and its sessions: bounded, and each its user's alone.

A client of the protocol of 2026-07-28 has no session: each of its requests stands for itself, on any instance. So does
a client of an older protocol where sessions are off. Where they are on, its session lives in this process, so that the
server can ask it (elicitation) and hears what it cancels; a balancer must then send requests of one `Mcp-Session-Id`
to one instance.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context as ContextVars
from string import ascii_letters, digits
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, ErrorData, JSONRPCError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from sse_starlette.sse import AppStatus
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from backend_kit.aio import TaskRegistry
from backend_kit.auth import AuthError, Identity, header
from backend_kit.http import DirectRoute, page_allowed
from backend_kit.mcp.calls import CALLER, guarded
from backend_kit.mcp.rules import DoorRules
from backend_kit.mcp.standalone import StandaloneRequest, read_request
from backend_kit.wire import CODES, Code, dumps, loads, message_for

PATH: Final = "/mcp"
METADATA_PATH: Final = f"/.well-known/oauth-protected-resource{PATH}"

_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_AUTHORITY: Final = frozenset(ascii_letters + digits + ".-:[]")
_QUOTING: Final = ("Parse error", "Validation error")
_ANSWERED_S: Final = 2.0
"""For a call whose turn has ended; one that waits for a person in a form is cut off then."""
_ENDING_S: Final = 5.0


class McpDoor:
    """Serves one MCP server to the callers that its routes have identified. Built in the lifespan, used on the loop."""

    def __init__(
        self,
        server: Server[Any],
        rules: DoorRules,
        tasks: TaskRegistry,
        *,
        limit_hit: Callable[[str], None] = lambda _limit: None,
    ) -> None:
        """`limit_hit` is called with the limit that has refused a request: `mcp_sessions`."""
        # The SDK logs what clients send; what fails in our handlers is logged by `guarded`.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        server.middleware[:] = [guarded]
        # Its event streams end once any uvicorn server in the process has been asked to exit; ours end with our drain.
        AppStatus.enable_automatic_graceful_drain = False
        AppStatus.should_exit = False
        self.rules = rules
        self._server = server
        self._tasks = tasks
        self._limit_hit = limit_hit
        self._shared: _Host | None = None
        self._sessions: dict[str, _Host] = {}
        self._hosts: list[_Host] = []
        self._standalone: set[StandaloneRequest] = set()
        self._quiet = asyncio.Event()
        """Set while there are none."""
        self._quiet.set()
        self._closing = False

    @property
    def sessions(self) -> int:
        """Sessions that are open now, or being opened."""
        return len(self._hosts)

    async def handle(self, caller: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a caller."""
        scope.setdefault("state", {})[CALLER] = caller
        headers = scope["headers"]
        version = header(headers, _VERSION)
        modern = version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS
        if refusal := self._refusal(headers):
            await refusal(scope, receive, send)
        elif scope["method"] == "GET":
            # We say nothing but in the answer to a call, so there is nothing to listen to.
            await _not_allowed("POST, DELETE")(scope, receive, send)
        elif modern:
            await self._serve_standalone(scope, receive, send)
        elif scope["method"] == "POST":
            body = _Body(receive)
            if await body.is_one():
                await self._serve_older(caller, scope, body.receive, send)
            else:
                await _rpc_error(400, "Validation error", INVALID_PARAMS)(scope, receive, send)
        else:
            await self._serve_older(caller, scope, receive, send)

    async def _serve_older(self, caller: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of a client of an older protocol."""
        session_id = header(scope["headers"], _SESSION)
        if not self.rules.sessions_per_user:
            await self._alone(scope, receive, send)
        elif session_id is None:
            await self._open(caller, scope, receive, send)
        else:
            host = self._sessions.get(session_id)
            # Another user's session is none, as one that has ended.
            if host is None or host.owner != caller.uid or not await host.serves(scope, receive, send):
                await _rpc_error(404, "Session not found")(scope, receive, send)
            elif scope["method"] == "DELETE":
                host.end()

    async def aclose(self) -> None:
        """Refuse new requests, give those in progress a moment to be answered, and end all sessions."""
        self._closing = True
        hosts = [*self._hosts, *([self._shared] if self._shared is not None else [])]
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWERED_S):
                await self._quiet.wait()
                for host in hosts:
                    await host.quiet.wait()
        running = [host.task for host in hosts if host.task is not None]
        for host in hosts:
            host.end()
        for serving in tuple(self._standalone):
            serving.cut()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                await self._quiet.wait()
                if running:
                    await asyncio.wait(running)

    def _refusal(self, headers: Any) -> Response | None:
        origin = header(headers, b"origin")
        rules = self.rules
        host = header(headers, b"host")
        if origin is not None and not page_allowed(origin, rules.authorized_origins, host, any_host=rules.any_host):
            return _denial(Code.FORBIDDEN, header(headers, b"accept-language"))
        return _denial(Code.DRAINING, header(headers, b"accept-language")) if self._closing else None

    async def _serve_standalone(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that stands for itself."""
        if scope["method"] != "POST":
            await _not_allowed("POST")(scope, receive, send)  # there is no session to end
            return
        request, rules = Request(scope, receive), self.rules
        message = await read_request(request, rules)
        if isinstance(message, Response):
            await message(scope, receive, send)
            return
        serving = StandaloneRequest(request, message, send, self._tasks.spawn, rules)
        self._standalone.add(serving)
        self._quiet.clear()
        try:
            await serving.answer(self._server)
        finally:
            self._standalone.remove(serving)
            if not self._standalone:
                self._quiet.set()

    async def _alone(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of an older client, which belongs to no session."""
        if scope["method"] != "POST":
            await _not_allowed("POST")(scope, receive, send)  # without a session there is nothing to end
            return
        if self._shared is None or self._shared.over:
            self._shared = _Host(self._manager(stateless=True), "", None)
            self._start(self._shared, "mcp-requests")
        if not await self._shared.serves(scope, receive, send):
            await _denial(Code.DRAINING, None)(scope, receive, send)

    async def _open(self, caller: Identity, scope: Scope, receive: Receive, send: Send) -> None:
        """A request without a session, which only a handshake may be: it opens one."""
        language = header(scope["headers"], b"accept-language")
        if scope["method"] != "POST":
            await _rpc_error(400, "Bad Request: Missing session ID")(scope, receive, send)
            return
        if (full := self._make_room(caller.uid)) is not None:
            self._limit_hit("mcp_sessions")
            await _denial(full, language)(scope, receive, send)
            return
        host = _Host(self._manager(stateless=False), caller.uid, self.rules.idle_s)
        self._hosts.append(host)
        self._start(host, "mcp-session", self._forget)
        opened = False

        async def watch(message: Message) -> None:
            nonlocal opened
            if message["type"] == "http.response.start" and message["status"] < 400:
                host.session_id = header(message.get("headers", ()), _SESSION)
                if host.session_id is not None:
                    opened = True
                    self._sessions[host.session_id] = host
            await send(message)

        try:
            if not await host.serves(scope, receive, watch):
                await _denial(Code.DRAINING, language)(scope, receive, send)
        finally:
            if not opened:
                host.end()

    def _make_room(self, uid: str) -> Code | None:
        """Let a user open one more session: at the limit the one that was not used for longest ends, as clients leave
        them behind. Returns why not, where each of them is answering, or the process has as many as it may."""
        mine = [host for host in self._hosts if host.owner == uid and not host.ending]
        if len(mine) >= self.rules.sessions_per_user:
            unused = [host for host in mine if not host.requests]
            if not unused:
                return Code.RATE_LIMITED
            min(unused, key=lambda host: host.used_at).end()
        elif len(self._hosts) >= self.rules.max_sessions:
            return Code.OVERLOADED
        return None

    def _manager(self, *, stateless: bool) -> StreamableHTTPSessionManager:
        # One manager a session: so it can be ended, and counted for its user.
        return StreamableHTTPSessionManager(
            self._server,
            stateless=stateless,
            json_response=self.rules.json_only,
            session_idle_timeout=None,
            max_sessions=None if stateless else 1,
        )

    def _start(self, host: "_Host", name: str, on_end: "Callable[[_Host], None]" = lambda _host: None) -> None:
        async def serve() -> None:
            try:
                await host.serve()
            finally:
                on_end(host)

        # In a context of its own: it outlives the request that has started it.
        spawn: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], asyncio.Task[None]] = self._tasks.spawn
        host.task = ContextVars().run(spawn, name, serve)

    def _forget(self, host: "_Host") -> None:
        self._hosts.remove(host)
        if host.session_id is not None:
            self._sessions.pop(host.session_id, None)


class _Host:
    """A session manager of the SDK in a task of its own, which must be the one that enters and leaves it."""

    def __init__(self, manager: StreamableHTTPSessionManager, owner: str, idle_s: float | None) -> None:
        """`owner`: whose session it is. `idle_s`: how long it lasts without a request, None: until it is ended."""
        self._loop = asyncio.get_running_loop()
        self._manager = manager
        self._idle_s = idle_s
        self._started: asyncio.Future[bool] = self._loop.create_future()
        self._ended = asyncio.Event()
        self.owner = owner
        self.session_id: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.requests = 0
        """Requests in progress."""
        self.quiet = asyncio.Event()
        """Set while there are none."""
        self.quiet.set()
        self.used_at = self._loop.time()

    @property
    def ending(self) -> bool:
        """Whether it takes no further requests."""
        return self._ended.is_set()

    @property
    def over(self) -> bool:
        """Whether its task has ended."""
        return self.task is not None and self.task.done()

    def end(self) -> None:
        """End it: what it still answers is cut off."""
        self._ended.set()

    async def serve(self) -> None:
        """Run until it is ended, or nobody has used it for too long."""
        try:
            async with self._manager.run():
                self._started.set_result(True)
                while not self.ending:
                    await self._unused_for(self._idle_s)
        finally:
            self._ended.set()
            if not self._started.done():
                self._started.set_result(False)

    async def serves(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Answer a request; False, and no answer, where it is ending."""
        with self._used():
            if not self._started.done():
                await asyncio.shield(self._started)
            if self.ending or not self._started.result():
                return False
            await self._manager.handle_request(scope, receive, _Unquoting(send))
        return True

    async def _unused_for(self, idle_s: float | None) -> None:
        """Wait until it is ended, or end it where nobody has used it for so long."""
        used_at = self._loop.time() if self.requests else self.used_at
        try:
            async with asyncio.timeout_at(None if idle_s is None else used_at + idle_s):
                await self._ended.wait()
        except TimeoutError:
            if not self.requests and idle_s is not None and self._loop.time() >= self.used_at + idle_s:
                self.end()

    @contextmanager
    def _used(self) -> Iterator[None]:
        self.requests += 1
        self.quiet.clear()
        try:
            yield
        finally:
            self.requests -= 1
            if not self.requests:
                self.quiet.set()
            self.used_at = self._loop.time()


class _Body:
    """The body of a request, of which the first sign is looked at before the SDK reads it.

    No protocol that we speak has batches. The SDK refuses them too, once it has tried each element as each kind of
    message: a second and a half of the loop for a mebibyte.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._early: deque[Message] = deque()

    async def receive(self) -> Message:
        """What was read early, then what comes."""
        return self._early.popleft() if self._early else await self._receive()

    async def is_one(self) -> bool:
        """Whether it is no list."""
        while True:
            message = await self._receive()
            self._early.append(message)
            begun = message.get("body", b"").lstrip()
            if begun or not message.get("more_body"):
                return not begun.startswith(b"[")


class _Unquoting:
    """Passes an answer on, without the SDK's quotation of a body that it could not read."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start" and message["status"] == 400:
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            message = {**message, "body": _unquoted(message.get("body", b""))}
            length = str(len(message["body"])).encode()
            headers = [(name, length if name == b"content-length" else value) for name, value in head["headers"]]
            await self._send({**head, "headers": headers})
        await self._send(message)


def _unquoted(body: bytes) -> bytes:
    """The body of a 400, whose text ends where it would tell what was wrong in the request's."""
    try:
        said = loads(body)
        kind = next(kind for kind in _QUOTING if said["error"]["message"].startswith(kind))
    except (KeyError, StopIteration, TypeError, ValueError):
        return body
    return dumps({**said, "error": {"code": said["error"]["code"], "message": kind}})


def mcp_routes(door: Callable[[], McpDoor], identify: Callable[..., Any]) -> list[BaseRoute]:
    """The endpoint, for callers whom `identify` knows, and where an issuer is configured what says so (RFC 9728).

    `door()` is called at each request: its result exists once the service runs.
    """
    router = APIRouter(route_class=_challenging(door))
    caller = Annotated[Identity, Depends(identify)]

    async def endpoint(identity: caller) -> Response:
        return _Handed(door(), identity)

    async def metadata(request: Request) -> Response:
        rules = door().rules
        if rules.issuer is None:
            return Response(status_code=404)
        found = {
            "resource": f"{_address(rules, request)}{PATH}",
            "authorization_servers": [rules.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": rules.title,
        }
        return Response(dumps(found), media_type="application/json", headers={"Cache-Control": "no-cache"})

    router.add_api_route(PATH, endpoint, methods=["GET", "POST", "DELETE"], include_in_schema=False)
    router.add_api_route(METADATA_PATH, metadata, methods=["GET"], include_in_schema=False)
    return router.routes


class _Handed(Response):
    """An answer that the door gives: it reads the request and writes the response."""

    def __init__(self, door: McpDoor, caller: Identity) -> None:
        super().__init__()
        self._door = door
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the exchange over."""
        await self._door.handle(self._caller, scope, receive, send)


def _challenging(door: Callable[[], McpDoor]) -> type[DirectRoute]:
    """Routes whose 401 says where a client finds the issuer."""

    class Challenging(DirectRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def challenged(request: Request) -> Response:
                try:
                    return await handle(request)
                except AuthError as failure:
                    return _challenge(door().rules, request, failure)

            return challenged

    return Challenging


def _challenge(rules: DoorRules, request: Request, failure: AuthError) -> Response:
    challenge = "Bearer"
    if rules.issuer is not None:
        challenge = f'Bearer resource_metadata="{_address(rules, request)}{METADATA_PATH}"'
    body = dumps({"detail": failure.detail})
    return Response(body, failure.status, {"WWW-Authenticate": challenge}, "application/json")


def _address(rules: DoorRules, request: Request) -> str:
    """The address of this service, without a path: the configured one, or the one that the request was sent to."""
    if rules.public_url is not None:
        return rules.public_url
    host = request.headers.get("host", "")
    # It stands in a header of the answer.
    return f"{request.url.scheme}://{host if host and _AUTHORITY.issuperset(host) else 'localhost'}"


def _denial(code: Code, language: str | None) -> Response:
    headers = {"Retry-After": "2"} if CODES[code].retryable else {}
    body = {"detail": {"code": code.value, "message": message_for(code, language)}}
    return Response(dumps(body), CODES[code].status, headers, "application/json")


def _not_allowed(allowed: str) -> Response:
    return Response(status_code=405, headers={"Allow": allowed})


def _rpc_error(status: int, message: str, code: int = INVALID_REQUEST) -> Response:
    """An error as a client of MCP takes it: 404 makes it open another session."""
    error = JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))
    return Response(error.model_dump_json(by_alias=True), status, media_type="application/json")
