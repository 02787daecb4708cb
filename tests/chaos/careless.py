"""A careless client of both services: it shows its tokens where they belong, and wherever else one might put them."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from backend_kit.wire import dumps
from tests.chaos.deployment import Stage
from tests.chaos.ledger import Asked
from tests.chaos.load import BASE, CUT, ask_text, hear

KF_BASE = "/knowledge-flow/v1"
QUESTION = "Where is the bird that sings?"
DOCUMENT = "# Birds\n\nThe bird that sings is in the tree behind the house.\n"
MARKS = (
    *("rest", "query", "header", "subprotocol", "ask", "refresh", "context", "auth", "unknown-key", "broken"),
    *("documents", "kf-header", "kf-query", "kf-body", "kf-form"),
)
"""The places at which a token is shown, each with a token of its own."""
_REQUEST_S = aiohttp.ClientTimeout(total=5)


@dataclass(slots=True)
class Careless:
    """What came back is kept: frames, and bodies of REST, those of errors apart. Faults are borne."""

    scene: Stage
    tokens: Mapping[str, str]
    knowledge_port: int
    frames: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)

    async def show_everything(self) -> None:
        """Every token once at its place; the refresh token at several."""
        await self._show_native()
        await self._show_compatible()
        await self._show_agentic_rest()
        await self._show_knowledge_flow()

    async def give_away(self, token: str) -> None:
        """Ask the agent that tells everybody the token of whoever asks."""
        await self._say(self._dial(token), (ask_text(self._asked("leak"), agent="leak"),))

    async def _show_native(self) -> None:
        tokens = self.tokens
        native = connect(
            self._url,
            subprotocols=[Subprotocol("turnwise.v1"), Subprotocol(f"bearer.{tokens['subprotocol']}")],
            origin=f"http://127.0.0.1:{self.scene.service.address.port}",  # type: ignore[arg-type]
        )
        texts = (
            dumps({"type": "auth", "access_token": tokens["auth"]}).decode(),
            dumps({"type": "auth", "access_token": tokens["refresh"]}).decode(),
            ask_text(self._asked("unknown-key"), access_token=tokens["unknown-key"], refresh_token=tokens["refresh"]),
            ask_text(self._asked("native"), if_busy="queue"),
        )
        await self._say(native, texts)
        # Through to knowledge flow.
        await self._say(self._dial(tokens["documents"]), (ask_text(self._asked("documents"), agent="Rico"),))

    async def _show_compatible(self) -> None:
        tokens = self.tokens
        context = {"access_token": tokens["context"], "refresh_token": tokens["refresh"]}
        shown = {"access_token": tokens["ask"], "refresh_token": tokens["refresh"], "runtime_context": context}
        for dial in (connect(f"{self._url}?token={tokens['query']}"), self._dial(tokens["header"])):
            await self._say(dial, (ask_text(self._asked("compatible"), **shown),))
        await self._say(self._dial(tokens["header"]), ('{"access_token":"' + tokens["broken"] + '"',))
        await self._say(self._dial(tokens["refresh"]), ())

    async def _show_agentic_rest(self) -> None:
        address = self.scene.service.address
        refresh, session_id = self.tokens["refresh"], self.scene.crowd.sessions[0]
        body = {"title": "T", "agent_id": "Georges", "access_token": self.tokens["rest"], "refresh_token": refresh}
        own = address.headers | {"X-Refresh-Token": refresh, "Cookie": f"refresh_token={refresh}"}
        await self._request("POST", f"{address.url}/chatbot/session", headers=own, json=body)
        for path in ("/chatbot/sessions", "/agents", "/ready", f"/chatbot/session/{session_id}/history"):
            await self._request("GET", f"{address.url}{path}?refresh_token={refresh}", headers=own)
        for path in ("/chatbot/session/AAAAAAAAAAA/history", f"/chatbot/session/{session_id}/history?offset=x"):
            await self._request("GET", address.url + path, headers=own)
        for bad in (refresh, f"{address.token}x"):
            await self._request("GET", f"{address.url}/chatbot/sessions", headers={"Authorization": f"Bearer {bad}"})

    async def _show_knowledge_flow(self) -> None:
        tokens, url = self.tokens, f"http://127.0.0.1:{self.knowledge_port}{KF_BASE}"
        own = {"Authorization": f"Bearer {tokens['kf-header']}", "X-Refresh-Token": tokens["refresh"]}
        form = aiohttp.FormData()
        form.add_field("files", DOCUMENT.encode(), filename=f"birds-{time.monotonic_ns()}.md")
        form.add_field("metadata_json", json.dumps({"tags": [], "access_token": tokens["kf-form"]}))
        form.add_field("access_token", tokens["kf-form"])
        await self._request("POST", f"{url}/upload-process-documents", headers=own, data=form)
        search = {"question": QUESTION, "access_token": tokens["kf-body"], "refresh_token": tokens["refresh"]}
        await self._request("POST", f"{url}/vector/search", headers=own, json=search)
        await self._request("POST", f"{url}/vector/search", headers=own, json=search | {"top_k": tokens["kf-body"]})
        await self._request("GET", f"{url}/tags?token={tokens['kf-query']}&refresh_token={tokens['refresh']}")
        await self._request("GET", f"{url}/documents/metadata/unknown?token={tokens['kf-query']}", headers=own)
        await self._request("GET", f"{url}/tags", headers={"Authorization": f"Bearer {tokens['refresh']}"})

    @property
    def _url(self) -> str:
        return f"ws://127.0.0.1:{self.scene.service.address.port}{BASE}/chatbot/query/ws"

    def _dial(self, token: str) -> connect:
        return connect(self._url, additional_headers={"Authorization": f"Bearer {token}"})

    def _asked(self, mark: str) -> Asked:
        exchange_id = f"{mark}-{time.monotonic_ns()}"
        return self.scene.ledger.ask(exchange_id, self.scene.crowd.sessions[0], QUESTION)

    async def _request(self, method: str, url: str, **more: object) -> None:
        try:
            async with self.scene.http.request(method, url, timeout=_REQUEST_S, **more) as response:  # type: ignore[arg-type]
                (self.bodies if response.status < 400 else self.errors).append(await response.read())
        except (aiohttp.ClientError, TimeoutError):
            return

    async def _say(self, dial: connect, texts: tuple[str, ...]) -> None:
        """Send frames and take what comes until the last of them has ended, within 3 s: faults run."""
        try:
            async with dial as socket:
                for text in texts:
                    await socket.send(text)
                async with asyncio.timeout(3):
                    await self._ends(socket)
        except CUT:
            return

    async def _ends(self, socket: ClientConnection) -> None:
        while (frame := await hear(socket, self.frames.append))["type"] not in ("final", "cancelled"):
            if frame["type"] == "error" and frame.get("code") not in ("bad_request", "unauthenticated"):
                return
