"""Several workers of one service: one port, a turn followed at any of them, a worker that is killed, an orderly end."""

import asyncio
import json
import signal
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import psycopg
import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.typing import Origin, Subprotocol

from tests.agentic_backend.records import until
from tests.support.agentic import ServiceProcess, StartProcess, start_process
from tests.support.fleet import cut_off, heard_end, listening, proxied, stored
from tests.support.following import ask_frame, heard, over_socket, resume_frame, transcript
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.postgres import Database
from tests.support.service import BASE, NATIVE, PATIENT_CLIENT, ServiceClient

__all__ = ["start_process"]

pytestmark = pytest.mark.servers

SLOW = "mock;tokens=40;gap=25"
NOWHERE = "http://192.0.2.1:9"
"""The address of every worker to others: they reach one another by their sockets, or not at all."""


class Workers:
    """The workers of a service, each reached by its own socket."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        parent = psutil.Process(service.process.pid)
        command = parent.children()[0].cmdline()
        self.directory = Path(command[command.index("--siblings") + 1])

    @property
    def sockets(self) -> list[Path]:
        return sorted(self.directory.glob("*.sock"))

    async def ready(self, count: int) -> list[Path]:
        """Their sockets, once so many are ready."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                ready = [path for path in self.sockets if await _is_ready(path)]
                if len(ready) == count:
                    return ready
                await asyncio.sleep(0.1)

    def at(self, path: Path) -> "AtWorker":
        """A client of one of them."""
        return AtWorker(port=self.service.port, http=self.service.http, path=path)

    def process_of(self, path: Path) -> psutil.Process:
        """Who listens there."""
        for child in psutil.Process(self.service.process.pid).children():
            if path.stem in {Path(str(one.laddr)).stem for one in child.net_connections("unix")}:
                return child
        raise AssertionError(f"nobody listens at {path}")


async def _is_ready(path: Path) -> bool:
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http,
            http.get(f"http://worker{BASE}/ready") as response,
        ):
            return response.status == 200
    except aiohttp.ClientError:
        return False


@dataclass(slots=True, kw_only=True)
class AtWorker(ServiceClient):
    """A client whose chat sockets lead to one worker."""

    path: Path

    def native(self, token: str = "local") -> connect:
        """See the parent."""
        protocols, origin = [NATIVE, Subprotocol(f"bearer.{token}")], Origin("http://localhost")
        uri = f"ws://localhost{BASE}/chatbot/query/ws"
        return unix_connect(str(self.path), uri, subprotocols=protocols, origin=origin, **PATIENT_CLIENT)


async def test_a_turn_is_followed_at_any_worker_and_all_end_in_order(start_process: StartProcess) -> None:
    async with start_process(
        SLOW,
        app={"workers": 2, "metrics_enabled": True},
        fleet={"url": NOWHERE},
    ) as service:
        workers = Workers(service)
        one, other = await workers.ready(2)
        # The same ask at both: it runs at one of them, and the other one follows.
        ask = ask_frame(await service.create_session(), "e")
        told = await asyncio.gather(*(heard(over_socket(workers.at(path), ask)) for path in (one, other)))
        assert transcript(told[0]) == transcript(told[1])
        assert json.loads(told[0][-1])["type"] == "final"
        for port in (service.metrics_port, service.metrics_port + 1):
            await until_instances(port, 2)
        processes = psutil.Process(service.process.pid).children()
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0
        assert service.process.output.count("drain 5/5") == 2
        assert not [process for process in processes if process.is_running()]
        assert not workers.directory.exists()


async def test_the_turn_of_a_killed_worker_goes_on_at_another_and_the_worker_comes_back(
    start_process: StartProcess, database: Database
) -> None:
    async with start_process(SLOW, app={"workers": 2}, fleet={"url": NOWHERE}) as service:
        workers = Workers(service)
        one, other = await workers.ready(2)
        session = await service.create_session()
        async with listening(workers.at(one), ask_frame(session, "e")) as asked:
            await asked.until("delta")
            async with listening(workers.at(other), resume_frame(session, "e")) as kept:
                await kept.until("delta")
                workers.process_of(one).kill()
                await kept.until("restarted")
                assert (await kept.end())["type"] == "final"
        assert await service.line(r"worker \d ended by itself with code -9")
        await until(lambda: stored(database, session) == [(0, "e", "user"), (1, "e", "assistant")])
        again = await workers.ready(2)
        assert one not in again
        assert other in again


async def test_a_sibling_writes_what_a_worker_left_that_does_not_come_back(
    start_process: StartProcess, database: Database, tmp_path: Path
) -> None:
    spools = tmp_path / "spools"
    kept = {"ack": "spool", "replicas": "many"}
    async with held_model(begins="Well, ") as model, proxied(database) as (proxy, through):
        async with start_process(
            ai=model.ai, storage=through, persistence={**kept, "spool_dir": str(spools / "worker-1")}
        ) as lost:
            session = await lost.create_session()
            async with listening(lost, ask_frame(session, "e1")) as client:
                await client.until("delta")
                async with cut_off(proxy):
                    model.go.set()
                    answer = await client.end()
                    assert answer["durable"] == "spool"
                    lost.process.kill()
                    await lost.process.until(lost.process.wait)
        assert stored(database, session) == []
        # A start with fewer workers: nobody has that spool any more.
        async with start_process(ai=model.ai, persistence={**kept, "spool_dir": str(spools)}) as service:
            await until(lambda: stored(database, session) == [(0, "e1", "user"), (1, "e1", "assistant")])
            assert await service.history(session) == answer["messages"]
            await until(lambda: dead_instances(database) == 0)
            assert (await heard_end(service, ask_frame(session, "e2")))["messages"][0]["rank"] == 2


def dead_instances(database: Database) -> int:
    """How many there are of which only their spool knows whether they have turns. Blocks."""
    query = "SELECT count(*) FROM instance WHERE keeps_spool AND heartbeat_at < now() - interval '5 s'"
    with psycopg.connect(database.dsn) as connection:
        ((count,),) = connection.execute(query)
        return int(count)


async def until_instances(metrics_port: int, count: int) -> None:
    """Return once a worker counts so many of them."""
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession(f"http://127.0.0.1:{metrics_port}") as http:
        said = ""
        while f"\napp_fleet_instances {count}.0\n" not in said:
            async with http.get("/metrics") as response:
                said = await response.text()
            await asyncio.sleep(0.1)
