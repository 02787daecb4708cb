"""The agentic service in the test's own process: its real app on a real port, real Postgres, the shipped mock model."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from agentic_backend.app import AgenticService, Parts
from agentic_backend.persist.persistence import Persistence, PersistenceRules
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.stream import Turn
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.spooldir import SpoolLock, SpoolTaken
from backend_kit.http import ServeSettings, listen
from tests.support.mock_llm import MockModel
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.rest import rest_client
from tests.support.schema import validate_compatible, validate_native
from tests.support.silent_server import SilentServer, silent_server

BASE = "/agentic/v1"
NATIVE = Subprotocol("turnwise.v1")
PATIENT_CLIENT: dict[str, Any] = {"compression": None, "open_timeout": PATIENCE_S, "ping_interval": None}
"""A client that does not mind how long the service takes: it shares the machine with it."""
_PATIENT_S = 600
"""Longer than any test: what a deadline does is asked only where a test sets its own."""
WAITS_FOR_THE_DISK = Parts(persistence=partial(Persistence, rules=PersistenceRules(spool_s=PATIENCE_S)))
"""A `final` is what the spool has taken, however long that lasts."""


@dataclass(slots=True, kw_only=True)
class ServiceClient:
    """What a client of a started service does."""

    port: int
    http: aiohttp.ClientSession

    @property
    def ws_url(self) -> str:
        """Where chat sockets are."""
        return f"ws://127.0.0.1:{self.port}{BASE}/chatbot/query/ws"

    async def create_session(self, title: str | None = "A title", agent_id: str = "Georges") -> str:
        """Make a session over REST; its id."""
        body = {"agent_id": agent_id} | ({} if title is None else {"title": title})
        async with self.http.post(f"{BASE}/chatbot/session", json=body) as response:
            assert response.status == 200, await response.text()
            return str((await response.json())["id"])

    async def get(self, path: str) -> Any:
        """GET below the base path; the decoded body of a 200."""
        async with self.http.get(BASE + path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def history(self, session_id: str, query: str = "") -> list[dict[str, Any]]:
        """The session's messages."""
        messages: list[dict[str, Any]] = await self.get(f"/chatbot/session/{session_id}/history{query}")
        return messages

    def native(self, token: str = "local") -> connect:
        """A socket in the native protocol."""
        protocols = [NATIVE, Subprotocol(f"bearer.{token}")]
        origin = f"http://127.0.0.1:{self.port}"
        return connect(self.ws_url, subprotocols=protocols, origin=origin, **PATIENT_CLIENT)  # type: ignore[arg-type]

    def compatible(self, path: str = "", token: str | None = "local") -> connect:
        """A socket in the compatible protocol."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return connect(self.ws_url + path, additional_headers=headers, **PATIENT_CLIENT)


@dataclass(slots=True, kw_only=True)
class RunningService(ServiceClient):
    """A service that was started in the test's own process: one instance, or several behind a balancer, which is what
    `port` and `http` lead to then (`tests/support/behind.py`)."""

    instances: tuple[AgenticService, ...]

    @property
    def service(self) -> AgenticService:
        """The only instance. A test that asks for it carries the mark `one_instance`."""
        (only,) = self.instances
        return only

    @property
    def turns(self) -> TurnRegistry:
        """The turns of the only instance."""
        return self.service.running.registry

    def turn(self, exchange_id: str, user_id: str = "admin") -> Turn | None:
        """The user's turn at the instance that runs or remembers it, so that a test can wait for the end of one that
        nobody follows."""
        found = (each.running.registry.runs(exchange_id, user_id) for each in self.instances)
        return next((turn for turn in found if turn is not None), None)

    @property
    def running_turns(self) -> int:
        """How many turns run, or hold a place."""
        return sum(each.running.admission.running for each in self.instances)

    def sample(self, name: str, **labels: str) -> float:
        """What a metric says of all instances together; 0 where it says nothing."""
        return sum(each._registry.get_sample_value(name, labels) or 0.0 for each in self.instances)

    async def wait_empty(self) -> int:
        """Return once nobody has a socket or a stream open; how many had to be cut."""
        return sum([await each.running.hub.wait_empty(PATIENCE_S) for each in self.instances])

    async def flush(self) -> int:
        """Return once Postgres has everything that was acknowledged; how much it could not be given."""
        return sum([await each.running.persistence.flush(PATIENCE_S) for each in self.instances])


def hits(service: RunningService, limit: str) -> float:
    """`app_limit_hits_total` of one limit."""
    return service.sample("app_limit_hits_total", limit=limit)


async def say(socket: ClientConnection, **frame: Any) -> None:
    """Send one frame."""
    await socket.send(json.dumps(frame))


async def hear_raw(socket: ClientConnection) -> str:
    """The text of the next frame."""
    async with asyncio.timeout(PATIENCE_S):
        return await socket.recv(decode=True)


async def hear(socket: ClientConnection) -> dict[str, Any]:
    """The next frame, valid by the published schema of its protocol."""
    frame: dict[str, Any] = json.loads(await hear_raw(socket))
    (validate_native if socket.subprotocol == NATIVE else validate_compatible)(frame)
    return frame


async def hear_until(socket: ClientConnection, *types: str) -> list[dict[str, Any]]:
    """The frames up to and with the first of one of the types. Another terminal frame fails the test."""
    heard = [await hear(socket)]
    while heard[-1]["type"] not in types:
        assert heard[-1]["type"] not in {"final", "error", "cancelled"}, heard[-1]
        heard.append(await hear(socket))
    return heard


StartService = Callable[..., AbstractAsyncContextManager[RunningService]]


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, key by key."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def free_spool(place: Path) -> str:
    """A spool directory that nobody has: the same one again once its owner has ended."""
    for number in itertools.count():
        directory = place / f"spool-{number}"
        try:
            SpoolLock(directory).release()
        except SpoolTaken:
            continue
        return str(directory)
    raise AssertionError("there is always a next one")


def configuration(model: str, database: Database, mock_llm: MockModel) -> dict[str, Any]:
    """The least that a service needs, as a configuration file says it, but for a spool. Its ports are none."""
    return {
        "app": {"port": 1, "metrics_port": 1, "metrics_enabled": False, "kpi_log_summary_interval_sec": 0},
        "security": {"user": {"enabled": False}, "allow_query_token": True},
        "ai": {
            "default_chat_model": {"name": model, "settings": {"base_url": mock_llm.base_url}},
            "agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}],
        },
        "storage": {"postgres": {**database.settings(), "pool_timeout": _PATIENT_S}},
        "deadlines": {
            "first_token_s": _PATIENT_S,
            "inter_token_s": _PATIENT_S,
            "send_s": _PATIENT_S,
            "heartbeat_s": _PATIENT_S,
            "drain_s": 5,
        },
        "server": {"ping_timeout_s": _PATIENT_S},
        "mcp": {"discover_s": _PATIENT_S, "call_s": _PATIENT_S},
    }


@asynccontextmanager
async def serving(
    settings: Sequence[AgenticSettings], sockets: Sequence[socket.socket], parts: Parts | None = None
) -> AsyncIterator[tuple[AgenticService, ...]]:
    """Serve an instance for each of the settings, on its socket, until the block ends; then drain and close them."""
    # Their routes take long to make on a busy machine: that is not what the detector of blocked loops looks for.
    made = [await asyncio.to_thread(AgenticService, each, parts=parts) for each in settings]
    servers = [_server(each, of) for each, of in zip(made, settings, strict=True)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(server.serve(sockets=[sock])) for server, sock in zip(servers, sockets, strict=True)]
        try:
            for sock, task in zip(sockets, tasks, strict=True):
                await _wait_ready(sock.getsockname()[1], task)
            yield tuple(made)
        finally:
            # Before the group cancels it: a server that is cancelled never ends its lifespan.
            for server in servers:
                server.stop()
            await asyncio.wait(tasks, timeout=PATIENCE_S)


def client_of(port: int) -> aiohttp.ClientSession:
    """Who asks over REST."""
    return rest_client(f"http://127.0.0.1:{port}", headers={"Authorization": "Bearer local"})


@asynccontextmanager
async def run_service(settings: AgenticSettings, parts: Parts | None = None) -> AsyncIterator[RunningService]:
    """One instance, until the block ends."""
    sock = listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    async with serving([settings], [sock], parts) as instances, client_of(port) as http:
        yield RunningService(instances=instances, port=port, http=http)


def for_tests(
    model: str, database: Database, mock_llm: MockModel, place: Path, changes: dict[str, Any]
) -> dict[str, Any]:
    """The configuration of an instance in the test's process, with the changes that the test makes."""
    own = {"server": {"gc_freeze": False}, "persistence": {"spool_dir": free_spool(place)}}
    return merge(merge(configuration(model, database, mock_llm), own), changes)


@pytest.fixture
def start_service(database: Database, mock_llm: MockModel, tmp_path: Path) -> StartService:
    """Start a service on the test's database: `async with start_service(model="mock;gap=20", limits={…})`.

    With `parts` some of what it is made of is the test's.
    """

    def start(
        model: str = "mock", *, parts: Parts | None = None, **changes: Any
    ) -> AbstractAsyncContextManager[RunningService]:
        settings = for_tests(model, database, mock_llm, tmp_path, changes)
        return run_service(AgenticSettings.model_validate(settings), parts)

    return start


@pytest.fixture
async def service(start_service: StartService) -> AsyncIterator[RunningService]:
    """A service with the defaults."""
    async with start_service() as running:
        yield running


def _server(service: AgenticService, settings: AgenticSettings) -> SilentServer:
    limits = ServeSettings(
        ws_max_size=settings.limits.max_frame_bytes,
        ws_ping_interval_s=settings.server.ping_interval_s,
        ws_ping_timeout_s=settings.server.ping_timeout_s,
        ws_deflate=settings.server.ws_per_message_deflate,
        connections=settings.connections,
        loop="none",
    )
    return silent_server(service.app, service.drain, limits)


async def _wait_ready(port: int, serving: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(PATIENCE_S), client_of(port) as http:
        while not serving.done():
            async with http.get(f"{BASE}/ready") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)
