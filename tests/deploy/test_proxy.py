"""The files for HAProxy and nginx: what they say of times, and what both do in front of real instances."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from agentic_backend.persist.persistence import PersistenceRules
from agentic_backend.settings import Deadlines, Doors, Limits, Server
from backend_kit.settings import ConnectionBounds
from tests.agentic_backend.llm.scripted import DONE, SSE_HEAD, Write, finish, scripted, token
from tests.support.agentic import ServiceProcess, StartProcess
from tests.support.balancers import FILES, KINDS, SILENCE, TRUSTED, Balancer, Kind, adapted, balanced
from tests.support.fleet import MANY, heard_final
from tests.support.patience import PATIENCE_S
from tests.support.people import SECURITY, token_of
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.programs import system_program
from tests.support.rest import rest_client
from tests.support.service import BASE, NATIVE, PATIENT_CLIENT, ServiceClient, hear, hear_until, merge, say

both = pytest.mark.parametrize("kind", KINDS)
USUAL_PORTS = (8001, 8002, 8003)
FASTER = 12
"""How many times as often the service and the balancers hear of each other where a test waits for that."""


@asynccontextmanager
async def client_of(balancer: Balancer, token: str = "local") -> AsyncIterator[ServiceClient]:
    url = f"http://127.0.0.1:{balancer.port}"
    async with rest_client(url, headers={"Authorization": f"Bearer {token}"}) as http:
        yield ServiceClient(port=balancer.port, http=http)


@asynccontextmanager
async def three_behind(
    kind: Kind, start_process: StartProcess, place: Path, *, by_user: bool = False, **sections: Any
) -> AsyncIterator[tuple[list[ServiceProcess], Balancer]]:
    """Three instances and a balancer before them."""
    async with AsyncExitStack() as stack:
        settings = merge({**MANY, **TRUSTED}, sections)
        instances = [await stack.enter_async_context(start_process(**settings)) for _ in USUAL_PORTS]
        ports = [instance.port for instance in instances]
        yield instances, await stack.enter_async_context(balanced(kind, ports, place / kind, by_user=by_user))


def ask(session_id: str, exchange_id: str = "e1") -> dict[str, Any]:
    return {
        "type": "ask",
        "session_id": session_id,
        "agent_id": "Georges",
        "message": "Hello",
        "client_exchange_id": exchange_id,
    }


def socket_from(address: str, balancer: Balancer, **headers: str) -> connect:
    """A socket from an address of loopback."""
    sent = {"Authorization": "Bearer local", **headers}
    url = f"ws://127.0.0.1:{balancer.port}{BASE}/chatbot/query/ws"
    return connect(url, subprotocols=[NATIVE], additional_headers=sent, local_addr=(address, 0), **PATIENT_CLIENT)


async def answer_to_endless(port: int, framing: bytes, piece: bytes) -> bytes:
    """What a client gets that sends 64 pieces, and reads meanwhile: aiohttp's gives up at the end that is behind it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %b/chatbot/session HTTP/1.1\r\nHost: x\r\n%b\r\n" % (BASE.encode(), framing))
    writer.write(b"Authorization: Bearer local\r\nContent-Type: application/json\r\n\r\n")

    async def send() -> None:
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(piece)
                await writer.drain()

    sending = asyncio.create_task(send())
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = re.findall(rb"(?i)^content-length: (\d+)\r$", head, re.MULTILINE)
        body = await reader.readexactly(int(length))
    sending.cancel()
    writer.transport.abort()
    await asyncio.wait([sending])
    return head + body


def port_of_holder(database: Database, session_id: str) -> int:
    """The port of the instance that has the session's lease. Blocks."""
    query = "SELECT url FROM instance JOIN session_lease ON instance.id = holder WHERE session_id = %s"
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute(query, (session_id,)).fetchone()
    assert row is not None
    return int(row[0].rpartition(":")[2])


async def holder(instances: list[ServiceProcess], database: Database, session_id: str) -> ServiceProcess:
    port = await asyncio.to_thread(port_of_holder, database, session_id)
    return next(instance for instance in instances if instance.port == port)


def silences(kind: Kind) -> dict[str, set[int]]:
    found = defaultdict(set)
    for match in SILENCE.finditer(FILES[kind].read_text()):
        found[match["name"]].add(int(match["s"]))
    return dict(found)


def test_a_file_gives_nobody_up_whom_the_service_does_not() -> None:
    server, deadlines, limits, rules = Server(), Deadlines(), Limits(), PersistenceRules()
    socket = server.ping_interval_s + server.ping_timeout_s
    stream = 2 * deadlines.heartbeat_s
    plain = deadlines.turn_s + limits.queue_deadline_s + rules.many_ack_s
    haproxy, nginx = silences("haproxy"), silences("nginx")
    assert min(haproxy["timeout tunnel"]) > socket
    assert min(haproxy["timeout server"]) > stream
    assert max(haproxy["timeout server"]) > plain
    assert min(nginx["proxy_read_timeout"]) > max(socket, stream)
    assert max(nginx["proxy_read_timeout"]) > plain
    takes = {*haproxy["timeout client"], *nginx["proxy_send_timeout"], *nginx["send_timeout"]}
    assert min(takes) > max(socket, ConnectionBounds().body_window_s, ConnectionBounds().answer_s)


def test_a_file_says_of_the_service_what_its_defaults_are() -> None:
    server, deadlines, bounds = Server(), Deadlines(), ConnectionBounds()
    for kind in KINDS:
        text = " ".join(FILES[kind].read_text().replace("\n", " ").replace("#", " ").split())
        for said in (
            f"deadlines.turn_s {deadlines.turn_s:g} s, after a queue of {Limits().queue_deadline_s:g} s",
            f"every {deadlines.heartbeat_s:g} s (deadlines.heartbeat_s)",
            f"heard every {server.ping_interval_s:g} s",
            f"after {server.ping_interval_s + server.ping_timeout_s:g} s",
            f"after {bounds.idle_s} s (connections.idle_s)",
            f"{bounds.head_s:g}s",
        ):
            assert said in text, (kind, said)
    assert f"expire {Doors().mcp_session_idle_s / 60:g}m" in FILES["haproxy"].read_text()


@pytest.mark.proxies
@both
@pytest.mark.parametrize("by_user", [False, True], ids=["any", "by user"])
def test_the_program_accepts_its_file(kind: Kind, by_user: bool, tmp_path: Path) -> None:
    file = FILES[kind]
    if by_user or os.geteuid() != 0:  # as it is only root may use it: a user, a log and a pid file
        file = tmp_path / file.name
        file.write_text(adapted(kind, tmp_path, free_port(), USUAL_PORTS, by_user=by_user, faster=1, per_address=500))
    program = system_program(kind)
    assert program is not None
    options = {"haproxy": ["-c", "-f"], "nginx": ["-e", "stderr", "-t", "-c"]}[kind]
    done = subprocess.run([program, *options, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"[WARNING]", "[warn]"} & set((done.stdout + done.stderr).split()), done.stderr


@pytest.mark.proxies
@both
async def test_what_is_silent_for_longer_than_a_balancer_waits_goes_on(
    kind: Kind, start_process: StartProcess, tmp_path: Path
) -> None:
    """A socket and an event stream whose turn says nothing, and an answer in one piece."""
    server = {"ping_interval_s": Server().ping_interval_s / FASTER}
    deadlines = {"heartbeat_s": Deadlines().heartbeat_s / FASTER}
    silent = "mock;ttft=8000;tokens=3"
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        instance = await start(start_process(silent, server=server, deadlines=deadlines, **MANY, **TRUSTED))
        balancer = await start(balanced(kind, [instance.port] * 3, tmp_path / kind, faster=FASTER))
        client = await start(client_of(balancer))
        assert max(min(every) for every in silences(kind).values()) / FASTER < 8

        async def stream() -> str:
            session_id = await client.create_session()
            async with client.http.post(f"{BASE}/chatbot/query/stream", json=ask(session_id, "e2")) as answer:
                return await answer.text()

        async def plain() -> Any:
            body = {"model": "Georges", "messages": [{"role": "user", "content": "Hello"}]}
            async with client.http.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        async with asyncio.TaskGroup() as group:
            streamed, whole = group.create_task(stream()), group.create_task(plain())
            await heard_final(client, ask(await client.create_session()))
        assert ": heartbeat" in streamed.result()
        assert "event: final" in streamed.result()
        assert whole.result()["choices"][0]["message"]["content"]


@pytest.mark.proxies
@both
async def test_events_pass_as_they_come(kind: Kind, start_process: StartProcess, tmp_path: Path) -> None:
    """The next word is only said once the one before has arrived."""
    heard = asyncio.Semaphore(0)

    async def answer(write: Write) -> None:
        await write(SSE_HEAD)
        for word in ("one", " two", " three"):
            await write(token(word))
            await heard.acquire()
        await write(finish())
        await write(DONE)

    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        model = await start(scripted(answer))
        ai = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        instance = await start(start_process(ai=ai, **MANY, **TRUSTED))
        balancer = await start(balanced(kind, [instance.port] * 3, tmp_path / kind))
        client = await start(client_of(balancer))
        said = ""
        body = {"model": "Georges", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
        async with asyncio.timeout(PATIENCE_S), client.http.post("/v1/chat/completions", json=body) as stream:
            async for line in stream.content:
                if line.startswith(b"data: {"):
                    (choice,) = json.loads(line.removeprefix(b"data: "))["choices"] or [{"delta": {}}]
                    if word := choice["delta"].get("content"):
                        said += word
                        heard.release()
        assert said == "one two three"


@pytest.mark.proxies
@both
async def test_a_client_counts_by_its_own_address_whatever_it_says_of_it(
    kind: Kind, start_process: StartProcess, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        instance = await start(start_process(limits={"per_address": {"sockets": 1}}, **MANY, **TRUSTED))
        balancer = await start(balanced(kind, [instance.port] * 3, tmp_path / kind))
        await start(socket_from("127.0.0.2", balancer))
        await start(socket_from("127.0.0.3", balancer))
        for headers in ({}, {"X-Forwarded-For": "10.0.0.1"}, {"X-Forwarded-For": "10.0.0.1, 127.0.0.1"}):
            with pytest.raises(InvalidStatus) as refused:
                await start(socket_from("127.0.0.2", balancer, **headers))
            assert refused.value.response.status_code == 429


@pytest.mark.proxies
@both
async def test_one_address_cannot_take_all_connections(kind: Kind, start_process: StartProcess, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        instance = await start(start_process(**MANY, **TRUSTED))
        balancer = await start(balanced(kind, [instance.port] * 3, tmp_path / kind, per_address=2))
        for _ in range(2):
            await start(socket_from("127.0.0.2", balancer))
        # HAProxy refuses by closing the connection, with or without a reset before the request was read.
        with pytest.raises((InvalidStatus, InvalidMessage, OSError)):
            await start(socket_from("127.0.0.2", balancer))
        await start(socket_from("127.0.0.3", balancer))


@pytest.mark.proxies
@both
async def test_an_instance_that_drains_ends_its_turn_and_gets_nothing_new(
    kind: Kind, start_process: StartProcess, database: Database, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def answer(write: Write) -> None:
        await write(SSE_HEAD)
        await go.wait()
        for piece in (token("one"), finish(), DONE):
            await write(piece)

    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        model = await start(scripted(answer))
        ai = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        instances, balancer = await start(
            three_behind(kind, start_process, tmp_path, ai=ai, deadlines={"drain_s": PATIENCE_S})
        )
        client = await start(client_of(balancer))
        session_id = await client.create_session()
        running = await start(client.native())
        await say(running, **ask(session_id))
        await hear_until(running, "accepted")
        leaving = await holder(instances, database, session_id)
        leaving.process.send(signal.SIGTERM)
        await leaving.line("drain 2/5")

        for _ in range(9):
            socket = await start(client.native())
            await say(socket, type="ping")
            assert (await hear(socket))["type"] == "pong"
        if kind == "haproxy":  # it has asked
            await until_logged(balancer, f"any/{name_of(leaving, instances)} is DOWN")
        for _ in range(9):
            await client.create_session()

        go.set()
        await hear_until(running, "final")
        with pytest.raises(ConnectionClosed) as closed:
            await hear(running)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert await leaving.ended() == 0
        await heard_final(client, ask(session_id, "e2"))


@pytest.mark.proxies
@both
async def test_what_comes_after_an_instance_was_killed_is_served_by_another(
    kind: Kind, start_process: StartProcess, tmp_path: Path
) -> None:
    async with (
        three_behind(kind, start_process, tmp_path) as (instances, balancer),
        client_of(balancer) as client,
    ):
        instances[0].process.kill()
        for _ in range(6):
            session_id = await client.create_session()
            assert await client.history(session_id) == []
            await heard_final(client, ask(session_id, session_id))


@pytest.mark.proxies
@both
async def test_a_post_is_not_sent_again_when_its_instance_dies(
    kind: Kind, start_process: StartProcess, database: Database, tmp_path: Path
) -> None:
    """One that was would be answered by another instance, once the model answers: nobody would hear of the end."""
    called = asyncio.Event()

    async def answer(write: Write) -> None:
        called.set()
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        model = await start(scripted(answer))
        ai = {"default_chat_model": {"name": "scripted", "settings": {"base_url": model.base_url}}}
        instances, balancer = await start(three_behind(kind, start_process, tmp_path, ai=ai))
        client = await start(client_of(balancer))

        async def post() -> int:
            body = {"model": "Georges", "messages": [{"role": "user", "content": "Hello"}]}
            kept = {"X-Turnwise-Session": "s1"}
            async with client.http.post("/v1/chat/completions", json=body, headers=kept) as refusal:
                return refusal.status

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            posting = group.create_task(post())
            await called.wait()
            (session,) = await client.get("/chatbot/sessions")
            (await holder(instances, database, session["id"])).process.kill()
        assert posting.result() == 502
        assert len(model.requests) == 1


@pytest.mark.proxies
@both
async def test_what_is_too_large_is_refused_by_the_service_in_its_own_words(
    kind: Kind, start_process: StartProcess, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        instance = await start(start_process(**MANY, **TRUSTED))
        balancer = await start(balanced(kind, [instance.port] * 3, tmp_path / kind))
        client = await start(client_of(balancer))
        piece = b" " * 65536
        whole = (b"Content-Length: 4194304", piece)
        in_chunks = (b"Transfer-Encoding: chunked", b"10000\r\n%b\r\n" % piece)
        for framing, sent in (whole, in_chunks):
            refusal = await answer_to_endless(balancer.port, framing, sent)
            assert refusal.startswith(b"HTTP/1.1 413 ")
            assert json.loads(refusal.partition(b"\r\n\r\n")[2])["detail"]["code"] == "too_large"
        headers = {"Authorization": f"Bearer {'t' * 8192}"}
        async with client.http.get(f"{BASE}/chatbot/sessions", headers=headers) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.proxies
@both
async def test_a_user_stays_at_one_instance_where_they_are_balanced_by_user(
    kind: Kind, start_process: StartProcess, database: Database, tmp_path: Path
) -> None:
    """Through sockets, whose holder of the session's lease says where they lead."""
    async with three_behind(kind, start_process, tmp_path, by_user=True, security=SECURITY) as (_, balancer):

        async def where(name: str) -> set[int]:
            token, found = token_of(name), set()
            async with client_of(balancer, token) as client:
                for number, socket in enumerate(
                    (client.native(token), client.compatible(token=token), client.compatible(f"?token={token}", None))
                ):
                    session_id = await client.create_session()
                    async with socket as opened:
                        if opened.subprotocol == NATIVE:
                            await say(opened, **ask(session_id, f"{name}{number}"))
                        else:
                            await say(opened, session_id=session_id, agent_id="Georges", message="Hello")
                        await hear_until(opened, "final")
                    found.add(await asyncio.to_thread(port_of_holder, database, session_id))
            return found

        async with AsyncExitStack() as others:
            # In an empty fleet HAProxy takes a second connection of one user for twice an instance's share.
            for number in range(12):
                token = token_of(f"other-{number}")
                idle = await others.enter_async_context(client_of(balancer, token))
                await others.enter_async_context(idle.native(token))
            places = [await where(f"user-{number}") for number in range(8)]
        assert {len(found) for found in places} == {1}
        assert len(set.union(*places)) > 1


@pytest.mark.proxies
async def test_haproxy_finds_a_user_behind_each_new_token_and_each_name(
    start_process: StartProcess, tmp_path: Path
) -> None:
    """By its log, which names the instance."""
    async with three_behind("haproxy", start_process, tmp_path, by_user=True) as (_, balancer):

        async def where(**headers: str) -> str:
            before = balancer.log.read_text()
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{balancer.port}{BASE}/chatbot/sessions", headers=headers) as answer,
            ):
                await answer.read()
            logged = await until_logged(balancer, f"{BASE}/chatbot/sessions", after=len(before))
            return next(name for name in ("one", "two", "three") if f"by_user/{name}" in logged)

        seen = set()
        for number in range(12):
            first = token_of(f"user-{number}")
            place = await where(Authorization=f"Bearer {first}")
            seen.add(place)
            again = token_of(f"user-{number}", life_s=1234)
            assert again != first
            assert await where(Authorization=f"bearer {again}") == place
            assert await where(**{"x-api-key": again}) == place
        assert len(seen) > 1
        named = {await where(Authorization="Bearer tw_a_b", **{"X-OpenWebUI-User-Id": f"{n}"}) for n in range(12)}
        assert len(named) > 1


@pytest.mark.proxies
async def test_where_no_instance_is_ready_haproxy_lets_the_service_say_why(
    start_process: StartProcess, tmp_path: Path
) -> None:
    nowhere = {"postgres": {"port": free_port()}}
    async with AsyncExitStack() as stack:
        start = stack.enter_async_context
        instance = await start(start_process(storage=nowhere, path="/healthz", **MANY, **TRUSTED))
        balancer = await start(balanced("haproxy", [instance.port] * 3, tmp_path))
        client = await start(client_of(balancer))
        for name in ("one", "two", "three"):
            await until_logged(balancer, f"any/{name} is DOWN")
        async with client.http.get(f"{BASE}/ready") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "starting")


async def until_logged(balancer: Balancer, words: str, after: int = 0) -> str:
    """What the balancer has logged after so many characters, once it has these words."""
    async with asyncio.timeout(PATIENCE_S):
        while words not in (log := balancer.log.read_text()[after:]):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.02)
    return log


def name_of(instance: ServiceProcess, instances: list[ServiceProcess]) -> str:
    return ("one", "two", "three")[instances.index(instance)]
