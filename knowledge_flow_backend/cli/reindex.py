"""`knowledge-flow reindex`: rebuilds an index in OpenSearch while its service runs. Reads the service's settings.

Exit codes: 0 done; 1 failed: the old index or the new one is in use; 2 there is nothing to rebuild.
"""

import argparse
import asyncio
from typing import Any, Final

from backend_kit.settings import load_or_exit
from knowledge_flow_backend.cli.client import EXIT_FAILED, EXIT_NOT_TRIED, refuse, say
from knowledge_flow_backend.settings import KnowledgeFlowSettings

CONTACT_S: Final = 30.0


def add_reindex(commands: Any) -> None:
    """Add the command to a parser's commands."""
    reindex = commands.add_parser(
        "reindex", help="rebuild the index in OpenSearch from Postgres; CONFIG_FILE as for the service"
    )
    reindex.set_defaults(run=_reindex)


def _reindex(_options: argparse.Namespace) -> int:
    settings = load_or_exit(KnowledgeFlowSettings)
    if settings.storage.vector_store.type != "opensearch" or settings.storage.opensearch is None:
        return refuse("storage.vector_store.type is pgvector: there is nothing to rebuild")
    return asyncio.run(reindex(settings))


async def reindex(settings: KnowledgeFlowSettings) -> int:
    """Rebuild; the exit code."""
    # The other commands need none of this, and it takes a second to import.
    from prometheus_client import CollectorRegistry

    from backend_kit.kpi import Kpi
    from knowledge_flow_backend.engines.opensearch.cluster import Cluster
    from knowledge_flow_backend.engines.opensearch.reindex import NothingToRebuild, Reindexer
    from knowledge_flow_backend.errors import DocumentsUnavailable, SchemaMismatch
    from knowledge_flow_backend.index.database import IndexDatabase
    from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics

    assert settings.storage.opensearch is not None
    kpi = Kpi(CollectorRegistry(), service="knowledge-flow reindex", phases=PHASES)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    database = IndexDatabase(settings.storage.postgres, settings.storage.vector_store.index, metrics)
    cluster = Cluster(settings.storage.opensearch)
    try:
        async with asyncio.timeout(CONTACT_S):
            await database.connect_until_ready()
        await Reindexer(database, cluster, say=say).rebuild_index()
    except TimeoutError:
        return refuse("Postgres does not answer", EXIT_FAILED)
    except NothingToRebuild as error:
        return refuse(str(error), EXIT_NOT_TRIED)
    except (DocumentsUnavailable, SchemaMismatch) as error:
        return refuse(str(error), EXIT_FAILED)
    finally:
        await cluster.aclose()
        await database.aclose()
    return 0
