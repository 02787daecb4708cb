"""Postgres as the agentic service needs it: reachable, with room for its pools, and not pooled by transaction."""

from agentic_backend.fleet.probe import instance_rows, keeps_sessions
from agentic_backend.persist.database import BATCH_CONNECTIONS, MIGRATIONS
from agentic_backend.persist.retention import APART_S
from agentic_backend.settings import AgenticSettings
from backend_kit.db.api_keys import KEY_CONNECTIONS
from backend_kit.db.schema import newest_revision
from backend_kit.doctor.checks import Check, Diagnosis, Health, in_thread
from backend_kit.doctor.database import AWAY, POSTGRES, Demand, look_at_postgres

_POOLER = "pooler"
_NAME = "turnwise-agentic-doctor"
_OPEN_MOST = 10_000
_FILES_BESIDE = 200
"""Files, pipes and connections of a process that no setting counts."""


def database_checks(settings: AgenticSettings) -> list[Check]:
    """The checks of Postgres, and of a pooler before it."""
    return [
        Check(POSTGRES, in_thread(lambda: _look(settings)), AWAY),
        Check(_POOLER, in_thread(lambda: _look_for_pooler(settings)), "let it have sessions left: default_pool_size"),
    ]


def most_connections(settings: AgenticSettings) -> int:
    """Connections to `storage.postgres` that one process may have open."""
    postgres, keys = settings.storage.postgres, settings.security.api_keys
    own = postgres.pool_size + postgres.max_overflow + BATCH_CONNECTIONS + settings.ai.graph_connections
    claim, hearing = 1, int(settings.persistence.replicas == "many")
    return own + claim + hearing + (KEY_CONNECTIONS if keys.enabled and keys.postgres is None else 0)


def most_descriptors(settings: AgenticSettings) -> int:
    """Files that one process must be able to open, so that its limits for sockets and turns are what bounds it."""
    limits, bounds = settings.limits, settings.connections
    # By default, connections of clients may take half of the descriptors: connections.max_open.
    clients = limits.max_sockets if bounds.max_open else 2 * min(limits.max_sockets, _OPEN_MOST)
    return max(clients, bounds.max_open + limits.max_turns) + most_connections(settings) + _FILES_BESIDE


def _look(settings: AgenticSettings) -> list[Diagnosis]:
    postgres, processes = settings.storage.postgres, settings.app.workers
    if settings.persistence.replicas == "many":
        rows = instance_rows(postgres) or []
        processes = max(processes, sum(row.alive for row in rows))
    demand = Demand(
        most=processes * most_connections(settings),
        processes=processes,
        revision=newest_revision(MIGRATIONS.scripts),
        apart_s=APART_S,
        harm="beyond a minute no conversation is deleted for its age",
    )
    return look_at_postgres(postgres, _NAME, demand)


def _look_for_pooler(settings: AgenticSettings) -> list[Diagnosis]:
    postgres = settings.storage.postgres
    kept = keeps_sessions(postgres)
    if kept is None:
        return []  # Postgres is away, which the check of Postgres tells
    where = f"{postgres.host}:{postgres.port}"
    if not kept:
        figure = f"{where} pools by transaction or refuses our options"
        remedy = "connect to Postgres directly, or pool_mode = session and ignore_startup_parameters = options"
        return [Diagnosis(_POOLER, Health.WRONG, figure, remedy)]
    return [Diagnosis(_POOLER, Health.OK, f"{where} leaves us our sessions")]
