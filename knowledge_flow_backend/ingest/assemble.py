"""Builds the ingestion from the settings, for the lifespan of the service."""

from contextlib import AsyncExitStack

from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from knowledge_flow_backend.embed import Embedder
from knowledge_flow_backend.index import IndexWriter
from knowledge_flow_backend.index.database import Database
from knowledge_flow_backend.ingest.pool import ParserPool, PoolRules
from knowledge_flow_backend.ingest.receive import UploadLimits
from knowledge_flow_backend.ingest.router import IngestServices
from knowledge_flow_backend.ingest.service import IngestRules, IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.library.intake import Intake
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics
from knowledge_flow_backend.settings import KnowledgeFlowSettings, Processing

FILES_A_REQUEST = 1000
REQUEST_FILES_MAX = 20
"""A request may be as long as so many of the largest files."""
_MB = 1024 * 1024


async def start_ingest(
    stack: AsyncExitStack,
    settings: KnowledgeFlowSettings,
    *,
    database: Database,
    writer: IndexWriter,
    embedder: Embedder,
    metrics: KnowledgeFlowMetrics,
    kpi: Kpi,
    tasks: TaskRegistry,
) -> IngestServices:
    """The services of `ingest.router.build_router`; `stack` closes what they hold.

    The tasks must end before what `stack` closes here: push the registry's `aclose` after this call. Before that,
    `services.ingest.drain(seconds)` lets running uploads come to their end.
    """
    rules = settings.processing
    staging = Staging()
    await staging.open()
    stack.push_async_callback(staging.aclose)
    pool = ParserPool(PoolRules(rules.workers, rules.worker_memory_mb, rules.worker_timeout_s))
    stack.push_async_callback(pool.aclose)
    intake = Intake(database)
    ingest = IngestService(
        pool=pool,
        staging=staging,
        intake=intake,
        writer=writer,
        embedder=embedder,
        # One more than parse: the next file is read while this one is embedded.
        rules=IngestRules(rules.chunk_size_chars, rules.chunk_overlap_chars, files=rules.workers + 1),
        metrics=metrics,
        kpi=kpi,
        tasks=tasks,
    )
    return IngestServices(ingest, intake, staging, upload_limits(rules))


def upload_limits(rules: Processing) -> UploadLimits:
    """What one request may bring."""
    file_bytes = rules.max_file_mb * _MB
    return UploadLimits(file_bytes, FILES_A_REQUEST, file_bytes * REQUEST_FILES_MAX)
