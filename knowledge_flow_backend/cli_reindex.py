"""`knowledge-flow reindex`: rebuilds an index in OpenSearch while its service goes on. Reads the service's settings.

Exit codes: 0 done; 1 it failed, and the index in use is the old one or the new one; 2 there is nothing to rebuild.
"""

import argparse
import asyncio
import sys
from typing import Any, Final

from backend_kit.settings import load_or_exit
from knowledge_flow_backend.settings import KnowledgeFlowSettings

EXIT_FAILED: Final = 1
EXIT_NOT_TRIED: Final = 2
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
        sys.stderr.write("knowledge-flow: storage.vector_store.type is pgvector: there is nothing to rebuild\n")
        return EXIT_NOT_TRIED
    return asyncio.run(reindex(settings))


async def reindex(settings: KnowledgeFlowSettings) -> int:
    """Rebuild; the exit code."""
    # The other commands need none of this, and it takes a second to import.
    from prometheus_client import CollectorRegistry

    from backend_kit.kpi import Kpi
    from knowledge_flow_backend.errors import DocumentsUnavailable, SchemaMismatch
    from knowledge_flow_backend.index.database import Database
    from knowledge_flow_backend.metrics import PHASES, KnowledgeFlowMetrics
    from knowledge_flow_backend.search.opensearch import Cluster
    from knowledge_flow_backend.search.opensearch_reindex import NothingToRebuild, Reindexer

    assert settings.storage.opensearch is not None
    kpi = Kpi(CollectorRegistry(), service="knowledge-flow reindex", phases=PHASES)
    metrics = KnowledgeFlowMetrics(kpi.registry, kpi)
    database = Database(settings.storage.postgres, settings.storage.vector_store.index, metrics)
    cluster = Cluster(settings.storage.opensearch)
    try:
        async with asyncio.timeout(CONTACT_S):
            await database.connect_until_ready()
        await Reindexer(database, cluster, say=_say).run()
    except TimeoutError:
        return _refuse("Postgres does not answer", EXIT_FAILED)
    except NothingToRebuild as error:
        return _refuse(str(error), EXIT_NOT_TRIED)
    except (DocumentsUnavailable, SchemaMismatch) as error:
        return _refuse(str(error), EXIT_FAILED)
    finally:
        await cluster.aclose()
        await database.aclose()
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _refuse(text: str, code: int) -> int:
    sys.stderr.write(f"knowledge-flow: {text}\n")
    return code
