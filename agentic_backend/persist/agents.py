"""Agents that were created over REST, in Postgres."""

from typing import Final

from sqlalchemy import TextClause, text

from agentic_backend.agent.created import KeptAgent
from agentic_backend.persist.queries import Queries
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import adding, events_parameter, with_events
from backend_kit.wire import dumps, loads

# It includes the transaction of each row's last change, so that no two states have the same revision.
REVISION: Final = text(
    "SELECT coalesce(md5(string_agg(id || ' ' || xmin::text, ',' ORDER BY id)), 'none') AS revision FROM agent"
)
ALL: Final = text("SELECT id, name, payload_json::text AS payload FROM agent ORDER BY name, id")
# A second run finds the row of the first, which does not count as another of the same name.
CREATE: Final = text(f"""
WITH made AS (
    INSERT INTO agent (id, name, payload_json) VALUES (:id, :name, CAST(:payload AS jsonb))
    ON CONFLICT DO NOTHING RETURNING id
), owned AS (
    INSERT INTO agent_grant (agent_id, relation, kind, subject) SELECT id, 'share', 'user', :owner FROM made
    ON CONFLICT DO NOTHING
), noted AS ({adding("EXISTS (SELECT FROM made)")})
SELECT id FROM made UNION ALL SELECT id FROM agent WHERE id = :id
""")  # noqa: S608 - constants
UPDATE: Final = with_events("""
UPDATE agent SET name = :name, payload_json = CAST(:payload AS jsonb), updated_at = now()
WHERE id = :id AND NOT EXISTS (SELECT FROM agent other WHERE other.name = :name AND other.id <> :id) RETURNING id
""")
DELETE: Final = text(f"""
WITH gone AS (DELETE FROM agent WHERE id = :id RETURNING id),
ungranted AS (DELETE FROM agent_grant WHERE agent_id IN (SELECT id FROM gone)),
noted AS ({adding("EXISTS (SELECT FROM gone)")})
SELECT id FROM gone
""")  # noqa: S608 - constants


class PostgresAgents:
    """Implements `AgentStore`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def revision(self) -> str:
        """See `AgentStore`."""
        rows = await self._queries.fetch("agents_revision", REVISION, {})
        return str(rows[0].revision)

    async def all(self) -> list[KeptAgent]:
        """See `AgentStore`."""
        rows = await self._queries.fetch("list_agents", ALL, {})
        return [KeptAgent(row.id, row.name, loads(row.payload.encode())) for row in rows]

    async def create(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """See `AgentStore`."""
        return await self._write("create_agent", CREATE, agent, event, owner=event.actor)

    async def update(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """See `AgentStore`."""
        return await self._write("update_agent", UPDATE, agent, event)

    async def delete(self, agent_id: str, event: AuditEvent) -> bool:
        """See `AgentStore`."""
        parameters = {"id": agent_id, "audit": events_parameter(event)}
        return bool(await self._queries.fetch("delete_agent", DELETE, parameters))

    async def _write(self, op: str, statement: TextClause, agent: KeptAgent, event: AuditEvent, **more: object) -> bool:
        payload = dumps(dict(agent.payload)).decode()
        parameters = {"id": agent.id, "name": agent.name, "payload": payload, "audit": events_parameter(event), **more}
        return bool(await self._queries.fetch(op, statement, parameters))
