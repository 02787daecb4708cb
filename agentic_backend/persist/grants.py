"""Who may use, edit and share agents, in Postgres."""

from collections.abc import Iterable
from typing import Final

from sqlalchemy import text

from agentic_backend.agent.policy import AgentGrant, Relation
from agentic_backend.persist.database import Queries
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import events_parameter
from backend_kit.wire import dumps

REVISION: Final = text(
    """SELECT coalesce(md5(string_agg(concat_ws(' ', agent_id, relation, kind, subject, xmin), ','
    ORDER BY agent_id, relation, kind, subject)), 'none') AS revision FROM agent_grant"""
)
ALL: Final = text("SELECT agent_id, relation, kind, subject FROM agent_grant")
# An event for each that comes or goes, made of the one given: a second run finds nothing to change.
REPLACE: Final = text(
    """WITH wanted AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(CAST(:grants AS jsonb)) AS w(relation text, kind text, subject text)
    ), gone AS (
        DELETE FROM agent_grant AS g WHERE agent_id = :agent_id AND NOT EXISTS (SELECT FROM wanted AS w
            WHERE (w.relation, w.kind, w.subject) = (g.relation, g.kind, g.subject))
        RETURNING relation, kind, subject
    ), came AS (
        INSERT INTO agent_grant (agent_id, relation, kind, subject)
        SELECT :agent_id, relation, kind, subject FROM wanted ON CONFLICT DO NOTHING
        RETURNING relation, kind, subject
    ), noted AS (
        INSERT INTO audit_event (id, happened_at, action, kind, object_id, outcome, subject, actor, key_id, request_id,
            instance)
        SELECT gen_random_uuid(), to_timestamp(e.at), c.action, e.kind, e.object_id, e.outcome,
            left(c.relation || ' ' || c.kind || ':' || c.subject, 256), e.actor, e.key_id, e.request_id, e.instance
        FROM (SELECT 'agent_unshared' AS action, * FROM gone UNION ALL SELECT 'agent_shared', * FROM came) AS c,
            jsonb_to_recordset(CAST(:audit AS jsonb)) AS e(at float8, kind text, object_id text, outcome text,
                actor text, key_id text, request_id text, instance text)
    ) SELECT count(*) AS changes FROM (SELECT FROM gone UNION ALL SELECT FROM came) AS both_"""
)


class PostgresGrants:
    """Implements `GrantStore`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def revision(self) -> str:
        """See `GrantStore`."""
        rows = await self._queries.fetch("grants_revision", REVISION, {})
        return str(rows[0].revision)

    async def all(self) -> list[AgentGrant]:
        """See `GrantStore`."""
        rows = await self._queries.fetch("list_grants", ALL, {})
        return [AgentGrant(row.agent_id, Relation(row.relation), row.kind, row.subject) for row in rows]

    async def replace(self, agent_id: str, grants: Iterable[AgentGrant], event: AuditEvent) -> None:
        """See `GrantStore`."""
        wanted = [{"relation": one.relation, "kind": one.kind, "subject": one.subject} for one in grants]
        values = {"agent_id": agent_id, "grants": dumps(wanted).decode(), "audit": events_parameter(event)}
        await self._queries.fetch("replace_grants", REPLACE, values)
