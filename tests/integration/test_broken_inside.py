"""docs/trust.md#E12: services at DEBUG whose tables have gone, so that every route fails inside: nothing of it is
told."""

import asyncio
import json
import re
from contextlib import asynccontextmanager

import aiohttp
import psycopg
import yaml
from psycopg import sql

from backend_kit.wire.codes import Code
from tests.integration.test_authority import filled
from tests.support.agentic import CLEAN, start_process
from tests.support.odd_agent import odd
from tests.support.people import SECRET, headers_of, token_of
from tests.support.ports import free_port
from tests.support.postgres import new_database
from tests.support.processes import ForkedModule
from tests.support.service import hear, say

__all__ = ["start_process"]

KEYS = {"OPENAI_API_KEY": "canary-key-81", "FRED_POSTGRES_PASSWORD": "canary-password-82", "TEST_SECRET": SECRET}
GUARDED = {"user": {"enabled": True}, "hs256_secret_env": "TEST_SECRET"}
INSIDE = re.compile(
    r"Traceback|File \\?\"|\.py\b|site-packages|[A-Z]\w+(?:Error|Exception)\b|in the agent|/work/|/tmp/"
    r"|(?i:psycopg|sqlalchemy|pydantic|langgraph|select |insert into|relation|undefined|column|127\.0\.0\.1|localhost)"
)
"""Words of a stack, of SQL, of classes, of hosts and of paths."""
IDS = {"rating": 1, "messageId": "1", "agentName": "Georges", "question": "Why?", "title": "T", "name": "T"}


def break_tables(dsn):
    """Rename every table: each statement now fails as one of ours that is wrong."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
        tables = connection.execute(query).fetchall()
        for schema, table in tables:
            connection.execute(
                sql.SQL("ALTER TABLE {} RENAME TO {}").format(
                    sql.Identifier(schema, table), sql.Identifier(f"{table}_x")
                )
            )
    assert tables


async def failures(url, ids):
    """Status and body of every operation that fails with a 5xx."""
    found = []
    async with aiohttp.ClientSession(headers=headers_of("ann")) as http:
        async with http.get(f"{url}/openapi.json") as response:
            paths = (await response.json())["paths"]
        for path, methods in paths.items():
            for method in methods:
                body = {} if method in ("get", "delete") else {"json": {**IDS, **ids, "sessionId": ids["session_id"]}}
                async with http.request(method, url + filled(path, ids), **body) as response:
                    if response.status >= 500 and not path.endswith("/ready"):
                        found.append((f"{method} {path}", response.status, await response.text()))
    return found


def assert_nothing_told(found, least):
    assert len(found) >= least
    for where, status, text in found:
        assert INSIDE.search(text) is None, (where, text)
        assert not any(value in text for value in KEYS.values()), where
        code = re.search(r'"code":\s*"(\w+)"', text)
        assert code is not None, (where, text)
        assert (code[1] in set(Code), status in (500, 502, 503)) == (True, True), (where, text)


async def ends(socket, **ask):
    """How an ask ends: its last frame, as it came."""
    await say(socket, type="ask", message="Hello", **ask)
    while True:
        frame = await hear(socket)
        if frame["type"] in ("final", "error"):
            return frame


async def test_the_agentic_service_tells_nothing_of_what_failed_inside(start_process, database):
    ai = {"agents": [{"name": "Georges", "class_path": "agentic_backend.agent.plain"}, odd("raise")]}
    security = GUARDED | {"allow_query_token": True}
    async with start_process(
        app={"log_level": "debug"}, security=security, ai=ai, env=KEYS, token=token_of("ann"), traceback_allowed=True
    ) as service:
        session_id = await service.create_session()
        async with service.native(token_of("ann")) as native, service.compatible(token=token_of("ann")) as compatible:
            said = [
                await ends(native, session_id=session_id, agent_id="raise"),
                await ends(compatible, session_id=session_id, agent_id="raise"),
            ]
            await asyncio.to_thread(break_tables, database.dsn)
            # Nobody's session: its owner has to be read.
            said.append(await ends(native, session_id="AAAAAAAAAAA", agent_id="Georges"))
        assert [frame.get("code") for frame in said] == ["internal", None, "history_unavailable"]
        assert said[1]["messages"][-1]["metadata"]["extras"]["error"] == "internal"
        found = await failures(f"http://127.0.0.1:{service.port}", {"session_id": session_id})
        assert_nothing_told(found, 5)
        assert [text for text in map(json.dumps, said) if INSIDE.search(text)] == []
        await service.line("ZeroDivisionError")
        assert " DEBUG " in service.process.output
        assert not any(value in service.process.output for value in (*KEYS.values(), token_of("ann").split(".")[2]))


@asynccontextmanager
async def knowledge_flow(database, mock_llm, directory):
    """Knowledge flow at DEBUG as a process; its base URL, and the process."""
    port = free_port()
    model = {"provider": "openai", "name": "mock", "settings": {"base_url": mock_llm.base_url}}
    settings = {
        "app": {"port": port, "metrics_enabled": False, "kpi_log_summary_interval_sec": 0, "log_level": "debug"},
        "security": GUARDED,
        "embedding_model": model,
        "storage": {"postgres": database.settings()},
        "deadlines": {"drain_s": 5},
    }
    file = directory / "knowledge-flow.yaml"
    file.write_text(yaml.safe_dump(settings))
    environment = {"CONFIG_FILE": str(file), **CLEAN, **KEYS}
    with ForkedModule("knowledge_flow_backend", env=environment, traceback_allowed=True) as process:
        try:
            await process.until(process.wait_for_http, f"http://127.0.0.1:{port}/knowledge-flow/v1/ready")
            yield f"http://127.0.0.1:{port}", process
        finally:
            await process.until(process.stop)


async def test_knowledge_flow_tells_nothing_of_what_failed_inside(postgres, mock_llm, tmp_path):
    with new_database(postgres) as database:
        async with knowledge_flow(database, mock_llm, tmp_path) as (url, process):
            await asyncio.to_thread(break_tables, database.dsn)
            ids = dict.fromkeys(("session_id", "document_uid", "uid", "chunk_uid", "tag_id"), "a-1")
            assert_nothing_told(await failures(url, ids), 5)
            assert " DEBUG " in process.output
            assert not any(value in process.output for value in KEYS.values())
