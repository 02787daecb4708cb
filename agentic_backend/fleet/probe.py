"""The instances of a fleet as their table has them, for an examination: read on a connection of its own."""

from contextlib import closing
from dataclasses import dataclass, field

import psycopg

from agentic_backend.fleet.membership import FleetRules
from agentic_backend.spool.connection import connect
from agentic_backend.spool.pooler import PoolerUnusable, require_session
from backend_kit.settings import Postgres

_ROWS = """
SELECT id, url, token, keeps_spool, draining, extract(epoch FROM clock_timestamp() - heartbeat_at)::float8
FROM instance ORDER BY id
"""
_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One instance, and how many seconds ago it last renewed, by the clock of Postgres. `token` opens its relay."""

    id: str
    url: str | None
    token: str = field(repr=False)
    keeps_spool: bool
    draining: bool
    silent_s: float

    @property
    def alive(self) -> bool:
        """Whether the others take it for alive."""
        return self.silent_s < FleetRules().dead_s


def instance_rows(settings: Postgres) -> list[InstanceRow] | None:
    """All known instances; None if Postgres cannot be asked, or has no such table yet. Blocks."""
    try:
        with closing(connect(settings, "doctor")) as connection:
            return [InstanceRow(*row) for row in connection.execute(_ROWS).fetchall()]  # type: ignore[arg-type] # by SQL
    except (psycopg.Error, PoolerUnusable):
        return None


def keeps_sessions(settings: Postgres) -> bool | None:
    """Whether the server or pooler at this address keeps our session; None if it cannot be asked. Blocks."""
    try:
        with closing(connect(settings, "doctor")) as connection, closing(connect(settings, "doctor")) as other:
            require_session(settings, connection, other, answer_s=_PATIENCE_S)
    except PoolerUnusable:
        return False
    except psycopg.Error:
        return None
    return True
