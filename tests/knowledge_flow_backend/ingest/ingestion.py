"""Ingestion and libraries behind their real routes on a real port, with real Postgres and a real index."""

import asyncio
import io
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from backend_kit.aio import GateRules, TaskRegistry
from backend_kit.auth import Identity, Lately
from backend_kit.http import build_server, install_error_handlers, listen
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres
from knowledge_flow_backend.embed import Passages
from knowledge_flow_backend.engines.pgvector.writer import PgVectorWriter
from knowledge_flow_backend.errors import EmbeddingUnavailable
from knowledge_flow_backend.index import IndexWriter, Vector
from knowledge_flow_backend.index.database import IndexDatabase
from knowledge_flow_backend.index.reads import SharedReads
from knowledge_flow_backend.ingest import router as ingest_router
from knowledge_flow_backend.ingest.pool import WORKER, ParserPool, ParserPoolRules
from knowledge_flow_backend.ingest.receive import UploadLimits
from knowledge_flow_backend.ingest.router import IngestServices
from knowledge_flow_backend.ingest.service import IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.ingest.steps import HELD_BYTES, IngestRules, IngestSteps
from knowledge_flow_backend.library import router as library_router
from knowledge_flow_backend.library.intake import Intake
from knowledge_flow_backend.library.router import LibraryServices
from knowledge_flow_backend.library.store import RAW_PIECE_BYTES, Library, Statements
from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
from tests.knowledge_flow_backend.corpus import INDEX
from tests.support import postgres
from tests.support.patience import PATIENCE_S
from tests.support.rest import rest_client

BASE = "/knowledge-flow/v1"
DIMENSION = 64
UPLOADS = GateRules(places=64)
LIMITS = UploadLimits(file_bytes=2_000_000, files=20, request_bytes=8_000_000)


class HashingEmbedder:
    """An embedder that counts words in buckets. `hold` stops it, `fail` makes it fail as often."""

    model = "hashing"

    def __init__(self) -> None:
        self.state = "ready"
        self.texts: list[str] = []
        self.entered = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.fail = 0

    async def embed_query(self, text: str) -> Vector:
        """One vector."""
        return (await self.embed_documents([text]))[0]

    async def embed_documents(self, texts: Sequence[str]) -> list[Vector]:
        """A vector a text."""
        self.entered.set()
        await asyncio.sleep(0)
        await self.hold.wait()
        if self.fail:
            self.fail -= 1
            raise EmbeddingUnavailable("the test says so", retry_after_s=0.01)
        self.texts += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        vector = np.full(DIMENSION, 0.01, dtype=np.float32)
        for word in text.lower().split():
            vector[zlib.crc32(word.encode()) % DIMENSION] += 1
        return vector / np.linalg.norm(vector)


def unheard() -> SharedReads:
    """Reads of which nobody wants to know."""
    return SharedReads(lambda _event: None, Lately(60.0))


@dataclass(slots=True, kw_only=True)
class Ingestion:
    """A running service and a client of it. `user` of a request comes from the header X-User, admin without it."""

    port: int
    http: aiohttp.ClientSession
    database: IndexDatabase
    staging: Staging
    staging_root: Path
    steps: IngestSteps
    service: IngestService
    embedder: HashingEmbedder
    tasks: TaskRegistry
    metrics: KnowledgeFlowMetrics
    registry: CollectorRegistry

    async def upload(
        self, *named: tuple[str, bytes], tags: Sequence[str] = (), user: str = "admin", status: int = 200
    ) -> list[dict[str, Any]]:
        """Upload files; the lines of progress."""
        form = aiohttp.FormData(quote_fields=False)
        for name, data in named:
            form.add_field("files", io.BytesIO(data), filename=name, content_type="application/octet-stream")
        form.add_field("metadata_json", json.dumps({"tags": list(tags), "source_tag": "fred"}))
        async with self.http.post(f"{BASE}/upload-process-documents", data=form, headers={"X-User": user}) as response:
            body = await response.text()
            assert response.status == status, body
            return [json.loads(line) for line in body.splitlines()]

    async def put(self, name: str, data: bytes | str, **options: Any) -> str:
        """Upload one file that must succeed; its document uid."""
        lines = await self.upload((name, data.encode() if isinstance(data, str) else data), **options)
        (end,) = [line for line in lines if line["step"] == "finished"]
        assert end["status"] == "success", end
        return str(end["document_uid"])

    async def call(self, method: str, path: str, *, user: str = "admin", status: int = 200, **options: Any) -> Any:
        """A REST call; its decoded body."""
        headers = {"X-User": user, **options.pop("headers", {})}
        async with self.http.request(method, BASE + path, headers=headers, **options) as response:
            body = await response.read()
            assert response.status == status, body
            return json.loads(body) if body else None

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The answer of a statement on a connection of its own."""
        async with self.database.writes.connection() as connection:
            return [tuple(row) for row in await connection.execute("test", text(statement))]

    async def take_up_all(self) -> None:
        """Ingest what other processes have left, until nothing of it is left."""
        while await self.service.take_up_one():
            pass

    def staged(self) -> list[Path]:
        """What lies in the staging directory."""
        return [path for top in self.staging_root.iterdir() for path in top.iterdir() if path.is_dir()]


async def identify(request: Request) -> Identity:
    """Who calls, by a header that only tests believe."""
    name = request.headers.get("x-user", "admin")
    return Identity(name, name, groups=(f"group-of-{name}",))


def _application(ingest: IngestServices, library: LibraryServices) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    app.router.routes += ingest_router.build_router(lambda: ingest, identify, BASE).routes
    app.router.routes += library_router.build_router(lambda: library, identify, BASE).routes
    return app


@asynccontextmanager
async def running(
    where: postgres.Database,
    directory: Path,
    *,
    command: Sequence[str] = WORKER,
    timeout_s: float = PATIENCE_S,
    wrapped: Callable[[IndexWriter], IndexWriter] = lambda writer: writer,
    raw_piece_bytes: int = RAW_PIECE_BYTES,
    held_bytes: int = HELD_BYTES,
    pool_timeout: float = 600.0,
    admission: GateRules = UPLOADS,
) -> AsyncIterator[Ingestion]:
    """The service on a free port; everything is closed in reverse. `wrapped` puts something around its writer."""
    async with AsyncExitStack() as stack:
        registry = CollectorRegistry()
        kpi = Kpi(registry, service="test", phases=PHASES)
        metrics = KnowledgeFlowMetrics(registry, kpi)
        settings = Postgres.model_validate(where.settings() | {"pool_timeout": pool_timeout})
        database = IndexDatabase(settings, INDEX, metrics)
        stack.push_async_callback(database.aclose)
        await database.connect_until_ready()
        staging = Staging(directory)
        await staging.open()
        stack.push_async_callback(staging.aclose)
        pool = ParserPool(ParserPoolRules(1, 512, timeout_s, base_s=timeout_s), command=command)
        stack.push_async_callback(pool.aclose)
        tasks, embedder = TaskRegistry(), HashingEmbedder()
        stack.push_async_callback(tasks.aclose)
        writer = wrapped(PgVectorWriter(database, model=embedder.model))
        intake = Intake(database, lease_s=60.0)
        steps = IngestSteps(
            pool=pool,
            writer=writer,
            embedder=embedder,
            passages=Passages(embedder, step=64),
            rules=IngestRules(400, 40, files=2),
            metrics=metrics,
            kpi=kpi,
            held_bytes=held_bytes,
        )
        service = IngestService(steps, staging, intake, tasks, admission)
        tasks.spawn("ingest-leases", service.keep_leases)
        ingest = IngestServices(service, intake, staging, LIMITS)
        library = LibraryServices(
            Library(Statements(database), writer, unheard(), piece_bytes=raw_piece_bytes), metrics
        )
        # Routes take long to make on a busy machine: that is not what the detector of blocked loops looks for.
        app = await asyncio.to_thread(_application, ingest, library)
        port = await stack.enter_async_context(_served(app))
        http = await stack.enter_async_context(rest_client(f"http://127.0.0.1:{port}"))
        yield Ingestion(
            port=port,
            http=http,
            database=database,
            staging=staging,
            staging_root=directory,
            steps=steps,
            service=service,
            embedder=embedder,
            tasks=tasks,
            metrics=metrics,
            registry=registry,
        )


@asynccontextmanager
async def _served(app: FastAPI) -> AsyncIterator[int]:
    async def drained() -> None:
        """Nothing to end."""

    sock = listen("127.0.0.1", 0)
    server = build_server(app, drained)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[sock]))
        try:
            yield int(sock.getsockname()[1])
        finally:
            server.stop()
            await serving
