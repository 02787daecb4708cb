"""The service as a process: how it ends with turns running, how it starts and lives without Postgres."""

import asyncio
import gc
import re
import shutil
import signal
import socket as sockets
from collections import defaultdict

import psycopg
import pytest
import yaml
from websockets.exceptions import InvalidStatus

from tests.agentic_backend.records import until
from tests.support.agentic import start_process
from tests.support.held_model import held_model
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database, public_directory
from tests.support.processes import ForkedModule
from tests.support.service import BASE, configuration, hear, hear_until, merge, say
from turnwise.postgres import EmbeddedPostgres

__all__ = ["start_process"]

SLOW = "mock;ttft=600000"


def ask(session_id, message="Hello", **more):
    return {"type": "ask", "session_id": session_id, "agent_id": "Georges", "message": message, **more}


async def closed_with(socket):
    """The close code, once the server has closed the socket."""
    async with asyncio.timeout(PATIENCE_S):
        await socket.wait_closed()
    return socket.close_code


async def status(service, path):
    async with service.http.get(BASE + path) as response:
        return response.status, await response.json()


def stored(dsn):
    """The rows of history by session, ascending rank: (rank, role, text, metadata)."""
    rows = defaultdict(list)
    with psycopg.connect(dsn) as connection:
        query = "SELECT session_id, rank, role, parts_json, metadata_json FROM session_history ORDER BY rank"
        for session_id, rank, role, parts, metadata in connection.execute(query):
            rows[session_id].append((rank, role, parts[0]["text"], metadata))
    return rows


async def begin(service, sockets, sessions):
    """Ask on each socket and wait until each turn runs."""
    for number, (socket, session_id) in enumerate(zip(sockets, sessions, strict=True)):
        await say(socket, **ask(session_id, client_exchange_id=f"e{number}"))
    for socket in sockets:
        while (await hear(socket))["type"] not in {"message", "stream"}:
            pass


async def test_a_drain_lets_a_hundred_turns_end_and_loses_none(start_process, database):
    async with (
        held_model() as model,
        start_process(ai=model.ai, deadlines={"drain_s": 600}) as service,
        asyncio.TaskGroup() as group,
    ):
        sessions = [await service.create_session() for _ in range(100)]
        sockets = [await service.native() for _ in range(50)] + [await service.compatible() for _ in range(50)]
        idle = [await service.native() for _ in range(5)] + [await service.compatible() for _ in range(5)]
        heard = []

        async def rest_of(socket):
            end = (await hear_until(socket, "final"))[-1]
            heard.append("final")
            return end, await closed_with(socket)

        async def leaves(socket):
            code = await closed_with(socket)
            heard.append("idle")
            return code

        await begin(service, sockets, sessions)
        turns = [group.create_task(rest_of(socket)) for socket in sockets]
        leaving = [group.create_task(leaves(socket)) for socket in idle]
        service.process.send(signal.SIGTERM)

        await service.line("drain 1/5")
        with pytest.raises(InvalidStatus) as refusal:
            await service.native()
        assert refusal.value.response.status_code == 503
        assert int(refusal.value.response.headers["Retry-After"]) > 0
        assert (await status(service, "/ready"))[0] == 503
        assert (await status(service, "/ready"))[1]["status"] == "draining"
        assert await status(service, "/healthz") == (200, {"status": "ok"})

        assert {await task for task in leaving} == {1012}
        model.go.set()
        ends = [await task for task in turns]
        assert {code for _, code in ends} == {1012}
        assert heard == ["idle"] * 10 + ["final"] * 100
        assert await service.ended() == 0

    told = re.findall(r"drain (\d)/5: (.*)", service.process.output)
    assert [number for number, _ in told] == ["1", "2", "3", "4", "5"]
    assert told[1][1].startswith("10 idle sockets")
    assert told[2][1].endswith(", 0 of them cancelled at the deadline")
    assert told[3][1].endswith(", 0 of them cut")
    assert told[4][1].endswith(", 0 records left")
    rows = stored(database.dsn)
    assert set(rows) == set(sessions)
    for (final, _), session_id in zip(ends, sessions, strict=True):
        shown = [(m["rank"], m["role"], m["parts"][0]["text"], m["metadata"]) for m in final["messages"]]
        assert rows[session_id] == shown
        assert [row[:2] for row in shown] == [(0, "user"), (1, "assistant")]
        assert shown[1][2] == "one two three"


async def test_turns_beyond_the_drain_deadline_are_cancelled_and_kept_as_interrupted(start_process, database):
    async with start_process(SLOW, deadlines={"drain_s": 0.3}) as service:
        sessions = [await service.create_session() for _ in range(20)]
        native = [await service.native() for _ in range(10)]
        compatible = [await service.compatible() for _ in range(10)]
        await begin(service, native + compatible, sessions)
        service.process.send(signal.SIGTERM)
        for socket in native:
            end = (await hear_until(socket, "cancelled"))[-1]
            assert end["messages"][1]["metadata"]["finish_reason"] == "cancelled"
            assert await closed_with(socket) == 1012
        for socket in compatible:
            end = (await hear_until(socket, "final"))[-1]
            assert end["messages"][1]["metadata"]["finish_reason"] == "cancelled"
            assert await closed_with(socket) == 1012
        assert await service.ended() == 0
    assert "20 of them cancelled at the deadline" in service.process.output
    rows = stored(database.dsn)
    assert set(rows) == set(sessions)
    for turn in rows.values():
        assert [row[:2] for row in turn] == [(0, "user"), (1, "assistant")]
        assert turn[1][3]["extras"]["status"] == "interrupted"


async def test_after_a_restart_the_conversation_goes_on(start_process):
    async with start_process() as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id, "My name is Ada."))
            await hear_until(socket, "final")
        service.process.send(signal.SIGTERM)
        assert await service.ended() == 0
    async with start_process() as service:
        async with service.native() as socket:
            await say(socket, **ask(session_id, "What is my name?"))
            final = (await hear_until(socket, "final"))[-1]
        assert final["messages"][1]["parts"][0]["text"] == "Your name is Ada."
        messages = await service.history(session_id)
    assert [message["rank"] for message in messages] == [0, 1, 2, 3]


async def test_a_second_signal_ends_a_drain_at_once(start_process):
    # The web server tells of its own cancelled start-up task with a traceback.
    async with start_process(SLOW, deadlines={"drain_s": 120}, traceback_allowed=True) as service:
        session_id = await service.create_session()
        async with service.native() as socket:
            await begin(service, [socket], [session_id])
            service.process.send(signal.SIGTERM)
            await service.line("drain 2/5")
            service.process.send(signal.SIGTERM)
            assert await service.process.until(service.process.wait, PATIENCE_S) == 1
            await closed_with(socket)
    assert "drain 5/5" not in service.process.output


def test_a_taken_port_is_one_line_and_exit_code_2(database, mock_llm, tmp_path):
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "taken.yaml"
        file.write_text(yaml.safe_dump(merge(configuration("mock", database, mock_llm), {"app": {"port": port}})))
        with ForkedModule("agentic_backend", env={"CONFIG_FILE": str(file), "ENV_FILE": ""}) as process:
            assert process.wait() == 2
            (line,) = process.output.splitlines()
            assert line.endswith(f"cannot listen on 127.0.0.1:{port}: Address already in use")


@pytest.fixture
def own_postgres():
    """A Postgres of the test's own, prepared but not started."""
    directory = public_directory("turnwise-lifecycle-pg-")
    postgres = EmbeddedPostgres(directory, free_port())
    postgres.prepare()
    yield postgres
    postgres.stop()
    shutil.rmtree(directory)


def where(own_postgres):
    return {"postgres": Database(own_postgres.host, own_postgres.port, own_postgres.database, "postgres").settings()}


async def test_a_start_before_postgres_is_live_and_becomes_ready_with_it(start_process, own_postgres):
    async with start_process(storage=where(own_postgres), path="/healthz") as service:
        await service.line("Postgres at .* is not ready: sqlstate=None")
        code, body = await status(service, "/ready")
        assert (code, body["status"]) == (503, "starting")
        assert body["dependencies"]["postgres"]["status"] == "connecting"
        async with service.http.post(f"{BASE}/chatbot/session") as response:
            assert response.status == 503
            assert (await response.json())["detail"]["code"] == "history_unavailable"
        await asyncio.to_thread(own_postgres.start)
        await service.answers("/ready")
        session_id = await service.create_session()
        async with service.native() as socket:
            await say(socket, **ask(session_id))
            final = (await hear_until(socket, "final"))[-1]
        assert await service.history(session_id) == final["messages"]


@pytest.mark.one_instance("is about one process")
async def test_known_sessions_go_on_while_postgres_is_away(start_service, own_postgres):
    await asyncio.to_thread(own_postgres.start)
    async with start_service(storage=where(own_postgres)) as service:
        known, silent, idle = [await service.create_session() for _ in range(3)]
        async with service.native() as socket:
            await say(socket, **ask(known, "My name is Ada."))
            finals = [(await hear_until(socket, "final"))[-1]]
            assert await service.flush() == 0
            await asyncio.to_thread(own_postgres.stop)

            await say(socket, **ask(known, "What is my name?"))
            finals.append((await hear_until(socket, "final"))[-1])
            assert finals[1]["messages"][1]["parts"][0]["text"] == "Your name is Ada."
            # Its pending turn is at hand, what is stored is not: that is said, and nothing hangs.
            newest = await service.history(known, "?limit=2")
            assert newest == finals[1]["messages"]
            for path in (f"/chatbot/session/{known}/history", f"/chatbot/session/{idle}/history"):
                code, body = await status(service, path)
                assert (code, body["detail"]["code"]) == (503, "history_unavailable")
            await say(socket, **ask(silent))
            finals.append((await hear_until(socket, "final"))[-1])
            assert await service.history(silent) == finals[2]["messages"]
            code, body = await status(service, "/ready")
            assert (code, body["dependencies"]["postgres"]["status"]) == (200, "down")
            assert body["dependencies"]["postgres"]["pending_records"] == 2

            await asyncio.to_thread(own_postgres.start)
            assert (await service.service.running.persistence.batcher.flush(PATIENCE_S)).left == 0
            assert await service.history(known) == finals[0]["messages"] + finals[1]["messages"]
            code, body = await status(service, "/ready")
            assert body["dependencies"]["postgres"] == {"status": "up", "pending_records": 0}
    rows = stored(own_postgres.dsn)
    assert [row[0] for row in rows[known]] == [0, 1, 2, 3]
    assert [row[0] for row in rows[silent]] == [0, 1]
    assert idle not in rows


@pytest.mark.one_instance("is about one process")
async def test_an_instance_that_cannot_renew_takes_no_new_work_and_goes_on_with_its_turn(start_service, own_postgres):
    await asyncio.to_thread(own_postgres.start)
    many = {"persistence": {"replicas": "many"}}
    model = "mock;ttft=100;gap=200;tokens=60"
    async with start_service(model, storage=where(own_postgres), **many) as service, service.native() as socket:
        code, body = await status(service, "/ready")
        assert (code, body["dependencies"]["fleet"]["status"]) == (200, "up")
        session_id, idle = [await service.create_session() for _ in range(2)]
        await say(socket, **ask(session_id))
        await hear_until(socket, "delta")
        await asyncio.to_thread(own_postgres.stop)
        await until(lambda: not service.service.running.fleet.membership.valid)
        code, body = await status(service, "/ready")
        assert (code, body["status"], body["dependencies"]["fleet"]["status"]) == (503, "cut_off", "down")
        await say(socket, **ask(idle, "And now?", client_exchange_id="next"))
        while (refused := await hear(socket)).get("exchange_id") != "next":
            pass
        assert (refused["code"], refused["retryable"]) == ("history_unavailable", True)

        await asyncio.to_thread(own_postgres.start)
        again = await hear_until(socket, "restarted")
        assert again[-1]["seq"] % 1_000_000 == 1  # the first of another run
        final = (await hear_until(socket, "final"))[-1]
        assert (await status(service, "/ready"))[0] == 200
        assert await service.history(session_id) == final["messages"]


@pytest.mark.one_instance("is about one process")
async def test_two_services_in_one_process_share_nothing(start_service, postgres):
    elsewhere = {"postgres": {"database": postgres.database}}
    named = {"legacy_ms_names": True}
    async with (
        start_service("mock;tokens=3", metrics=named) as one,
        start_service("mock;tokens=4", metrics=named, storage=elsewhere) as other,
    ):
        finals = []
        for service in (one, other, other):
            session_id = await service.create_session()
            async with service.native() as socket:
                await say(socket, **ask(session_id, client_exchange_id=f"e{len(finals)}"))
                finals.append((await hear_until(socket, "final"))[-1])
        assert [len(final["messages"][1]["parts"][0]["text"].split()) for final in finals] == [3, 4, 4]
        registries = [service.service.running.chat.kpi.registry for service in (one, other)]
        counts = [registry.get_sample_value("chat_user_message_total") for registry in registries]
        assert counts == [1, 2]
        assert one.turns.find("e1", "admin") is None


@pytest.fixture
def thresholds():
    """Those of the garbage collection are as they were after the test."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.one_instance("is about one process")
@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize("freezes", [True, False])
async def test_memory_is_looked_after_where_start_up_is_out_of_collection(start_service, freezes):
    async with start_service(server={"gc_freeze": freezes}) as running:
        assert ("memory-release" in running.service.running.tasks.names) is freezes
