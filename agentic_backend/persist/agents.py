"""Agents that clients made, in Postgres, with their versions."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import text

from agentic_backend.agent.created import KeptAgent
from agentic_backend.agent.versions import MAX_VERSIONS, AgentVersion
from agentic_backend.persist.database import Queries
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import adding, events_parameter
from backend_kit.db.pool import AnyRow
from backend_kit.wire import dumps, loads

# ruff: noqa: S608 - constants

# It includes the transaction of each row's last change, so that no two states have the same revision.
REVISION: Final = text(
    "SELECT coalesce(md5(string_agg(id || ' ' || xmin::text, ',' ORDER BY id)), 'none') AS revision FROM agent"
)
_VERSION: Final = """v.version, v.graph_id, v.name, v.description, v.config_json::text AS config,
    v.context_json::text AS context, v.metadata_json::text AS metadata, v.created_at"""
ALL: Final = text(f"""
SELECT a.id, a.name AS agent_name, a.payload_json::text AS payload, a.created_at AS made_at, a.updated_at,
    (SELECT coalesce(max(n.version), 0) FROM agent_version n WHERE n.agent_id = a.id) AS newest, {_VERSION}
FROM agent a LEFT JOIN agent_version v ON v.agent_id = a.id AND v.version = a.version ORDER BY a.name, a.id
""")
VERSIONS: Final = text(f"SELECT {_VERSION} FROM agent_version v WHERE v.agent_id = :id ORDER BY v.version DESC")
_ADD_VERSIONS: Final = """
    INSERT INTO agent_version
        (agent_id, version, graph_id, name, description, config_json, context_json, metadata_json, created_at)
    SELECT :id, n.version, n.graph_id, n.name, n.description, n.config, n.context, n.metadata,
        coalesce(to_timestamp(n.at), now())
    FROM jsonb_to_recordset(CAST(:versions AS jsonb)) AS n(version integer, graph_id text, name text, description text,
        config jsonb, context jsonb, metadata jsonb, at float8)
"""
# A second run of one of these finds the event of the first.
_DONE: Final = "SELECT CAST(:id AS text) AS id FROM audit_event WHERE id = CAST(:event_id AS uuid)"
CREATE: Final = text(f"""
WITH made AS (
    INSERT INTO agent (id, name, payload_json, version)
    VALUES (:id, :name, CAST(:payload AS jsonb), CAST(:version AS integer))
    ON CONFLICT DO NOTHING RETURNING id
), versions AS ({_ADD_VERSIONS} WHERE EXISTS (SELECT FROM made)
), owned AS (
    INSERT INTO agent_grant (agent_id, relation, kind, subject) SELECT id, 'share', 'user', :owner FROM made
    ON CONFLICT DO NOTHING
), noted AS ({adding("EXISTS (SELECT FROM made)")})
SELECT id FROM made
UNION ALL {_DONE}
""")
UPDATE: Final = text(f"""
WITH changed AS (
    UPDATE agent SET name = :name, payload_json = CAST(:payload AS jsonb), updated_at = clock_timestamp(),
        version = coalesce(CAST(:version AS integer), version)
    WHERE id = :id AND updated_at = :seen_at
        AND NOT EXISTS (SELECT FROM agent other WHERE other.name = :name AND other.id <> :id)
    RETURNING id
), versions AS ({_ADD_VERSIONS} WHERE EXISTS (SELECT FROM changed) ON CONFLICT DO NOTHING
), old AS (
    DELETE FROM agent_version WHERE agent_id = :id AND version <= CAST(:oldest AS integer)
        AND version IS DISTINCT FROM CAST(:version AS integer) AND EXISTS (SELECT FROM changed)
), noted AS ({adding("EXISTS (SELECT FROM changed)")})
SELECT id FROM changed
UNION ALL {_DONE}
""")
DELETE: Final = text(f"""
WITH gone AS (DELETE FROM agent WHERE id = :id RETURNING id),
ungranted AS (DELETE FROM agent_grant WHERE agent_id IN (SELECT id FROM gone)),
noted AS ({adding("EXISTS (SELECT FROM gone)")})
SELECT id FROM gone
""")


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
        return [
            KeptAgent(
                row.id,
                row.agent_name,
                loads(row.payload),
                version=None if row.version is None else _version(row),
                newest=row.newest,
                created_at=row.made_at,
                updated_at=row.updated_at,
            )
            for row in await self._queries.fetch("list_agents", ALL, {})
        ]

    async def versions(self, agent_id: str) -> list[AgentVersion]:
        """See `AgentStore`."""
        return [_version(row) for row in await self._queries.fetch("agent_versions", VERSIONS, {"id": agent_id})]

    async def create(self, agent: KeptAgent, event: AuditEvent) -> bool:
        """See `AgentStore`."""
        versions = [] if agent.version is None else [agent.version]
        parameters = {**_parameters(agent, event, versions), "owner": event.actor}
        return bool(await self._queries.fetch("create_agent", CREATE, parameters))

    async def update(self, agent: KeptAgent, event: AuditEvent, versions: Sequence[AgentVersion] = ()) -> bool:
        """See `AgentStore`."""
        newest = max((one.number for one in versions), default=0)
        parameters = {
            **_parameters(agent, event, versions),
            "seen_at": agent.updated_at,
            "oldest": newest - MAX_VERSIONS,
        }
        return bool(await self._queries.fetch("update_agent", UPDATE, parameters))

    async def delete(self, agent_id: str, event: AuditEvent) -> bool:
        """See `AgentStore`."""
        parameters = {"id": agent_id, "audit": events_parameter(event)}
        return bool(await self._queries.fetch("delete_agent", DELETE, parameters))


def _parameters(agent: KeptAgent, event: AuditEvent, versions: Sequence[AgentVersion]) -> dict[str, object]:
    return {
        "id": agent.id,
        "name": agent.name,
        "payload": dumps(dict(agent.payload)).decode(),
        "audit": events_parameter(event),
        "event_id": event.id,
        "version": None if agent.version is None else agent.version.number,
        "versions": dumps([_json(one) for one in versions]).decode(),
    }


def _json(version: AgentVersion) -> dict[str, object]:
    return {
        "version": version.number,
        "graph_id": version.graph_id,
        "name": version.name,
        "description": version.description,
        "config": version.config,
        "context": version.context,
        "metadata": version.metadata,
        "at": None if version.created_at is None else version.created_at.timestamp(),
    }


def _version(row: AnyRow) -> AgentVersion:
    return AgentVersion(
        row.version,
        row.graph_id,
        row.name,
        row.description,
        loads(row.config),
        loads(row.context),
        loads(row.metadata),
        row.created_at,
    )
