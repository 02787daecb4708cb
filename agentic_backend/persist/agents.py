"""Agents that were made over REST, in Postgres."""

from typing import Final

from sqlalchemy import TextClause, text

from agentic_backend.agent.created import KeptAgent
from agentic_backend.persist.queries import Queries
from backend_kit.wire import dumps, loads

# The transaction of a row's last change is part of it, so that no two states have the same revision.
REVISION: Final = text(
    "SELECT coalesce(md5(string_agg(id || ' ' || xmin::text, ',' ORDER BY id)), 'none') AS revision FROM agent"
)
ALL: Final = text("SELECT id, name, payload_json::text AS payload FROM agent ORDER BY name, id")
# Run twice it finds its own row, which is no other of the same name.
CREATE: Final = text("""
WITH made AS (
    INSERT INTO agent (id, name, payload_json) VALUES (:id, :name, CAST(:payload AS jsonb))
    ON CONFLICT DO NOTHING RETURNING id
)
SELECT id FROM made UNION ALL SELECT id FROM agent WHERE id = :id
""")
UPDATE: Final = text("""
UPDATE agent SET name = :name, payload_json = CAST(:payload AS jsonb), updated_at = now()
WHERE id = :id AND NOT EXISTS (SELECT FROM agent other WHERE other.name = :name AND other.id <> :id) RETURNING id
""")
DELETE: Final = text("DELETE FROM agent WHERE id = :id RETURNING id")


class PostgresAgents:
    """Implements `AgentStore`."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def revision(self) -> str:
        """Changes with every change of any of them."""
        rows = await self._queries.fetch("agents_revision", REVISION, {})
        return str(rows[0].revision)

    async def all(self) -> list[KeptAgent]:
        """All of them, by name."""
        rows = await self._queries.fetch("list_agents", ALL, {})
        return [KeptAgent(row.id, row.name, loads(row.payload.encode())) for row in rows]

    async def create(self, agent: KeptAgent) -> bool:
        """Keep a new one. False where its name is taken."""
        return await self._write("create_agent", CREATE, agent)

    async def update(self, agent: KeptAgent) -> bool:
        """Replace one. False where it is gone, or another has its name."""
        return await self._write("update_agent", UPDATE, agent)

    async def delete(self, agent_id: str) -> bool:
        """Forget one. False where it is not there."""
        return bool(await self._queries.fetch("delete_agent", DELETE, {"id": agent_id}))

    async def _write(self, op: str, statement: TextClause, agent: KeptAgent) -> bool:
        parameters = {"id": agent.id, "name": agent.name, "payload": dumps(dict(agent.payload)).decode()}
        return bool(await self._queries.fetch(op, statement, parameters))
