"""The agentic service: one case for each key of config/agentic/configuration_bench.yaml."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import aiohttp
import psycopg
import pytest
from websockets.exceptions import ConnectionClosed

from agentic_backend.app import Parts
from backend_kit.kpi.core import LEGACY_GAUGES
from tests.agentic_backend.records import until
from tests.support.agentic import StartProcess
from tests.support.following import ask_frame
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.service import BASE, RunningService, StartService, hear_until, say
from tests.switches.cases import keys_of, lines, missing, seen_in, sees
from tests.switches.watched_model import WatchedModel

pytestmark = pytest.mark.servers

FILE: Final = "config/agentic/configuration_bench.yaml"
CHANNELS: Final = "tests/integration/test_channels.py"
MODEL: Final = "ai.default_chat_model"
TIMEOUT: Final = f"{MODEL}.settings.timeout"
LIMITS: Final = f"{MODEL}.settings.http_client_limits"
ELSEWHERE: Final = {
    "security.user.enabled": "tests/integration/test_authority.py::test_each_route_wants_a_token_or_is_on_the_list",
    "security.authorized_origins": "tests/integration/test_origins.py"
    "::test_an_authorized_page_makes_a_session_asks_and_reads_its_history",
    "ai.knowledge_flow_url": "tests/integration/test_rico.py"
    "::test_a_native_turn_has_sources_before_text_and_citations_at_its_end",
    "ai.max_concurrent_sessions_per_user": "tests/integration/test_limits.py"
    "::test_of_a_hundred_sessions_asked_for_at_once_the_last_place_has_one_winner",
    "ai.use_static_config_only": "tests/integration/test_configuration_routes.py"
    "::test_agents_come_from_the_configuration",
    f"{MODEL}.provider": "tests/integration/test_wires.py::test_what_a_model_does_is_seen_alike_on_each_wire",
    "mcp.servers": "tests/integration/test_sammy_configuration.py::test_a_person_decides_whether_a_note_is_changed",
    "storage.postgres.host": "tests/integration/test_lifecycle.py"
    "::test_a_start_before_postgres_is_live_and_becomes_ready_with_it",
    "storage.postgres.port": "tests/integration/test_lifecycle.py"
    "::test_a_start_before_postgres_is_live_and_becomes_ready_with_it",
    "storage.postgres.database": "tests/integration/test_lifecycle.py::test_two_services_in_one_process_share_nothing",
    "storage.postgres.pool_size": f"{CHANNELS}::test_what_storage_stands_against",
    "storage.postgres.max_overflow": f"{CHANNELS}::test_what_storage_stands_against",
    "storage.postgres.pool_timeout": f"{CHANNELS}::test_what_storage_stands_against",
    "limits.max_sockets": f"{CHANNELS}::test_what_is_turned_away_at_the_door",
    "limits.per_address.sockets": f"{CHANNELS}::test_what_is_turned_away_at_the_door",
    "limits.per_user.sockets": f"{CHANNELS}::test_one_socket_too_many_of_a_user",
    "limits.max_turns": f"{CHANNELS}::test_what_is_over_a_limit",
    "limits.per_user.turns": f"{CHANNELS}::test_what_is_over_a_limit",
    "limits.per_user.asks_per_min": f"{CHANNELS}::test_what_is_over_a_limit",
    "limits.per_user.burst": f"{CHANNELS}::test_what_is_over_a_limit",
}
"""Keys whose effect tests of their subject see, and where."""


def test_every_key_has_a_case_and_no_case_is_of_none() -> None:
    seen = [*seen_in(sys.modules[__name__]), *ELSEWHERE]
    assert sorted(seen) == sorted(keys_of(FILE))
    assert missing(ELSEWHERE) == []


def calling(model: WatchedModel, **settings: Any) -> dict[str, Any]:
    """The `ai` of a service that asks this model."""
    return {"default_chat_model": {"name": "m", "settings": {"base_url": model.base_url, **settings}}}


@asynccontextmanager
async def asking(service: RunningService, agent_id: str = "Georges") -> AsyncIterator["asyncio.Task[dict[str, Any]]"]:
    """A turn of a session of its own: its terminal frame."""
    session_id = await service.create_session(agent_id=agent_id)
    async with service.native() as native, asyncio.TaskGroup() as group:

        async def heard() -> dict[str, Any]:
            await say(native, **ask_frame(session_id, session_id, agent_id=agent_id))
            return (await hear_until(native, "final", "error"))[-1]

        yield group.create_task(heard())


async def end_of(service: RunningService, agent_id: str = "Georges") -> str:
    """How a turn ends: its code, or `final`."""
    async with asking(service, agent_id) as turn:
        frame = await turn
    return str(frame.get("code", frame["type"]))


@sees("app.base_url", "app.address", "app.port")
async def test_the_service_is_where_the_configuration_says(start_process: StartProcess) -> None:
    app = {"address": "127.0.0.2", "base_url": "/elsewhere/v2"}
    async with start_process(app=app, path=None) as service:
        url = f"http://127.0.0.2:{service.port}/elsewhere/v2/healthz"
        await service.process.until(service.process.wait_for_http, url)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.2:{service.port}{BASE}/healthz") as response:
                assert response.status == 404
            with pytest.raises(aiohttp.ClientConnectorError):
                await http.get(url.replace("127.0.0.2", "127.0.0.1"))


@sees(
    "app.log_level",
    "app.metrics_enabled",
    "app.metrics_address",
    "app.metrics_port",
    "app.kpi_process_metrics_interval_sec",
    "metrics.legacy_ms_names",
)
async def test_what_is_measured_and_where_it_is_shown(
    start_service: StartService, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    app = {
        "log_level": "error",
        "metrics_enabled": True,
        "metrics_address": "127.0.0.2",
        "metrics_port": port,
        "kpi_log_summary_interval_sec": 3600,
        "kpi_process_metrics_interval_sec": 0.05,
    }
    said = ""

    def three_process_lines() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said, "cpu_pct=")) >= 3

    async with start_service(app=app, metrics={"legacy_ms_names": False}) as service:
        await end_of(service)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.2:{port}/metrics") as response:
            exposed = await response.text()
        await until(three_process_lines)
        assert lines(said, "timer") == []
    assert "app_phase_latency_seconds" in exposed
    assert "app_phase_latency_ms" not in exposed
    said += capsys.readouterr().err
    assert lines(said, "timer")
    assert all(" WARNING turnwise.kpi " in line for line in lines(said, ""))


@sees("app.name", "app.kpi_log_summary_interval_sec", "app.kpi_log_summary_top_n")
async def test_summaries_come_as_often_and_are_as_long_as_configured(
    start_service: StartService, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    app = {
        "name": "Another name",
        "metrics_enabled": True,
        "metrics_port": port,
        "kpi_log_summary_interval_sec": 0.1,
        "kpi_log_summary_top_n": 1,
        "kpi_process_metrics_interval_sec": 0,
    }
    said = ""

    def three_summaries() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return len(lines(said, "gauge event_loop_lag_ms ")) >= 3

    async with start_service(app=app, metrics={"legacy_ms_names": True}) as service:
        await end_of(service)
        await until(three_summaries)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
            assert 'service="Another name"' in await response.text()
    assert lines(said, "cpu_pct=") == []
    of_one = said.split("gauge event_loop_lag_ms ")[1]
    others = [line for line in lines(of_one, "gauge") if line.split()[6] not in LEGACY_GAUGES]
    assert len(others) <= 1


@sees("security.allow_query_token")
async def test_a_token_in_the_query_counts_only_where_it_may(start_service: StartService) -> None:
    async with start_service(security={"allow_query_token": False}) as service:
        async with service.compatible("?token=local", token=None) as refused:
            with pytest.raises(ConnectionClosed):
                await refused.recv()
            assert refused.close_code == 4401
        async with service.compatible("?token=local") as taken:
            await (await taken.ping())


@sees(
    f"{MODEL}.name",
    f"{MODEL}.settings.base_url",
    f"{MODEL}.settings.temperature",
    "ai.restore_max_exchanges",
    "ai.agents[].id",
    "ai.agents[].name",
    "ai.agents[].class_path",
    "ai.agents[].tuning.role",
    "ai.agents[].tuning.description",
    *(f"ai.agents[].tuning.fields[].{name}" for name in ("key", "type", "title", "default", "min", "max")),
    *(
        f"ai.agents[].chat_options.{name}"
        for name in (
            "search_policy_selection",
            "libraries_selection",
            "documents_selection",
            "search_rag_scoping",
            "include_corpus_in_search",
            "attach_files",
        )
    ),
)
async def test_an_agent_is_what_its_entry_says_to_clients_and_to_its_model(
    start_service: StartService, model: WatchedModel
) -> None:
    prompt = {"key": "prompts.system", "type": "text", "title": "What it is", "default": "You are a parrot."}
    number = {"key": "rag.history_max_messages", "type": "integer", "title": "N", "default": 4, "min": 1, "max": 9}
    options = dict.fromkeys(
        (
            "search_policy_selection",
            "libraries_selection",
            "documents_selection",
            "search_rag_scoping",
            "include_corpus_in_search",
            "attach_files",
        ),
        True,
    )
    entry = {
        "id": "parrot",
        "name": "Polly",
        "class_path": "agentic_backend.agent.rag",
        "tuning": {"role": "Parrot", "description": "Repeats.", "fields": [prompt, number]},
        "chat_options": options,
    }
    ai = {**calling(model, temperature=0.7), "restore_max_exchanges": 1, "agents": [entry]}
    async with start_service(ai=ai) as service, service.native() as native:
        (shown,) = await service.get("/agents")
        fields = shown["tuning"]["fields"]
        assert {key: shown[key] for key in ("id", "name", "class_path")} == {
            key: entry[key] for key in ("id", "name", "class_path")
        }
        assert {key: shown["tuning"][key] for key in ("role", "description")} == {
            "role": "Parrot",
            "description": "Repeats.",
        }
        assert [{key: one[key] for key in given} for one, given in zip(fields, (prompt, number), strict=True)] == [
            prompt,
            number,
        ]
        assert {key: shown["chat_options"][key] for key in options} == options
        session_id = await service.create_session(agent_id="parrot")
        for number_of in ("one", "two", "three"):
            context = {"search_rag_scope": "general_only"}
            frame = ask_frame(session_id, number_of, number_of, agent_id="parrot", runtime_context=context)
            await say(native, **frame)
            await hear_until(native, "final")
    last = model.asked[-1]
    assert (last["model"], last["temperature"]) == ("m", 0.7)
    system, *rest = [message["content"] for message in last["messages"]]
    assert system.startswith("You are a parrot.")
    assert rest == ["two", "Hello", "three"]


@sees("ai.max_concurrent_agents")
async def test_so_many_compiled_graphs_are_kept(start_service: StartService) -> None:
    agents = [{"name": name, "class_path": "agentic_backend.agent.plain"} for name in ("one", "two")]
    misses: list[float] = []
    for most in (1, 2):
        async with start_service(
            ai={"agents": agents, "max_concurrent_agents": most}, metrics={"legacy_ms_names": True}
        ) as service:
            for name in ("one", "two"):
                await end_of(service, name)
            before = service.sample("agent_cache_miss_total")
            for name in ("one", "two"):
                await end_of(service, name)
            misses.append(service.sample("agent_cache_miss_total") - before)
    assert misses[0] >= 2
    assert misses[1] == 0


@sees("ai.recursion.recursion_limit")
async def test_a_graph_takes_so_many_steps(start_service: StartService) -> None:
    ai = {
        "agents": [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}],
        "knowledge_flow_url": f"http://127.0.0.1:{free_port()}",
    }
    ends = []
    for steps in (1, 10):
        async with start_service(ai={**ai, "recursion": {"recursion_limit": steps}}) as service:
            ends.append(await end_of(service, "Rico"))
    assert ends == ["internal", "final"]


@sees(f"{MODEL}.settings.max_retries")
@pytest.mark.parametrize(("retries", "end"), [(3, "final"), (2, "llm_unavailable")])
async def test_a_model_is_asked_again_so_often(
    start_service: StartService, model: WatchedModel, retries: int, end: str
) -> None:
    model.refusals = 3
    async with start_service(ai=calling(model, max_retries=retries)) as service:
        assert await end_of(service) == end
    assert len(model.asked) == retries + 1


@sees(f"{TIMEOUT}.read")
async def test_a_stream_is_silent_no_longer_than_a_read_may_take(
    start_service: StartService, model: WatchedModel
) -> None:
    model.let_go.clear()
    async with start_service(ai=calling(model, timeout={"read": 0.3})) as service:
        assert await end_of(service) == "llm_timeout"
    assert len(model.asked) == 1


@sees(f"{TIMEOUT}.connect")
async def test_a_connection_takes_no_longer_than_it_may(
    start_service: StartService, model: WatchedModel, dead_end: str
) -> None:
    ai = calling(model, base_url=dead_end, max_retries=0, timeout={"connect": 0.2})
    async with start_service(ai=ai) as service:
        assert await end_of(service) == "llm_unavailable"


@sees(f"{TIMEOUT}.write")
async def test_a_model_that_takes_nothing_ends_a_turn(start_service: StartService, model: WatchedModel) -> None:
    prompt = {"key": "prompts.system", "default": "x" * (16 << 20)}
    agent = {"name": "Long", "class_path": "agentic_backend.agent.plain", "tuning": {"fields": [prompt]}}
    done = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined] # nothing else leaves a body where it is
        await done.wait()
        writer.transport.abort()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ai = {**calling(model, base_url=url, max_retries=0, timeout={"write": 0.2}), "agents": [agent]}
        async with start_service(ai=ai) as service:
            assert await end_of(service, "Long") == "llm_timeout"
        done.set()


@sees(f"{TIMEOUT}.pool", f"{LIMITS}.max_connections")
async def test_who_finds_no_free_connection_waits_so_long(start_service: StartService, model: WatchedModel) -> None:
    model.let_go.clear()
    limits = {"max_connections": 1}
    ai = calling(model, max_retries=0, timeout={"pool": 0.2}, http_client_limits=limits)
    async with start_service(ai=ai) as service, asking(service) as first:
        await model.until_asked(1)
        assert await end_of(service) == "llm_unavailable"
        model.let_go.set()
        assert (await first)["type"] == "final"
    assert len(model.seen) == 1


@sees(f"{LIMITS}.max_keepalive_connections")
async def test_so_many_idle_connections_are_kept(start_service: StartService, model: WatchedModel) -> None:
    model.let_go.clear()
    async with (
        start_service(ai=calling(model, http_client_limits={"max_keepalive_connections": 2})) as service,
        AsyncExitStack() as stack,
    ):
        turns = [await stack.enter_async_context(asking(service)) for _ in range(4)]
        await model.until_asked(4)
        assert model.open == 4
        model.let_go.set()
        for turn in turns:
            assert (await turn)["type"] == "final"
        await until(lambda: model.open <= 2)
        assert await end_of(service) == "final"
        assert (model.open, len(model.seen)) == (2, 4)


@sees(f"{LIMITS}.keepalive_expiry_seconds")
async def test_an_idle_connection_is_kept_so_long(start_service: StartService, model: WatchedModel) -> None:
    async with start_service(ai=calling(model, http_client_limits={"keepalive_expiry_seconds": 0.2})) as service:
        assert await end_of(service) == "final"
        await until(lambda: model.open == 0)


@sees("ai.timeout.connect", "ai.timeout.read")
@pytest.mark.parametrize("bound", ["connect", "read"])
async def test_knowledge_flow_has_so_long(start_service: StartService, dead_end: str, bound: str) -> None:
    ai = {"agents": [{"name": "Rico", "class_path": "agentic_backend.agent.rag"}], "timeout": {bound: 0.2}}
    parts = Parts(knowledge_s=PATIENCE_S * 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = dead_end if bound == "connect" else f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with (
            start_service(ai={**ai, "knowledge_flow_url": url}, parts=parts) as service,
            asking(service, "Rico") as turn,
        ):
            assert (await turn)["warnings"] == ["answered_without_documents"]


async def users_of(database: Database) -> Sequence[str]:
    """The roles that are connected to a database, but for who asks."""
    query = (
        "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        return [str(row[0]) for row in await (await connection.execute(query)).fetchall()]


@sees("storage.postgres.username")
async def test_the_service_is_known_to_postgres_by_its_role(start_service: StartService, database: Database) -> None:
    async with await psycopg.AsyncConnection.connect(database.dsn, autocommit=True) as connection:
        await connection.execute("CREATE ROLE turnwise_switches LOGIN SUPERUSER")
        try:
            async with start_service(storage={"postgres": {"username": "turnwise_switches"}}) as service:
                await service.history(await service.create_session())
                assert "turnwise_switches" in await users_of(database)
        finally:
            await connection.execute("DROP ROLE turnwise_switches")


@sees("storage.postgres.pool_recycle")
async def test_a_connection_grows_no_older_than_it_may(start_service: StartService) -> None:
    opened: list[float] = []
    for age_s in (0, 3600):
        async with start_service(storage={"postgres": {"pool_recycle": age_s}}) as service:
            pool = service.service.running.persistence.database.main
            session_id = await service.create_session()
            await service.history(session_id)
            before = pool.stats().opened
            for _ in range(3):
                await service.history(session_id)
            opened.append(pool.stats().opened - before)
    assert opened[0] >= 3
    assert opened[1] <= 1


@sees("persistence.ack")
@pytest.mark.parametrize("ack", ["none", "db"])
async def test_final_says_what_it_waited_for(start_service: StartService, ack: str) -> None:
    async with start_service(persistence={"ack": ack}) as service, asking(service) as turn:
        assert (await turn)["durable"] == ack
