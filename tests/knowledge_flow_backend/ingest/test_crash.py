"""The program, killed in the middle of a file at one stage after the other, and started again."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import psycopg
import yaml
from aiohttp import web

from tests.knowledge_flow_backend.service import BASE
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.postgres import Database
from tests.support.processes import ForkedModule, ModuleProcess

SEED = 8
TEXT = "\n\n".join(f"Paragraph {number} of a document that is long enough for several chunks." for number in range(90))


@dataclass(slots=True)
class Model:
    """An embedding endpoint that can be held."""

    port: int = 0
    held: asyncio.Event = field(default_factory=asyncio.Event)
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.entered.set()
        await self.held.wait()
        data = [{"index": at, "embedding": [1.0, *map(float, range(7))]} for at in range(len(body["input"]))]
        return web.json_response({"data": data})


@asynccontextmanager
async def model() -> AsyncIterator[Model]:
    made = Model(free_port())
    made.held.set()
    app = web.Application()
    app.router.add_post("/v1/embeddings", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", made.port).start()
    try:
        yield made
    finally:
        made.held.set()
        await runner.cleanup()


@dataclass(slots=True)
class Scene:
    """The program as it runs now, what it talks to, and a way to look at its database."""

    process: ModuleProcess
    url: str
    model: Model
    database: Database
    http: aiohttp.ClientSession

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async with await self.connect() as connection:
            return await (await connection.execute(statement)).fetchall()

    async def connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        where = self.database.settings()
        return await psycopg.AsyncConnection.connect(
            host=where["host"], port=where["port"], user=where["username"], dbname=where["database"],
            password=where.get("password"), options='-c search_path="turnwise",public',
        )  # fmt: skip

    async def post(self, name: str, text: str) -> list[dict[str, Any]]:
        form = aiohttp.FormData()
        form.add_field("files", text.encode(), filename=name)
        async with self.http.post(f"{self.url}/upload-process-documents", data=form) as response:
            return [line async for line in _lines(response)]

    async def until(self, statement: str, wanted: list[tuple[Any, ...]]) -> None:
        """Look until this is so: what another process does to its database tells nobody here."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if await self.rows(statement) == wanted:
                    return
                await asyncio.sleep(0.05)

    async def until_blocked(self) -> None:
        """Until a statement of the program waits for the test's lock."""
        await self.until(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name LIKE 'turnwise-knowledge-%'"
            " AND wait_event_type = 'Lock'",
            [(True,)],
        )


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    try:
        async for line in response.content:
            yield json.loads(line)
    except aiohttp.ClientError:
        return  # the program was killed


Stop = Callable[[Scene, AsyncExitStack], Awaitable[Callable[[], Awaitable[None]]]]
"""Prepares a halt at a stage, undone by the stack; what it gives waits until the file has come there."""


async def in_parse(scene: Scene, stack: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    child = await asyncio.to_thread(_parser_of, scene.process.pid)
    child.suspend()
    return lambda: scene.until("SELECT count(*) FROM documents WHERE stages->'parse'->>'status' = 'running'", [(1,)])


def _parser_of(pid: int) -> psutil.Process:
    return next(child for child in psutil.Process(pid).children() if "ingest.worker" in " ".join(child.cmdline()))


async def in_embed(scene: Scene, stack: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    scene.model.held.clear()
    scene.model.entered.clear()

    async def release() -> None:
        scene.model.held.set()

    stack.push_async_callback(release)

    async def reached() -> None:
        await scene.model.entered.wait()

    return reached


def held_by_lock(table: str) -> Stop:
    async def stop(scene: Scene, stack: AsyncExitStack) -> Callable[[], Awaitable[None]]:
        connection = await stack.enter_async_context(await scene.connect())
        await connection.execute(f"LOCK TABLE {table} IN SHARE MODE")
        return scene.until_blocked

    return stop


STAGES: dict[str, Stop] = {
    "store": held_by_lock("ingest_pieces"),
    "parse": in_parse,
    "embed": in_embed,
    "write": held_by_lock("chunks"),
    "commit": held_by_lock("document_contents"),
    "settle": held_by_lock("kept"),
}


async def test_a_killed_process_leaves_every_document_whole_or_absent(tmp_path: Path, database: Database) -> None:
    stages = list(STAGES)
    random.Random(SEED).shuffle(stages)  # noqa: S311 - an order
    port = free_port()
    async with model() as endpoint, aiohttp.ClientSession() as http:
        environment = _environment(tmp_path, database, port, endpoint)
        for number, stage in enumerate([*stages, ""]):
            with ForkedModule("knowledge_flow_backend", env=environment) as process:
                url = f"http://127.0.0.1:{port}{BASE}"
                await process.until(process.wait_for_http, f"{url}/ready")
                scene = Scene(process, url, endpoint, database, http)
                await scene.until("SELECT count(*) FROM ingest_jobs", [(0,)])
                await _check(scene, stages[:number])
                if stage:
                    await _kill_at(scene, stage)
                await process.until(process.stop)


async def _kill_at(scene: Scene, stage: str) -> None:
    assert (await scene.post(f"before-{stage}.txt", TEXT))[-1]["status"] == "success"
    if stage == "settle":
        # As the job's row goes only with the document's in one statement, its end is held by a trigger's look-up.
        await _hold_settling(scene)
    async with AsyncExitStack() as stack:
        reached = await STAGES[stage](scene, stack)
        upload = asyncio.ensure_future(scene.post(f"{stage}.txt", f"{TEXT} {stage}"))
        await reached()
        os.kill(scene.process.pid, signal.SIGKILL)
        await asyncio.wait([upload])
        assert upload.exception() is None or isinstance(upload.exception(), aiohttp.ClientError)
    if stage == "settle":
        await _end_holding(scene)


async def _check(scene: Scene, stages: list[str]) -> None:
    """Each document that was told of is there once, ready, with all its chunks; the others not at all."""
    whole = {f"before-{stage}.txt" for stage in stages} | {f"{stage}.txt" for stage in stages if stage != "store"}
    rows = await scene.rows(
        """SELECT d.file_name, d.status, d.error, d.version, d.chunk_count,
            (SELECT count(*) FROM chunks c WHERE c.document_uid = d.uid),
            (SELECT count(DISTINCT c.ordinal) FROM chunks c WHERE c.document_uid = d.uid),
            (SELECT count(*) FROM document_contents t WHERE t.document_uid = d.uid)
        FROM documents d"""
    )
    assert {row[0] for row in rows} == whole
    assert len(rows) == len(whole)
    for _, status, error, version, told, chunks, places, contents in rows:
        assert (status, error, version, contents) == ("ready", None, 1, 1)
        assert told == chunks == places > 1
    assert await scene.rows("SELECT count(*) FROM ingest_pieces") == [(0,)]


async def _hold_settling(scene: Scene) -> None:
    async with await scene.connect() as connection:
        await connection.execute("CREATE TABLE kept (uid text)")
        await connection.execute(
            """CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
            $$ BEGIN INSERT INTO kept VALUES (OLD.document_uid); RETURN OLD; END $$"""
        )
        await connection.execute(
            "CREATE TRIGGER keep BEFORE DELETE ON ingest_jobs FOR EACH ROW EXECUTE FUNCTION keep()"
        )


async def _end_holding(scene: Scene) -> None:
    async with await scene.connect() as connection:
        await connection.execute("DROP TRIGGER keep ON ingest_jobs")
        await connection.execute("DROP FUNCTION keep")
        await connection.execute("DROP TABLE kept")


def _environment(directory: Path, database: Database, port: int, endpoint: Model) -> dict[str, str]:
    file = directory / "configuration.yaml"
    settings = {
        "app": {"port": port, "metrics_enabled": False, "kpi_log_summary_interval_sec": 0},
        "security": {"user": {"enabled": False}},
        "embedding_model": {
            "provider": "openai",
            "name": "held",
            "settings": {"base_url": f"http://127.0.0.1:{endpoint.port}/v1"},
        },
        "storage": {"postgres": database.settings(), "vector_store": {"index": "turnwise"}},
        "processing": {"lease_s": 1},
    }
    file.write_text(yaml.safe_dump(settings))
    return {"CONFIG_FILE": str(file), "TMPDIR": str(directory)}
