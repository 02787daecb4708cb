"""Requests of an instance on another host to a worker here, by the address that all workers of this host share."""

from collections.abc import Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere
from agentic_backend.peers.relay import HEADERS
from agentic_backend.peers.siblings import Siblings
from backend_kit.auth import bearer_of


class Forwarder:
    """Forwards a request to the sibling whose token it carries."""

    def __init__(self, siblings: Siblings, peers: Peers) -> None:
        self._siblings = siblings
        self._peers = peers

    def answer(self, request: Request) -> Response | None:
        """The response, None if the token belongs to no worker here."""
        token = bearer_of(request.scope["headers"])
        if token is None or self._siblings.find(token) is None:
            return None
        return _Forwarded(self._peers, token, request.url.path, dict(request.query_params))


class _Forwarded(Response):
    """Passes an answer on as it comes, its empty lines included: a client that has gone is noticed by the next one."""

    def __init__(self, peers: Peers, token: str, path: str, query: Mapping[str, str]) -> None:
        super().__init__()
        self._peers = peers
        self._token = token
        self._path = path
        self._query = dict(query)
        self._gone = self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        state = scope["state"]
        state["on_gone"](self._leave)
        try:
            await self._pass_on(send)
        except (TurnNotThere, PeerLost):
            if self._begun:
                state["abort"]()  # it has no end here: followers look again for the instance that has it
            else:
                await Response(status_code=404)(scope, receive, send)
        finally:
            state["on_gone"](None)

    async def _pass_on(self, send: Send) -> None:
        async with aclosing(self._peers.pass_on(self._token, self._path, self._query)) as parts:
            async for part in parts:
                if self._gone:
                    return
                await self._send(send, part)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        if not self._begun:
            self._begun = True
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": more})

    def _leave(self) -> None:
        self._gone = True
