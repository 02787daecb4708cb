"""A server that the test plays by hand: the page's files, REST in memory, sockets on which the test says each event.

It is for what the page does when a server misbehaves: refusals, failures in mid-answer, broken connections, hostile
text. What a healthy service does is tested against the real one (test_chat_page).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from backend_kit.http import listen
from backend_kit.wire import dumps, loads
from tests.support.patience import PATIENCE_S

WEB = Path(__file__).parents[2] / "agentic_backend" / "web"
BASE = "/agentic/v1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' ws: wss:; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'"
)
GEORGES = {"id": "Georges", "name": "Georges", "enabled": True, "tuning": {"role": "Generalist", "description": ""}}
STAMP = "2026-03-01T10:00:00.000000Z"


class Peer:
    """One socket of the page, as the test sees it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.subprotocols: list[str] = list(websocket.scope["subprotocols"])

    async def listen(self) -> None:
        """Collect the page's frames until it goes."""
        try:
            while True:
                await self._heard.put(loads(await self._websocket.receive_text()))
        except WebSocketDisconnect:
            self.gone.set()

    async def heard(self, kind: str) -> dict[str, Any]:
        """The next frame, which is of this type: but for pings, which the page sends after a silence."""
        async with asyncio.timeout(PATIENCE_S):
            frame = await self._heard.get()
            while frame["type"] == "ping" != kind:
                frame = await self._heard.get()
        assert frame["type"] == kind, frame
        return frame

    async def say(self, **event: Any) -> None:
        """Send one event."""
        await self._websocket.send_text(dumps(event).decode())

    async def close(self, code: int) -> None:
        """Close from this side."""
        await self._websocket.close(code)


def session_of(session_id: str, title: str, next_rank: int) -> dict[str, Any]:
    """A SessionSchema, as REST and every event have it."""
    return {
        "id": session_id,
        "user_id": "admin",
        "agent_id": "Georges",
        "title": title,
        "updated_at": STAMP,
        "next_rank": next_rank,
        "preferences": {},
    }


class Told:
    """The server's side of one turn: numbers its events."""

    def __init__(self, peer: Peer, ask: dict[str, Any]) -> None:
        self.peer = peer
        self.ask = ask
        self.seq = 0
        self.head = {"session_id": ask["session_id"], "exchange_id": ask["client_exchange_id"]}

    async def say(self, kind: str, **fields: Any) -> None:
        """Send the next event of the turn."""
        self.seq += 1
        await self.peer.say(type=kind, **self.head, seq=self.seq, **fields)

    async def refuse(self, code: str, **fields: Any) -> None:
        """Refuse the ask: an error without a number."""
        await self.peer.say(type="error", **self.head, code=code, **fields)

    async def resumed(self, peer: Peer) -> int:
        """The next resume on a socket, which is of this turn: after which event. The turn goes on there."""
        frame = await peer.heard("resume")
        assert {key: frame[key] for key in self.head} == self.head
        self.peer = peer
        return int(frame["after_seq"])

    async def forgotten(self, peer: Peer) -> None:
        """The next resume on a socket, of which this service knows nothing."""
        await self.resumed(peer)
        await self.refuse("exchange_not_found", message="Exchange not found.", retryable=False)

    async def retell(self, peer: Peer, *messages: dict[str, Any]) -> None:
        """The next resume on a socket is answered from history, where the turn stands as stopped."""
        await self.resumed(peer)
        self.seq = 0
        await self.begin()
        await self.say("cancelled", messages=list(messages), session=session_of(self.head["session_id"], "", 2))

    def message(self, rank: int, role: str, text: str, **metadata: Any) -> dict[str, Any]:
        """A ChatMessage of this turn."""
        return {
            **self.head,
            "rank": rank,
            "timestamp": STAMP,
            "role": role,
            "channel": "final",
            "parts": [{"type": "text", "text": text}],
            "metadata": metadata,
        }

    def exchange(self, text: str, rank: int = 0, **metadata: Any) -> list[dict[str, Any]]:
        """Question and answer."""
        question = self.message(rank, "user", self.ask["message"])
        return [question, self.message(rank + 1, "assistant", text, **metadata)]

    async def begin(self, rank: int = 0) -> None:
        """Accept the ask and echo the question."""
        await self.say("accepted")
        await self.say("message", message=self.message(rank, "user", self.ask["message"]))

    async def delta(self, text: str, rank: int = 1) -> None:
        """Some of the answer."""
        await self.say("delta", rank=rank, channel="final", text=text)

    async def finish(self, text: str, ledger: list[dict[str, Any]] | None = None, **fields: Any) -> None:
        """Send `final`."""
        messages = self.exchange(text, model="mock")
        rest = {"unattributed_ms": 1.5, "durable": "none", "warnings": [], **fields}
        session = session_of(self.head["session_id"], self.ask["message"][:60], 2)
        await self.say("final", messages=messages, session=session, ledger=ledger or [], **rest)


class FakeServer:
    """What the test holds: `peers` gives each new socket, `sessions` and `stored` are what REST answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()
        self.agents = [GEORGES]
        self.sessions: dict[str, dict[str, Any]] = {}
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self.deleted: list[str] = []
        self.broken: Response | None = None
        self.requests: list[str] = []

    async def peer(self) -> Peer:
        """The next socket that the page opens."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.peers.get()

    async def told(self, peer: Peer) -> Told:
        """The next ask on a socket."""
        return Told(peer, await peer.heard("ask"))

    def add_session(self, session_id: str, title: str, messages: list[dict[str, Any]] | None = None) -> None:
        """A session as if it had been there."""
        self.sessions[session_id] = session_of(session_id, title, len(messages or []))
        self.stored[session_id] = messages or []

    def app(self) -> Starlette:
        """The routes that the page uses."""
        routes = [
            Route(f"{BASE}/config/frontend_settings", self._settings),
            Route(f"{BASE}/config/permissions", self._permissions),
            Route(f"{BASE}/agents", self._agents),
            Route(f"{BASE}/chatbot/sessions", self._list),
            Route(f"{BASE}/chatbot/session", self._create, methods=["POST"]),
            Route(f"{BASE}/chatbot/session/{{id}}", self._delete, methods=["DELETE"]),
            Route(f"{BASE}/chatbot/session/{{id}}/history", self._history),
            WebSocketRoute(f"{BASE}/chatbot/query/ws", self._socket),
            Route("/", self._page),
            Mount("/web", StaticFiles(directory=WEB)),
        ]
        return Starlette(routes=routes)

    async def _page(self, _request: Request) -> Response:
        return FileResponse(WEB / "index.html", headers={"Content-Security-Policy": POLICY})

    async def _settings(self, _request: Request) -> Response:
        user_auth = {"enabled": False, "realm_url": None, "client_id": None}
        return JSONResponse({"user_auth": user_auth, "limits": {"max_attached_file_size_mb": 50}})

    async def _permissions(self, _request: Request) -> Response:
        return JSONResponse([])

    async def _agents(self, _request: Request) -> Response:
        return JSONResponse(self.agents)

    async def _list(self, _request: Request) -> Response:
        return self.broken or JSONResponse(list(self.sessions.values()))

    async def _create(self, _request: Request) -> Response:
        if self.broken is not None:
            return self.broken
        session_id = f"session-{len(self.sessions):03d}"
        self.add_session(session_id, "")
        return JSONResponse(self.sessions[session_id])

    async def _delete(self, request: Request) -> Response:
        self.deleted.append(request.path_params["id"])
        del self.sessions[request.path_params["id"]]
        return JSONResponse(True)

    async def _history(self, request: Request) -> Response:
        if self.broken is not None:
            return self.broken
        if request.path_params["id"] not in self.sessions:
            return JSONResponse({"detail": {"code": "session_not_found", "message": "Session not found."}}, 403)
        self.requests.append(str(request.url))
        messages = self.stored[request.path_params["id"]]
        end = len(messages) - int(request.query_params["offset"])
        return JSONResponse(messages[max(0, end - int(request.query_params["limit"])) : max(0, end)])

    async def _socket(self, websocket: WebSocket) -> None:
        await websocket.accept(subprotocol="turnwise.v1")
        peer = Peer(websocket)
        await self.peers.put(peer)
        await peer.listen()


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    """Serve on a free port until the block ends; sockets that are open then are closed."""
    sock = listen("127.0.0.1", 0)
    fake = FakeServer(sock.getsockname()[1])
    config = uvicorn.Config(fake.app(), ws="websockets-sansio", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        # _serve is serve() without signal handlers: those are the test run's.
        group.create_task(server._serve([sock]))
        try:
            yield fake
        finally:
            server.should_exit = True
